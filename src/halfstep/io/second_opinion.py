"""What the Python package `liburing` says of the kernel and of a device: asked in a process of its own.

Invariants: whatever the package does, this process goes on. Its builds of 2026 end by SIGILL on processors that lack AVX-512,
as soon as they make a ring; the kernel's list of operations needs none, and is asked for without.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DEADLINE_S = 30.0
ANSWER_BYTES_MAX = 1 << 20
# What native/io/uring_engine.cc asks of a kernel.
NEEDED = ("READ", "WRITE", "READV", "WRITEV", "READ_FIXED", "WRITE_FIXED", "FSYNC")
NOT_INSTALLED = "not installed: pip install 'halfstep[doctor]'"
NO_SUCH_PROCESSOR = "its builds of 2026 need AVX-512; pip install 'liburing<2026' makes one for this processor"
_PREFIX = "IORING_OP_"
_CHILD = "import json, liburing\nprint(json.dumps({name: bool(taken) for name, taken in liburing.probe().items()}))\n"
_TRANSFERS = Path(__file__).with_name("liburing_child.py")
_PAGE_BYTES = 4096


@dataclass(frozen=True)
class Opinion:
    """operations: those that the kernel takes, without IORING_OP_. why_none: "" where it has one."""

    operations: frozenset[str] = frozenset()
    why_none: str = ""

    @property
    def missing(self) -> tuple[str, ...]:
        """Of those that the daemon needs."""
        return tuple(one for one in NEEDED if one not in self.operations)


@dataclass(frozen=True)
class Job:
    """Transfers over the first `blocks` blocks of a path, `depth` at a time for so long, each read or written as `mode` says.

    mode: read, randread, write, mixed, as `halfstep bench device` has them. seconds: 0 for one transfer alone.
    """

    path: str
    mode: str
    block_bytes: int
    depth: int
    blocks: int
    seconds: float
    seed: int = 1
    read_percent: int = 100


@dataclass(frozen=True)
class Transfers:
    """What came of a job. digest: SHA-256 of the first block. failed: what the device refused, in words; "" where nothing.

    why_none: why there was no job at all; all else is empty then.
    """

    seconds: float = 0.0
    digest: str = ""
    reads_us: tuple[float, ...] = ()
    writes_us: tuple[float, ...] = ()
    failed: str = ""
    why_none: str = ""


def ask(program: str = _CHILD) -> Opinion:
    """program: what the process runs; tests have their own."""
    said, why_none = _run([sys.executable, "-P", "-c", program], DEADLINE_S)
    if why_none:
        return Opinion(why_none=why_none)
    try:
        told = json.loads(said[:ANSWER_BYTES_MAX])
        return Opinion(frozenset(name.removeprefix(_PREFIX) for name, taken in told.items() if taken is True))
    except (ValueError, AttributeError):
        return Opinion(why_none="liburing's answer is no list of operations")


def transfer(job: Job, program: Path = _TRANSFERS) -> Transfers:
    """The job by a ring of liburing's. It may write, where its mode says so. program: what the process runs."""
    said, why_none = _run([sys.executable, "-P", str(program), json.dumps(vars(job))], job.seconds + DEADLINE_S)
    if why_none:
        return Transfers(why_none=why_none)
    line, _, times = said.partition(b"\n")
    try:
        told: dict[str, Any] = json.loads(line)
        took_us = array("d", times)
        reads, writes = int(told["reads"]), int(told["writes"])
        if not 0 <= reads <= reads + writes == len(took_us):
            raise ValueError
        times_us = tuple(took_us[:reads]), tuple(took_us[reads:])
        return Transfers(float(told["seconds"]), str(told["digest"]), *times_us, failed=str(told["failed"]))
    except (ValueError, KeyError, TypeError):
        return Transfers(why_none="liburing's process gave no times of transfers")


def first_page(path: str) -> Transfers:
    """The first page of a file or device, with O_DIRECT."""
    return transfer(Job(path, "read", _PAGE_BYTES, 1, 1, 0.0))


def _run(command: list[str], deadline_s: float) -> tuple[bytes, str]:
    """(what it printed, why nothing)."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=deadline_s, check=False)
    except subprocess.TimeoutExpired:
        return b"", f"liburing did not answer within {deadline_s:g} s"
    except OSError as error:
        return b"", f"no process for it: {error.strerror}"
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        return b"", f"liburing ended by {name}" + (f": {NO_SUCH_PROCESSOR}" if name == "SIGILL" else "")
    if done.returncode != 0:
        last = (done.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
        return b"", NOT_INSTALLED if "No module named 'liburing'" in last else f"liburing: {last[:200]}"
    return done.stdout, ""
