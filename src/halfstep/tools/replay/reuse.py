"""The three-class model of reuse: how soon, if at all, a block comes back that was touched once, twice, or more often.

For each class it learns how many blocks came back at which age, and how many were given up at which age without. From these it
knows what a block in memory is worth: the reuses that it may expect for each moment that it is kept on, until the age that is
best for it. One least-recently-used list a class; of the three oldest blocks the one with the lowest worth has to go.
"""

from __future__ import annotations

import math
from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from halfstep.tools.replay.cache import Tally, mask_of, prefix
from halfstep.tools.replay.trace import Trace

CLASSES = 3

# Ages are counted in requested blocks, in buckets that grow by 2^(1/3); the last one is open.
_BUCKETS_PER_DOUBLING = 3
_BUCKETS = 24 * _BUCKETS_PER_DOUBLING
# What is believed before anything was seen: about every age alike, and more of what was touched more often.
_PRIOR = 0.02
# Old observations count for less: so much is left of them after each renewal, and one comes every so many requests.
_FADE = 0.97
_RENEW_EVERY_REQUESTS = 256
# Evicted blocks that are remembered, against the capacity, so that late reuses are learned, too.
_GHOST_SHARE = 4.0


class ReuseModel:
    """Counts what becomes of blocks, and says what one is worth."""

    def __init__(self) -> None:
        edges = 2.0 ** (np.arange(_BUCKETS + 1) / _BUCKETS_PER_DOUBLING)
        self._widths = np.diff(edges)
        self._reused = np.outer(_PRIOR * np.arange(1, CLASSES + 1), np.ones(_BUCKETS))
        self._forgotten = np.full((CLASSES, _BUCKETS), _PRIOR)
        self._worth = self._learned()

    def reused(self, touch_class: int, age: int) -> None:
        """A block came back at this age."""
        self._reused[touch_class, _bucket(age)] += 1

    def forgotten(self, touch_class: int, age: int) -> None:
        """A block did not come back, as far as memory reached."""
        self._forgotten[touch_class, _bucket(age)] += 1

    def worth(self, touch_class: int, age: int) -> float:
        """Reuses to be expected for each moment it is kept on. As of the last renewal."""
        return self._worth[touch_class][_bucket(age)]

    def renew(self) -> None:
        """Learns from what was counted, and lets it fade."""
        self._worth = self._learned()
        self._reused *= _FADE
        self._forgotten *= _FADE

    def _learned(self) -> list[list[float]]:
        seen = self._reused + self._forgotten
        # Blocks that grew so old, times how long the bucket is: the time that keeping all of them costs.
        grew_so_old = np.cumsum(seen[:, ::-1], axis=1)[:, ::-1]
        start = np.zeros((CLASSES, 1))
        reuses = np.hstack([start, np.cumsum(self._reused, axis=1)])
        costs = np.hstack([start, np.cumsum(grew_so_old * self._widths, axis=1)])
        return [_best_rates(reuses[c], costs[c]).tolist() for c in range(CLASSES)]


def _best_rates(reuses: NDArray[np.float64], costs: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each bucket, the highest rate of reuses to cost from its start to the end of any bucket from it on."""
    gained = reuses[None, 1:] - reuses[:-1, None]
    cost = np.maximum(costs[None, 1:] - costs[:-1, None], 1e-12)
    ahead = np.triu(np.ones((_BUCKETS, _BUCKETS), np.bool_))
    best: NDArray[np.float64] = np.where(ahead, gained / cost, -np.inf).max(axis=1)
    return best


def _bucket(age: int) -> int:
    return min(_BUCKETS - 1, int(_BUCKETS_PER_DOUBLING * math.log2(age + 1)))


class ThreeClassCache:
    """Evicts by the model. Touches each request from the leaf to the root."""

    def __init__(self, trace: Trace, capacity_blocks: int) -> None:
        self._trace = trace
        self._capacity = capacity_blocks
        self._model = ReuseModel()
        self._present: set[int] = set()
        self._by_class: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(CLASSES)]
        self._ghosts: OrderedDict[int, None] = OrderedDict()
        self._ghosts_max = int(capacity_blocks * _GHOST_SHARE)
        self._class = bytearray(trace.unique_blocks)
        self._touched = [0] * trace.unique_blocks
        self._now = 0  # in requested blocks
        self._tally = Tally()

    def request(self, index: int) -> int:
        """See Cache."""
        blocks = self._trace.request(index).tolist()
        hits = prefix(blocks, self._present)
        self._now += len(blocks)
        for block in reversed(blocks):
            self._touch(block)
        if (index + 1) % _RENEW_EVERY_REQUESTS == 0:
            self._model.renew()
        return hits

    def _touch(self, block: int) -> None:
        there = block in self._present
        touch_class = 0
        if there or block in self._ghosts:
            before = self._class[block]
            self._model.reused(before, self._now - self._touched[block])
            del (self._by_class[before] if there else self._ghosts)[block]
            touch_class = min(before + 1, CLASSES - 1)
        if not there:
            while len(self._present) >= self._capacity:
                self._evict()
            self._present.add(block)
            self._tally.blocks_written += 1
        self._class[block] = touch_class
        self._touched[block] = self._now
        self._by_class[touch_class][block] = None

    def _evict(self) -> None:
        oldest = [next(iter(order)) for order in self._by_class if order]
        victim = min(oldest, key=lambda block: self._model.worth(self._class[block], self._now - self._touched[block]))
        del self._by_class[self._class[victim]][victim]
        self._present.remove(victim)
        self._tally.evicted["evicted"] = self._tally.evicted.get("evicted", 0) + 1
        self._ghosts[victim] = None
        if len(self._ghosts) > self._ghosts_max:
            ghost, _ = self._ghosts.popitem(last=False)
            self._model.forgotten(self._class[ghost], self._now - self._touched[ghost])

    def present(self) -> NDArray[np.bool_]:
        """See Cache."""
        return mask_of(self._present, self._trace.unique_blocks)

    def tally(self) -> Tally:
        """See Cache."""
        return self._tally

    def close(self) -> None:
        """See Cache."""
