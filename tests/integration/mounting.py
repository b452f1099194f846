"""A mount for tests: `halfstep mount` as a process of its own, in front of a daemon."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

from tests.integration.commands import PATIENCE_S
from tests.integration.serving import sample


class Mount:
    """`halfstep mount` as a process, on a socket that stays the same over restarts."""

    def __init__(self, directory: Path, upstream: str, *arguments: str) -> None:
        self.socket = directory / "m.sock"
        self.url = f"halfstep+unix://{self.socket}"
        self._command = [sys.executable, "-m", "halfstep.tools.cli", "mount", upstream, "--json", "--unix", str(self.socket)]
        self._command += ["--memory", "64MiB", "--metrics", "127.0.0.1:0", "--upstream-deadline", "60s", *arguments]
        self.process: subprocess.Popen[str]
        self.facts: dict[str, Any] = {}

    def start(self) -> None:
        """Until it serves."""
        self.process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate(timeout=PATIENCE_S)
        self.facts = json.loads(line)

    @property
    def tcp_url(self) -> str:
        """Of one that was given `--listen`."""
        return "halfstep://" + next(address for address in self.facts["listening"] if not address.startswith("unix:"))

    @property
    def pid(self) -> int:
        """Of the process."""
        return self.process.pid

    @property
    def running(self) -> bool:
        """Whether there is a process."""
        return self.process.poll() is None

    def end(self, number: int = signal.SIGTERM) -> int:
        """Its exit status."""
        self.process.send_signal(number)
        self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode

    def kill(self) -> None:
        """As the out-of-memory killer does."""
        self.end(signal.SIGKILL)

    def metric(self, name: str) -> float:
        """One sample, named with its labels."""
        with urllib.request.urlopen(f"http://{self.facts['metrics']}/metrics", timeout=PATIENCE_S) as answer:
            return sample(answer.read().decode(), name)
