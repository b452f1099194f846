"""A day of churn on an accelerated clock: the real store over a real file, embedded, as `halfstep replay` has it.

Conversations come and go, grow, are taken up again; their blocks have all kinds of TTL, and the store is written over many
times. Every few simulated minutes the books are compared with what is there: the file's blocks on disk with its cap; the
store's count of blocks with a look at every block that was ever written; blocks written with blocks that left, by reason; bytes
that the store says it wrote, by cause, with what the engine wrote. Every simulated hour all that is there is read and compared.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from halfstep import _store

CAPACITY_BLOCKS = 4096
SEGMENTS = 128
DEVICE_BYTES = 300 << 20
KEY_BYTES = 16
# Simulated time between requests, and what they are made of. At these rates a day writes the store over about thirty times.
REQUEST_US = 20_000_000
PROMPT_BLOCKS = (8, 60)
TURN_BLOCKS = (4, 30)
LIVING_CONVERSATIONS = 60
TTLS_S = (0, 0, 120, 900, 3600, 6 * 3600)
SAMPLE_US = 300_000_000
HOUR_US = 3_600_000_000
MATCH_KEYS = 4096
READ_KEYS = 256
# What a file system may add to a file that was allocated whole: its own map of extents.
FILE_MAP_BYTES = 64 << 10

Keys = npt.NDArray[np.uint8]


@dataclass
class Tally:
    """What was done and seen; `broken` says what did not agree, and when."""

    hours: float = 0
    requests: int = 0
    written: int = 0
    refused: int = 0
    samples: int = 0
    blocks_read: int = 0
    physical_bytes_max: int = 0
    cap_bytes: int = 0
    broken: list[str] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)


class Traffic:
    """Requests of conversations: a prefix that was there before, and what is new."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._conversations: list[Keys] = []
        self._ever = np.zeros((1 << 12, KEY_BYTES), np.uint8)
        self._count = 0

    @property
    def ever(self) -> Keys:
        """All keys there ever were."""
        return self._ever[: self._count]

    def request(self) -> tuple[Keys, int]:
        """Keys from the root to the leaf, and the TTL of what is new in it."""
        rng = self._rng
        if len(self._conversations) >= LIVING_CONVERSATIONS and rng.random() < 0.7:
            number = rng.randrange(len(self._conversations))
            grown = np.concatenate((self._conversations[number], self._new(rng.randint(*TURN_BLOCKS))))
            self._conversations[number] = grown
        else:
            grown = self._new(rng.randint(*PROMPT_BLOCKS))
            if len(self._conversations) >= LIVING_CONVERSATIONS:
                self._conversations.pop(rng.randrange(len(self._conversations)))
            self._conversations.append(grown)
        return grown, rng.choice(TTLS_S)

    def _new(self, count: int) -> Keys:
        if self._count + count > len(self._ever):
            self._ever = np.concatenate((self._ever, np.zeros_like(self._ever)))
        keys = np.frombuffer(self._rng.randbytes(count * KEY_BYTES), np.uint8).reshape(count, KEY_BYTES)
        self._ever[self._count : self._count + count] = keys
        self._count += count
        return keys


class Churn:
    """The store, its file, and the books."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.tally = Tally()
        self._now_us = 0
        self._traffic = Traffic(random.Random(seed))
        before = _file_sizes()
        self._store = _store.Store(
            capacity_blocks=CAPACITY_BLOCKS,
            segments=SEGMENTS,
            device_bytes=DEVICE_BYTES,
            path=str(directory / "churn.hs"),
            manual_clock=True,
            seed=seed,
        )
        self.tally.cap_bytes = self._store.sizing()["device_bytes"]
        self._device_bytes_before = self._store.device_write_bytes()
        self._said_before = self._bytes_said()
        # The file has no name: it is found by its size among what was opened.
        self._file = next(fd for fd, size in _file_sizes().items() if fd not in before and size == self.tally.cap_bytes)

    def run(self, hours: float, *, verbose: bool = False) -> None:
        """Requests, and a look at the books every few minutes of simulated time."""
        end_us = int(hours * HOUR_US)
        while self._now_us < end_us and not self.tally.broken:
            sample_us = self._now_us + SAMPLE_US
            while self._now_us < sample_us:
                self._request()
            whole = self._now_us // HOUR_US > (sample_us - SAMPLE_US) // HOUR_US
            self._sample(whole=whole)
            self.tally.hours = self._now_us / HOUR_US
            if verbose and whole:
                print(f"{self.tally.hours:.0f} h: {self.tally.written} written, {self._store.blocks()} there", flush=True)
        self._sample(whole=True)
        self.tally.counters = self._store.counters()
        self._store.close()

    def _request(self) -> None:
        keys, ttl_s = self._traffic.request()
        self._now_us += REQUEST_US
        self._store.advance_to(self._now_us)
        leading, _ = self._store.match(keys)
        came, missed, wrong = self._store.read(keys[:leading])
        self._agree("blocks that match says are there come", leading, came)
        self._agree("missed, wrong", (0, 0), (missed, wrong))
        _, written, refused = self._store.access(keys, tell_parents=True, ttl_s=ttl_s)
        self.tally.requests += 1
        self.tally.written += written
        self.tally.refused += refused

    def _sample(self, *, whole: bool) -> None:
        # What has expired leaves within seconds; what was gathered goes to the device.
        for _ in range(5):
            self._now_us += 1_000_000
            self._store.advance_to(self._now_us)
            self._store.settle()
        self.tally.samples += 1
        physical = os.fstat(self._file).st_blocks * 512
        self.tally.physical_bytes_max = max(self.tally.physical_bytes_max, physical)
        if physical > self.tally.cap_bytes + FILE_MAP_BYTES:
            self.tally.broken.append(f"{physical} bytes on disk, the cap is {self.tally.cap_bytes}")
        self._agree("the file's size", self.tally.cap_bytes, os.fstat(self._file).st_size)

        present = self._look_at_everything()
        self._agree("blocks counted and found", self._store.blocks(), len(present))
        counters = self._store.counters()
        left = sum(count for name, count in counters.items() if name.startswith("blocks_evicted_"))
        # One that had expired and was written again before the sweep came by left without a reason of its own.
        again = self.tally.written + self.tally.refused - len(self._traffic.ever)
        unexplained = counters["writes_committed"] - left - len(present)
        if not 0 <= unexplained <= again:
            self._agree("written, less those that left, and found", counters["writes_committed"] - left, len(present))
        wrote = self._store.device_write_bytes() - self._device_bytes_before
        self._agree("bytes said to be written and those at the device", self._bytes_said() - self._said_before, wrote)
        if whole:
            for keys in _pieces(present, READ_KEYS):
                came, missed, wrong = self._store.read(keys)
                self._agree("read, missed, wrong", (len(keys), 0, 0), (came, missed, wrong))
                self.tally.blocks_read += came

    def _look_at_everything(self) -> Keys:
        """Those of all keys there ever were that are there."""
        found = [
            keys[np.frombuffer(self._store.match(keys)[1], np.uint8) == 1] for keys in _pieces(self._traffic.ever, MATCH_KEYS)
        ]
        return np.concatenate(found)

    def _bytes_said(self) -> int:
        counters = self._store.counters()
        return sum(counters[name] for name in ("bytes_user", "bytes_padding", "bytes_metadata", "bytes_rewritten"))

    def _agree(self, what: str, one: object, other: object) -> None:
        if one != other:
            self.tally.broken.append(f"after {self._now_us / HOUR_US:.2f} h: {what}: {one} and {other}")


def _pieces(keys: Keys, count: int) -> Iterator[Keys]:
    for at in range(0, len(keys), count):
        yield np.ascontiguousarray(keys[at : at + count])


def _file_sizes() -> dict[int, int]:
    """Of what this process has open, by descriptor."""
    sizes = {}
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of the listing itself
            sizes[int(entry.name)] = os.fstat(int(entry.name)).st_size
    return sizes


def run(hours: float, seed: int, directory: Path, *, verbose: bool = False) -> Tally:
    """So many simulated hours."""
    churn = Churn(directory, seed)
    churn.run(hours, verbose=verbose)
    return churn.tally


def main() -> int:
    """0 when the books agreed at every sample."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=24, help="of simulated time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", type=Path, default=None, help="where the file lies; a temporary one by default")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="halfstep-churn-", dir=options.directory) as directory:
        tally = run(options.hours, options.seed, Path(directory), verbose=True)
    print(f"{tally}\n{time.monotonic() - started_s:.0f} s")
    return 1 if tally.broken else 0


if __name__ == "__main__":
    sys.exit(main())
