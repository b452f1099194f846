"""Pages that were found, in the order in which an engine will read them: which of them wait behind others.

An engine asks what is there for many requests before it reads the pages of the first. The next ones in the line are read at
once; what is found behind them has time to be brought into the daemon's memory.
Invariants: nothing here waits for a daemon. A page that nobody reads leaves the line after `keep_s`.
Thread: any may call anything.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager


class FoundPages:
    """keep_s: how long a page that was found is waited for."""

    def __init__(self, keep_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._keep_s, self._clock = keep_s, clock
        self._lock = threading.Lock()
        # Until when each is waited for: the oldest first.
        self._line: dict[bytes, float] = {}
        self._reads = 0

    def found(self, keys: Sequence[bytes]) -> list[bytes]:
        """These are there. Returns those that wait behind others; none where they are the next to be read."""
        now_s = self._clock()
        with self._lock:
            while self._line:
                oldest = next(iter(self._line))
                if self._line[oldest] > now_s:
                    break
                del self._line[oldest]
            new = [key for key in keys if key not in self._line]
            behind = bool(self._line) or self._reads > 0
            self._line.update(dict.fromkeys(new, now_s + self._keep_s))
            return new if behind else []

    @contextmanager
    def reading(self, keys: Sequence[bytes]) -> Iterator[None]:
        """While these are read."""
        with self._lock:
            self._reads += 1
            for key in keys:
                self._line.pop(key, None)
        try:
            yield
        finally:
            with self._lock:
                self._reads -= 1
