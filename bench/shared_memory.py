#!/usr/bin/env python3
"""Question: what do gets over shared memory cost, against the copy that they are and the wake-up that they need?

The limits are build/release/bench/halfstep_shm_bench (`make build` makes it): memcpy of as many bytes by one thread, and two
processes that wake each other by eventfds, on the same cores, right before and right after each timed run. The client is the
core without an interpreter (halfstep_client_bench), every byte verified, against a daemon of our own. Exit status 1 when a goal
is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import halfstep
from halfstep.daemon.config import KIB, MIB, format_bytes
from halfstep.errors import HalfstepError
from halfstep.tools.bench.machine import cpu_name
from halfstep.tools.daemon_process import DaemonProcess

PROGRAMS = Path(__file__).parents[1] / "build" / "release" / "bench"
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
            "ratio": self.ratio,
            "ratios": self.ratios,
            "goal": self.case.goal,
            "reached": self.reached,
        }

    def line(self) -> str:
        """For people."""
        what = f"get {format_bytes(self.case.bs):>7} x {self.case.batch:2}"
        if self.case.copies:
            numbers = f"{self.value:6.2f} GB/s, memcpy {self.limit:6.2f}: {self.ratio:.2f}, goal at least {self.case.goal:.1f}"
        else:
            numbers = (
                f"p50 {self.value:6.1f} us, eventfds {self.limit:6.1f}: {self.ratio:.2f}, goal at most {self.case.goal:.1f}"
            )
        return f"{what}: {numbers}: {'reached' if self.reached else 'MISSED'}"


def said_by(program: Path, **options: object) -> dict[str, Any]:
    """The document that a program prints."""
    command = [str(program)]
    command += [text for name, value in options.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: exit status {done.returncode}")
    said: dict[str, Any] = json.loads(done.stdout)
    if said["build"] != "release":
        raise SystemExit(f"{program}: build={said['build']}; a benchmark reports from a release build alone (make build)")
    return said


def measured(case: Case, socket: Path, cores: list[int], options: argparse.Namespace) -> Verdict:
    daemon_core, client_core = cores[0], cores[-1]
    runtime_ms = int(options.runtime * 1000)

    def limit() -> float:
        said = said_by(
            options.programs / "halfstep_shm_bench",
            bytes=case.bs,
            set=case.set_bytes,
            runtime=max(50, runtime_ms // 4),
            core=client_core,
            other_core=daemon_core,
        )
        return float(said["copy_bytes_per_s"] / 1e9 if case.copies else said["eventfd_us"]["p50"])

    limits, values, ratios = [], [], []
    for _ in range(options.repeat):
        before = limit()
        said = said_by(
            options.programs / "halfstep_client_bench",
            address=f"unix:{socket}",
            bs=case.bs,
            batch=case.batch,
            size=case.set_bytes,
            runtime=runtime_ms,
            core=client_core,
            seed=case.bs * 100 + case.batch,
        )
        between = (before + limit()) / 2
        value = float(said["bytes_per_s"] / 1e9 if case.copies else said["latency_us"]["p50"])
        limits.append(between)
        values.append(value)
        ratios.append(value / between)
    return Verdict(case, ratios, statistics.median(values), statistics.median(limits))


@contextmanager
def daemon_on(core: int) -> Iterator[Path]:
    """The socket of a daemon of our own, on one core."""
    with tempfile.TemporaryDirectory(prefix="halfstep-shm-") as directory:
        socket = Path(directory) / "h.sock"
        process = DaemonProcess(Path(directory), "--size", "1GiB", "--arena", "256MiB", unix=str(socket), own_session=True)
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {core})
        try:
            process.start()
        finally:
            os.sched_setaffinity(0, before)
        try:
            yield socket
        finally:
            process.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runtime", type=float, default=1.0, help="seconds of one run")
    parser.add_argument("--repeat", type=int, default=5, help="runs of each; the median ratio counts")
    parser.add_argument("--programs", type=Path, default=PROGRAMS, help="folder of the two programs")
    parser.add_argument("--json", action="store_true", help="one document on stdout")
    options = parser.parse_args()
    for name in ("halfstep_shm_bench", "halfstep_client_bench"):
        if not (options.programs / name).exists():
            raise SystemExit(f"{options.programs / name}: not built; run `make build`, or name another folder with --programs")
    cores = sorted(os.sched_getaffinity(0))
    header = {
        "command": " ".join(sys.argv),
        "commit": halfstep.build_info()["commit"],
        "build": halfstep.build_info()["build"],
        "kernel": platform.release(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "pinned": f"daemon on core {cores[0]}, client on core {cores[-1]}",
    }
    print(", ".join(f"{name} {value}" for name, value in header.items()), file=sys.stderr)
    verdicts = []
    try:
        with daemon_on(cores[0]) as socket:
            for case in CASES:
                verdicts.append(measured(case, socket, cores, options))
                print(verdicts[-1].line(), file=sys.stderr, flush=True)
    except HalfstepError as error:
        raise SystemExit(str(error)) from None
    if options.json:
        print(json.dumps({"header": header, "cases": [verdict.as_json() for verdict in verdicts]}, indent=2))
    return 0 if all(verdict.reached for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
