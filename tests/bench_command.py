"""`halfstep bench` as tests run it: in fractions of a second, or until it is interrupted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import halfstep
from halfstep.tools.cli import main

END_S = 60
QUICK = [
    "--json",
    "--runtime",
    "0.1",
    "--repeat",
    "1",
    "--bs",
    "64KiB",
    "--batch",
    "4",
    "--size",
    "2MiB",
    "--arena",
    "32MiB",
]

measures = pytest.mark.skipif(
    halfstep.build_info()["build"] != "release",
    reason="a benchmark refuses to report from this build, as test_only_a_release_build_reports shows",
)


def command(*arguments: str) -> Result:
    """`halfstep bench`, in this process."""
    return CliRunner().invoke(main, ["bench", *arguments])


def bench(*arguments: str) -> Result:
    """The same, in fractions of a second."""
    return command(*QUICK, *arguments)


def document(result: Result) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(result.stdout)
    return told


def wait_until(condition: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + END_S
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.01)


def processes_of(directory: Path) -> list[str]:
    """Command lines that name the directory."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(directory) in command and "serve" in command:
            found.append(command)
    return found


def directio(directory: Path) -> None:
    """Skips where the file system has no O_DIRECT."""
    try:
        os.close(os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_DIRECT, 0o600))
    except OSError as error:
        pytest.skip(f"no O_DIRECT in {directory}: {error}")


def interrupt(arguments: list[str], number: int, ready: Callable[[list[str]], bool], **environment: str) -> None:
    """Starts it, sends it the signal when `ready(its children)`, and expects that it says so and leaves no process."""
    with subprocess.Popen(
        [sys.executable, "-m", "halfstep.tools.cli", "bench", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    ) as running:
        try:
            children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
            wait_until(lambda: ready(children.read_text().split()), "it did not begin")
            started = children.read_text().split()
            running.send_signal(number)
            _, complaint = running.communicate(timeout=END_S)
        finally:
            running.kill()
    assert running.returncode == 130, complaint
    assert complaint.strip() == "halfstep: interrupted"
    # One that was being started at that moment finds that nobody speaks to it.
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started), "it left a process")
