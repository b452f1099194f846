"""Periodic checks of a running server: the end of its recovery, its health, its file.

A thread of its own, because a shard whose device is stuck does not answer, and the main thread has to hear signals meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from halfstep.daemon.health import Health
from halfstep.daemon.log import Log
from halfstep.daemon.report import recovered
from halfstep.daemon.served_file import ServedFile

SAMPLE_S, RECOVERING_SAMPLE_S = 5.0, 0.5
# A question of numbers takes a turn of each shard. Whoever has not answered by then is stuck in a system call.
STUCK_S = 30.0


class Watched(Protocol):
    """What is asked of a `_shard.Server`."""

    def metrics(self) -> Mapping[str, Any]:
        """Its numbers; waits for every shard's turn."""
        ...

    def why_device_refused(self) -> str:
        """Of a device that went and is back."""
        ...


class Watch:
    """Tells `notes` what it sees, and once `when_recovered` that all is read; between begin() and end().

    recovering: whether there is something left to read.
    """

    def __init__(
        self, server: Watched, file: ServedFile, notes: Log, *, recovering: bool, when_recovered: Callable[[str], None]
    ) -> None:
        self._server = server
        self._file = file
        self._notes = notes
        self._recovering = recovering
        self._when_recovered = when_recovered
        self._health: Health | None = None
        self._gone = ""
        self._refused = ""
        self._asked_s: float | None = None  # since when an answer is awaited
        self._told_stuck = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="halfstep-watch", daemon=True)

    def begin(self) -> None:
        """A process that has no thread left serves all the same, unwatched, and says so."""
        try:
            self._thread.start()
        except RuntimeError as error:
            self._notes.say(f"note       {error}: outages and lost blocks are not told of; raise ulimit -u or TasksMax=")

    def end(self) -> None:
        """Nothing is said any more. One that waits for a stuck shard is left behind."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(1.0)

    def look(self) -> None:
        """For the main thread, now and then: says it when a shard is stuck, once for each time."""
        asked_s = self._asked_s
        stuck = asked_s is not None and time.monotonic() - asked_s > STUCK_S
        if stuck and not self._told_stuck:
            self._notes.say(
                f"note       a shard has not answered for {STUCK_S:.0f} s: its device hangs, or its core is taken; "
                "look at the kernel's log (dmesg) for hung tasks"
            )
        self._told_stuck = stuck

    def _run(self) -> None:
        while not self._ended.is_set():
            self._asked_s = time.monotonic()
            try:
                metrics = self._server.metrics()
            except Exception:  # one that cannot be asked has nothing to tell, and serving goes on
                metrics = None
            self._asked_s = None
            if metrics is not None and not self._ended.is_set():
                self._tell(metrics)
            self._ended.wait(RECOVERING_SAMPLE_S if self._recovering else SAMPLE_S)

    def _tell(self, metrics: Mapping[str, Any]) -> None:
        if self._recovering and (told := recovered(metrics)):
            self._recovering = False
            self._when_recovered(told)
        if self._health is None:
            self._health = Health(metrics)
        elif line := self._health.line(metrics, time.monotonic()):
            self._notes.say(line)
        refused = self._server.why_device_refused()
        if refused and refused != self._refused:
            self._notes.say(f"note       {refused}")
        self._refused = refused
        gone = self._file.why_gone()
        if gone and gone != self._gone:
            self._notes.say(
                f"note       {gone} while it is served: its blocks are gone when the daemon ends; end it, and start it anew"
            )
        self._gone = gone
