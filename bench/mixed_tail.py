#!/usr/bin/env python3
"""Question: what do puts, reclaim, prefetch and scrub do to the slowest hundredth of gets from flash?

Open loop throughout: calls are due at moments with exponential gaps, at half of what our client makes of such calls when more
of them are due than it can make, and a latency counts from when the call was due. One block a call; daemon on one core, client
on the other; every block is verified, and that it came from flash is shown by counters.

mixed: gets of blocks that have left memory and puts, 70 to 30, that go round the store while segments are reclaimed, by the
client core without an interpreter (halfstep_client_bench --rw coldmixed; `make native` makes it) or, with --python, by the
Python client (`halfstep bench --rw coldmixed`), whose own work on a call is then in every latency. In turns with fio: random
reads and writes of the same size, mix, rate and depth, with io_uring and O_DIRECT in a file as large as the store beside it.
The p99 of our gets is set against the mean of that of fio's reads right before and right after. fio's clock starts when it
submits; ours when the call was due, which fio does not tell.

prefetch, scrub: gets of 64 KiB that have left memory, in turns with and without another client that prefetches other blocks at
a fixed rate; and from one store by a daemon that scrubs at a fixed rate, in turns with one that does not. What memory knew
again counts in the most here; in a timed run it may be a hundredth.

Our runs are made again while the host of a virtual machine has the two cores apart (cores.py). Exit status 1 when a median
misses its goal: gets up to 1.5 of fio's p99; prefetch and scrub up to 1.10 of the p99 without.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, Self

from cores import DISTANCE_PROGRAM, Cores
from native_driver import CLIENT_PROGRAM, native_drives
from numpy.random import default_rng
from script import (
    add_programs,
    built,
    conclude,
    header,
    most_per_s,
    no_limit,
    positive,
    quiet,
    run,
    run_seconds,
    say,
    spread,
    spread_text,
    waits_text,
    with_fio,
)

from halfstep.daemon.units import KIB, MIB, format_bytes
from halfstep.tools.bench.content import Content
from halfstep.tools.bench.device_limit import noise_file
from halfstep.tools.bench.driver import Driven, Driver, bench_client
from halfstep.tools.bench.fio import Side, run_fio
from halfstep.tools.bench.machine import difference, stolen_seconds, waited_seconds
from halfstep.tools.bench.measure import Stream, measure, python_clients
from halfstep.tools.bench.place import cores, own_daemon, own_directory, pinned, store_bytes
from halfstep.tools.bench.plan import COLD_MEMORIES, Plan
from halfstep.tools.bench.report import CpuWait, Limit, Result, latency
from halfstep.tools.bench.workload import Timing, endless, populate
from halfstep.tools.daemon_process import DaemonProcess

PARTS = ("mixed", "prefetch", "scrub")
MIXED_BYTES = (64 * KIB, 1 * MIB)
MIXED_MAX, BESIDE_MAX = 1.5, 1.10
READ_PERCENT = 70
RATE_SHARE = 0.5
ARENA_BYTES = 128 * MIB
# More than the daemon remembers to have had: it keeps what it recognizes.
COLD_BYTES = COLD_MEMORIES * ARENA_BYTES
FROM_MEMORY_MAX = 0.01
BESIDE_BYTES = 64 * KIB
PREFETCH_BYTES_PER_S = 32 * MIB
PREFETCH_BATCH = 16
PREFETCH_KEPT_S = 0.5
SCRUB = "32MiB/s"
SCRUB_BYTES_PER_S = 32 * MIB
# Less of what was asked for beside the gets, and it was not beside them.
BESIDE_SHARE_MIN = 0.5
WARM_UP_S = 0.3
# Between two looks of the prefetching process at whether its parent is still there.
PARENT_S = 1.0


# ---- mixed ----


@dataclass
class FioMixed:
    """What runs before and after each timed run. said: (reads, writes) of each, the first of which is a warm-up."""

    path: Path
    file_bytes: int
    rate: float
    said: list[tuple[Side, Side]] = field(default_factory=list)

    def __call__(self, stream: Stream) -> Limit:
        sides = run_fio(
            self.path,
            rw="mixed",
            block_bytes=stream.block_bytes,
            depth=stream.iodepth,
            file_bytes=self.file_bytes // stream.block_bytes * stream.block_bytes,
            read_percent=READ_PERCENT,
            seconds=stream.seconds,
            seed=1 + len(self.said),
            read_only=False,
            rate=self.rate,
        )
        by_name = {side.name: side for side in sides}
        if len(by_name) < 2:
            raise SystemExit(
                f"fio made {', '.join(by_name) or 'nothing'} alone in {stream.seconds:g} s; give a longer --runtime"
            )
        self.said.append((by_name["read"], by_name["write"]))
        return Limit(sum(side.bytes_per_s for side in sides), "fio at the same rate")


@dataclass(frozen=True)
class Mixed:
    """One size. most_per_s: calls, when more are due. client: "native" or "python"."""

    client: str
    block_bytes: int
    iodepth: int
    most_per_s: float
    rate: float
    result: Result
    fio: FioMixed

    def _ours(self, side: str, name: str) -> list[float]:
        return [float(one.as_json()[side]["latency_us"][name]) for one in self.result.runs]

    @property
    def ratios(self) -> list[float]:
        """Of each round: our gets' p99 to that of fio's reads, before and after."""
        before_and_after = zip(self.fio.said[1:], self.fio.said[2:], strict=False)
        fio = [(before[0].p99_us + after[0].p99_us) / 2 for before, after in before_and_after]
        return [ours / theirs for ours, theirs in zip(self._ours("reads", "p99"), fio, strict=True)]

    @property
    def kept(self) -> bool:
        """In most rounds."""
        return sum(one.rate is not None and one.rate.kept for one in self.result.runs) * 2 > len(self.result.runs)

    @property
    def reached(self) -> bool:
        """The goal, at the rate, every byte verified."""
        return statistics.median(self.ratios) <= MIXED_MAX and self.kept and self.result.verified

    def as_json(self) -> dict[str, Any]:
        return {
            "client": self.client,
            "block_bytes": self.block_bytes,
            "iodepth": self.iodepth,
            "most_calls_per_s": self.most_per_s,
            "calls_per_s": self.rate,
            "read_p99_of_fio": spread(self.ratios),
            "read_p99_of_fio_max": MIXED_MAX,
            "ours": self.result.as_json(),
            "fio": [{"read": asdict(read), "write": asdict(write)} for read, write in self.fio.said],
            "reached": self.reached,
        }

    def line(self) -> str:
        reads, writes = ([sides[which] for sides in self.fio.said] for which in (0, 1))
        load = f"{self.rate:,.0f} calls/s (half of {self.most_per_s:,.0f}), up to {self.iodepth} in flight"
        verdict = f"{spread_text(self.ratios)}, at most {MIXED_MAX}: {'reached' if self.reached else 'MISSED'}"
        what = f"mixed {format_bytes(self.block_bytes)}, {self.client} client, {READ_PERCENT} % gets"
        rows = [f"{what}, {load}: p99 of gets, of that of fio {verdict}"]
        for name in ("p50", "p99", "p999"):
            ours = [spread_text(self._ours(side, name), ",.0f") for side in ("reads", "writes")]
            theirs = [spread_text([getattr(side, f"{name}_us") for side in sides], ",.0f") for sides in (reads, writes)]
            rows.append(f"    {name} us: gets {ours[0]}, puts {ours[1]}; fio's reads {theirs[0]}, writes {theirs[1]}")
        reclaimed = [one.proof.reclaimed_segments for one in self.result.runs]
        rewritten = sum(one.proof.rewritten_bytes for one in self.result.runs)
        made = spread_text([read.iops + write.iops for read, write in self.fio.said], ",.0f")
        rows.append(
            f"    {min(reclaimed)} to {max(reclaimed)} segments reclaimed in a run, {format_bytes(rewritten)} written again; "
            f"fio made {made} transfers/s" + ("" if self.kept else "; THE RATE WAS NOT KEPT")
        )
        waits = [one.waited for one in self.result.runs if one.waited]
        rows.append(f"    {waits_text(waits)}")
        return "\n".join(rows)


def mixed(block_bytes: int, options: argparse.Namespace, near: Cores) -> Mixed:
    def plan(rate: float, repeat: int) -> Plan:
        return Plan(
            scenarios=("coldmixed",),
            block_bytes=(block_bytes,),
            batch=1,
            iodepth=(options.iodepth,),
            read_share=READ_PERCENT / 100,
            seconds=options.runtime,
            repeat=repeat,
            rate=rate,
            directory=options.directory,
            arena_bytes=ARENA_BYTES,
        )

    command = " ".join(sys.argv)
    drives = python_clients if options.python else native_drives(built(options.programs, CLIENT_PROGRAM))

    def sound(plan: Plan, fio: FioMixed | None = None) -> Result:
        report = measure(plan, quiet, command, fio or no_limit, drives_of=drives, steadily=near.steadily)
        if report.refused:
            raise SystemExit(f"mixed {format_bytes(block_bytes)}: refused: {report.refused[0].why}")
        return report.results[0]

    most = most_per_s(lambda rate: _calls_per_s(sound(plan(rate, 1)).run.timing))
    rate = RATE_SHARE * most
    open_loop = plan(rate, options.rounds)
    with noise_file(options.directory, store_bytes(open_loop), quiet) as (path, file_bytes):
        fio = FioMixed(path, file_bytes, rate)
        result = sound(open_loop, fio)
    return Mixed("python" if options.python else "native", block_bytes, options.iodepth, most, rate, result, fio)


def _calls_per_s(timing: Timing) -> float:
    return len(timing.latencies_us) / timing.seconds


# ---- prefetch and scrub ----


@dataclass(frozen=True)
class Beside:
    """What gets came to with something beside them and without, in turns. done_per_s: bytes of that, of each round.

    waits: for a core, in each run, those that were made again too.
    """

    name: str
    iodepth: int
    most_per_s: float
    rate: float
    without: list[Driven]
    beside: list[Driven]
    done_per_s: list[float]
    waits: list[CpuWait]

    @property
    def ratios(self) -> list[float]:
        """p99 of each round."""
        pairs = zip(self.without, self.beside, strict=True)
        return [beside.timing.percentile_us(0.99) / without.timing.percentile_us(0.99) for without, beside in pairs]

    @property
    def kept(self) -> bool:
        """In most rounds, by both."""
        both = [*self.without, *self.beside]
        return sum(one.rate is not None and one.rate.kept for one in both) * 2 > len(both)

    @property
    def reached(self) -> bool:
        """The goal, at the rate."""
        return statistics.median(self.ratios) <= BESIDE_MAX and self.kept

    def as_json(self) -> dict[str, Any]:
        both = {"without": self.without, "with": self.beside}
        return {
            "block_bytes": BESIDE_BYTES,
            "iodepth": self.iodepth,
            "most_calls_per_s": self.most_per_s,
            "calls_per_s": self.rate,
            "p99_of_without": spread(self.ratios),
            "p99_of_without_max": BESIDE_MAX,
            "done_bytes_per_s": self.done_per_s,
            "waited_for_core_s": [asdict(wait) for wait in self.waits],
            **{f"{name}_us": [latency(one.timing.latencies_us) for one in some] for name, some in both.items()},
            "reached": self.reached,
        }

    def line(self) -> str:
        load = f"{self.rate:,.0f} calls/s (half of {self.most_per_s:,.0f}), up to {self.iodepth} in flight"
        verdict = f"{spread_text(self.ratios)}, at most {BESIDE_MAX:.2f}: {'reached' if self.reached else 'MISSED'}"
        rows = [f"{self.name}: get {format_bytes(BESIDE_BYTES)} from flash, {load}: p99 of that without {verdict}"]
        for name, some in (("without", self.without), ("with", self.beside)):
            us = {share: spread_text([one.timing.percentile_us(share) for one in some], ",.0f") for share in (0.5, 0.99, 0.999)}
            rows.append(f"    {name}, us: p50 {us[0.5]}, p99 {us[0.99]}, p99.9 {us[0.999]}")
        rows.append(
            f"    {self.name} read {spread_text([done / MIB for done in self.done_per_s], '.1f')} MiB/s"
            + ("" if self.kept else "; THE RATE WAS NOT KEPT")
        )
        rows.append(f"    {waits_text(self.waits)}")
        return "\n".join(rows)


class Demand:
    """Gets of a set that memory cannot hold, by one client. `blocks` of the set are there."""

    def __init__(
        self, daemon: DaemonProcess, content: Content, blocks: int, options: argparse.Namespace, rate: float = 0.0
    ) -> None:
        self._pid = daemon.pid
        self.waits: list[CpuWait] = []
        self._plan = Plan(
            block_bytes=(content.block_bytes,), batch=1, iodepth=(options.iodepth,), seconds=options.runtime, rate=rate
        )
        self._content = content
        self._blocks = blocks
        self._stack = ExitStack()
        self.client = self._stack.enter_context(bench_client(self._plan, daemon.url))
        self._driver = Driver(self._plan, self.client, content)

    def __enter__(self) -> Self:
        self._driver.begin("cold", self._plan.iodepth[0], self._blocks, 0)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def drive(self, from_memory_max: float = FROM_MEMORY_MAX) -> Driven:
        """One timed run, all right and from flash but for a share, or the script ends."""
        hits = 'halfstep_store_hits_total{from="memory"}'
        before = self.client.stat()[hits]
        waited, stolen = waited_seconds(self._pid), stolen_seconds()
        driven = self._driver.drive(self._plan.seconds)
        self.waits.append(CpuWait(driven.waited_s, difference(waited, waited_seconds(self._pid)), stolen_seconds() - stolen))
        outcome = driven.timing.outcome
        if outcome.ok != outcome.blocks:
            raise SystemExit(
                f"{outcome.blocks - outcome.ok} of {outcome.blocks} blocks were wrong or missing: {outcome.reasons}"
            )
        from_memory = self.client.stat()[hits] - before
        if from_memory > from_memory_max * outcome.ok:
            raise SystemExit(f"{from_memory:.0f} of {outcome.ok} blocks came from memory: these are no gets from flash")
        return driven

    def drive_beside(self, counter: str) -> tuple[Driven, float]:
        """The same, and how much `counter` grew a second meanwhile."""
        before, began = self.client.stat(), time.perf_counter()
        driven = self.drive()
        took = time.perf_counter() - began
        return driven, (self.client.stat()[counter] - before[counter]) / took


def most_of(daemon: DaemonProcess, content: Content, blocks: int, options: argparse.Namespace) -> float:
    """Calls a second, when more are due.

    At that speed the set is gone through several times, and memory knows some of it again: the rate that follows from this is a
    choice, and what is measured at it is checked.
    """

    def made_per_s(rate: float) -> float:
        with Demand(daemon, content, blocks, options, rate) as demand:
            return _calls_per_s(demand.drive(from_memory_max=1.0).timing)

    return most_per_s(made_per_s)


def prefetch_for_ever(url: str, plan: Plan, first: int, blocks: int, core: int | None, goes: Event) -> None:
    """In a process of its own, while `goes` is set: prefetches at a fixed rate what nobody gets. Ends when its parent has."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C at a terminal is for the parent, which ends this
    parent = multiprocessing.parent_process()
    assert parent is not None, "it is a child"
    if core is not None:
        os.sched_setaffinity(0, {core})
    content = Content(plan.block_bytes[0], plan.seed)
    walk = endless(content, blocks, PREFETCH_BATCH, default_rng(3))
    gap_s = PREFETCH_BATCH * content.block_bytes / PREFETCH_BYTES_PER_S
    with bench_client(plan, url) as client, client.queue() as queue:
        while parent.is_alive():
            goes.wait(PARENT_S)
            due = time.perf_counter()
            while goes.is_set() and parent.is_alive():
                queue.prefetch(content.keys(next(walk) + first), seconds=PREFETCH_KEPT_S)
                due += gap_s
                time.sleep(max(0.0, due - time.perf_counter()))
                queue.poll()


@contextmanager
def prefetcher(url: str, plan: Plan, first: int, blocks: int, core: int | None) -> Iterator[Event]:
    """Set it, and blocks are prefetched until it is cleared. core: of the process that does."""
    context = multiprocessing.get_context("spawn")
    goes = context.Event()
    arguments = (url, plan, first, blocks, core, goes)
    process = context.Process(target=prefetch_for_ever, args=arguments, daemon=True)
    process.start()
    try:
        yield goes
    finally:
        process.terminate()
        process.join()


def set_of(content: Content) -> int:
    return COLD_BYTES // content.block_bytes


def beside_prefetch(options: argparse.Namespace, near: Cores, clients: tuple[int, ...], core: int | None) -> Beside:
    content = Content(BESIDE_BYTES, seed=1)
    blocks = set_of(content)
    arguments = ("--size", str(3 * COLD_BYTES), "--arena", str(ARENA_BYTES), "--scrub", "off")
    without, beside, done = [], [], []
    with own_daemon(*arguments, directory=options.directory, core=core) as daemon:
        plan = Plan(block_bytes=(BESIDE_BYTES,))
        with bench_client(plan, daemon.url) as client:
            populate(client, content, 2 * blocks)
        most = most_of(daemon, content, blocks, options)
        with (
            Demand(daemon, content, blocks, options, RATE_SHARE * most) as demand,
            prefetcher(daemon.url, plan, blocks, blocks, clients[-1] if clients else None) as goes,
        ):
            for number in range(options.rounds):
                say(f"prefetch: round {number + 1} of {options.rounds}")
                without.append(near.steadily(demand.drive))
                goes.set()
                time.sleep(WARM_UP_S)
                driven, per_s = near.steadily(partial(demand.drive_beside, "halfstep_store_staged_bytes_total"))
                beside.append(driven)
                done.append(per_s)
                goes.clear()
                time.sleep(PREFETCH_KEPT_S)
    told = Beside("prefetch", options.iodepth, most, RATE_SHARE * most, without, beside, done, demand.waits)
    return _happened(told, PREFETCH_BYTES_PER_S)


@contextmanager
def started(daemon: DaemonProcess, core: int | None) -> Iterator[DaemonProcess]:
    """Over the store that it had before, if it had one."""
    try:
        with pinned(*(() if core is None else (core,))):
            daemon.start()
        yield daemon
    finally:
        daemon.close()


def beside_scrub(options: argparse.Namespace, near: Cores, _clients: tuple[int, ...], core: int | None) -> Beside:
    content = Content(BESIDE_BYTES, seed=1)
    blocks = set_of(content)
    without, beside, done = [], [], []
    waits: list[CpuWait] = []
    with own_directory(options.directory) as own:
        common = ("--size", str(2 * COLD_BYTES), "--arena", str(ARENA_BYTES))
        daemons = [DaemonProcess(own, *common, "--scrub", scrub, own_session=True) for scrub in ("off", SCRUB)]
        with started(daemons[0], core) as daemon:
            with bench_client(Plan(block_bytes=(BESIDE_BYTES,)), daemon.url) as client:
                populate(client, content, blocks)
            most = most_of(daemon, content, blocks, options)
        for number in range(options.rounds):
            say(f"scrub: round {number + 1} of {options.rounds}")
            for one, driven in zip(daemons, (without, beside), strict=True):
                # Started anew for each run, with nothing in memory.
                with started(one, core) as daemon, Demand(daemon, content, blocks, options, RATE_SHARE * most) as demand:
                    told, per_s = near.steadily(partial(demand.drive_beside, "halfstep_store_scrub_bytes_total"))
                driven.append(told)
                waits += demand.waits
                if driven is beside:
                    done.append(per_s)
    scrubbed = Beside("scrub", options.iodepth, most, RATE_SHARE * most, without, beside, done, waits)
    return _happened(scrubbed, SCRUB_BYTES_PER_S)


def _happened(told: Beside, bytes_per_s: int) -> Beside:
    median = statistics.median(told.done_per_s)
    if median < BESIDE_SHARE_MIN * bytes_per_s:
        raise SystemExit(
            f"{told.name}: read {median / MIB:.1f} MiB/s beside the gets, of {bytes_per_s / MIB:.0f} that were asked for: what "
            "was measured is not gets beside it; run it on a quieter drive"
        )
    return told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, action="append", help="these parts alone")
    parser.add_argument("--runtime", type=run_seconds, default=2.0, help="seconds of one run")
    parser.add_argument("--rounds", type=positive, default=5, help="in turns; the median ratio counts")
    parser.add_argument("--iodepth", type=positive, default=16, help="calls at the client at once, at most; fio's depth")
    parser.add_argument("--directory", type=Path, help="of stores and file: on the drive in question")
    parser.add_argument("--python", action="store_true", help="mixed: by the Python client")
    add_programs(parser, CLIENT_PROGRAM, DISTANCE_PROGRAM)
    parser.add_argument("--json", action="store_true", help="one document on stdout")
    options = parser.parse_args()
    parts = options.only or PARTS
    version = with_fio() if "mixed" in parts else ""
    if "mixed" in parts and not options.python:
        built(options.programs, CLIENT_PROGRAM)
    head = header(
        fio=version,
        rounds=options.rounds,
        seconds=options.runtime,
        iodepth=options.iodepth,
        rate_share=RATE_SHARE,
        prefetch_bytes_per_s=PREFETCH_BYTES_PER_S,
        scrub=SCRUB,
        arena_bytes=ARENA_BYTES,
    )
    told: list[Mixed | Beside] = []
    clients, core = cores(pin=True)
    near = Cores.of_pinned(options.programs)
    for block_bytes in MIXED_BYTES if "mixed" in parts else ():
        say(f"mixed {format_bytes(block_bytes)}: filling a store, {options.rounds} rounds with fio in between")
        told.append(mixed(block_bytes, options, near))
        say(told[-1].line())
    for part, measured in (("prefetch", beside_prefetch), ("scrub", beside_scrub)):
        if part in parts:
            with pinned(*clients[:1]):
                told.append(measured(options, near, clients, core))
            say(told[-1].line())
    results = {
        "mixed": [one.as_json() for one in told if isinstance(one, Mixed)],
        **{one.name: one.as_json() for one in told if isinstance(one, Beside)},
    }
    conclude(head, near, results, as_json=options.json)
    return 0 if all(one.reached for one in told) else 1


if __name__ == "__main__":
    run(main)
