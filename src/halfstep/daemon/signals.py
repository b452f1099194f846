"""Signals of a daemon: SIGTERM and SIGINT end it and can be waited for; a hangup is only counted."""

from __future__ import annotations

import os
import select
import signal
from types import FrameType, TracebackType
from typing import Self

STOPPING = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Hears SIGTERM, SIGINT and SIGHUP on the main thread, between enter and exit; the handlers from before are back after it.

    received: the signals that ask for an end, in order. hangups: how many SIGHUP came, of a terminal that was closed or of
    somebody who wants settings read again. It ends nothing: the store would be left as after a kill. One that was ignored
    before, as under nohup, is still.

    The wake-up goes through a pipe that the interpreter's own C handler writes to. A `threading.Event` set in a Python
    handler would take its lock on the very thread that may hold it inside `wait`, and a signal then hangs the process.
    """

    def __init__(self) -> None:
        self.received: list[signal.Signals] = []
        self.hangups = 0

    def __enter__(self) -> Self:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # A full pipe is as good a wake-up as any, so nothing is said when a byte finds no room.
        self._wakeup_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, self._hear) for number in STOPPING}
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            self._before[signal.SIGHUP] = signal.signal(signal.SIGHUP, self._hear)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._read)
        os.close(self._write)

    def wait(self, seconds: float) -> bool:
        """Waits for a signal, at most so long; whether one that ends us has come by now. Another kind may end it early."""
        if not self.received:
            poll = select.poll()
            poll.register(self._read, select.POLLIN)
            if poll.poll(seconds * 1000):
                os.read(self._read, 4096)
        return bool(self.received)

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            self.hangups += 1
        else:
            self.received.append(signal.Signals(number))
