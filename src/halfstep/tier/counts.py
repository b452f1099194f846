"""What a connector did, and the CPU time that its hooks took of an engine's threads."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Concatenate, ParamSpec, Protocol, TypeVar

# A hook that takes more of an engine's thread is one too long.
LONG_NS = 2_000_000


@dataclass(slots=True)
class Counts:
    """What a connector did, for whoever asks it.

    call_ns: CPU time of the engine's threads in hooks; call_ns_max: in one; call_max: its name; calls_long: how many took over
    LONG_NS. held_s_max: the longest that a request was seen to wait for an answer or a load; overdue: such waits that went on
    after their deadline (waits.py).
    """

    matches: int = 0
    keys_asked: int = 0
    keys_hit: int = 0
    loads: int = 0
    loads_failed: int = 0
    stores: int = 0
    stores_failed: int = 0
    calls: int = 0
    call_ns: int = 0
    call_ns_max: int = 0
    call_max: str = ""
    calls_long: int = 0
    held_s_max: float = 0.0
    overdue: int = 0

    def took(self, hook: str, spent_ns: int) -> None:
        """A hook of this name has ended, after so much CPU time."""
        self.calls += 1
        self.call_ns += spent_ns
        self.calls_long += spent_ns > LONG_NS
        if spent_ns > self.call_ns_max:
            self.call_ns_max, self.call_max = spent_ns, hook

    def __str__(self) -> str:
        """One line, for a log."""
        return (
            f"{self.calls} hooks took {self.call_ns / 1e6:.1f} ms of CPU time, the longest one "
            f"{self.call_ns_max / 1e6:.2f} ms ({self.call_max or 'none'}), {self.calls_long} over {LONG_NS / 1e6:g} ms; "
            f"{self.matches} matches of {self.keys_asked} keys, {self.keys_hit} there; "
            f"{self.loads} blocks loaded, {self.loads_failed} not; {self.stores} stored, {self.stores_failed} not; the longest "
            f"wait {self.held_s_max:.3f} s, {self.overdue} overdue"
        )


class Counting(Protocol):
    """What has hooks that are counted."""

    @property
    def counts(self) -> Counts:
        """Where they go."""
        ...


S = TypeVar("S", bound=Counting)
P = ParamSpec("P")
R = TypeVar("R")


def counted(hook: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """A hook on a thread of an engine's: its CPU time goes to the `counts` of what it belongs to."""
    name = getattr(hook, "__name__", "a hook")

    def call(self: S, /, *arguments: P.args, **named: P.kwargs) -> R:
        began = time.thread_time_ns()
        try:
            return hook(self, *arguments, **named)
        finally:
            self.counts.took(name, time.thread_time_ns() - began)

    functools.update_wrapper(call, hook)
    return call
