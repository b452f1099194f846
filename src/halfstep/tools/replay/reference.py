"""Yardsticks: policies that evict one block at a time, in place, which no log on flash can do.

A request is a prefix chain: a hit is a block of its longest present prefix. Afterwards all of its blocks are touched or
written, whichever they were; a block behind a gap is touched and no hit.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from halfstep.tools.replay.cache import Cache, Tally, mask_of, prefix
from halfstep.tools.replay.reuse import ThreeClassCache
from halfstep.tools.replay.trace import Trace


class OrderedCache:
    """Blocks in an order, of which the first one has to go. What the order is, a subclass says."""

    def __init__(self, trace: Trace, capacity_blocks: int) -> None:
        self._trace = trace
        self._capacity = capacity_blocks
        self._order: OrderedDict[int, None] = OrderedDict()
        self._tally = Tally()

    def request(self, index: int) -> int:
        """See Cache."""
        blocks = self._trace.request(index).tolist()
        hits = prefix(blocks, self._order)
        self._admit(blocks)
        return hits

    def present(self) -> NDArray[np.bool_]:
        """See Cache."""
        return mask_of(self._order, self._trace.unique_blocks)

    def tally(self) -> Tally:
        """See Cache."""
        return self._tally

    def close(self) -> None:
        """See Cache."""

    def _admit(self, blocks: Sequence[int]) -> None:
        raise NotImplementedError

    def _write(self, block: int) -> None:
        self._order[block] = None
        self._tally.blocks_written += 1
        if len(self._order) > self._capacity:
            self._order.popitem(last=False)
            self._evicted("evicted")

    def _evicted(self, reason: str) -> None:
        self._tally.evicted[reason] = self._tally.evicted.get(reason, 0) + 1


class Fifo(OrderedCache):
    """In the order of writing; a touch changes nothing."""

    def _admit(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            if block not in self._order:
                self._write(block)


class Lru(OrderedCache):
    """In the order of touching, each request from the root to the leaf, as if blocks had nothing to do with each other."""

    def _admit(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            if block in self._order:
                self._order.move_to_end(block)
            else:
                self._write(block)


class LeafLru(OrderedCache):
    """What a radix tree does: only blocks without a present child go, the one whose last request is longest ago first.

    With each request touched from the leaf to the root, a child is always older than its parent: then the oldest block of all
    is such a leaf, and no tree is needed. Blocks of the running request stay; what does not fit beside them is not admitted.
    """

    def _admit(self, blocks: Sequence[int]) -> None:
        pinned = set(blocks)
        self._touch(blocks)
        for block in blocks:
            if block in self._order:
                continue
            if len(self._order) >= self._capacity:
                oldest = next(iter(self._order))
                if oldest in pinned:
                    break
                del self._order[oldest]
                self._evicted("evicted")
            self._write(block)
        self._touch(blocks)

    def _touch(self, blocks: Sequence[int]) -> None:
        for block in reversed(blocks):
            if block in self._order:
                self._order.move_to_end(block)


class Min:
    """Belady's optimum, which knows the future: what is needed last goes first, of one request the deepest block.

    It takes what a request wrote only if something else has to go for it: that bypass is what makes it the bound.
    """

    def __init__(self, trace: Trace, capacity_blocks: int) -> None:
        self._trace = trace
        self._capacity = capacity_blocks
        self._never = trace.requests
        self._next = _next_requests(trace)
        self._present: set[int] = set()
        # By the request that needs them next: its blocks that are present, and the numbers of such requests, latest first.
        self._needed: defaultdict[int, list[int]] = defaultdict(list)
        self._latest: list[int] = []
        self._tally = Tally()

    def request(self, index: int) -> int:
        """See Cache."""
        trace = self._trace
        blocks = trace.request(index).tolist()
        nexts = self._next[trace.starts[index] : trace.starts[index + 1]].tolist()
        present = self._present
        hits = prefix(blocks, present)
        self._needed.pop(index, None)
        written = set()
        for block, needed_by in zip(blocks, nexts, strict=True):
            if needed_by == index:
                continue  # named twice by this request: the second time says when it is needed again
            if needed_by == self._never:
                present.discard(block)
                continue
            if block not in present:
                present.add(block)
                written.add(block)
            if needed_by not in self._needed:
                heapq.heappush(self._latest, -needed_by)
            self._needed[needed_by].append(block)
        while len(present) > self._capacity:
            written.discard(self._evict())
        self._tally.blocks_written += len(written)
        return hits

    def _evict(self) -> int:
        while not (blocks := self._needed.get(-self._latest[0])):
            self._needed.pop(-heapq.heappop(self._latest), None)
        # Of the blocks that one request needs, those with the highest numbers are nowhere near its root: a child's is above
        # its parent's.
        victim = max(blocks)
        blocks.remove(victim)
        self._present.discard(victim)
        return victim

    def present(self) -> NDArray[np.bool_]:
        """See Cache."""
        return mask_of(self._present, self._trace.unique_blocks)

    def tally(self) -> Tally:
        """See Cache."""
        return self._tally

    def close(self) -> None:
        """See Cache."""


def _next_requests(trace: Trace) -> NDArray[np.int32]:
    """For each block of each request, the next request that asks for it; the number of requests where none does."""
    owners = np.repeat(np.arange(trace.requests, dtype=np.int32), np.diff(trace.starts))
    order = np.lexsort((owners, trace.blocks))
    again = trace.blocks[order][1:] == trace.blocks[order][:-1]
    nexts = np.full(len(trace.blocks), trace.requests, np.int32)
    nexts[order[:-1][again]] = owners[order[1:][again]]
    return nexts


REFERENCES: dict[str, Callable[[Trace, int], Cache]] = {
    "leaf-lru": LeafLru,
    "lru": Lru,
    "fifo": Fifo,
    "hazard": ThreeClassCache,
    "min": Min,
}
