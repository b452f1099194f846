#!/usr/bin/env python3
"""Question: how near do gets and puts come to the least that a block server and its client can be?

The least is build/release/bench/halfstep_pair_bench (`make build` makes it): two processes in C++ over TCP on loopback, blocks
by number from memory, no names, no index, no flash; whoever receives checks the same CRC32C as Halfstep does. It runs right
before and right after each timed run, on the same cores, with the same congestion control; without checks, too, for the record.
Exit status 1 when a ratio misses its goal.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from halfstep.daemon.config import KIB, MIB, format_bytes
from halfstep.errors import HalfstepError
from halfstep.tools.bench.measure import Stream, measure
from halfstep.tools.bench.plan import Plan
from halfstep.tools.bench.report import Limit, Result

PROGRAM = Path(__file__).parents[1] / "build" / "release" / "bench" / "halfstep_pair_bench"
BATCH = 16


@dataclass(frozen=True)
class Case:
    """Blocks of `bs` bytes, 16 a batch. goal: of the checked pair's bytes a second."""

    scenario: str
    bs: int
    connections: int
    iodepth: int
    goal: float


CASES = (
    Case("get", 4 * KIB, 4, 4, 0.80),
    Case("get", 64 * KIB, 1, 1, 0.85),
    Case("get", 256 * KIB, 1, 1, 0.92),
    Case("get", 1 * MIB, 1, 1, 0.92),
    Case("get", 4 * MIB, 1, 1, 0.92),
    Case("put", 1 * MIB, 1, 1, 0.90),
)


@dataclass
class Pair:
    """The minimal pair as a stream limit. said: what its runs printed, checked and unchecked ones."""

    program: Path
    said: dict[bool, list[dict[str, Any]]] = field(default_factory=lambda: {True: [], False: []})

    def __call__(self, stream: Stream) -> Limit:
        """Runs it without checks, for the record, and with them, which is the limit."""
        self._run(stream, check=False)
        return Limit(self._run(stream, check=True), "the minimal pair, checked")

    def _run(self, stream: Stream, *, check: bool) -> float:
        numbers = {
            "bs": stream.block_bytes,
            "batch": stream.batch,
            "iodepth": stream.iodepth,
            "connections": stream.connections,
            "size": stream.set_bytes,
            "check": int(check),
            "runtime": int(stream.seconds * 1000),
        }
        if stream.daemon_core is not None and stream.client_core is not None:
            numbers |= {"server-core": stream.daemon_core, "client-core": stream.client_core}
        command = [str(self.program), "--rw", stream.scenario, "--congestion", stream.congestion]
        command += [text for name, number in numbers.items() for text in (f"--{name}", str(number))]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        said: dict[str, Any] = json.loads(done.stdout)
        self.said[check].append(said)
        return float(said["bytes_per_s"])

    def median(self, *path: str, check: bool) -> float:
        """Of what all its runs said under these names."""
        values = []
        for said in self.said[check]:
            value: Any = said
            for name in path:
                value = value[name]
            values.append(float(value))
        return statistics.median(values)


@dataclass(frozen=True)
class Verdict:
    """What a case came to."""

    case: Case
    result: Result
    pair: Pair

    @property
    def ratio(self) -> float:
        """To the checked pair."""
        return self.result.run.ratio or 0.0

    @property
    def reached(self) -> bool:
        """The goal, every byte verified."""
        return self.ratio >= self.case.goal and self.result.verified

    def as_json(self) -> dict[str, Any]:
        """The result with what stands beside it."""
        return {
            **self.result.as_json(),
            "connections": self.case.connections,
            "goal": self.case.goal,
            "ratio_to_unchecked": (self.result.run.bytes_per_s or 0.0) / self.pair.median("bytes_per_s", check=False),
            "pair": self.pair.said[True],
            "pair_unchecked": self.pair.said[False],
        }

    def line(self) -> str:
        """For people."""
        told = self.as_json()
        cpu = told["cpu_s_per_gib"]
        server, client = (self.pair.median("cpu_s_per_gib", side, check=True) for side in ("server", "client"))
        return (
            f"{self.case.scenario} {format_bytes(self.case.bs):>7} x {BATCH}, {self.case.connections} connection(s): "
            f"{told['gigabytes_per_s']:.2f} GB/s, {self.ratio:.2f} of the checked pair, goal {self.case.goal:.2f}: "
            f"{'reached' if self.reached else 'MISSED'}; {told['ratio_to_unchecked']:.2f} of the unchecked; CPU s/GiB: "
            f"daemon {cpu['daemon']:.2f}, {cpu['daemon'] / server:.2f} of the server's, "
            f"client {cpu['client']:.2f}, {cpu['client'] / client:.2f} of the client's"
        )


def measured(case: Case, program: Path, options: argparse.Namespace) -> Verdict:
    pair = Pair(program)
    plan = Plan(
        scenarios=(case.scenario,),
        block_bytes=(case.bs,),
        batch=BATCH,
        connections=case.connections,
        iodepth=(case.iodepth,),
        seconds=options.runtime,
        repeat=options.repeat,
    )
    report = measure(plan, lambda _text: None, " ".join(sys.argv), pair)
    return Verdict(case, report.results[0], pair)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runtime", type=float, default=1.0, help="seconds of one run")
    parser.add_argument("--repeat", type=int, default=5, help="runs of each; the median ratio counts")
    parser.add_argument("--program", type=Path, default=PROGRAM)
    parser.add_argument("--json", action="store_true", help="one document a case, one per line, on stdout")
    options = parser.parse_args()
    if not options.program.exists():
        raise SystemExit(f"{options.program}: not built; run `make build`, or name another with --program")
    missed = 0
    for case in CASES:
        try:
            verdict = measured(case, options.program, options)
        except HalfstepError as error:
            raise SystemExit(str(error)) from None
        missed += not verdict.reached
        print(verdict.line(), file=sys.stderr, flush=True)
        if options.json:
            print(json.dumps(verdict.as_json()), flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
