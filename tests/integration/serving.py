"""`halfstep serve` as a process that tests start, listen to and end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from typing import Any

import numpy as np

import halfstep

# The smallest store; and what bounds a hang, not a speed.
SIZE, ARENA = "132MiB", "64MiB"
PATIENCE_S = 60


class Serve:
    """One `halfstep serve`: its lines so far, and its end."""

    def __init__(self, *arguments: str, environment: dict[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "halfstep.tools.cli", "serve", *arguments]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | (environment or {}),
        )
        self.lines: list[str] = []

    def read_until(self, start: str) -> str:
        """Read lines until one that starts so; that line."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            if line.startswith(start):
                return line
        raise AssertionError(f"no line starts with {start!r}: {self.lines}\n{self.finish()[2]}")

    def line(self, start: str) -> str:
        """The line that starts so, of those that were read."""
        return next(line for line in self.lines if line.startswith(start))

    def finish(self, number: int | None = None) -> tuple[int, str, str]:
        """Send a signal if there is one to send; exit status, the rest of stdout, stderr."""
        if number is not None:
            self.process.send_signal(number)
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, out, err


def facts_of(one: Serve) -> dict[str, Any]:
    """What `serve --json` says: one object on one line."""
    facts: dict[str, Any] = json.loads(one.read_until("{"))
    return facts


def works(url: str) -> bool:
    """A block goes there and comes back."""
    block, back = np.arange(5000, dtype=np.uint8), np.zeros(5000, np.uint8)
    with halfstep.connect(url, required=True, deadline_ms=30_000) as client:
        assert client.put([b"k"], block).ok.all()
        return bool(client.get([b"k"], back).ok.all() and (back == block).all())


def stat_of(url: str) -> str:
    """What `halfstep stat` prints."""
    command = [sys.executable, "-m", "halfstep.tools.cli", "stat", url]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True).stdout


def refused(one: Serve) -> str:
    """Its one line of error; it ended with status 3 and without a trace."""
    status, out, err = one.finish()
    assert status == 3, (status, out, err)
    assert err.count("\n") == 1, err
    assert err.startswith("halfstep: "), err
    return err


def scrape(one: Serve) -> str:
    """What Prometheus would read."""
    address = next(line for line in one.lines if line.startswith("metrics")).split()[1]
    with urllib.request.urlopen(address, timeout=PATIENCE_S) as answer:
        text: str = answer.read().decode()
    return text


def sample(text: str, name: str) -> float:
    """The value of one sample, named with its labels."""
    return float(next(line for line in text.splitlines() if line.startswith(name + " ")).rsplit(" ", 1)[1])
