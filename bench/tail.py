#!/usr/bin/env python3
"""Question: how much longer than the median is the slowest hundredth of hot gets, at a load that leaves room?

Gets of one block over TCP from a daemon's memory, open loop: calls are due at moments with exponential gaps, at 70 % of what
the same client makes of such calls when more of them are due than it can make, measured right before (a closed loop makes more:
its answers come together); a latency counts from when the call was due. Every block is verified. With --native the
client is the core without an interpreter (halfstep_client_bench). Right after it a minimal server and its client
(halfstep_pair_bench; `make native` makes both) do the same at the same rate on the same cores: what they show is this
machine's own, whose kernel and neighbours take a core for milliseconds now and then. A run is made again while the host of a
virtual machine has the two cores apart (cores.py). Exit status 1 when the median of
p99 / p50 is more than 10 at a size.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cores import DISTANCE_PROGRAM, Cores
from native_driver import CLIENT_PROGRAM, native_drives
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
    said_by,
    say,
    spread,
    spread_text,
    waits_text,
)

from halfstep.daemon.units import KIB, MIB, format_bytes
from halfstep.tools.bench.machine import difference, waited_seconds
from halfstep.tools.bench.measure import measure, python_clients
from halfstep.tools.bench.place import cores, own_daemon
from halfstep.tools.bench.plan import Plan
from halfstep.tools.bench.report import CpuWait, Report, Result
from halfstep.tools.daemon_process import DaemonProcess

BLOCK_BYTES = (64 * KIB, 256 * KIB, 1 * MIB)
SHARE = 0.7
TAIL_MAX = 10.0
MOST_S = 1.0
PAIR_PROGRAM = "halfstep_pair_bench"
PERCENTILES = ("p50", "p99", "p999")


@dataclass(frozen=True)
class Round:
    """most_per_s: calls, when more are due. result: at SHARE of it. wait: for a core, meanwhile.

    pair: what the minimal pair printed at the same rate.
    """

    most_per_s: float
    result: Result
    wait: CpuWait
    pair: dict[str, Any]

    @property
    def latency_us(self) -> dict[str, float]:
        told: dict[str, float] = self.result.run.as_json()["latency_us"]
        return told

    @property
    def tail(self) -> float:
        """p99 / p50."""
        return self.latency_us["p99"] / self.latency_us["p50"]

    @property
    def pair_tail(self) -> float:
        """p99 / p50 of the pair."""
        return float(self.pair["latency_us"]["p99"] / self.pair["latency_us"]["p50"])

    @property
    def of_pair(self) -> float:
        """Our p99, of the pair's."""
        return self.latency_us["p99"] / float(self.pair["latency_us"]["p99"])

    @property
    def kept(self) -> bool:
        """Whether the client came up to the rate."""
        return self.result.run.rate is not None and self.result.run.rate.kept


@dataclass(frozen=True)
class Verdict:
    """All rounds of one size."""

    block_bytes: int
    iodepth: int
    rounds: list[Round]

    @property
    def reached(self) -> bool:
        """The goal, every byte verified, and at the rate in most rounds."""
        tail = statistics.median(one.tail for one in self.rounds)
        kept = sum(one.kept for one in self.rounds) * 2 > len(self.rounds)
        return tail <= TAIL_MAX and kept and all(one.result.verified for one in self.rounds)

    def as_json(self) -> dict[str, Any]:
        return {
            "block_bytes": self.block_bytes,
            "iodepth": self.iodepth,
            "p99_to_p50": spread([one.tail for one in self.rounds]),
            "p99_to_p50_max": TAIL_MAX,
            **{f"{name}_us": spread([one.latency_us[name] for one in self.rounds]) for name in PERCENTILES},
            "pair": {
                "p99_to_p50": spread([one.pair_tail for one in self.rounds]),
                **{f"{name}_us": spread([one.pair["latency_us"][name] for one in self.rounds]) for name in PERCENTILES},
                "rounds": [one.pair for one in self.rounds],
            },
            "p99_of_pair": spread([one.of_pair for one in self.rounds]),
            "waited_for_core_s": [asdict(one.wait) for one in self.rounds],
            "most_calls_per_s": [one.most_per_s for one in self.rounds],
            "rounds": [one.result.as_json() for one in self.rounds],
            "reached": self.reached,
        }

    def line(self) -> str:
        us = {name: spread_text([one.latency_us[name] for one in self.rounds], ",.0f") for name in PERCENTILES}
        pair = {name: spread_text([one.pair["latency_us"][name] for one in self.rounds], ",.0f") for name in PERCENTILES}
        most = spread_text([one.most_per_s for one in self.rounds], ",.0f")
        late = sum(not one.kept for one in self.rounds)
        return (
            f"get {format_bytes(self.block_bytes)} at {SHARE:.0%} of {most} calls/s: "
            f"p99 / p50 {spread_text([one.tail for one in self.rounds], '.1f')}, at most {TAIL_MAX:g}: "
            f"{'reached' if self.reached else 'MISSED'}\n"
            f"    us: p50 {us['p50']}, p99 {us['p99']}, p99.9 {us['p999']}\n"
            f"    the minimal pair at that rate: p99 / p50 {spread_text([one.pair_tail for one in self.rounds], '.1f')}; "
            f"us: p50 {pair['p50']}, p99 {pair['p99']}, p99.9 {pair['p999']}\n"
            f"    our p99, of the pair's: {spread_text([one.of_pair for one in self.rounds])}\n"
            f"    {waits_text([one.wait for one in self.rounds])}"
            + (f"; in {late} of {len(self.rounds)} rounds the rate was not kept" if late else "")
        )


def one_round(daemon: DaemonProcess, block_bytes: int, options: argparse.Namespace, number: int, near: Cores) -> Round:
    drives = native_drives(built(options.programs, CLIENT_PROGRAM)) if options.native else python_clients

    def measured(rate: float, seconds: float) -> Report:
        plan = Plan(
            url=daemon.url,
            scenarios=("get",),
            block_bytes=(block_bytes,),
            batch=1,
            iodepth=(options.iodepth,),
            seconds=seconds,
            repeat=1,
            rate=rate,
            seed=1 + number,
        )
        return measure(plan, quiet, " ".join(sys.argv), no_limit, drives_of=drives, steadily=near.steadily)

    # The limit is the same client when too much is due.
    most = most_per_s(lambda rate: measured(rate, min(MOST_S, options.runtime)).results[0].run.timing.blocks_per_s)
    before = waited_seconds(daemon.pid)
    report = measured(SHARE * most, options.runtime)
    result = report.results[0]
    assert result.run.waited is not None
    # The daemon's, of all times that the run was made.
    wait = replace(result.run.waited, daemon=difference(before, waited_seconds(daemon.pid)))
    client_cores, daemon_core = cores(pin=True)
    pair: dict[str, object] = {
        "bs": block_bytes,
        "batch": 1,
        "iodepth": options.iodepth,
        "rate": max(1, round(SHARE * most)),
        "runtime": round(1e3 * options.runtime),
        "seed": 1 + number,
        "congestion": report.header["congestion_control"],
    }
    if client_cores and daemon_core is not None:
        pair |= {"server-core": daemon_core, "client-core": client_cores[0]}
    program = built(options.programs, PAIR_PROGRAM)
    return Round(most, result, wait, near.steadily(lambda: said_by(program, pair)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runtime", type=run_seconds, default=3.0, help="seconds of one run at the rate")
    parser.add_argument(
        "--rounds", type=positive, default=7, help="each of a closed loop, the most and the rate; the median counts"
    )
    parser.add_argument("--iodepth", type=positive, default=16, help="calls at the client at once, at most")
    parser.add_argument("--directory", type=Path, help="where the store lies; nothing is read from it")
    parser.add_argument("--native", action="store_true", help="by the client core without an interpreter")
    add_programs(parser, CLIENT_PROGRAM, PAIR_PROGRAM, DISTANCE_PROGRAM)
    parser.add_argument("--json", action="store_true", help="one document on stdout")
    options = parser.parse_args()
    for name in (PAIR_PROGRAM, *([CLIENT_PROGRAM] if options.native else [])):
        built(options.programs, name)
    head = header(
        client="native" if options.native else "python",
        rounds=options.rounds,
        seconds=options.runtime,
        share_of_most=SHARE,
        iodepth=options.iodepth,
    )
    _, core = cores(pin=True)
    near = Cores.of_pinned(options.programs)
    verdicts = []
    with own_daemon("--size", "1GiB", directory=options.directory, core=core) as daemon:
        for block_bytes in BLOCK_BYTES:
            say(f"get {format_bytes(block_bytes)}: {options.rounds} rounds")
            rounds = [one_round(daemon, block_bytes, options, number, near) for number in range(options.rounds)]
            verdicts.append(Verdict(block_bytes, options.iodepth, rounds))
            say(verdicts[-1].line())
    conclude(head, near, {"sizes": [one.as_json() for one in verdicts]}, as_json=options.json)
    return 0 if all(one.reached for one in verdicts) else 1


if __name__ == "__main__":
    run(main)
