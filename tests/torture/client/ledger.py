"""Whose memory is whose: what a call wrote is right, and nothing is written to what was handed back.

Invariants: a buffer is lent to one call at a time. When the call is over it is filled with a pattern of its own and lies in
`_rested`; whatever lands in it from then on is seen when it is lent again, or at the end. Thread: any.
"""

from __future__ import annotations

import threading
from collections import deque

import numpy as np
import numpy.typing as npt

Buffer = npt.NDArray[np.uint8]

# How many buffers rest before one is lent again: what lands late has time to land.
_RESTED_MIN = 64


class Ledger:
    """The memory of all calls of a process, and what was wrong with it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rested: deque[tuple[Buffer, int]] = deque()
        self._next = 1
        self.faults: list[str] = []
        self.checked = 0

    def lend(self, count: int, block_bytes: int) -> Buffer:
        """Memory for a call: [count, block_bytes], cleared."""
        with self._lock:
            fitting = next((at for at, (b, _) in enumerate(self._rested) if b.shape == (count, block_bytes)), None)
            if fitting is None or len(self._rested) < _RESTED_MIN:
                return np.zeros((count, block_bytes), np.uint8)
            buffer, pattern = self._rested[fitting]
            del self._rested[fitting]
        self._look(buffer, pattern)
        buffer[:] = 0
        return buffer

    def hand_back(self, buffer: Buffer) -> None:
        """The call is over: this memory is its owner's again, who writes to it at once."""
        with self._lock:
            pattern, self._next = self._next % 251 + 1, self._next + 1
        buffer[:] = pattern
        with self._lock:
            self._rested.append((buffer, pattern))

    def verify(self, got: Buffer, wanted: Buffer, what: str) -> None:
        """An item that was answered ok has to have the bytes of its key."""
        if not np.array_equal(got, wanted):
            self.fault(f"wrong bytes: {what}, {int((got != wanted).sum())} of {len(wanted)} differ")

    def fault(self, text: str) -> None:
        """Remember it; the process ends with what was found."""
        with self._lock:
            if len(self.faults) < 20:
                self.faults.append(text)

    def look_at_all(self) -> None:
        """At the end, when nothing is under way any more."""
        with self._lock:
            rested, self._rested = list(self._rested), deque()
        for buffer, pattern in rested:
            self._look(buffer, pattern)

    def _look(self, buffer: Buffer, pattern: int) -> None:
        self.checked += 1
        if (changed := int((buffer != pattern).sum())) > 0:
            self.fault(f"{changed} of {buffer.size} bytes landed in memory that was handed back")
