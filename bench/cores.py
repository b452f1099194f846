"""Whether the two cores of a comparison are where they were: near each other, that is under one cache.

The host of a virtual machine moves its cores about. On one (docs/lab/virtual-core-distance.md) a line of the cache takes 55 ns
there and back between them, or 300 when they are apart, for seconds at a time, and then loopback moves a third to a half of the
bytes: ratios of two runs, one of each kind, say nothing. So what is timed is timed again when the cores were apart right before
it or right after it; in between nobody looks. What it came to plays no part in that, and the output says how often it happened.
Near is what takes less than twice the shortest time that was seen so far: where cores are always apart, or always near, every
run counts. Without two cores there is nothing to look at.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from script import built, said_by

from halfstep.tools.bench.place import cores

DISTANCE_PROGRAM = "halfstep_distance_bench"

T = TypeVar("T")

NEAR = 2.0
# So often is the same timed at most, and so long is waited before each time: a host that keeps cores apart for longer is the
# machine that there is.
TRIES = 5
PATIENCE_S = 20.0
PAUSE_S = 0.1
# Looks before the first run, so that the shortest time is likely to be among them.
FIRST_LOOKS = 10


class Cores:
    """Of one script. programs: the folder of halfstep_distance_bench; without two cores it need not be there."""

    def __init__(self, programs: Path, core: int | None, other_core: int | None) -> None:
        self._cores = None if core is None or other_core is None or core == other_core else (core, other_core)
        self._program = programs / DISTANCE_PROGRAM if self._cores is None else built(programs, DISTANCE_PROGRAM)
        self._shortest_ns = float("inf")
        self._patient = True
        # Of each run that counts, the longer of the looks before and after it.
        self._counted_ns: list[float] = []
        self.again = 0
        if self._cores is not None:
            for _ in range(FIRST_LOOKS):
                self.look_ns()
                time.sleep(PAUSE_S)

    @classmethod
    def of_pinned(cls, programs: Path) -> Cores:
        """Those that a daemon of a benchmark and its client have."""
        clients, daemon = cores(pin=True)
        return cls(programs, daemon, clients[0] if clients else None)

    def look_ns(self) -> float:
        """There and back, at the median."""
        assert self._cores is not None, "there are two"
        said = said_by(self._program, {"core": self._cores[0], "other-core": self._cores[1]})
        taken_ns = float(said["there_and_back_ns"]["median"])
        self._shortest_ns = min(self._shortest_ns, taken_ns)
        return taken_ns

    def near(self, taken_ns: float) -> bool:
        """By what is known until now."""
        return taken_ns < NEAR * self._shortest_ns

    def steadily(self, work: Callable[[], T]) -> T:
        """What `work` returns of a time when the cores were near before and after it; of the last, if they never were."""
        if self._cores is None:
            return work()
        for number in range(TRIES):
            before_ns = self._wait_near()
            done = work()
            longest_ns = max(before_ns, self.look_ns())
            if self.near(longest_ns):
                self._patient = True
                break
            self.again += number + 1 < TRIES
        else:
            self._patient = False  # it is how this machine is, until it is seen to be otherwise
        self._counted_ns.append(longest_ns)
        return done

    def _wait_near(self) -> float:
        until = time.monotonic() + (PATIENCE_S if self._patient else 0.0)
        while not self.near(taken_ns := self.look_ns()) and time.monotonic() < until:
            time.sleep(PAUSE_S)
        return taken_ns

    @property
    def apart(self) -> int:
        """Runs that count though the cores were apart, by the shortest time of all."""
        return sum(not self.near(taken_ns) for taken_ns in self._counted_ns)

    def as_json(self) -> dict[str, Any] | None:
        """Since the start of the script, for programs; None without two cores."""
        if self._cores is None:
            return None
        return {
            "shortest_ns": self._shortest_ns,
            "timed": len(self._counted_ns),
            "again": self.again,
            "apart": self.apart,
        }

    def text(self) -> str:
        """For people."""
        if self._cores is None:
            return "no two cores of which one could be moved away from the other"
        return (
            f"the two cores are {self._shortest_ns:.0f} ns from each other, there and back; "
            f"{len(self._counted_ns)} timed runs, {self.again} made again because the host had them apart, "
            f"{self.apart} counted all the same"
        )
