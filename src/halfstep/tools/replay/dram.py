"""The policy of the store's memory as a cache of its own, without flash behind it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from halfstep import _store
from halfstep.tools.replay.cache import Tally
from halfstep.tools.replay.trace import Trace

DRAM_POLICY = "dram"


class DramCache:
    """Single blocks give way, by what the store has learned of reuse. Each request is touched from the leaf to the root."""

    def __init__(self, trace: Trace, capacity_blocks: int) -> None:
        self._trace = trace
        self._hot = _store.HotBlocks(capacity_blocks=capacity_blocks, unique_blocks=trace.unique_blocks)

    def request(self, index: int) -> int:
        """See Cache."""
        return self._hot.request(self._trace.request(index))

    def present(self) -> NDArray[np.bool_]:
        """See Cache."""
        return np.frombuffer(self._hot.present(), np.bool_)

    def tally(self) -> Tally:
        """See Cache."""
        return Tally(blocks_written=self._hot.inserted, evicted={"evicted": self._hot.evicted})

    def close(self) -> None:
        """See Cache."""
