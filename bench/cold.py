#!/usr/bin/env python3
"""Question: do cold gets keep the device as busy as fio does, reading the same extents of the same file?

A store of its own in --directory with twelve times as many blocks as its memory takes, walked through in batches of
neighbours in random order, so that nothing of it is in memory; ours and fio in turns. Our gets are made by the client core
without an interpreter (halfstep_client_bench --rw cold; `make native` makes it) or, with --python, by the Python client. fio
replays a list of extents of what the store wrote, batches of neighbours in random order as well, with io_uring and O_DIRECT,
its buffers in huge pages, and as many reads at once as our gets have blocks in flight, in two ways, one read after the other
and a batch at once, which lets the kernel make one request of neighbours; the faster counts. Both count only if the kernel's
counter of the device says that it read the bytes, ours also only if the daemon's engine does; every block is verified. A
ratio is ours to the mean of the fio runs right before and right after. Ours are made again while the host of a virtual
machine has the two cores apart (cores.py); fio has one core. Exit status 1 when a median misses its goal.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cores import DISTANCE_PROGRAM, Cores
from native_driver import CLIENT_PROGRAM, native_drives
from script import add_programs, built, conclude, header, positive, quiet, run, run_seconds, say, spread, spread_text, with_fio

from halfstep.daemon.units import KIB, MIB, format_bytes
from halfstep.errors import DeviceError
from halfstep.tools.bench.device import DEVICE_SHARE_MIN, DeviceWork, extents_of
from halfstep.tools.bench.fio import Side, replay_fio
from halfstep.tools.bench.measure import Reads, measure, python_clients
from halfstep.tools.bench.plan import COLD_MEMORIES, Plan
from halfstep.tools.bench.report import Limit, Result

# What `halfstep serve` has without being told.
ARENA_BYTES = 256 * MIB
COLD_BYTES = COLD_MEMORIES * ARENA_BYTES
# Of one list of extents, which fio reads over and over.
LIST_BYTES = 1024 * MIB


@dataclass(frozen=True)
class Case:
    """batch x iodepth blocks are in flight, and as many reads of fio's. transport: over which they come, "tcp" or "shm"."""

    block_bytes: int
    batch: int
    iodepth: int
    goal: float
    transport: str = "tcp"


# The device's own most needs more than 16 MiB in flight at a client that receives and checks what it gets, so there are two of
# the large ones. Over shared memory the kernel copies nothing: what it adds is what the sockets cost.
CASES = (
    Case(1 * MIB, 4, 16, 0.95),
    Case(1 * MIB, 4, 16, 0.95, "shm"),
    Case(1 * MIB, 4, 4, 0.95),
    Case(1 * MIB, 4, 4, 0.95, "shm"),
    Case(16 * KIB, 16, 4, 0.85),
)


@dataclass(frozen=True)
class Replay:
    """What fio came to. together: how many reads it submitted at once; work: what the device did meanwhile."""

    side: Side
    together: int
    work: DeviceWork

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self.side), "submitted_together": self.together, "device": asdict(self.work)}


class FioReads:
    """What runs before and after each timed run: the faster of two ways counts. said: both of each time, in order."""

    def __init__(self) -> None:
        self.said: list[Replay] = []

    def __call__(self, reads: Reads) -> Limit:
        both = [self._replay(reads, together) for together in (1, reads.batch)]
        self.said += both
        best = max(both, key=lambda one: one.side.bytes_per_s)
        return Limit(best.side.bytes_per_s, f"the faster fio, depth {reads.depth}")

    def _replay(self, reads: Reads, together: int) -> Replay:
        seed = reads.seed + len(self.said)
        extents = extents_of(reads.store, reads.block_bytes, reads.batch, LIST_BYTES, seed, merged=False)
        before = reads.device.work()
        side = replay_fio(reads.store, extents, depth=reads.depth, seconds=reads.seconds, together=together)
        work = reads.device.work().since(before)
        came = side.transfers * reads.block_bytes
        if work.read_bytes < DEVICE_SHARE_MIN * came:
            raise DeviceError(
                f"{reads.device.name} read {work.read_bytes} bytes for {came} that fio had: something else answered; put the "
                "store on a disk that has O_DIRECT, with --directory"
            )
        return Replay(side, together, work)

    def by(self, together: int) -> list[Replay]:
        """One of the two ways."""
        return [one for one in self.said if one.together == together]


@dataclass(frozen=True)
class Verdict:
    """What a case came to."""

    case: Case
    result: Result
    fio: FioReads
    seconds: float

    @property
    def ratios(self) -> list[float]:
        """Of each round."""
        return [one.ratio or 0.0 for one in self.result.runs]

    @property
    def reached(self) -> bool:
        """The goal, every byte verified."""
        return spread(self.ratios)["median"] >= self.case.goal and self.result.verified

    def as_json(self) -> dict[str, Any]:
        return {
            **asdict(self.case),
            "in_flight": self.case.batch * self.case.iodepth,
            "ratio": spread(self.ratios),
            "ratios": self.ratios,
            "reached": self.reached,
            "moved": [asdict(one.proof) for one in self.result.runs],
            "fio": [one.as_json() for one in self.fio.said],
            "ours": self.result.as_json(),
        }

    def line(self) -> str:
        case, shown = self.case, self.result.run
        ours = [(one.bytes_per_s or 0.0) / 1e9 for one in self.result.runs]
        proof, cpu = shown.proof, shown.cpu.daemon
        used = "" if cpu is None else f"; the daemon used {cpu / shown.timing.seconds:.2f} of its core"
        work = DeviceWork(proof.device_read_bytes or 0, proof.device_reads or 0, proof.device_queue_ms or 0)
        flight = f"{case.batch * case.iodepth} in flight ({case.iodepth} calls of {case.batch})"
        verdict = f"of fio {spread_text(self.ratios)}, goal {case.goal:.2f}: {'reached' if self.reached else 'MISSED'}"
        lines = [
            f"cold get {format_bytes(case.block_bytes)} over {case.transport}, {flight}: {verdict}",
            f"ours: {spread_text(ours)} GB/s; {work.text(shown.timing.seconds)} at the device{used}",
        ]
        for together, how in ((1, "read by read"), (case.batch, "a batch at once")):
            some = sorted(self.fio.by(together), key=lambda one: one.side.bytes_per_s)
            gigabytes = [one.side.bytes_per_s / 1e9 for one in some]
            at_device = some[len(some) // 2].work.text(self.seconds)
            lines.append(f"fio, {how}: {spread_text(gigabytes)} GB/s; {at_device} at the device")
        lines.append(
            f"the run shown: {proof.payload_bytes} bytes delivered, {proof.engine_read_bytes} read by the engine, "
            f"{proof.device_read_bytes} by the device"
        )
        return "\n    ".join(lines)


def in_batches_of(batch: int) -> list[Case]:
    """The same blocks in flight, in calls of so many; each once."""
    return list(dict.fromkeys(replace(case, batch=batch, iodepth=max(case.batch * case.iodepth // batch, 1)) for case in CASES))


def measured(case: Case, options: argparse.Namespace, near: Cores) -> Verdict:
    fio = FioReads()
    plan = Plan(
        scenarios=("cold",),
        block_bytes=(case.block_bytes,),
        batch=case.batch,
        iodepth=(case.iodepth,),
        seconds=options.runtime,
        repeat=options.rounds,
        directory=options.directory,
        arena_bytes=options.arena * MIB,
        cold_bytes=COLD_BYTES,
        transport=case.transport,
    )
    drives = python_clients if options.python else native_drives(built(options.programs, CLIENT_PROGRAM))
    report = measure(
        plan, say if options.verbose else quiet, " ".join(sys.argv), read_limit=fio, drives_of=drives, steadily=near.steadily
    )
    if report.refused:
        raise SystemExit(f"cold {format_bytes(case.block_bytes)}: refused: {report.refused[0].why}")
    return Verdict(case, report.results[0], fio, options.runtime)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runtime", type=run_seconds, default=1.5, help="seconds of one run")
    parser.add_argument("--rounds", type=positive, default=7, help="of ours and of fio, in turns; the median ratio counts")
    parser.add_argument("--batch", type=positive, help="blocks of a call, in as many calls as make the same in flight")
    parser.add_argument(
        "--arena",
        type=positive,
        default=ARENA_BYTES // MIB,
        metavar="MIB",
        help=f"the daemon's memory, {ARENA_BYTES // MIB} at most; a drive may fill what the CPU's cache holds faster",
    )
    parser.add_argument("--directory", type=Path, help="of the store: on the drive in question")
    parser.add_argument("--python", action="store_true", help="gets by the Python client")
    add_programs(parser, CLIENT_PROGRAM, DISTANCE_PROGRAM)
    parser.add_argument("--verbose", action="store_true", help="say each run as it begins")
    parser.add_argument("--json", action="store_true", help="one document on stdout")
    options = parser.parse_args()
    if options.arena * MIB > ARENA_BYTES:
        parser.error(f"--arena {options.arena}: at most {ARENA_BYTES // MIB}, or what is read is not cold")
    if not options.python:
        built(options.programs, CLIENT_PROGRAM)
    head = header(
        fio=with_fio(),
        client="python" if options.python else "native",
        rounds=options.rounds,
        seconds=options.runtime,
        arena_bytes=options.arena * MIB,
        cold_bytes=COLD_BYTES,
    )
    near = Cores.of_pinned(options.programs)
    verdicts = []
    for case in CASES if options.batch is None else in_batches_of(options.batch):
        what = f"cold get {format_bytes(case.block_bytes)} over {case.transport}"
        say(f"{what}: {options.rounds} rounds of {options.runtime:g} s, fio in between")
        verdicts.append(measured(case, options, near))
        say(verdicts[-1].line())
    conclude(head, near, {"cases": [verdict.as_json() for verdict in verdicts]}, as_json=options.json)
    return 0 if all(verdict.reached for verdict in verdicts) else 1


if __name__ == "__main__":
    run(main)
