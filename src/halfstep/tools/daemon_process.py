"""A daemon as a process of our own, in a directory of our own: the demo, the benchmark and the tests start and kill it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from halfstep.errors import Unavailable
from halfstep.tools.together import ending_with_us

# Starting may allocate a large file or recover a full store; stopping seals and flushes.
PROCESS_S = 60.0
LOG_CHARACTERS = 2000
LOOPBACK = "127.0.0.1:0"


class DaemonProcess:
    """`halfstep serve --json` on a free port, which stays the same over restarts, so that clients find it again.

    directory: where store and log lie; not removed. arguments: further flags of `serve`. unix: path of its socket, or "none".
    listen: another address than loopback's, which arguments have to allow.
    own_session: Ctrl-C at a terminal is not for it; whoever made it ends it, and when that one was killed it ends by itself.
    facts: what it said at its last start.
    """

    def __init__(
        self, directory: Path, *arguments: str, unix: str = "none", listen: str = LOOPBACK, own_session: bool = False
    ) -> None:
        self.store = directory / "store.hs"
        self.facts: dict[str, Any] = {}
        self._arguments = arguments
        self._unix = unix
        self._own_session = own_session
        self._log = directory / "daemon.log"
        self._listen = listen
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Starts it and waits until it serves. Errors: Unavailable with the end of its log."""
        # -P: nothing that lies where somebody works is imported.
        command = [sys.executable, "-P", "-m", "halfstep.tools.cli", "serve", "--json", "--unix", self._unix]
        command += ["--store", str(self.store), "--listen", self._listen, *self._arguments]
        if self._own_session:
            command = ending_with_us(command)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=self._own_session
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.end(signal.SIGKILL)
            raise Unavailable("the daemon did not start: " + self.log_end().removeprefix("halfstep: "))
        self.facts = json.loads(line)
        self._listen = next(address for address in self.facts["listening"] if not address.startswith("unix:"))

    def log_end(self) -> str:
        """The last it wrote to stderr."""
        return self._log.read_text(errors="replace")[-LOG_CHARACTERS:].strip()

    @property
    def url(self) -> str:
        """For connect(), without a namespace."""
        return f"halfstep://{self._listen}"

    @property
    def shared_url(self) -> str:
        """Over shared memory, of one that was given a path for its socket."""
        return f"halfstep+unix://{quote(self._unix)}"

    @property
    def address(self) -> tuple[str, int]:
        """For plain sockets."""
        host, _, port = self._listen.rpartition(":")
        return host, int(port)

    @property
    def pid(self) -> int:
        """Of the process."""
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether there is a process."""
        return self._process is not None and self._process.poll() is None

    @property
    def how_ended(self) -> str:
        """Of a process that has ended, but not by end()."""
        status = 0 if self._process is None else self._process.poll() or 0
        return f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"

    def end(self, number: int = signal.SIGTERM) -> int:
        """Sends the signal, reaps it and returns its status. One that does not end in a minute is killed."""
        assert self._process is not None
        process, self._process = self._process, None
        process.send_signal(number)
        try:
            status = process.wait(PROCESS_S)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
        assert process.stdout is not None
        process.stdout.close()
        return status

    def close(self) -> None:
        """Ends it as an operator would, if it was not ended yet."""
        if self._process is not None:
            self.end()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
