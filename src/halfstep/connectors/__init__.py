"""Adapters between engines and the tier: one module per engine, each importing its engine and nothing of another's."""
