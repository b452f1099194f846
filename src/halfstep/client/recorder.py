"""Writes what a process's clients count to its record, every INTERVAL_S and when it ends.

Invariants: a file that cannot be written is said once, and hurts nobody: counting goes on, and the next line says all. A child
has a record of its own, from its first count on. Nothing waits for the thread.
Thread: counting, any; writing, one of its own, and whoever closes a client.
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path

from halfstep.client.living import Living
from halfstep.client.tally import Tally
from halfstep.record import IDLE_INTERVAL_S, INTERVAL_S, Line, RecordFile, encoded

log = logging.getLogger("halfstep")


class Recorder:
    """The record of this process.

    clock: Unix time, monotonic: for waits, both in seconds. interval_s: between two lines; 0 = only when told to.
    """

    def __init__(
        self,
        folder: Path,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        interval_s: float = INTERVAL_S,
        bytes_max: int | None = None,
    ) -> None:
        self.folder = folder
        self._clock, self._monotonic = clock, monotonic
        self._interval_s, self._bytes_max = interval_s, bytes_max
        self._tallies: dict[tuple[str, str], Tally] = {}
        self._renew()
        _all_recorders.add(self)

    def _renew(self) -> None:
        self._process = secrets.token_hex(8)
        sized = {} if self._bytes_max is None else {"bytes_max": self._bytes_max}
        self._file = RecordFile(self.folder, f"client-{self._process}", **sized)
        self._lock = threading.Lock()
        self._running = self._interval_s == 0
        # Of each tally: what its last line said, and when.
        self._said: dict[tuple[str, str], tuple[dict[str, float], float]] = {}
        self._time_s, self._failure = 0.0, ""

    def tally(self, namespace: str, mode: str) -> Tally:
        """Of a namespace and mode: one for all clients of this process."""
        one = self._tallies.get((namespace, mode))
        if one is None:
            one = self._tallies.setdefault((namespace, mode), Tally(namespace, mode, self, self._monotonic))
        return one

    def write(self, *, patience_s: float = 0) -> None:
        """A line of each tally that has moved, or has said nothing for IDLE_INTERVAL_S.

        Not while another thread writes, or the one that a signal's handler has interrupted: that is waited for so long at most.
        """
        if not self._lock.acquire(timeout=patience_s):
            return
        try:
            self._write()
        except OSError as error:
            if str(error) != self._failure:
                log.warning("halfstep: what clients count is not recorded: %s: %s", self._file.path, error.strerror or error)
            self._failure = str(error)
        else:
            self._failure = ""
        finally:
            self._lock.release()

    def _write(self) -> None:
        # The machine's clock may be set back; a record's order is that of its times.
        self._time_s = now_s = max(self._time_s, self._clock())
        lines, said = [], {}
        for name, tally in list(self._tallies.items()):
            counters = tally.snapshot()
            before, at_s = self._said.get(name, ({}, 0.0))
            if name not in self._said and not any(counters.values()):
                continue  # a client that has done nothing makes no file
            if counters == before and now_s - at_s < IDLE_INTERVAL_S:
                continue
            first = name not in self._said
            lines.append(encoded(Line("client", self._process, now_s, first, tally.namespace, tally.mode, counters)))
            said[name] = counters, now_s
        if lines:
            self._file.append(b"".join(lines))
            self._said.update(said)

    def begin(self) -> None:
        """Something was counted: lines are written from now on."""
        if self._running:
            return
        self._running = True
        try:
            threading.Thread(target=self._run, name="halfstep-record", daemon=True).start()
        except RuntimeError as error:  # out of threads, or the interpreter ends: a close writes what there is
            log.warning("halfstep: what clients count is recorded when they close: %s", error)

    def _run(self) -> None:
        while True:
            time.sleep(self._interval_s)
            self.write()

    def forked(self) -> None:
        """In a child: the thread is the parent's, and so is the file."""
        for tally in self._tallies.values():
            tally.forked()
        self._renew()


_all_recorders: Living[Recorder] = Living()


def _forked_child() -> None:
    for recorder in _all_recorders:
        recorder.forked()


def _write_all() -> None:
    for recorder in _all_recorders:
        recorder.write(patience_s=1)


os.register_at_fork(after_in_child=_forked_child)
atexit.register(_write_all)
