"""How long an engine's requests wait for the tier, and whether ever longer than they may: by the connector's own clock.

An engine looks once a step. What came between two looks counts as having come at the first of them, so that a busy engine's
step, in which nobody looks, is not put down to the tier. A wait is overdue when a look still finds it under way GRACE_S after
its deadline: a client ends each call by its deadline, and the grace is what a busy machine may take to say so.
Thread: a wait is one thread's at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from halfstep.tier.counts import Counts

# After the deadline of a call, until its end has to be known.
GRACE_S = 0.1


@dataclass(slots=True)
class Wait:
    """For one answer or transfer. until_s: it is overdue from then on. looked_s: the last look that found it under way."""

    began_s: float
    until_s: float
    looked_s: float = 0.0
    overdue: bool = False


class Waits:
    """counts: where the longest wait and the overdue ones go."""

    def __init__(self, counts: Counts, clock: Callable[[], float] = time.monotonic) -> None:
        self._counts, self._clock = counts, clock

    def begin(self, within_ms: float) -> Wait:
        """A call with this deadline begins now."""
        now_s = self._clock()
        return Wait(now_s, now_s + within_ms / 1e3 + GRACE_S)

    def look(self, wait: Wait) -> None:
        """It is under way."""
        wait.looked_s = now_s = self._clock()
        self._held(wait, now_s)

    def end(self, wait: Wait) -> float:
        """It is over. Returns for how many seconds it was seen under way; where nobody has looked before, until now."""
        return (wait.looked_s or self._clock()) - wait.began_s

    def end_now(self, wait: Wait) -> None:
        """It ended as the caller, who has done nothing else, was told so."""
        self.look(wait)

    def _held(self, wait: Wait, now_s: float) -> None:
        self._counts.held_s_max = max(self._counts.held_s_max, now_s - wait.began_s)
        if now_s > wait.until_s and not wait.overdue:
            wait.overdue = True
            self._counts.overdue += 1
