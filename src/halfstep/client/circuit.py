"""Whether a tier is worth asking: opens after a failure, lets a probe through now and then, closes when one comes back.

Invariants: one probe at a time, and the pause between two is doubled up to PAUSE_S_MAX while they fail. A probe whose end
nobody tells holds up the next one no longer than its pause.
Thread: one at a time; a FetchPlanner holds its lock.
"""

from __future__ import annotations

# Between a failure and the first probe, and between probes at most.
PAUSE_S_MIN, PAUSE_S_MAX = 0.25, 8.0


class Circuit:
    """Closed at first. Times are those of the caller's clock, in seconds."""

    def __init__(self) -> None:
        self.is_open = False
        self.opened = 0  # how often
        self.failed_probes = 0  # since it opened
        self._pause_s = PAUSE_S_MIN
        self._probe_at_s = 0.0

    def fail(self, now_s: float, *, is_probe: bool) -> None:
        """The tier did not do what it was asked for. Others than probes that end while it is open were begun before."""
        if not self.is_open:
            self.is_open = True
            self.opened += 1
            self.failed_probes = 0
            self._pause_s = PAUSE_S_MIN
        elif is_probe:
            self.failed_probes += 1
            self._pause_s = min(PAUSE_S_MAX, 2 * self._pause_s)
        else:
            return
        self._probe_at_s = now_s + self._pause_s

    def succeed(self) -> None:
        """It did."""
        self.is_open = False

    def is_due(self, now_s: float) -> bool:
        """Whether the next request may be a probe."""
        return now_s >= self._probe_at_s

    def probe(self, now_s: float) -> None:
        """One goes out."""
        self._probe_at_s = now_s + self._pause_s
