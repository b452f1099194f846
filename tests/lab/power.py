"""Power cuts that lose a drive's volatile cache: the drive is behind a server that keeps what is not flushed in memory.

The guest's daemon stores blocks, and says on this machine's disk which ones it was told are kept. In the middle of it server
and guest are killed together. The next boot finds the drive with what had been flushed, and compares.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.lab import drives
from tests.lab.drives import Drives
from tests.lab.guest import Outcome

CUTS = 10
SEED = 1
# Between the first block and the cut.
BLOCKS_MIN, BLOCKS_MAX = 10, 60


def cuts(results: Path, boot: Callable[[str, Drives, Callable[[subprocess.Popen[bytes]], None]], Outcome]) -> Outcome:
    """Ten boots that are cut, and one that looks. boot(step of tests.lab.nvme, drives, who hears of QEMU's process)."""
    image = drives.image(results / "power.img", 256)
    (results / "acknowledged").unlink(missing_ok=True)
    chance = random.Random(SEED)
    for number in range(CUTS + 1):
        last = number == CUTS
        blocks = 0 if last else chance.randint(BLOCKS_MIN, BLOCKS_MAX)
        socket = results / "power.sock"
        with drives.nbd_server(socket, image, "--filter=cache", "cache=writeback") as server:
            machine: list[subprocess.Popen[bytes]] = []

            def cut(server: subprocess.Popen[bytes] = server, machine: list[subprocess.Popen[bytes]] = machine) -> None:
                server.kill()
                machine[0].kill()

            there = Drives(
                [*drives.controller(), *drives.remote_node("d0", socket), *drives.namespace("d0", 1)], {"cut the power": cut}
            )
            outcome = boot(f"power /dev/ng0n1 {blocks}", there, machine.append)
        print(f"lab: boot {number + 1} of {CUTS + 1}: {_ended(outcome)}", flush=True)
        if last or outcome.status is not None or outcome.timed_out:
            return outcome
    raise AssertionError("the last boot returns")


def _ended(outcome: Outcome) -> str:
    if outcome.timed_out:
        return "killed at its limit"
    return "the power was cut" if outcome.status is None else f"status {outcome.status}"
