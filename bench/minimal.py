#!/usr/bin/env python3
"""Question: how near do gets and puts come to the least that a block server and its client can be, and what does Python add?

The least is build/release/bench/halfstep_pair_bench (`make build` makes it): two processes in C++ over TCP on loopback, blocks
by number from memory, no names, no index, no flash; whoever receives checks the same CRC32C as Halfstep does, of a put against
the sum that the client made of each block. It runs right before and right after each timed run, on the same cores, with the
same congestion control; without checks, too, for the record.
So does our client core without an interpreter (halfstep_client_bench), against the same daemon: gets' goals are about its
ratio. What Python adds to its call is measured as the native client measures, call right after call. What is put goes to the
drive as well: the limit of puts is the lower of the pair and of what fio writes to a file in the same place (plain pwritev
where there is no fio), as many blocks at a time. Exit status 1 when a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import default_rng
from script import header, positive, run, run_seconds, said_by, with_programs

import halfstep
from halfstep.daemon.config import KIB, MIB, format_bytes
from halfstep.errors import DeviceError
from halfstep.tools.bench.content import Content
from halfstep.tools.bench.device_limit import DevicePlan, measure_device
from halfstep.tools.bench.measure import Stream, measure
from halfstep.tools.bench.plan import Plan
from halfstep.tools.bench.report import Limit, Result
from halfstep.tools.bench.workload import DEADLINE_MS, populate

BATCH = 16
PYTHON_US_MAX = 15
PYTHON_SHARE_MAX = 0.05
PYTHON_SHARE_FROM = 64 * KIB
WRITTEN_BYTES = 512 * MIB
PUT_S_MIN = 4.0
COMPARE_EACH = 100


@dataclass(frozen=True)
class Case:
    """Blocks of `bs` bytes, 16 a batch. goal: of the limit's bytes a second, for gets that of the core without Python.

    python: what Python adds to a call is measured too, one call right after the other as the native client makes them: in the
    timed runs each result is looked at in between, and by then the daemon sleeps.
    """

    scenario: str
    bs: int
    connections: int
    iodepth: int
    goal: float
    python: bool = False

    @property
    def native(self) -> bool:
        """Whose the goal is."""
        return self.scenario == "get"

    @property
    def python_us_max(self) -> float:
        """What Python may add to a call that moves little."""
        return PYTHON_US_MAX if self.python and self.bs < PYTHON_SHARE_FROM else float("inf")

    @property
    def python_share_max(self) -> float:
        """The same of one that moves much, as a share of the native client's call."""
        return PYTHON_SHARE_MAX if self.python and self.bs >= PYTHON_SHARE_FROM else float("inf")


CASES = (
    Case("get", 4 * KIB, 1, 1, 0.0, python=True),
    Case("get", 4 * KIB, 4, 4, 0.80),
    Case("get", 64 * KIB, 1, 1, 0.85, python=True),
    Case("get", 256 * KIB, 1, 1, 0.92, python=True),
    Case("get", 1 * MIB, 1, 1, 0.92, python=True),
    Case("get", 4 * MIB, 1, 1, 0.92, python=True),
    Case("put", 1 * MIB, 1, 1, 0.90),
)


@dataclass
class Yardsticks:
    """What runs before and after each timed run. said: what each printed, in order."""

    programs: Path
    directory: Path | None
    python: bool
    said: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    _seed: int = 1 << 32  # the native client's blocks are not those of any run

    def __call__(self, stream: Stream) -> Limit:
        """The pair with checks is the limit, or the drive, if it is slower and has to follow."""
        same = {
            "rw": stream.scenario,
            "bs": stream.block_bytes,
            "batch": stream.batch,
            "iodepth": stream.iodepth,
            "connections": stream.connections,
            "size": stream.set_bytes,
            "runtime": int(stream.seconds * 1000),
        }
        pair = {**same, "congestion": stream.congestion}
        native = {**same, "address": stream.address, "seed": self._seed}
        if stream.daemon_core is not None and stream.client_core is not None:
            pair |= {"server-core": stream.daemon_core, "client-core": stream.client_core}
            native |= {"core": stream.client_core}
        self._seed += stream.scenario == "put"  # what was never there
        drive = self._drive(stream) if stream.scenario == "put" else None
        self._run("unchecked", "halfstep_pair_bench", {**pair, "check": 0})
        self._run("native", "halfstep_client_bench", native)
        if self.python:
            self.said.setdefault("python", []).append({"latency_us": {"p50": called_us(stream)}})
        checked = Limit(self._run("checked", "halfstep_pair_bench", {**pair, "check": 1}), "the minimal pair, checked")
        return checked if drive is None or checked.bytes_per_s <= drive.bytes_per_s else drive

    def _drive(self, stream: Stream) -> Limit:
        written = written_by_drive(stream, self.directory)
        self.said.setdefault("drive", []).append({"bytes_per_s": written.bytes_per_s, "by": written.by})
        return written

    def _run(self, what: str, program: str, options: Mapping[str, object]) -> float:
        said = said_by(self.programs / program, options)
        self.said.setdefault(what, []).append(said)
        return float(said["bytes_per_s"])

    def median(self, what: str, *path: str) -> float:
        """Of what all runs of one said under these names."""
        values = []
        for said in self.said[what]:
            value: Any = said
            for name in path:
                value = value[name]
            values.append(float(value))
        return statistics.median(values)

    def native_ratio(self) -> float:
        """The native client's to the checked pair's: they ran one right after the other."""
        both = zip(self.said["native"], self.said["checked"], strict=True)
        return statistics.median(float(native["bytes_per_s"]) / float(pair["bytes_per_s"]) for native, pair in both)


def called_us(stream: Stream) -> float:
    """The median of synchronous gets. What came is compared whole now and then, outside of their clocks."""
    content = Content(stream.block_bytes, seed=2)
    terms: dict[str, Any] = {"layout": halfstep.Layout.opaque("bench/minimal"), "required": True, "deadline_ms": DEADLINE_MS}
    batches = stream.set_bytes // stream.block_bytes // stream.batch
    numbers = [content.numbers(batch * stream.batch, stream.batch) for batch in range(batches)]
    keys = [content.keys(some) for some in numbers]
    took: list[int] = []
    with halfstep.connect(f"halfstep://{stream.address}", mode="on", **terms) as client:
        populate(client, content, batches * stream.batch)
        target = np.zeros((stream.batch, content.words), np.uint64)
        order = default_rng(1).permutation(batches).tolist()
        until = time.perf_counter() + stream.seconds
        while time.perf_counter() < until or len(took) < batches:
            batch = order[len(took) % batches]
            began = time.perf_counter_ns()
            got = client.get(keys[batch], target).ok
            took.append(time.perf_counter_ns() - began)
            compared = len(took) % COMPARE_EACH == 0
            if not got.all() or (compared and content.wrong_blocks(numbers[batch], target)):
                raise SystemExit(f"a get from {client.url} brought a wrong block, or none")
    return statistics.median(took) / 1e3


def written_by_drive(stream: Stream, directory: Path | None) -> Limit:
    """What the drive takes, with O_DIRECT, at the depth of the puts. Errors: ConfigError, DeviceError."""
    plan = DevicePlan(
        path=None,
        directory=directory,
        tool="auto",
        modes=("write",),
        block_bytes=(stream.block_bytes,),
        iodepth=(stream.batch * stream.iodepth,),
        read_percent=0,
        size_bytes=WRITTEN_BYTES,
        seconds=stream.seconds,
        repeat=1,
        seed=1,
    )
    try:
        _, (result,) = measure_device(plan, _silent, "")
    except DeviceError:  # io_uring is forbidden here: the daemon does without as well
        _, (result,) = measure_device(replace(plan, tool="preadv"), _silent, "")
    return Limit(result.bytes_per_s, f"writes to the drive ({result.by})")


def _silent(_text: str, _steps: int = 1) -> None: ...


@dataclass(frozen=True)
class Verdict:
    """What a case came to."""

    case: Case
    result: Result
    yardsticks: Yardsticks

    @property
    def python_ratio(self) -> float:
        """The Python client's to the checked pair's."""
        return self.result.run.ratio or 0.0

    @property
    def python_us(self) -> float:
        """What Python adds to a call, by the medians of both: a slow moment of either does not count."""
        if self.case.python:
            return self.yardsticks.median("python", "latency_us", "p50") - self.native_us
        mine = statistics.median(run.timing.percentile_us(0.5) for run in self.result.runs)
        return mine - self.native_us

    @property
    def native_us(self) -> float:
        """The native client's call."""
        return self.yardsticks.median("native", "latency_us", "p50")

    @property
    def fast(self) -> bool:
        """The goal, every byte verified."""
        ratio = self.yardsticks.native_ratio() if self.case.native else self.python_ratio
        return ratio >= self.case.goal and self.result.verified

    @property
    def light(self) -> bool:
        """Python adds no more than it may."""
        share = self.python_us / self.native_us
        return self.python_us <= self.case.python_us_max and share <= self.case.python_share_max

    @property
    def reached(self) -> bool:
        """Both."""
        return self.fast and self.light

    def as_json(self) -> dict[str, Any]:
        """The result with what stands beside it."""
        return {
            **self.result.as_json(),
            "connections": self.case.connections,
            "goal": self.case.goal,
            "goal_is_native": self.case.native,
            "python_us_max": PYTHON_US_MAX if self.case.python_us_max == PYTHON_US_MAX else None,
            "python_share_max": PYTHON_SHARE_MAX if self.case.python_share_max < 1 else None,
            "fast": self.fast,
            "light": self.light,
            "reached": self.reached,
            "native_ratio": self.yardsticks.native_ratio(),
            "python_us_a_call": self.python_us,
            "native_us_a_call": self.native_us,
            "ratio_to_unchecked": (self.result.run.bytes_per_s or 0.0) / self.yardsticks.median("unchecked", "bytes_per_s"),
            "yardsticks": self.yardsticks.said,
        }

    def line(self) -> str:
        """For people."""
        told, of = self.as_json(), self.yardsticks
        limit = self.result.run.limit
        assert limit is not None, "the daemon is on this machine"
        cpu = told["cpu_s_per_gib"]
        server, client = (of.median("checked", "cpu_s_per_gib", side) for side in ("server", "client"))
        native = of.median("native", "cpu_s_per_gib", "client")
        word = {True: "reached", False: "MISSED"}
        goal = f"goal {self.case.goal:.2f}: {word[self.fast]}" if self.case.goal else "no goal"
        light = f" ({self.python_us / self.native_us:.1%}): {word[self.light]}" if self.case.python else ""
        return (
            f"{self.case.scenario} {format_bytes(self.case.bs):>7} x {BATCH}, {self.case.connections} connection(s): "
            f"{told['gigabytes_per_s']:.2f} GB/s, of {limit.by} {self.python_ratio:.2f}, "
            f"native of the checked pair {told['native_ratio']:.2f}; {goal}\n"
            f"    of the unchecked pair {told['ratio_to_unchecked']:.2f}; Python adds {self.python_us:.0f} us to a call of "
            f"{self.native_us:.0f}{light}; "
            f"CPU s/GiB: daemon {cpu['daemon']:.2f} ({cpu['daemon'] / server:.2f} of the pair's server), "
            f"client {cpu['client']:.2f} ({cpu['client'] / client:.2f}), native {native:.2f} ({native / client:.2f})"
        )


def measured(case: Case, options: argparse.Namespace) -> Verdict:
    yardsticks = Yardsticks(options.programs, options.directory, case.python)
    plan = Plan(
        scenarios=(case.scenario,),
        block_bytes=(case.bs,),
        batch=BATCH,
        connections=case.connections,
        iodepth=(case.iodepth,),
        # What is in memory and not yet written when a run of puts ends must not matter.
        seconds=max(options.runtime, PUT_S_MIN) if case.scenario == "put" else options.runtime,
        repeat=options.repeat,
        directory=options.directory,
    )
    report = measure(plan, lambda _text: None, " ".join(sys.argv), yardsticks)
    return Verdict(case, report.results[0], yardsticks)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runtime", type=run_seconds, default=1.0, help="seconds of one run")
    parser.add_argument("--repeat", type=positive, default=5, help="runs of each; the median ratio counts")
    parser.add_argument("--directory", type=Path, help="of the daemon's store, on the drive that puts are set against")
    parser.add_argument("--json", action="store_true", help="one document a case, one per line, on stdout")
    options = with_programs(parser, "halfstep_pair_bench", "halfstep_client_bench")
    missed = 0
    for case in CASES:
        verdict = measured(case, options)
        missed += not verdict.reached
        print(verdict.line(), file=sys.stderr, flush=True)
        if options.json:
            print(json.dumps({"header": header(), **verdict.as_json()}), flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    run(main)
