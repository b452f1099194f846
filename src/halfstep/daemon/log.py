"""The log: lines of a daemon on a stream that may go away under it.

Invariants: nothing here raises, and nothing waits for long. A line that the stream does not take (its reader went away or does
not read, its disk is full, somebody closed it) is lost, and the daemon goes on. The next line that is taken says how many were
lost before it. What the encoding cannot say is escaped.
Thread: any; lines of several are not mixed.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from typing import TextIO

# A pipe or socket that says it takes something takes so much at once: PIPE_BUF.
_PIECE_BYTES = 4096
# How long a line waits for a reader that is slow. Until one line was taken again, the next ones do not wait.
_PATIENCE_MS = 1000


class Log:
    """Lines to a stream. lost: how many could not be written since one was."""

    def __init__(self, stream: TextIO | None) -> None:
        self.lost = 0
        self._why = ""
        self._lock = threading.Lock()
        self._stream = stream
        self._number: int | None = None
        with contextlib.suppress(OSError, ValueError, AttributeError):
            if stream is not None:
                self._number = stream.fileno()
                stream.flush()

    def say(self, text: str) -> None:
        """One line, or several with line ends between; their end is added."""
        with self._lock:
            before = f"(lost before this line: {self.lost}; {self._why})\n" if self.lost else ""
            try:
                self._write(f"{before}{text}\n")
            except (OSError, ValueError) as error:
                self.lost += 1
                self._why = getattr(error, "strerror", None) or str(error)
            else:
                self.lost = 0

    def _write(self, text: str) -> None:
        if self._stream is None:
            return
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        rest = text.encode(encoding, "backslashreplace")
        if self._number is None:  # no file: what a test or another program gave us
            self._stream.write(rest.decode(encoding))
            self._stream.flush()
            return
        # Not through the stream: it would keep what was refused, and try it again for ever.
        poll = select.poll()
        poll.register(self._number, select.POLLOUT)
        while rest:
            if not poll.poll(0 if self.lost else _PATIENCE_MS):
                raise TimeoutError("nobody reads")
            rest = rest[os.write(self._number, rest[:_PIECE_BYTES]) :]
