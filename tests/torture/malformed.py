"""A hostile client: malformed, truncated and lying frames against a live daemon, with a good client beside it.

The good client must be served within its deadline throughout; the daemon must live, keep its memory and its descriptors.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import socket
import struct
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tests.torture.content import bytes_of
from tests.torture.process import WatchedDaemon
from tests.wire.checksums import crc32c
from tests.wire.frames import frame as seal
from tests.wire.frames import tlv

import halfstep

GOOD_DEADLINE_MS, SETUP_DEADLINE_MS = 30_000, 30_000
# Frames behind one another on a connection before it is given up; the daemon closes most of them far earlier.
FRAMES_PER_CONNECTION = 40
# What an allocator may keep of a run; a leak of 10 bytes a frame is above it in a million frames.
GROWTH_BYTES_MAX = 8 << 20
# Lengths around the bounds of bodies and of chunks.
LENGTHS = (2 << 20, (2 << 20) + 1, 256 << 10, (256 << 10) + 1)


@dataclass
class Tally:
    """What was sent and seen."""

    frames: int = 0
    connections: int = 0
    good_calls: int = 0
    good_failures: int = 0
    rss_growth_bytes: int = 0
    descriptors_growth: int = 0


class Mutator:
    """Makes bad frames from good ones. Half of them have right checksums, so that they get past the first door."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._good = [hello(), *bodies()]
        self.kinds: Counter[str] = Counter()

    def frame(self) -> bytes:
        """One frame, bad in one of several ways, each counted."""
        rng = self._rng
        opcode, body, payload = rng.choice(self._good)
        kind = rng.choice(["flip", "truncate", "lengths", "body", "opcode", "noise", "resealed", "oversized", "good"])
        self.kinds[kind] += 1
        if kind == "noise":
            return rng.randbytes(rng.randint(1, 200))
        if kind == "opcode":
            return seal(rng.randrange(256), rng.randrange(1 << 16), body, payload)
        if kind in ("body", "resealed"):
            mutated = bytearray(body)
            for _ in range(rng.randint(1, 4)):
                if mutated:
                    mutated[rng.randrange(len(mutated))] = rng.randrange(256)
            if kind == "resealed" and mutated:
                mutated = mutated[: rng.randrange(len(mutated) + 1)]
            return seal(opcode, rng.randrange(1, 1 << 40), bytes(mutated), payload)
        frame = bytearray(seal(opcode, rng.randrange(1, 1 << 40), body, payload))
        if kind == "flip":
            frame[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)
        elif kind == "truncate":
            del frame[rng.randrange(len(frame)) :]
        elif kind in ("lengths", "oversized"):
            size = rng.choice([0xFFFFFFFF, 0x7FFFFFFF, *LENGTHS, rng.randrange(1 << 32)])
            at = 16 if kind == "lengths" else 20
            frame[at : at + 4] = struct.pack("<I", size)
            frame[28:32] = struct.pack("<I", crc32c(bytes(frame[:28])))
        return bytes(frame)


def hello(version: int = 1, namespace: bytes = b"default") -> tuple[int, bytes, bytes]:
    """A HELLO. One of another version, or for a namespace that is not there, is refused, and what follows it is dropped."""
    client = struct.pack("<HHIQQ", version, version, 0, 1, 42)
    return 1, tlv(1, client) + tlv(2, namespace), b""


def bodies() -> list[tuple[int, bytes, bytes]]:
    """One good frame of every request, and chunks."""
    key = b"\x05hello"
    batch = tlv(8, struct.pack("<IBBBBQII", 1000, 0, 0, 0, 0, 0, 0, 0))
    section = tlv(9, struct.pack("<HHIHHIII", 0, 0, 0, 1, 0, 1, len(key), 0) + key)
    ranged = tlv(9, struct.pack("<HHIHHIII", 0, 1, 0, 1, 1, 1, len(key), 0) + struct.pack("<III", 0, 1, 1) + key)
    offers = tlv(10, struct.pack("<HHI", 0, 0, 1) + struct.pack("<IIQBBHIII", 100, 100, 0, 0, 0, 0, 0, 0, 0))
    layout = halfstep.Layout.opaque("malformed").canonical
    run = struct.pack("<HHIIIIIII", 0, 0, 0, 0, 1, 0, 100, 100, 1)
    runs = tlv(15, struct.pack("<II", 1, 1) + run + struct.pack("<I", 7))
    return [
        (2, tlv(6, layout), b""),
        (3, batch + section, b""),
        (4, batch + section, b""),
        (4, batch + ranged, b""),
        (5, batch + section + offers, b""),
        (6, batch + section + tlv(19, struct.pack("<QII", 9, 0, 0)), b""),
        (7, batch + section, b""),
        (8, tlv(23, struct.pack("<Q", 1)), b""),
        (9, tlv(20, struct.pack("<QII", 0, 10, 0)), b""),
        (10, b"", b""),
        (11, batch + section, b""),
        (17, tlv(24, struct.pack("<BBHIQ", 1, 0, 0, 0, 0)) + tlv(2, b"other"), b""),
        (32, runs, bytes(100)),
    ]


def attack(address: tuple[str, int], frames: int, seed: int, tally: Tally) -> Counter[str]:
    """Sends `frames` bad frames, many to a connection, each connection ended in its own way."""
    rng = random.Random(seed)
    mutator = Mutator(rng)
    sent = 0
    while sent < frames:
        count = min(rng.randint(1, FRAMES_PER_CONNECTION), frames - sent)
        data = b"".join(mutator.frame() for _ in range(count))
        if rng.random() < 0.8:  # most get past HELLO first
            opcode, body, payload = rng.choice([hello()] * 6 + [hello(version=2), hello(namespace=b"nowhere")])
            data = seal(opcode, 1, body, payload) + seal(2, 2, bodies()[0][1], b"") + data
        with contextlib.suppress(OSError), socket.create_connection(address, timeout=5) as connection:
            tally.connections += 1
            if rng.random() < 0.5:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # ends with a reset
            connection.sendall(data)
            if rng.random() < 0.3:
                connection.shutdown(socket.SHUT_WR)
                connection.settimeout(0.05)
                while connection.recv(1 << 16):
                    pass
        sent += count
        tally.frames += count
    return mutator.kinds


def run(frames: int, seed: int, directory: Path, *serve_arguments: str, verbose: bool = False) -> Tally:
    """`frames` bad frames while a good client gets its blocks."""
    tally = Tally()
    with WatchedDaemon(directory, "--size", "1GiB", "--arena", "64MiB", *serve_arguments) as daemon:
        layout = halfstep.Layout.opaque("good")
        keys = [b"good-%d" % number for number in range(8)]
        with halfstep.connect(daemon.url, layout=layout, required=True, deadline_ms=GOOD_DEADLINE_MS) as client:
            blocks = [bytes_of(key, client.facts().block_bytes_max) for key in keys]
            put = client.put(keys, blocks, durability="persist", deadline_ms=SETUP_DEADLINE_MS)
            assert put.ok.all(), put
            stop = threading.Event()
            good = threading.Thread(target=_be_good, args=(client, keys, blocks, stop, tally))
            # A first part warms pools and buffers up: growth is measured from there.
            attack(daemon.address, min(frames // 10 + 1, 20_000), seed + 1, tally)
            rss, descriptors = daemon.resident_bytes(), daemon.descriptors()
            good.start()
            started = time.monotonic()
            step = max(1, frames // 20)
            while tally.frames < frames:
                attack(daemon.address, min(step, frames - tally.frames), seed + tally.frames, tally)
                if verbose:
                    rate = tally.frames / (time.monotonic() - started)
                    print(f"{tally.frames} of {frames}, {rate:.0f}/s, {daemon.resident_bytes() >> 10} KiB: {tally}", flush=True)
            stop.set()
            good.join()
            until = time.monotonic() + 30  # closed connections are reaped by the daemon's next turns
            while daemon.descriptors() > descriptors and time.monotonic() < until:
                time.sleep(0.1)
            tally.rss_growth_bytes = daemon.resident_bytes() - rss
            tally.descriptors_growth = daemon.descriptors() - descriptors
        assert daemon.end() == 0
    return tally


def _be_good(
    client: halfstep.Client, keys: list[bytes], blocks: list[npt.NDArray[np.uint8]], stop: threading.Event, tally: Tally
) -> None:
    targets = [np.zeros_like(block) for block in blocks]
    while not stop.is_set():
        for target in targets:
            target[:] = 0
        got = client.get(keys, targets, deadline_ms=GOOD_DEADLINE_MS)
        right = got.ok.all() and all(np.array_equal(t, b) for t, b in zip(targets, blocks, strict=True))
        tally.good_calls += 1
        tally.good_failures += not right
        stop.wait(0.01)


def main() -> int:
    """0 when the good client was served throughout and nothing grew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="halfstep-malformed-") as directory:
        tally = run(options.frames, options.seed, Path(directory), verbose=True)
    print(tally)
    return 0 if not tally.good_failures and tally.rss_growth_bytes < GROWTH_BYTES_MAX and tally.descriptors_growth <= 0 else 1


if __name__ == "__main__":
    sys.exit(main())
