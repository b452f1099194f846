"""A process of the client under load: `python -m tests.torture.client.victim URL SEED DAEMON_PID`, started by the driver.

Prints one line of JSON when it is about to end: what it did, and its faults. What is under way then goes on into the end.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import random
import sys
import threading
import time

from tests.torture.client import sides
from tests.torture.client.workers import BLOCK_BYTES, FACES, KEYS, Shared, work

import halfstep
import halfstep.client.aio
import halfstep.client.futures  # both are imported at first use, which needs descriptors


def _wait_for_blocks(client: halfstep.Client) -> None:
    """The driver stores them first. A mount misses while the daemon behind it stands still: another process may have it so."""
    until = time.monotonic() + 60
    while not client.get(KEYS[:1], bytearray(BLOCK_BYTES), deadline_ms=60_000).ok.all():
        assert time.monotonic() < until, "the blocks that the driver stored do not come"


def main() -> None:
    """One life, drawn from a seed."""
    faulthandler.enable()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("seed", type=int)
    parser.add_argument("daemon_pid", type=int)
    parser.add_argument("--end", choices=list(sides.ENDS))
    parser.add_argument("--patience", type=float, default=1.0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    client = halfstep.connect(options.url, connections=rng.choice([1, 1, 2]), required=True, deadline_ms=60_000)
    shared = Shared(client, options.seed, options.daemon_pid, options.patience)
    shared.queues = [client.queue() for _ in range(2)]
    end = options.end or rng.choice(sides.DRAWN)
    faces = [rng.choice(list(FACES)) for _ in range(rng.randint(2, 7))]
    passing = [rng.choice(list(sides.PASSING)) for _ in range(rng.randint(1, 4))]
    for side in passing:
        faces = [face for face in faces if face not in sides.NOT_BESIDE.get(side, ())]
    print(json.dumps({"end": end, "faces": faces, "passing": passing}), flush=True)
    _wait_for_blocks(client)
    for number, face in enumerate(faces):
        thread = threading.Thread(
            target=work, args=(shared, face, options.seed * 1000 + number), name=f"{face}-{number}", daemon=True
        )
        shared.threads.append(thread)
        thread.start()
    for side in passing:
        time.sleep(rng.random() * 0.15)
        sides.PASSING[side](shared, rng)
    time.sleep(rng.random() * 0.15)
    leaves = end in ("leave", "leave_by_exit", "interrupt")
    if leaves:
        _report(shared)
        if shared.ledger.faults:
            os._exit(3)
    sides.ENDS[end](shared, rng)
    if not leaves:
        shared.ledger.look_at_all()
        _report(shared)
        sys.exit(3 if shared.ledger.faults else 0)


def _report(shared: Shared) -> None:
    said = {"calls": dict(shared.calls), "answers": dict(shared.answers), "checked": shared.ledger.checked}
    print(json.dumps({**said, "faults": shared.ledger.faults}), flush=True)


if __name__ == "__main__":
    main()
