"""A daemon as a process of its own, to be killed, restarted and watched."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

START_S = 60


class DaemonProcess:
    """`halfstep serve --json` on a free port. Its port stays the same over restarts, so that clients find it again."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.store = directory / "store.hs"
        self._arguments = arguments
        self._log = (directory / "daemon.log").open("ab")
        self._listen = "127.0.0.1:0"
        self._process: subprocess.Popen[str] | None = None
        self.facts: dict[str, Any] = {}

    def start(self) -> None:
        """Starts it and reads its facts. Errors: AssertionError naming the log when it does not start."""
        command = [sys.executable, "-m", "halfstep.tools.cli", "serve", "--json", "--unix", "none"]
        command += ["--store", str(self.store), "--listen", self._listen, *self._arguments]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the daemon did not start: {Path(self._log.name).read_text()[-2000:]}"
        self.facts = json.loads(line)
        self._listen = self.facts["listening"][0]

    @property
    def url(self) -> str:
        """For connect(), without a namespace."""
        return f"halfstep://{self._listen}"

    @property
    def address(self) -> tuple[str, int]:
        """For plain sockets."""
        host, port = self._listen.rsplit(":", 1)
        return host, int(port)

    @property
    def pid(self) -> int:
        """Of the running process."""
        assert self._process is not None
        return self._process.pid

    def resident_bytes(self) -> int:
        """VmRSS less the arena, which is mapped whole from the start."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines())
        return int(fields["RssAnon"].split()[0]) * 1024

    def descriptors(self) -> int:
        """Open files and sockets."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def end(self, number: int = signal.SIGTERM) -> int:
        """Sends the signal and reaps it; returns its status."""
        assert self._process is not None
        self._process.send_signal(number)
        status = self._process.wait(START_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None
        return status

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self.end(signal.SIGKILL)
        self._log.close()
