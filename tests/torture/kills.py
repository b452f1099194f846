"""SIGKILL at random moments during puts and deletes, then a restart, again and again on one store.

After each restart: every block that `match` reports is returned bit-exact; every acknowledged `persist` block that was not
deleted is there; every block whose delete was acknowledged is gone.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tests.torture.content import bytes_of, size_of

import halfstep
from halfstep.tools.daemon_process import DaemonProcess

DEADLINE_MS = 20_000
BATCH = 8
# A store is made anew when this much was put into it, long before it reclaims: a lost block is then lost, not evicted.
STORE = "2GiB"
PUT_BYTES_MAX = 1 << 30


@dataclass
class Ledger:
    """What the daemon acknowledged, block by block. Blocks in flight at a kill may be either way."""

    persisted: set[bytes] = field(default_factory=set)
    offered: set[bytes] = field(default_factory=set)
    deleted: set[bytes] = field(default_factory=set)
    unsure: set[bytes] = field(default_factory=set)  # a delete was asked for and not acknowledged
    put_bytes: int = 0


@dataclass
class Tally:
    """What was seen over all rounds."""

    rounds: int = 0
    acknowledged: int = 0
    deleted: int = 0
    verified: int = 0
    wrong: int = 0
    lost: int = 0
    risen: int = 0


def write(client: halfstep.Client, ledger: Ledger, rng: random.Random, stop: threading.Event) -> None:
    """Puts and deletes until the daemon is gone."""
    while not stop.is_set():
        keys = [rng.randbytes(rng.randint(1, 60) + 8) for _ in range(BATCH)]
        durability = rng.choice(["persist", "persist", "cache"])
        ledger.offered.update(keys)
        ledger.put_bytes += sum(size_of(key) for key in keys)
        put = client.put(keys, [bytes_of(key) for key in keys], durability=durability, deadline_ms=DEADLINE_MS)
        if durability == "persist":
            ledger.persisted.update(key for key, ok in zip(keys, put.ok, strict=True) if ok)
        if rng.random() < 0.3 and ledger.persisted:
            gone = rng.sample(sorted(ledger.persisted), min(3, len(ledger.persisted)))
            ledger.persisted.difference_update(gone)
            ledger.unsure.update(gone)
            result = client.delete(gone, deadline_ms=DEADLINE_MS)
            sure = {key for key, ok in zip(gone, result.ok, strict=True) if ok}
            ledger.deleted |= sure
            ledger.unsure -= sure
        if not put.ok.any():
            return


def verify(client: halfstep.Client, ledger: Ledger, tally: Tally) -> None:
    """Reads back everything that was ever offered and compares it with the ledger."""
    keys = sorted(ledger.offered)
    for at in range(0, len(keys), 64):
        some = keys[at : at + 64]
        targets = [np.zeros(size_of(key), dtype=np.uint8) for key in some]
        present = client.match(some, deadline_ms=DEADLINE_MS).present
        got = client.get(some, targets, deadline_ms=DEADLINE_MS)
        for key, there, ok, target in zip(some, present, got.ok, targets, strict=True):
            if ok:
                tally.verified += 1
                tally.wrong += not np.array_equal(target, bytes_of(key))
            tally.wrong += bool(there) and not ok
            tally.lost += key in ledger.persisted and not ok
            tally.risen += key in ledger.deleted and bool(ok)


def run(rounds: int, seed: int, directory: Path, *serve_arguments: str, verbose: bool = False) -> Tally:
    """`rounds` kills, on one store as long as that has room."""
    rng = random.Random(seed)
    ledger, tally = Ledger(), Tally()
    with DaemonProcess(directory, "--size", STORE, "--arena", "128MiB", *serve_arguments) as daemon:
        for number in range(rounds):
            layout = halfstep.Layout.opaque("torture")
            with halfstep.connect(daemon.url, layout=layout, required=True, deadline_ms=DEADLINE_MS) as client:
                stop = threading.Event()
                before = len(ledger.persisted)
                writer = threading.Thread(target=write, args=(client, ledger, random.Random(rng.random()), stop))
                writer.start()
                time.sleep(rng.uniform(0.02, 0.4))
                daemon.end(signal.SIGKILL)
                stop.set()
                writer.join()
                tally.acknowledged += max(0, len(ledger.persisted) - before)
            daemon.start()
            with halfstep.connect(daemon.url, layout=layout, required=True, deadline_ms=DEADLINE_MS) as client:
                verify(client, ledger, tally)
                _trim(client, ledger, rng)
            tally.rounds, tally.deleted = number + 1, len(ledger.deleted)
            if verbose:
                print(f"{number + 1} of {rounds}: {tally}", flush=True)
            if tally.wrong or tally.lost or tally.risen:
                break
            if ledger.put_bytes > PUT_BYTES_MAX:
                assert daemon.end() == 0
                daemon.store.unlink()
                ledger = Ledger()
                daemon.start()
    return tally


def _trim(client: halfstep.Client, ledger: Ledger, rng: random.Random) -> None:
    """Keeps the run's verification short: past 400 offered blocks most are deleted for good (and must stay gone)."""
    if len(ledger.offered) <= 400:
        return
    drop = rng.sample(sorted(ledger.offered - ledger.deleted), (len(ledger.offered) - len(ledger.deleted)) * 3 // 4)
    ledger.persisted.difference_update(drop)
    result = client.delete(drop, deadline_ms=DEADLINE_MS)
    answered = [key for key, ok in zip(drop, result.ok, strict=True) if ok]
    ledger.unsure -= set(answered)
    ledger.deleted.update(answered)
    # A sample of the deleted ones is asked for in every later round; all of them would make rounds ever longer.
    keep = set(rng.sample(sorted(ledger.deleted), min(100, len(ledger.deleted))))
    ledger.offered = (ledger.offered - set(drop) - ledger.deleted) | keep
    ledger.deleted = keep


def main() -> int:
    """0 when nothing was wrong, lost or risen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", default="auto")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="halfstep-kills-") as directory:
        tally = run(options.rounds, options.seed, Path(directory), "--engine", options.engine, verbose=True)
    return 1 if tally.wrong or tally.lost or tally.risen else 0


if __name__ == "__main__":
    sys.exit(main())
