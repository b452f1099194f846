"""What a caller may say of a batch: the keyword arguments of each operation, the same through every face."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import numpy as np
import numpy.typing as npt

from halfstep.client.ahead import Kind
from halfstep.keys import Algorithm
from halfstep.layout import Layout

if TYPE_CHECKING:
    from halfstep.tier.notices import Notices

Mode = Literal["on", "off", "shadow"]
# How much of what is there an engine loads: what ends first, or all.
PlanMode = Literal["auto", "always"]
Coding = Literal["always", "auto", "never"]
Keys = Sequence[Any] | npt.NDArray[np.uint8]
Parts = Sequence[range | tuple[int, int, int] | int]


class CommonOptions(TypedDict, total=False):
    """What every batch may say. components: cells of one group and variant, from first_component on."""

    layout: Layout | None
    first_component: int
    components: int
    deadline_ms: float | None


class MatchOptions(CommonOptions, total=False):
    """lengths: ask for block bytes, too. hold_ms, owner: keep what is found. stop_at_miss: the prefix is enough.

    wait: until all keys have been there, or the deadline.
    """

    lengths: bool
    hold_ms: int
    owner: int
    stop_at_miss: bool
    wait: bool


class GetOptions(CommonOptions, total=False):
    """parts: ranges of parts, in the order in which they land. priority: 0 = demand, larger = less urgent.

    wait: for what is not there, until somebody stores it, or the deadline.
    """

    parts: Parts | None
    order: Literal["key", "layer"]
    stop_at_miss: bool
    priority: int
    progress: bool | None
    wait: bool
    stream: object


class PutOptions(CommonOptions, total=False):
    """parents: per key, the ordinal of its parent among the keys, -1 = root, -2 = unknown. depths: per key, blocks above it."""

    block_bytes: int | Sequence[int] | npt.NDArray[np.integer[Any]] | None
    ttl_s: int
    parents: Sequence[int] | npt.NDArray[np.integer[Any]] | None
    depths: Sequence[int] | npt.NDArray[np.integer[Any]] | None
    hint: int
    durability: Literal["cache", "persist"]
    priority: int
    stream: object


class HoldOptions(CommonOptions, total=False):
    """seconds: how long from now; None = without end, which only a persistent hold can be. persistent: survives a restart."""

    seconds: float | None
    persistent: bool


class PrefetchOptions(CommonOptions, total=False):
    """seconds: how long a block is kept for its first get. follow: what finds no room waits for earlier keys to be got.

    kind: what for; the daemon counts bytes by it.
    """

    seconds: float
    follow: bool
    priority: int
    kind: Kind | None


class MatchSectionsOptions(TypedDict, total=False):
    """As of a match."""

    lengths: bool
    hold_ms: int
    owner: int
    wait: bool
    deadline_ms: float | None


class GetSectionsOptions(TypedDict, total=False):
    """As of a get."""

    order: Literal["key", "layer"]
    priority: int
    progress: bool | None
    wait: bool
    stream: object
    deadline_ms: float | None


class PutSectionsOptions(TypedDict, total=False):
    """As of a put."""

    durability: Literal["cache", "persist"]
    priority: int
    stream: object
    deadline_ms: float | None


class ValuesOptions(TypedDict, total=False):
    """Of opaque values, and of a tier: see halfstep.tier.channel.Channel."""

    ttl_s: int
    durability: Literal["cache", "persist"]
    priority: int
    notices: Notices | None
    ahead_bytes: int


class TierOptions(ValuesOptions, total=False):
    """Of a tier: see halfstep.tier.Tier."""

    salt: bytes
    algorithm: Algorithm
    plan: PlanMode
    follow_default: bool


class NamespaceLimits(TypedDict, total=False):
    """Of a new namespace: see halfstep.client.admin.Admin.create_namespace."""

    pin_budget_bytes: int
    default_ttl_s: int
    sliding_ttl: bool
    policy: str | None
    floor: str | None


class NamespaceChanges(TypedDict, total=False):
    """Of one that exists; None = as it is."""

    pin_budget_bytes: int | None
    default_ttl_s: int | None
    sliding_ttl: bool | None
    policy: str | None
    floor: str | None
