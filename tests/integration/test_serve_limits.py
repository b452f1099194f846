"""A start under its process's limits of memory and threads: it serves or is refused with a remedy, and no signal ends it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

PATIENCE_S = 60

# Everything is imported before the limit holds: what is tried is the start of a daemon, not that of an interpreter.
# `locale` is what gettext imports at click's first message; a Python in root's home cannot be read by who is not root.
_LIMITED = """
import locale, os, resource, sys
import halfstep.daemon.serve, halfstep.tools.serve
from halfstep.tools.cli import main
kind, limit = getattr(resource, sys.argv[1]), int(sys.argv[2])
if kind == resource.RLIMIT_AS:
    limit += int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
else:  # root may have as many threads as it likes
    os.setgroups([]); os.setgid(54321); os.setuid(54321)
resource.setrlimit(kind, (limit, limit))
main(["serve", *sys.argv[3:]], prog_name="halfstep")
"""


_UNSEEN = """
import halfstep.daemon.serve
halfstep.daemon.serve._check_room = lambda config: None
"""


@pytest.fixture
def directory() -> Iterator[Path]:
    """One that anybody may write to."""
    path = Path(tempfile.mkdtemp(prefix="halfstep-limits-"))
    path.chmod(0o777)
    yield path
    shutil.rmtree(path)


def start(directory: Path, kind: str, limit: int, *arguments: str, look_first: bool = True) -> tuple[int, str]:
    """Starts a daemon and ends it as soon as it serves; its status and what it said last."""
    flags = ["--store", str(directory / "store.hs"), "--size", "132MiB", "--arena", "64MiB", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        [
            sys.executable,
            "-c",
            _LIMITED if look_first else _UNSEEN + _LIMITED,
            kind,
            str(limit),
            *flags,
            "--unix",
            "none",
            *arguments,
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
    ) as one:
        assert one.stdout is not None
        said = ""
        for line in one.stdout:
            said = line
            if line.startswith("listening"):
                one.send_signal(signal.SIGTERM)
        assert one.stderr is not None
        error = one.stderr.read()
        status = one.wait(PATIENCE_S)
    assert "Traceback" not in error, error
    return status, error or said


def test_a_shard_without_memory_is_refused_and_ends_by_no_signal(directory: Path) -> None:
    """As where the limit is a control group's: nothing is known before."""
    refused = 0
    for mib in range(66, 160, 2):
        status, said = start(directory, "RLIMIT_AS", mib << 20, look_first=False)
        if said.startswith(("listening", "stop", "note")):
            break  # it served, by a hair's breadth
        assert status == 3, (mib, status, said)
        assert "memory" in said or "ulimit" in said, (mib, said)
        assert list(directory.iterdir()) == [], "nothing is left half made"
        refused += 1
    assert refused > 3


def test_whatever_the_limit_of_memory_a_start_serves_or_is_refused(directory: Path) -> None:
    served = refused = 0
    # The arena alone has 64 MiB. From there on each further step finds another thing that has no room.
    for mib in [16, *range(60, 200, 6)]:
        status, said = start(directory, "RLIMIT_AS", mib << 20)
        assert status in (0, 3), (mib, status, said)
        if status == 0:
            served += 1
            (directory / "store.hs").unlink()
        else:
            refused += 1
            assert "memory" in said or "ulimit" in said, (mib, said)
            assert said.count("\n") == 1, said
        assert list(directory.iterdir()) == [], "nothing is left half made"
        if served == 3:
            break
    assert served == 3
    assert refused > 3


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody whose threads are counted")
@pytest.mark.parametrize("engine", ["auto", "pread"])
def test_whatever_the_limit_of_threads_a_start_serves_or_is_refused_with_the_limit_named(directory: Path, engine: str) -> None:
    served = refused = 0
    for threads in range(1, 12):
        status, said = start(directory, "RLIMIT_NPROC", threads, "--engine", engine)
        assert status in (0, 3), (threads, status, said)
        if status == 0:
            served += 1
            (directory / "store.hs").unlink()
        else:
            refused += 1
            assert "ulimit -u, TasksMax=" in said, (threads, said)
        assert list(directory.iterdir()) == []
        if served == 2:
            break
    assert served == 2
    assert refused > 0
