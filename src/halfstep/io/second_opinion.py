"""Which operations of io_uring the kernel takes, as the Python package `liburing` says: asked in a process of its own.

Invariants: whatever the package does, this process goes on. Builds of it end by SIGILL on processors that lack AVX-512, when
they make a ring; so no ring is made, and only the kernel's list is asked for.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import dataclass

DEADLINE_S = 30.0
ANSWER_BYTES_MAX = 1 << 20
# What native/io/uring_engine.cc asks of a kernel.
NEEDED = ("READ", "WRITE", "READV", "WRITEV", "READ_FIXED", "WRITE_FIXED", "FSYNC")
_PREFIX = "IORING_OP_"
_CHILD = "import json, liburing\nprint(json.dumps({name: bool(taken) for name, taken in liburing.probe().items()}))\n"


@dataclass(frozen=True)
class Opinion:
    """operations: those that the kernel takes, without IORING_OP_. why_none: "" where it has one."""

    operations: frozenset[str] = frozenset()
    why_none: str = ""

    @property
    def missing(self) -> tuple[str, ...]:
        """Of those that the daemon needs."""
        return tuple(one for one in NEEDED if one not in self.operations)


def ask(program: str = _CHILD) -> Opinion:
    """program: what the process runs; tests have their own."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", program], capture_output=True, timeout=DEADLINE_S, check=False, text=True
        )
    except subprocess.TimeoutExpired:
        return Opinion(why_none=f"liburing did not answer within {DEADLINE_S:g} s")
    except OSError as error:
        return Opinion(why_none=f"no process for it: {error.strerror}")
    if done.returncode < 0:
        return Opinion(why_none=f"liburing ended by {signal.Signals(-done.returncode).name}")
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        missing = "No module named 'liburing'" in last
        return Opinion(why_none="not installed: pip install 'halfstep[doctor]'" if missing else f"liburing: {last[:200]}")
    try:
        told = json.loads(done.stdout[:ANSWER_BYTES_MAX])
        return Opinion(frozenset(name.removeprefix(_PREFIX) for name, taken in told.items() if taken is True))
    except (ValueError, AttributeError):
        return Opinion(why_none="liburing's answer is no list of operations")
