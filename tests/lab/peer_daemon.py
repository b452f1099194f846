"""The peer as a daemon of `halfstep.connect`: blocks through rings and into direct regions, and one that breaks the rules."""

from __future__ import annotations

import numpy as np
from tests.lab.placed import Pool
from tests.lab.steps import DEADLINE_MS, check, wait_for
from tests.wire.daemon import Daemon, Lies
from tests.wire.verbs import Device

import halfstep

SIZES = (1, 4096, 65_537, 262_144, 262_145, 1_500_001)
RING_BYTES = 64 << 10


def run(device: Device, address: str) -> None:
    """All steps of the daemon. Errors: DoesNotHold."""
    daemon = Daemon(address, device, ring_bytes=RING_BYTES)
    try:
        blocks = {b"daemon %d" % size: content(size) for size in SIZES}
        with connected(daemon) as client:
            through_rings(daemon, client, blocks)
            direct(daemon, client, blocks)
        for what, lies in {
            "a position past its ring": Lies(position=RING_BYTES * 64),
            "a position that has gone back": Lies(position=-8),
            "more room than came": Lies(room=64),
        }.items():
            lies_of_rings(daemon, blocks, what, lies)
        lies_of_places(daemon, blocks)
        refuses(address)
    finally:
        daemon.close()


def content(seed: int) -> bytes:
    """Of a block, as long as its seed."""
    return np.random.default_rng(seed).bytes(seed)


def connected(daemon: Daemon) -> halfstep.Client:
    """Over RDMA or not at all."""
    return halfstep.connect(daemon.url("rdma"), required=True, deadline_ms=DEADLINE_MS)


def through_rings(daemon: Daemon, client: halfstep.Client, blocks: dict[bytes, bytes]) -> None:
    """Matched, put, got and compared."""
    keys = list(blocks)
    check(client.facts().transport == "rdma", f"over RDMA: {client.facts().transport!r}")
    check(not client.match(keys, deadline_ms=DEADLINE_MS).present.any(), "nothing is there")
    for key, block in blocks.items():
        check(bool(client.put(key, block).ok.all()), f"put {len(block)} bytes")
    check(bool(client.match(keys, deadline_ms=DEADLINE_MS).present.all()), "all is there")
    check(sorted(daemon.blocks.values()) == sorted(blocks.values()), "the peer has what was put")
    for key, block in blocks.items():
        target = bytearray(len(block))
        check(bool(client.get([key], target).ok.all()) and target == block, f"{len(block)} bytes are what was put")
    check(not client.get([b"absent"], bytearray(8)).ok.any(), "what is absent is a miss")
    check(daemon.counts["placed bytes"] == 0, "nothing of it was placed")


def direct(daemon: Daemon, client: halfstep.Client, blocks: dict[bytes, bytes]) -> None:
    """The same into a direct region: the peer writes it there."""
    pool = Pool()
    target = pool.lay_out([len(block) for block in blocks.values()])
    result = client.get(list(blocks), target)
    check(bool(result.ok.all()), f"a get into a direct region: {result}")
    for (at, size), block in zip(pool.places, blocks.values(), strict=True):
        check(pool.memory[at : at + size].tobytes() == block, f"{size} bytes lie where they were to be")
    check(pool.guards_stand(), "nothing beside them was written")
    total, facts = sum(map(len, blocks.values())), client.facts()
    check(facts.placed_bytes == daemon.counts["placed bytes"] == total, f"all of it was placed: {facts.placed_bytes} bytes")
    check(facts.checksum_failures == 0, "and every check matched")
    check(facts.placing_keys == 0, "by the region's key, as the peer knows no keys of a request's own")


def lies_of_rings(daemon: Daemon, blocks: dict[bytes, bytes], what: str, lies: Lies) -> None:
    """The client ends the connection, the get is a miss, and the next connection serves."""
    key, block = next(iter(reversed(blocks.items())))
    with halfstep.connect(daemon.url(), required=True, deadline_ms=DEADLINE_MS) as client:
        check(client.facts().transport == "rdma", f"{what}: over RDMA first")
        before = len(daemon.ended)
        daemon.lies = lies
        target = bytearray(len(block))
        result = client.get([key], target)
        daemon.lies = Lies()
        check(not result.ok.any(), f"{what}: the get is a miss: {result}")
        wait_for(lambda: len(daemon.ended) > before, "the end of the connection")
        facts = client.facts()  # on a slow machine its device may take too long for an offer, too
        check(facts.rdma_failures >= 1, f"{facts.rdma_failures} paths have failed, the last one: {facts.rdma!r}")
        wait_for(lambda: client.facts().connected > 0, "another connection")
        check(bool(client.get([key], target).ok.all()) and target == block, f"then it is served: {client.facts().rdma}")


def lies_of_places(daemon: Daemon, blocks: dict[bytes, bytes]) -> None:
    """A wrong check, and a wrong byte, of what was placed: a miss for each block, and no wrong byte is called right."""
    for what, lies in {"wrong checks": Lies(check=True), "a wrong byte": Lies(byte=True)}.items():
        pool = Pool()
        with connected(daemon) as client:
            target = pool.lay_out([len(block) for block in blocks.values()])
            daemon.lies = lies
            result = client.get(list(blocks), target)
            daemon.lies = Lies()
            check(not result.ok.any(), f"{what}: every block is a miss: {result}")
            check(client.facts().checksum_failures > 0, "and is counted")
            check(pool.guards_stand(), "nothing beside the targets was written")
            check(bool(client.get(list(blocks), target).ok.all()), "the connection serves on")


def refuses(address: str) -> None:
    """A daemon without a device refuses the offer: the stream stays on its socket, and the client says why."""
    daemon = Daemon(address)
    try:
        with halfstep.connect(daemon.url(), required=True, deadline_ms=DEADLINE_MS) as client:
            check(bool(client.put(b"key", b"value").ok.all()), "put over TCP")
            facts = client.facts()
            check(facts.transport == "tcp" and facts.rdma != "", f"over TCP, and the reason is told: {facts.rdma}")
    finally:
        daemon.close()
