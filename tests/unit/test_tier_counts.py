"""What is counted of a connector's hooks, by a clock of the test."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Self

import pytest

from halfstep.tier import Counts, SharedCounts, counted


class Hooked:
    """Two hooks, of which one fails."""

    def __init__(self) -> None:
        self.counts = Counts()

    @counted
    def quick(self) -> int:
        """Answers."""
        return 7

    @counted
    def failing(self) -> None:
        """Does not."""
        raise KeyError("a mistake")


def test_hooks_are_counted_timed_and_the_longest_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks: Iterator[int] = iter([0, 1_900_000, 5_000_000, 7_000_001, 8_000_000, 9_000_000])
    monkeypatch.setattr(time, "thread_time_ns", lambda: next(ticks))
    one = Hooked()
    assert one.quick() == 7
    with pytest.raises(KeyError):
        one.failing()
    one.quick()
    counts = one.counts
    assert (counts.calls, counts.call_ns, counts.call_ns_max) == (3, 4_900_001, 2_000_001)
    assert (counts.call_max, counts.calls_long) == ("failing", 1)
    assert "the longest one 2.00 ms (failing), 1 over 2 ms; " in str(counts)


class Slow(int):
    """A number; while it is being added, another thread counts, too."""

    def __new__(cls, number: int, meanwhile: Callable[[], None]) -> Self:
        made = super().__new__(cls, number)
        made._meanwhile = threading.Thread(target=meanwhile)
        return made

    _meanwhile: threading.Thread

    def __radd__(self, other: int) -> int:
        self._meanwhile.start()
        self._meanwhile.join(0.5)  # in vain, where it has to wait for this one's end
        return other + int(self)

    def end(self) -> None:
        """Nobody counts any more."""
        self._meanwhile.join()


def test_what_threads_count_at_once_is_not_lost() -> None:
    counts = SharedCounts()
    loads = Slow(1, lambda: counts.add(loads=1, stores=2, held_s_max=0.5))
    counts.add(loads=loads)
    loads.end()
    assert asdict(counts)["loads"] == 2
    spent_ns = Slow(5, lambda: counts.took("another hook", 3))
    counts.took("a hook", spent_ns)
    spent_ns.end()
    assert (counts.stores, counts.held_s_max) == (2, 0.5)
    assert (counts.calls, counts.call_ns, counts.call_ns_max, counts.call_max) == (2, 8, 5, "a hook")
