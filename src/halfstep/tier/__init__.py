"""The semantic face: prefixes of tokens instead of keys, a model's KV cache instead of buffers."""

from halfstep.tier.shapes import Cell, Grid, Kind, KVLayout

__all__ = ["Cell", "Grid", "KVLayout", "Kind"]
