#!/usr/bin/env python3
"""Question: how near do gets and puts come to the least that a block server and its client can be, and what does Python add?

The least is build/release/bench/halfstep_pair_bench (`make native` makes it): two processes in C++ over TCP on loopback, blocks
by number from memory, no names, no index, no flash; whoever receives checks the same CRC32C as Halfstep does, of a put against
the sum that the client made of each block. It runs right before and right after each timed run, on the same cores, with the
same congestion control; without checks, too, for the record.
So does our client core without an interpreter (halfstep_client_bench), against the same daemon: the goals are about its ratio.
What Python adds to its call is measured as the native client measures, call right after call. These run in turns of a part of a
run's time; their ratios and differences are of one turn, before and after which the two cores were near each other (cores.py).
What is put goes to the drive as well: the limit of puts is the lower of the pair and of what fio writes to a file in the same
place (plain pwritev where there is no fio), as many blocks at a time, which has its turn, too; and puts are counted when the
daemon's memory is full of what is not written yet. Exit status 1 when a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import mmap
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from cores import DISTANCE_PROGRAM, Cores
from numpy.random import default_rng
from script import call_times_us, header, positive, quiet, run, run_seconds, said_by, say, spread_text, with_programs

import halfstep
from halfstep.daemon.units import KIB, MIB, format_bytes
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
# Of what stands beside a timed run, in its time: what is set against each other runs within seconds.
TURNS = 4
WARM_UP_S = 0.1  # as the native client's
WRITTEN_BYTES = 512 * MIB
PUT_S_MIN = 4.0
# At the least drive of interest it fills the daemon's memory several times.
PUT_WARM_UP_MS = 1000
COMPARE_EACH = 100


@dataclass(frozen=True)
class Case:
    """Blocks of `bs` bytes, 16 a batch. goal: what the core without Python has of the limit's bytes a second.

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


class PythonCalls:
    """Synchronous gets of a set of its own, by a client of this process that connects anew each time: so does the native one,
    and some connections are slower than others for as long as they live, whoever has them
    (docs/lab/minimal-server-comparison.md)."""

    def __init__(self, stream: Stream) -> None:
        self._content = Content(stream.block_bytes, seed=2)
        batches = stream.set_bytes // stream.block_bytes // stream.batch
        self._numbers = [self._content.numbers(batch * stream.batch, stream.batch) for batch in range(batches)]
        self._keys = [self._content.keys(some) for some in self._numbers]
        self._url = f"halfstep://{stream.address}"
        # In pages of its own, as the native client's: in memory that begins elsewhere, or is shared, bytes land more slowly.
        memory = mmap.mmap(
            -1, stream.batch * stream.block_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
        )
        self._target = np.frombuffer(memory, np.uint64).reshape(stream.batch, self._content.words)
        self._order = default_rng(1).permutation(batches).tolist()
        with self._connected() as client:
            populate(client, self._content, batches * stream.batch)

    def median_us(self, seconds: float) -> float:
        """Of a call. What came is compared whole now and then, outside of the clocks."""
        with self._connected() as client:
            self._calls_us(client, WARM_UP_S)
            return statistics.median(self._calls_us(client, seconds))

    def _connected(self) -> halfstep.Client:
        layout = halfstep.Layout.opaque("bench/minimal")
        return halfstep.connect(self._url, mode="on", layout=layout, required=True, deadline_ms=DEADLINE_MS)

    def _calls_us(self, client: halfstep.Client, seconds: float) -> list[float]:
        made = count()

        def get(batch: int) -> npt.NDArray[np.bool_]:
            return client.get(self._keys[batch], self._target).ok

        def check(number: int, ok: npt.NDArray[np.bool_]) -> None:
            compared = next(made) % COMPARE_EACH == 0
            numbers = self._numbers[self._order[number]]
            if not ok.all() or (compared and self._content.wrong_blocks(numbers, self._target)):
                raise SystemExit(f"a get from {client.url} brought a wrong block, or none")

        return call_times_us([partial(get, batch) for batch in self._order], check, seconds)


@dataclass
class Yardsticks:
    """What runs before and after each timed run, in turns of a part of its time. said: what each printed, turn by turn.

    Those of one turn ran one right after the other, and are set against each other.
    """

    programs: Path
    directory: Path | None
    python: bool
    cores: Cores
    said: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    _seed: int = 1 << 32  # the native client's blocks are not those of any run
    _calls: PythonCalls | None = None

    def __call__(self, stream: Stream) -> Limit:
        """The pair with checks is the limit, or the drive, where it is slower and has to follow."""
        same = {
            "rw": stream.scenario,
            "bs": stream.block_bytes,
            "batch": stream.batch,
            "iodepth": stream.iodepth,
            "connections": stream.connections,
            "size": stream.set_bytes,
            "runtime": max(1, int(stream.seconds * 1000 / TURNS)),
        }
        pair = {**same, "congestion": stream.congestion}
        native = {**same, "address": stream.address}
        if stream.daemon_core is not None and stream.client_core is not None:
            pair |= {"server-core": stream.daemon_core, "client-core": stream.client_core}
            native |= {"core": stream.client_core}
        if stream.scenario == "put":
            native["warm-up"] = PUT_WARM_UP_MS
        if self.python and self._calls is None:
            self._calls = PythonCalls(stream)
        turns = []
        for _ in range(TURNS):
            turns.append(self.cores.steadily(lambda: self._turn(stream, pair, native)))
            for what, document in turns[-1].items():
                self.said.setdefault(what, []).append(document)
        limits = [Limit(self._of_turns(turns, "checked"), "the minimal pair, checked")]
        if stream.scenario == "put":
            limits.append(Limit(self._of_turns(turns, "drive"), f"writes to the drive ({turns[-1]['drive']['by']})"))
        return min(limits, key=lambda limit: limit.bytes_per_s)

    @staticmethod
    def _of_turns(turns: Sequence[Mapping[str, Mapping[str, Any]]], what: str) -> float:
        return statistics.median(float(said[what]["bytes_per_s"]) for said in turns)

    def _turn(self, stream: Stream, pair: Mapping[str, object], native: Mapping[str, object]) -> dict[str, dict[str, Any]]:
        puts = stream.scenario == "put"
        self._seed += puts  # what was never there
        said = {
            # The daemon writes what it still has of puts while the pair runs.
            "native": self._run("halfstep_client_bench", {**native, "seed": self._seed}),
            "unchecked": self._run("halfstep_pair_bench", {**pair, "check": 0}),
            "checked": self._run("halfstep_pair_bench", {**pair, "check": 1}),
        }
        if puts:
            said["drive"] = written_by_drive(stream, self.directory, stream.seconds / TURNS)
        if self._calls is not None:
            said["python"] = {"latency_us": {"p50": self._calls.median_us(stream.seconds / TURNS)}}
        return said

    def _run(self, program: str, options: Mapping[str, object]) -> dict[str, Any]:
        return said_by(self.programs / program, options)

    def all_of(self, what: str, *path: str) -> list[float]:
        """What all turns of one said under these names."""
        values = []
        for said in self.said[what]:
            value: Any = said
            for name in path:
                value = value[name]
            values.append(float(value))
        return values

    def median(self, what: str, *path: str) -> float:
        """Of all turns."""
        return statistics.median(self.all_of(what, *path))

    def native_ratios(self) -> list[float]:
        """The native client's to the checked pair's, of puts to the lower of that and the drive's, turn by turn."""
        # Which is lower is said once for all turns: the lower of each would be lower than both.
        limits = [what for what in ("checked", "drive") if what in self.said]
        limit = min(limits, key=lambda what: self.median(what, "bytes_per_s"))
        both = zip(self.all_of("native", "bytes_per_s"), self.all_of(limit, "bytes_per_s"), strict=True)
        return [native / one for native, one in both]

    def native_ratio(self) -> float:
        """The median of them."""
        return statistics.median(self.native_ratios())

    def python_us(self) -> list[float]:
        """What Python adds to the native client's call, turn by turn."""
        both = zip(self.all_of("python", "latency_us", "p50"), self.all_of("native", "latency_us", "p50"), strict=True)
        return [python - native for python, native in both]

    def python_shares(self) -> list[float]:
        """The same as a share of that call."""
        return [us / native for us, native in zip(self.python_us(), self.all_of("native", "latency_us", "p50"), strict=True)]


def written_by_drive(stream: Stream, directory: Path | None, seconds: float) -> dict[str, Any]:
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
        seconds=seconds,
        repeat=1,
        seed=1,
    )
    try:
        _, (result,) = measure_device(plan, quiet, "")
    except DeviceError:  # io_uring is forbidden here: the daemon does without as well
        _, (result,) = measure_device(replace(plan, tool="preadv"), quiet, "")
    return {"bytes_per_s": result.bytes_per_s, "by": result.by}


@dataclass(frozen=True)
class Verdict:
    """What a case came to."""

    case: Case
    result: Result
    yardsticks: Yardsticks

    @property
    def python_ratio(self) -> float:
        """The Python client's to the limit's."""
        return self.result.run.ratio or 0.0

    @property
    def python_us(self) -> float:
        """What Python adds to a call."""
        if self.case.python:
            return statistics.median(self.yardsticks.python_us())
        mine = statistics.median(run.timing.percentile_us(0.5) for run in self.result.runs)
        return mine - self.native_us

    @property
    def python_share(self) -> float:
        """The same, of the native client's call."""
        return statistics.median(self.yardsticks.python_shares()) if self.case.python else self.python_us / self.native_us

    @property
    def native_us(self) -> float:
        """The native client's call."""
        return self.yardsticks.median("native", "latency_us", "p50")

    @property
    def fast(self) -> bool:
        """The goal, every byte verified."""
        return self.yardsticks.native_ratio() >= self.case.goal and self.result.verified

    @property
    def light(self) -> bool:
        """Python adds no more than it may."""
        return self.python_us <= self.case.python_us_max and self.python_share <= self.case.python_share_max

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
            "python_us_max": PYTHON_US_MAX if self.case.python_us_max == PYTHON_US_MAX else None,
            "python_share_max": PYTHON_SHARE_MAX if self.case.python_share_max < 1 else None,
            "fast": self.fast,
            "light": self.light,
            "reached": self.reached,
            "native_ratio": self.yardsticks.native_ratio(),
            "native_ratios": self.yardsticks.native_ratios(),
            "python_us_a_call": self.python_us,
            "python_share": self.python_share,
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
        throttled = sum(sum(said["answers_not_ok"].values()) for said in of.said["native"])
        word = {True: "reached", False: "MISSED"}
        goal = f"goal {self.case.goal:.2f}: {word[self.fast]}" if self.case.goal else "no goal"
        pair = "the lower of pair and drive" if "drive" in of.said else "the checked pair"
        light = f" ({self.python_share:.1%}): {word[self.light]}" if self.case.python else ""
        return (
            f"{self.case.scenario} {format_bytes(self.case.bs):>7} x {BATCH}, {self.case.connections} connection(s): "
            f"{told['gigabytes_per_s']:.2f} GB/s, of {limit.by} {self.python_ratio:.2f}, "
            f"native of {pair} {spread_text(of.native_ratios())}; {goal}\n"
            f"    of the unchecked pair {told['ratio_to_unchecked']:.2f}; Python adds {self.python_us:.0f} us to a call of "
            f"{self.native_us:.0f}{light}; "
            f"CPU s/GiB: daemon {cpu['daemon']:.2f} ({cpu['daemon'] / server:.2f} of the pair's server), "
            f"client {cpu['client']:.2f} ({cpu['client'] / client:.2f}), native {native:.2f} ({native / client:.2f})"
            + (f"\n    of the native client's blocks {throttled} were throttled, which do not count" if throttled else "")
        )


def measured(case: Case, options: argparse.Namespace, near: Cores) -> Verdict:
    yardsticks = Yardsticks(options.programs, options.directory, case.python, near)
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
    report = measure(plan, quiet, " ".join(sys.argv), yardsticks, steadily=near.steadily)
    return Verdict(case, report.results[0], yardsticks)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runtime", type=run_seconds, default=1.0, help="seconds of one run")
    parser.add_argument("--repeat", type=positive, default=5, help="runs of each; the median ratio counts")
    parser.add_argument("--directory", type=Path, help="of the daemon's store, on the drive that puts are set against")
    parser.add_argument("--json", action="store_true", help="one document a case, one per line, on stdout")
    options = with_programs(parser, "halfstep_pair_bench", "halfstep_client_bench", DISTANCE_PROGRAM)
    near = Cores.of_pinned(options.programs)
    missed = 0
    for case in CASES:
        verdict = measured(case, options, near)
        missed += not verdict.reached
        print(verdict.line(), file=sys.stderr, flush=True)
        if options.json:
            print(json.dumps({"header": header(cores_near_so_far=near.as_json()), **verdict.as_json()}), flush=True)
    say(near.text())
    return 1 if missed else 0


if __name__ == "__main__":
    run(main)
