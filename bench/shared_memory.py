#!/usr/bin/env python3
"""Question: what do gets over shared memory cost, against the copy that they are and the wake-up that they need?

The limits are build/release/bench/halfstep_shm_bench (`make native` makes it): memcpy of as many bytes by one thread, and two
processes that wake each other by eventfds, on the same cores, right before and right after each timed run. The client is the
core without an interpreter (halfstep_client_bench), every byte verified, against a daemon of our own. What the kernel makes
when it writes as many bytes into a memfd stands beside it, for the record: that is how a daemon would land them in a client's
memory (docs/adr/0007). A turn of all three is made again while the host of a virtual machine has the two cores apart
(cores.py). Exit status 1 when a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from dataclasses import dataclass
from typing import Any

from cores import DISTANCE_PROGRAM, Cores
from script import header, positive, run, run_seconds, said_by, with_programs

from halfstep.daemon.units import KIB, MIB, format_bytes
from halfstep.tools.bench.place import own_daemon

SET_BYTES = 64 * MIB
SMALL_KEYS = 1024


@dataclass(frozen=True)
class Case:
    """Gets of `batch` blocks of `bs` bytes. goal: of memcpy's bytes a second at least, or of the wake-up's time at most."""

    bs: int
    batch: int
    goal: float

    @property
    def copies(self) -> bool:
        """Whether it is about bytes a second, not about a round trip."""
        return self.bs >= MIB

    @property
    def set_bytes(self) -> int:
        """What the gets walk through."""
        return SET_BYTES if self.copies else self.bs * SMALL_KEYS


CASES = (
    Case(1 * MIB, 1, 0.8),
    Case(1 * MIB, 16, 0.8),
    Case(64, 1, 1.5),
    Case(1 * KIB, 1, 1.5),
    Case(4 * KIB, 1, 1.5),
)


@dataclass(frozen=True)
class Verdict:
    """Medians over the runs of a case; a ratio is of one run to what stood right before and after it."""

    case: Case
    ratios: list[float]
    value: float
    limit: float
    landing: float

    @property
    def ratio(self) -> float:
        """The median of the runs'."""
        return statistics.median(self.ratios)

    @property
    def reached(self) -> bool:
        """The goal."""
        return self.ratio >= self.case.goal if self.case.copies else self.ratio <= self.case.goal

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        unit = "gigabytes_per_s" if self.case.copies else "p50_us"
        return {
            "bs": self.case.bs,
            "batch": self.case.batch,
            unit: self.value,
            f"limit_{unit}": self.limit,
            "landing_gigabytes_per_s": self.landing if self.case.copies else None,
            "ratio": self.ratio,
            "ratios": self.ratios,
            "goal": self.case.goal,
            "reached": self.reached,
        }

    def line(self) -> str:
        """For people."""
        what = f"get {format_bytes(self.case.bs):>7} x {self.case.batch:2}"
        if self.case.copies:
            numbers = (
                f"{self.value:6.2f} GB/s, memcpy {self.limit:6.2f} (into a memfd by the kernel {self.landing:.2f}): "
                f"{self.ratio:.2f}, goal at least {self.case.goal:.1f}"
            )
        else:
            numbers = (
                f"p50 {self.value:6.1f} us, eventfds {self.limit:6.1f}: {self.ratio:.2f}, goal at most {self.case.goal:.1f}"
            )
        return f"{what}: {numbers}: {'reached' if self.reached else 'MISSED'}"


def measured(case: Case, address: str, daemon_core: int, client_core: int, options: argparse.Namespace, near: Cores) -> Verdict:
    runtime_ms = int(options.runtime * 1000)

    def limit() -> tuple[float, float]:
        said = said_by(
            options.programs / "halfstep_shm_bench",
            {
                "bytes": case.bs,
                "set": case.set_bytes,
                "target": case.bs * case.batch,
                "runtime": max(50, runtime_ms // 4),
                "core": client_core,
                "other-core": daemon_core,
            },
        )
        value = float(said["copy_bytes_per_s"] / 1e9 if case.copies else said["eventfd_us"]["p50"])
        return value, float(said["landing_bytes_per_s"]) / 1e9

    landings: list[float] = []
    limits, values, ratios = [], [], []

    def turn() -> tuple[float, float, list[float]]:
        before, landing_before = limit()
        said = said_by(
            options.programs / "halfstep_client_bench",
            {
                "address": address,
                "bs": case.bs,
                "batch": case.batch,
                "size": case.set_bytes,
                "runtime": runtime_ms,
                "core": client_core,
                "seed": case.bs * 100 + case.batch,
            },
        )
        value = float(said["bytes_per_s"] / 1e9 if case.copies else said["latency_us"]["p50"])
        after, landing_after = limit()
        return value, (before + after) / 2, [landing_before, landing_after]

    for _ in range(options.repeat):
        value, between, landed = near.steadily(turn)
        landings += landed
        limits.append(between)
        values.append(value)
        ratios.append(value / between)
    return Verdict(case, ratios, *(statistics.median(some) for some in (values, limits, landings)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runtime", type=run_seconds, default=1.0, help="seconds of one run")
    parser.add_argument("--repeat", type=positive, default=5, help="runs of each; the median ratio counts")
    parser.add_argument("--json", action="store_true", help="one document on stdout")
    options = with_programs(parser, "halfstep_shm_bench", "halfstep_client_bench", DISTANCE_PROGRAM)
    allowed = sorted(os.sched_getaffinity(0))
    daemon_core, client_core = allowed[0], allowed[-1]
    head = header(pinned=f"daemon on core {daemon_core}, client on core {client_core}")
    print(", ".join(f"{name} {value}" for name, value in head.items()), file=sys.stderr)
    near = Cores(options.programs, daemon_core, client_core)
    verdicts = []
    with own_daemon("--size", "1GiB", "--arena", "256MiB", core=daemon_core, unix=True) as daemon:
        address = next(address for address in daemon.facts["listening"] if address.startswith("unix:"))
        for case in CASES:
            verdicts.append(measured(case, address, daemon_core, client_core, options, near))
            print(verdicts[-1].line(), file=sys.stderr, flush=True)
    print(near.text(), file=sys.stderr)
    if options.json:
        head["cores_near"] = near.as_json()
        print(json.dumps({"header": head, "cases": [verdict.as_json() for verdict in verdicts]}, indent=2))
    return 0 if all(verdict.reached for verdict in verdicts) else 1


if __name__ == "__main__":
    run(main)
