"""In the guest: gets that the daemon writes straight into a client's memory over an RDMA device, and puts that it reads out of
it, beside the same through rings.

    python -m tests.lab.placed ADDRESS

ADDRESS: of the device. Every byte is compared, those between the targets too. Prints a line for each step; the exit status is 0
when all of them held.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
from tests.lab.blocks import DEADLINE_MS, Daemon, after, check, content, wait_for

import halfstep
from halfstep import Addresses, Region

BLOCKS = 500
BYTES_MIN, BYTES_MAX = 4 << 10, 4 << 20
GUARD = 0xA5
GUARD_BYTES = 4096
POOL_BYTES = 24 << 20
CALLED_OFF = 100
PUTS_CALLED_OFF = 20  # which leaves room for all the others

Keys = dict[bytes, int]  # and the seed of each one's content


class Pool:
    """A direct region, with guards around every target."""

    def __init__(self) -> None:
        self.memory = np.full(POOL_BYTES, GUARD, dtype=np.uint8)
        self.region = Region(self.memory, direct=True)
        self.places: list[tuple[int, int]] = []

    def lay_out(self, sizes: list[int]) -> Addresses:
        """Targets of these sizes; everything else is guards."""
        self.memory.fill(GUARD)
        ends = np.cumsum([GUARD_BYTES, *(size + GUARD_BYTES for size in sizes)])
        self.places = [(int(end), size) for end, size in zip(ends, sizes, strict=False)]
        starts = np.array([start for start, _ in self.places], dtype=np.uint64)
        return Addresses([self.region], starts + np.uint64(self.region.address), np.array(sizes, dtype=np.uint32))

    def guards_stand(self) -> bool:
        """No byte beside the targets was written."""
        gaps = [(0, 0), *self.places, (POOL_BYTES, 0)]
        return all(bool((self.memory[at + size : following] == GUARD).all()) for (at, size), (following, _) in pairwise(gaps))


def main(address: str) -> int:
    """Runs all steps. Returns the exit status."""
    with tempfile.TemporaryDirectory(prefix="halfstep-lab-") as directory:
        daemon = Daemon(Path(directory), address)
        pool = Pool()
        try:
            daemon.start()
            keys = {b"block-%03d" % n: n for n in range(BLOCKS)}
            stored(daemon, pool, keys)
            through_rings(daemon, keys)
            placed(daemon, pool, keys, "placed")
            called_off(daemon, pool, keys)
            puts_called_off(daemon, pool)
            daemon_killed(daemon, pool, keys)
        finally:
            print(daemon.log_end(), flush=True)
            daemon.close()
    print("placed: all steps held", flush=True)
    return 0


def size_of(number: int) -> int:
    """Evenly spaced in their logarithm, ends included, none of them round in between."""
    if number in (0, BLOCKS - 1):
        return BYTES_MAX if number else BYTES_MIN
    return int(BYTES_MIN * (BYTES_MAX / BYTES_MIN) ** (number / (BLOCKS - 1))) | 1


def batches(keys: Keys) -> Iterator[list[bytes]]:
    """As many as the pool has room for, their guards included."""
    batch: list[bytes] = []
    left = POOL_BYTES - GUARD_BYTES
    for key, number in keys.items():
        needed = size_of(number) + GUARD_BYTES
        if needed > left:
            yield batch
            batch, left = [], POOL_BYTES - GUARD_BYTES
        batch.append(key)
        left -= needed
    yield batch


def stored(daemon: Daemon, pool: Pool, keys: Keys) -> None:
    """All blocks are there, on media: half of them sent, and half read by the daemon out of a direct region."""
    with daemon.connect() as client:
        for key, number in keys.items():
            if number % 2 == 0:
                result = client.put(key, content(number, size_of(number)), durability="persist")
                check(bool(result.ok.all()), f"put {key!r}: {result}")
        before = client.stat()["halfstep_rdma_pulled_bytes_total"]
        check(before == 0, f"{before} bytes were read out of memory that is no region")
        odd = {key: number for key, number in keys.items() if number % 2}
        for batch in batches(odd):
            result = client.put(batch, laid(pool, odd, batch), durability="persist")
            check(bool(result.ok.all()), f"put of {len(batch)} out of a region: {result}")
            check(pool.guards_stand(), "nothing is written there")
        pulled = client.stat()["halfstep_rdma_pulled_bytes_total"]
        check(pulled == sum(map(size_of, odd.values())), f"{pulled} bytes were read out of the region")
    print(f"placed: {len(keys)} blocks stored, {len(odd)} of them out of a direct region", flush=True)


def laid(pool: Pool, keys: Keys, batch: list[bytes]) -> Addresses:
    """The contents of these blocks, as sources."""
    source = pool.lay_out([size_of(keys[key]) for key in batch])
    for key, (at, size) in zip(batch, pool.places, strict=True):
        pool.memory[at : at + size] = np.frombuffer(content(keys[key], size), dtype=np.uint8)
    return source


def through_rings(daemon: Daemon, keys: Keys) -> None:
    """The same blocks into memory like any other: nothing of it is placed."""
    with daemon.connect() as client:
        for key, number in keys.items():
            target = bytearray(size_of(number))
            check(bool(client.get([key], target).ok.all()), f"get {key!r}")
            check(target == content(number, len(target)), f"{key!r} is what was put")
        check(client.facts().placed_bytes == 0, "through rings nothing is placed")
    print(f"placed: {len(keys)} blocks compared, through rings", flush=True)


def placed(daemon: Daemon, pool: Pool, keys: Keys, when: str) -> None:
    """Every byte, where it was to be; what both ends say of it."""
    with daemon.connect() as client:
        before = client.stat()["halfstep_rdma_placed_bytes_total"]
        compare(client, pool, keys, when)
        total = sum(map(size_of, keys.values()))
        facts = client.facts()
        check((facts.placed_bytes, facts.placement) == (total, ""), f"all of it was placed, {total} bytes: {facts}")
        check(facts.checksum_failures == 0, "and every check matched")
        check(facts.placing_keys > 0, "by keys of memory windows, which Soft-RoCE has: each was good for one get")
        check(client.stat()["halfstep_rdma_placed_bytes_total"] - before == total, "the daemon counts the same")


def compare(client: halfstep.Client, pool: Pool, keys: Keys, when: str) -> None:
    """Every block, bit for bit, and the guards."""
    for batch in batches(keys):
        result = client.get(batch, pool.lay_out([size_of(keys[key]) for key in batch]))
        check(bool(result.ok.all()), f"{when}: get of {len(batch)}: {result}")
        for key, (at, size) in zip(batch, pool.places, strict=True):
            check(pool.memory[at : at + size].tobytes() == content(keys[key], size), f"{when}: {key!r} is what was put")
        check(pool.guards_stand(), f"{when}: nothing beside the targets was written")
    print(f"placed: {when}: {len(keys)} blocks compared", flush=True)


def called_off(daemon: Daemon, pool: Pool, keys: Keys) -> None:
    """Gets whose deadline comes, or that are cancelled, while the daemon writes: afterwards nothing changes any more."""
    batch = list(batches(keys))[-1]
    target = pool.lay_out([size_of(keys[key]) for key in batch])
    with daemon.connect() as client, client.queue() as queue:
        late = cancelled = 0
        for round_number in range(CALLED_OFF):
            if round_number % 2:
                late += not client.get(batch, target, deadline_ms=1 + round_number / 2).ok.all()
            else:
                ticket = queue.get(batch, target, deadline_ms=DEADLINE_MS)
                ticket.cancel()
                ticket.wait()
                cancelled += not ticket.result().ok.all()
            then = pool.memory.copy()
            # One that said nothing for 200 ms, as a busy guest's may, has lost its connection: the next one is made first.
            wait_for(lambda: bool(client.match([batch[0]], deadline_ms=DEADLINE_MS).present.all()), "the daemon answers")
            check(bool((pool.memory == then).all()), f"round {round_number}: nothing was written after the event")
            check(pool.guards_stand(), f"round {round_number}: nor beside the targets")
        check(late > 0 and cancelled > 0, f"{late} were late, {cancelled} cancelled")
        compare(client, pool, {key: keys[key] for key in batch}, "after gets that were called off")


def puts_called_off(daemon: Daemon, pool: Pool) -> None:
    """Puts whose deadline comes, or that are cancelled, while the daemon reads: what is there afterwards is what was put."""
    numbers = range(BLOCKS - 12, BLOCKS)
    with daemon.connect() as client, client.queue() as queue:
        late = cancelled = 0
        for round_number in range(PUTS_CALLED_OFF):
            keys = {b"off-%02d-%d" % (round_number, n): n for n in numbers}
            batch = next(iter(batches(keys)))
            source = laid(pool, keys, batch)
            if round_number % 2:
                late += not client.put(batch, source, deadline_ms=1 + round_number / 2).ok.all()
            else:
                ticket = queue.put(batch, source, deadline_ms=DEADLINE_MS)
                ticket.cancel()
                ticket.wait()
                cancelled += not ticket.result().ok.all()
            wait_for(lambda: client.facts().connected > 0, "the daemon answers")
            pool.memory.fill(GUARD)
            target = pool.lay_out([size_of(keys[key]) for key in batch])
            got = client.get(batch, target, deadline_ms=DEADLINE_MS)
            for key, (at, size), is_ok in zip(batch, pool.places, got.ok, strict=True):
                right = not is_ok or pool.memory[at : at + size].tobytes() == content(keys[key], size)
                check(right, f"round {round_number}: {key!r} is what was put, or not there")
        check(late > 0 and cancelled > 0, f"{late} puts were late, {cancelled} cancelled")
        wait_for(lambda: client.stat()["halfstep_credit_held_bytes"] == 0, "the daemon lets go of their memory")
    print(f"placed: {PUTS_CALLED_OFF} puts called off", flush=True)


def daemon_killed(daemon: Daemon, pool: Pool, keys: Keys) -> None:
    """While it writes: what is ok is right, the rest are misses, and the next daemon writes on."""
    batch = list(batches(keys))[-1]
    with daemon.connect() as client:
        target = pool.lay_out([size_of(keys[key]) for key in batch])
        wait = after(0.3, daemon.kill)
        missed = False
        while not missed:
            result = client.get(batch, target)
            ok = [bool(one) for one in result.ok]
            for key, (at, size), is_ok in zip(batch, pool.places, ok, strict=True):
                right = not is_ok or pool.memory[at : at + size].tobytes() == content(keys[key], size)
                check(right, f"{key!r} is right beside a daemon that dies")
            missed = not all(ok)
        wait()
        check(pool.guards_stand(), "a daemon that dies writes beside no target")
        daemon.start()
        wait_for(lambda: client.facts().connected > 0, "the client's connection after the daemon's end")
        compare(client, pool, {key: keys[key] for key in batch}, "after the daemon was killed")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
