"""Transfers by a ring of the Python package `liburing`: a program of its own, because builds of that package may end it.

    python -P liburing_child.py JOB

JOB: a JSON object, see second_opinion.py. Prints a line of JSON, then the times of reads and of writes in microseconds as
64-bit floats of this machine. Invariants: it imports nothing of halfstep; a transfer that fails ends the job and is told; all
else fails by an exception, whose last line says why.
Both generations of the package are driven: 2024 (io_uring, io_uring_cqe) and 2026 (Ring, Cqe, Iovec).
"""

from __future__ import annotations

import array
import hashlib
import json
import mmap
import os
import random
import sys
import time
from typing import Any

_PAGE_BYTES = 4096


class Ring:
    """Of `depth` transfers at once, each with memory of its own, on page borders for O_DIRECT."""

    def __init__(self, depth: int, block_bytes: int) -> None:
        import liburing

        self._api: Any = liburing
        self._recent = hasattr(liburing, "Ring")
        self._ring = liburing.Ring() if self._recent else liburing.io_uring()
        self._done = liburing.Cqe() if self._recent else liburing.io_uring_cqe()
        # Some calls raise, others return the negative number of the error.
        _check("io_uring_queue_init", liburing.io_uring_queue_init(depth, self._ring, 0))
        room = -(-block_bytes // _PAGE_BYTES) * _PAGE_BYTES
        self.memory = [memoryview(mmap.mmap(-1, room))[:block_bytes] for _ in range(depth)]
        self._vectors = [liburing.Iovec([one]) for one in self.memory] if self._recent else []

    def push(self, slot: int, descriptor: int, offset: int, *, write: bool) -> None:
        """A transfer of all of a slot's memory."""
        api = self._api
        entry = api.io_uring_get_sqe(self._ring)
        kind = "write" if write else "read"
        if self._recent:
            getattr(api, f"io_uring_prep_{kind}v")(entry, descriptor, self._vectors[slot], offset)
        else:
            memory = self.memory[slot]
            getattr(api, f"io_uring_prep_{kind}")(entry, descriptor, memory, len(memory), offset)
        entry.user_data = slot + 1

    def submit(self) -> None:
        """What was pushed."""
        _check("io_uring_submit", self._api.io_uring_submit(self._ring))

    def wait(self) -> tuple[int, int]:
        """(slot, bytes or the negative number of an error) of the next one that has ended."""
        _check("io_uring_wait_cqe", self._api.io_uring_wait_cqe(self._ring, self._done))
        one = self._done[0]
        slot, result = one.user_data - 1, one.res
        self._api.io_uring_cq_advance(self._ring, 1)
        return slot, result


def _check(call: str, result: int | None) -> None:
    if result is not None and result < 0:
        raise OSError(-result, f"{call}: {os.strerror(-result)}")


def run(job: dict[str, Any]) -> None:
    """Does what the job says, and prints what came of it."""
    writes = job["mode"] in ("write", "mixed")
    descriptor = os.open(job["path"], (os.O_RDWR if writes else os.O_RDONLY) | os.O_DIRECT | os.O_CLOEXEC)
    depth, length, blocks = job["depth"], job["block_bytes"], job["blocks"]
    ring = Ring(depth, length)
    chance = random.Random(job["seed"])  # noqa: S311 -- an order of reads, from a seed
    took_us = array.array("d"), array.array("d")
    began = [0.0] * depth
    is_write = [False] * depth
    number, out, digest, failed = 0, 0, "", ""
    if writes:
        for memory in ring.memory:
            memory[:] = os.urandom(length)
    started = time.perf_counter()
    until = started + job["seconds"]

    def start(slot: int) -> None:
        nonlocal number, out
        at = number % blocks if job["mode"] in ("read", "write") else chance.randrange(blocks)
        is_write[slot] = job["mode"] == "write" or (job["mode"] == "mixed" and chance.random() * 100 >= job["read_percent"])
        began[slot] = time.perf_counter()
        ring.push(slot, descriptor, at * length, write=is_write[slot])
        number, out = number + 1, out + 1

    for slot in range(depth if job["seconds"] else 1):
        start(slot)
    ring.submit()
    while out:
        slot, result = ring.wait()
        out -= 1
        took_us[is_write[slot]].append((time.perf_counter() - began[slot]) * 1e6)
        if result != length:
            why = os.strerror(-result) if result < 0 else f"{result} bytes came"
            failed = failed or f"{'write' if is_write[slot] else 'read'} of {length} bytes: {why}"
        digest = digest or hashlib.sha256(ring.memory[slot]).hexdigest()
        if time.perf_counter() < until and not failed:
            start(slot)
            ring.submit()
    counts = {"reads": len(took_us[0]), "writes": len(took_us[1])}
    told = {"seconds": time.perf_counter() - started, "digest": digest, "failed": failed, **counts}
    sys.stdout.buffer.write(json.dumps(told).encode() + b"\n" + took_us[0].tobytes() + took_us[1].tobytes())


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
