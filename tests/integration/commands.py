"""Commands of the command line as processes of their own: what tests of them share."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 60
# Deadlines of a client that no busy machine and no slow fsync may make late.
PATIENT: dict[str, Any] = {"deadline_ms": 60_000, "match_deadline_ms": 60_000}
COMMAND = [sys.executable, "-m", "halfstep.tools.cli"]

Done = subprocess.CompletedProcess[bytes]
Run = Callable[..., Done]


def error_of(done: Done) -> str:
    """The one line that an error is."""
    assert done.returncode == 3, (done.returncode, done.stdout, done.stderr)
    text = done.stderr.decode()
    assert text.startswith("halfstep: "), text
    assert text.count("\n") == 1, text
    assert done.stdout == b""
    return text


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Ask until it holds. what: is said where it never does."""
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.01)
