"""The daemon's life: configuration, start, what it says of itself, metrics, a clean end.

The work per block happens in `halfstep._shard`; nothing here runs more often than once per scrape or signal.
"""
