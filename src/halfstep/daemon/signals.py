"""The signals that end a daemon, as something to wait for."""

from __future__ import annotations

import os
import select
import signal
from types import FrameType, TracebackType
from typing import Self

STOPPING = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Hears SIGTERM and SIGINT on the main thread, between enter and exit; the handlers from before are back after it.

    The wake-up goes through a pipe that the interpreter's own C handler writes to. A `threading.Event` set in a Python
    handler would take its lock on the very thread that may hold it inside `wait`, and a signal then hangs the process.
    """

    def __init__(self) -> None:
        self.received: list[signal.Signals] = []

    def __enter__(self) -> Self:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # A full pipe is as good a wake-up as any, so nothing is said when a byte finds no room.
        self._wakeup_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, self._hear) for number in STOPPING}
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._read)
        os.close(self._write)

    def wait(self, seconds: float) -> bool:
        """Waits for a signal, at most so long; whether one has come by now. A signal of another kind may end it early."""
        if not self.received and select.select([self._read], [], [], seconds)[0]:
            os.read(self._read, 4096)
        return bool(self.received)

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        self.received.append(signal.Signals(number))
