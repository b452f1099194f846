"""Replays a trace under every policy at every capacity, one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product

import numpy as np
from numpy.typing import NDArray

from halfstep import _store
from halfstep.daemon.refusals import error_of
from halfstep.errors import ConfigError
from halfstep.tools.replay.cache import Cache, Tally
from halfstep.tools.replay.dram import DRAM_POLICY, DramCache
from halfstep.tools.replay.flash import DEVICE_BYTES, STORE_POLICIES, FlashCache
from halfstep.tools.replay.hints import Hints
from halfstep.tools.replay.plan import Capacity, Plan
from halfstep.tools.replay.reference import REFERENCES
from halfstep.tools.replay.stored import StoredBlock
from halfstep.tools.replay.trace import Trace

# How often orphans are counted during a run. The first quarter, when the cache fills, does not count.
_ORPHAN_COUNTS = 24
# How often the bar is told.
_TELL_EVERY_REQUESTS = 64


@dataclass(frozen=True)
class Result:
    """One policy at one capacity, with plain or with coded blocks.

    capacity_blocks_asked: plain ones. capacity_blocks: what it had room for, of `block`; a store's segments do not hold exactly
    what was asked, and never more. orphan_share:
    of the present blocks, those that no request can use because an ancestor is missing.
    """

    policy: str
    capacity: Capacity
    block: StoredBlock
    capacity_blocks_asked: int
    capacity_blocks: int
    requests: int
    blocks_requested: int
    blocks_hit: int
    orphan_share: float
    seconds: float
    tally: Tally = field(default_factory=Tally)

    @property
    def is_store(self) -> bool:
        """Of the real store, not a yardstick."""
        return bool(self.tally.sizing)

    @property
    def hit_ratio(self) -> float:
        """Blocks in the longest present prefix of each request, of the blocks requested."""
        return self.blocks_hit / self.blocks_requested

    @property
    def hit_ratio_dram(self) -> float:
        """Of the blocks requested, the hits that came from the memory before flash."""
        return self.tally.blocks_hit_dram / self.blocks_requested

    @property
    def hit_ratio_flash(self) -> float:
        """The other hits."""
        return self.hit_ratio - self.hit_ratio_dram


def run(plan: Plan, trace: Trace, tell: Callable[[int], None] = lambda _requests: None) -> Iterator[Result]:
    """One result after the other. `tell` hears of requests that are done.

    Errors: ConfigError (a capacity that a store cannot have), DeviceError (the file's disk).
    """
    for capacity, block in product(plan.capacities, plan.stored):
        _check_capacity(plan, trace, capacity, block)
    for policy, capacity, block in product(plan.policies, plan.capacities, plan.stored):
        asked = capacity.blocks(trace.unique_blocks, plan.block_bytes)
        cache = _cache(plan, trace, policy, block.room(asked), block)
        try:
            yield _replayed(trace, policy, capacity, block, asked, cache, tell)
        finally:
            cache.close()


def _check_capacity(plan: Plan, trace: Trace, capacity: Capacity, block: StoredBlock) -> None:
    """Before anything is replayed: an hour later it would be a pity."""
    asked = capacity.blocks(trace.unique_blocks, plan.block_bytes)
    stores = [policy for policy in plan.policies if policy in STORE_POLICIES]
    if stores and asked < _store.CAPACITY_BLOCKS_MIN:
        raise ConfigError(
            f"capacity={capacity.text}: {asked} of the trace's {trace.unique_blocks} blocks; a store needs room for at least "
            f"{_store.CAPACITY_BLOCKS_MIN}: give more, a longer trace, or yardsticks alone"
        )
    if stores:
        try:
            _store.size(
                capacity_blocks=block.room(asked),
                segments=plan.segments,
                device_bytes=DEVICE_BYTES,
                dram_blocks=block.room(plan.dram_bytes // plan.block_bytes),
            )
        except _store.StoreError as error:
            raise error_of(error) from None


def _cache(plan: Plan, trace: Trace, policy: str, capacity_blocks: int, block: StoredBlock) -> Cache:
    if policy == DRAM_POLICY:
        return DramCache(trace, capacity_blocks)
    if policy not in STORE_POLICIES:
        return REFERENCES[policy](trace, capacity_blocks)
    if plan.store is not None and plan.store.exists():
        raise ConfigError(f"store={plan.store}: exists; a replay makes a file of its own and removes it: name a new one")
    return FlashCache(
        trace,
        capacity_blocks,
        policy=policy,
        rewrite_share=plan.rewrite_share,
        segments=plan.segments,
        dram_blocks=block.room(plan.dram_bytes // plan.block_bytes),
        path=str(plan.store) if plan.store else "",
        tell_parents=plan.tell_parents,
        speed=plan.speed if plan.real_clock else 0.0,
        seed=plan.seed,
        hints=Hints(trace) if plan.hints else None,
    )


def _replayed(
    trace: Trace,
    policy: str,
    capacity: Capacity,
    block: StoredBlock,
    asked: int,
    cache: Cache,
    tell: Callable[[int], None],
) -> Result:
    started_s = time.monotonic()
    count_every = max(1, trace.requests // _ORPHAN_COUNTS)
    shares = []
    hits = 0
    for index in range(trace.requests):
        hits += cache.request(index)
        if index % count_every == 0:
            shares.append(orphan_share(trace, cache.present()))
        if (index + 1) % _TELL_EVERY_REQUESTS == 0:
            tell(_TELL_EVERY_REQUESTS)
    tell(trace.requests % _TELL_EVERY_REQUESTS)
    tally = cache.tally()
    return Result(
        policy=policy,
        capacity=capacity,
        block=block,
        capacity_blocks_asked=asked,
        capacity_blocks=tally.sizing.get("capacity_blocks", block.room(asked)),
        requests=trace.requests,
        blocks_requested=len(trace.blocks),
        blocks_hit=hits,
        orphan_share=float(np.mean(shares[len(shares) // 4 :])),
        seconds=time.monotonic() - started_s,
        tally=tally,
    )


def orphan_share(trace: Trace, present: NDArray[np.bool_]) -> float:
    """Of the blocks that are present, those with an ancestor that is not."""
    blocks = np.flatnonzero(present).tolist()
    if not blocks:
        return 0.0
    parents = trace.parents.tolist()
    reachable = bytearray(trace.unique_blocks)
    orphans = 0
    for block in blocks:  # a parent before its children
        parent = parents[block]
        if parent < 0 or reachable[parent]:
            reachable[block] = 1
        else:
            orphans += 1
    return orphans / len(blocks)
