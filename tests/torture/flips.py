"""One byte flipped in the store's file under a stopped daemon, over every region of the format, then a start.

Never a wrong byte, never a refused start. A flip in a payload is exactly one miss and one counter; a flip in metadata loses at
most what that page alone describes; every other block hits.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np
from tests.torture.content import bytes_of, size_of

import halfstep
from halfstep.daemon import serve
from halfstep.daemon.config import ServeConfig
from halfstep.errors import HalfstepError

DEADLINE_MS = 60_000
# Small, so that an image is soon written: blocks are then at most 256 KiB.
STORE_BYTES = 132 << 20
BLOCKS = 160
# 31 entries stand on one metadata page (docs/on-flash-format.md): what a flip there may cost at most.
ENTRIES_PER_PAGE = 31


@dataclass
class Tally:
    """What was seen over all flips."""

    flips: int = 0
    refused_starts: int = 0
    wrong: int = 0
    too_many_lost: int = 0
    uncounted_misses: int = 0
    lost: Counter[int] = field(default_factory=Counter)  # blocks lost by a flip -> flips


class InProcess:
    """A server in this process, over a unix socket: restarts cost milliseconds."""

    def __init__(self, store: Path, store_bytes: int = 0) -> None:
        socket = store.with_suffix(".sock")
        config = ServeConfig(
            store=store,
            size_bytes=store_bytes,
            arena_bytes=64 << 20,
            huge_pages=False,
            listen=(),
            unix=str(socket),
            scrub_bytes_per_s=0,  # it would find a flip between match and get
        )
        self.server = serve.start(config.validated())
        self.url = f"halfstep+unix://{socket}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.stop(1000)


def fill(store: Path, store_bytes: int, keys: list[bytes], *, cleanly: bool) -> int:
    """Makes a store with these blocks, all on media, in several frames; returns the largest block's bytes."""
    with InProcess(store, store_bytes) as daemon:
        with halfstep.connect(daemon.url, layout=halfstep.Layout.opaque("flips"), required=True) as client:
            bytes_max = client.facts().block_bytes_max
            for at in range(0, len(keys), 16):
                some = keys[at : at + 16]
                blocks = [bytes_of(key, bytes_max) for key in some]
                put = client.put(some, blocks, durability="persist", deadline_ms=DEADLINE_MS)
                assert put.ok.all(), put
        if not cleanly:
            # What a kill leaves behind: the image as it is now, before stop() seals anything.
            store.with_suffix(".open").write_bytes(store.read_bytes())
    if not cleanly:
        store.with_suffix(".open").replace(store)
    return bytes_max


def used_ranges(image: bytes) -> list[tuple[int, int]]:
    """(start, end) of the pages that are not all zero, merged: where a flip can matter."""
    pages = np.frombuffer(image, dtype=np.uint8).reshape(-1, 4096).any(axis=1)
    edges = np.flatnonzero(np.diff(np.concatenate(([0], pages.view(np.int8), [0]))))
    return [(int(start) * 4096, int(end) * 4096) for start, end in edges.reshape(-1, 2)]


def places(image: bytes, count: int, rng: random.Random) -> Iterator[int]:
    """`count` offsets: half over all used bytes (mostly payload), half over used pages that hold no payload."""
    ranges = used_ranges(image)
    total = sum(end - start for start, end in ranges)
    # Metadata is found by its shape, not by knowing the format: short runs, and the first and last pages of long ones.
    borders = [page for start, end in ranges for page in (*range(start, min(end, start + 8 * 4096), 4096), end - 4096)]
    for number in range(count):
        if number % 2:
            yield rng.choice(borders) + rng.randrange(4096)
            continue
        at = rng.randrange(total)
        for start, end in ranges:
            if at < end - start:
                yield start + at
                break
            at -= end - start


def check(store: Path, keys: list[bytes], bytes_max: int, tally: Tally) -> None:
    """Starts over the flipped image and reads everything."""
    tally.flips += 1
    try:
        daemon = InProcess(store)
    except HalfstepError as error:
        print(f"refused: {error}", file=sys.stderr)
        tally.refused_starts += 1
        return
    with daemon:
        with halfstep.connect(
            daemon.url, layout=halfstep.Layout.opaque("flips"), required=True, deadline_ms=DEADLINE_MS
        ) as client:
            while client.stat()["halfstep_recovery_segments_left"]:
                time.sleep(0.01)
            present = client.match(keys, deadline_ms=DEADLINE_MS).present
            targets = [np.zeros(size_of(key, bytes_max), dtype=np.uint8) for key in keys]
            got = client.get(keys, targets, deadline_ms=DEADLINE_MS)
            missed_on_read = 0
            for key, there, ok, target in zip(keys, present, got.ok, targets, strict=True):
                tally.wrong += bool(ok) and not np.array_equal(target, bytes_of(key, bytes_max))
                missed_on_read += bool(there) and not ok
            counters = client.stat()
        counted = sum(value for name, value in counters.items() if "corrupt" in name and "miss" in name)
        tally.uncounted_misses += missed_on_read > 0 and counted < missed_on_read
        lost = int(np.count_nonzero(~got.ok))
        tally.lost[lost] += 1
        tally.too_many_lost += lost > (1 if missed_on_read else ENTRIES_PER_PAGE)


def run(flips: int, seed: int, directory: Path, *, verbose: bool = False) -> Tally:
    """Half of the flips on a cleanly stopped store, half on one that was killed."""
    rng, tally = random.Random(seed), Tally()
    for cleanly in (True, False):
        store = directory / f"{'clean' if cleanly else 'killed'}.hs"
        keys = [rng.randbytes(rng.randint(1, 60) + 8) for _ in range(BLOCKS)]
        bytes_max = fill(store, STORE_BYTES, keys, cleanly=cleanly)
        image = store.read_bytes()
        ranges = used_ranges(image)
        victim = directory / "victim.hs"
        for number, offset in enumerate(places(image, flips // 2, rng)):
            with victim.open("wb") as file:
                for start, end in ranges:  # the rest is zeros, and stays holes
                    file.seek(start)
                    file.write(image[start:end])
                file.truncate(len(image))
                file.seek(offset)
                file.write(bytes([image[offset] ^ (1 << rng.randrange(8))]))
            before = tally.wrong + tally.too_many_lost + tally.refused_starts + tally.uncounted_misses
            check(victim, keys, bytes_max, tally)
            if tally.wrong + tally.too_many_lost + tally.refused_starts + tally.uncounted_misses != before:
                print(f"offset {offset} of the {'clean' if cleanly else 'killed'} image, seed {seed}: {tally}", flush=True)
            elif verbose and number % 50 == 0:
                print(f"{tally.flips} flips: {tally}", flush=True)
    return tally


def main() -> int:
    """0 when every rule held for every flip."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flips", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="halfstep-flips-") as directory:
        tally = run(options.flips, options.seed, Path(directory), verbose=True)
    print(tally)
    return 1 if tally.wrong or tally.too_many_lost or tally.refused_starts or tally.uncounted_misses else 0


if __name__ == "__main__":
    sys.exit(main())
