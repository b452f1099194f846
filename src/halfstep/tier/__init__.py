"""The semantic face: prefixes of tokens instead of keys, a model's KV cache instead of buffers."""

from halfstep.client.options import Coding
from halfstep.client.results import Answer
from halfstep.compress import PartValues
from halfstep.compress.policy import Plane, Policy, policy_of
from halfstep.tier.ahead import EXPECT_S, Expected, TierAhead
from halfstep.tier.catalogue import kinds_of, layout_of
from halfstep.tier.channel import BACKGROUND, HOLD_MS, Layered, Pending
from halfstep.tier.coding import codecs_of, coding_of, element_of, refuse_two_words, values_of
from halfstep.tier.connection import Connection, connect
from halfstep.tier.counts import Counts, counted
from halfstep.tier.face import MEASURED_TOKENS_MIN, Tier, TierSession
from halfstep.tier.lookups import Lookups
from halfstep.tier.memory import Memory
from halfstep.tier.notices import Notices
from halfstep.tier.planning import Planned, Planning
from halfstep.tier.policy import Part, listed_fields
from halfstep.tier.prefix import Found, Loaded, Prefix
from halfstep.tier.shapes import Cell, Grid, Kind, KVLayout
from halfstep.tier.shared_counts import SharedCounts
from halfstep.tier.storing import Stored
from halfstep.tier.values import BATCH_KEYS, Moved, Present, RowMemory, Stride, Values
from halfstep.tier.waits import Wait, Waits

__all__ = [
    "BACKGROUND",
    "BATCH_KEYS",
    "EXPECT_S",
    "HOLD_MS",
    "MEASURED_TOKENS_MIN",
    "Answer",
    "Cell",
    "Coding",
    "Connection",
    "Counts",
    "Expected",
    "Found",
    "Grid",
    "KVLayout",
    "Kind",
    "Layered",
    "Loaded",
    "Lookups",
    "Memory",
    "Moved",
    "Notices",
    "Part",
    "PartValues",
    "Pending",
    "Plane",
    "Planned",
    "Planning",
    "Policy",
    "Prefix",
    "Present",
    "RowMemory",
    "SharedCounts",
    "Stored",
    "Stride",
    "Tier",
    "TierAhead",
    "TierSession",
    "Values",
    "Wait",
    "Waits",
    "codecs_of",
    "coding_of",
    "connect",
    "counted",
    "element_of",
    "kinds_of",
    "layout_of",
    "listed_fields",
    "policy_of",
    "refuse_two_words",
    "values_of",
]
