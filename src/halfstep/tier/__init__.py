"""The semantic face: prefixes of tokens instead of keys, a model's KV cache instead of buffers."""

from halfstep.tier.catalogue import kinds_of, layout_of
from halfstep.tier.face import Tier, TierSession
from halfstep.tier.memory import Memory
from halfstep.tier.prefix import Found, Loaded, Pending, Prefix, Stored
from halfstep.tier.shapes import Cell, Grid, Kind, KVLayout

__all__ = [
    "Cell",
    "Found",
    "Grid",
    "KVLayout",
    "Kind",
    "Loaded",
    "Memory",
    "Pending",
    "Prefix",
    "Stored",
    "Tier",
    "TierSession",
    "kinds_of",
    "layout_of",
]
