"""Counts of connectors whose hooks an engine calls on several threads."""

from __future__ import annotations

import threading

from halfstep.tier.counts import Counts


class SharedCounts(Counts):
    """As Counts, of hooks that several of an engine's threads are in at once."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()

    def took(self, hook: str, spent_ns: int) -> None:
        """See Counts."""
        with self._lock:
            super().took(hook, spent_ns)

    def add(self, *, held_s_max: float = 0.0, **more: int) -> None:
        """More of each; held_s_max: of another wait."""
        with self._lock:
            self.held_s_max = max(self.held_s_max, held_s_max)
            for name, count in more.items():
                setattr(self, name, getattr(self, name) + count)
