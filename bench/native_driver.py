"""halfstep_client_bench in the place of a Python client: a run of `measure` whose calls the client core makes alone.

Everything else is as in any run: the daemon, the namespace, what stands in turns with it, and the counters of daemon, engine
and block device that say whether what was read was cold and whether segments were reclaimed meanwhile.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import halfstep
from halfstep.client.url import Endpoint
from halfstep.errors import ConfigError, InternalError
from halfstep.tools.bench.arrivals import Rate
from halfstep.tools.bench.content import Content, Numbers
from halfstep.tools.bench.driver import Driven
from halfstep.tools.bench.machine import difference, waited_seconds
from halfstep.tools.bench.measure import refuse_unless_release
from halfstep.tools.bench.place import Place
from halfstep.tools.bench.plan import Plan
from halfstep.tools.bench.workload import Outcome, Side, Timing

CLIENT_PROGRAM = "halfstep_client_bench"
SCENARIOS = ("get", "cold", "coldmixed")
END_S = 10.0


class NativeDriver:
    """One process of the program; what it does first is to fill the store. scratch: a folder for what it writes."""

    own_blocks = True

    def __init__(self, program: Path, plan: Plan, url: str, block_bytes: int, scratch: Path) -> None:
        if plan.numjobs > 1 or plan.durability != "cache":
            raise ConfigError(
                f"{program.name}: is one client that puts with durability cache; leave numjobs and durability alone"
            )
        self._program = program
        self._plan = plan
        self._endpoint = Endpoint.parse(url)
        self._block_bytes = block_bytes
        self._latencies = scratch / "latencies"
        self._process: subprocess.Popen[str] | None = None

    def begin(self, scenario: str, depth: int, blocks: int, puts: int) -> None:
        """Starts the program, and waits until it has filled the store. Errors: ConfigError, InternalError."""
        if scenario not in SCENARIOS:
            raise ConfigError(f"{self._program.name}: rw={scenario!r}: it does {', '.join(SCENARIOS)}")
        self.close()
        plan = self._plan
        options: dict[str, object] = {
            "address": self._endpoint.address,
            "namespace": self._endpoint.namespace,
            "rw": scenario,
            "rate": max(1, round(plan.rate)) if plan.rate else 0,
            "rwmixread": round(100 * plan.read_share),
            "bs": self._block_bytes,
            "batch": plan.batch,
            "iodepth": depth,
            "connections": plan.connections,
            "size": plan.hot_blocks(self._block_bytes) * self._block_bytes,
            "cold-bytes": plan.cold_bytes,
            "fill": blocks * self._block_bytes,
            "first": puts,
            "seed": plan.seed,
            "runtime": _milliseconds(plan.seconds),
            "latencies": self._latencies,
            "ask": 1,
        }
        command = [str(self._program), *(text for name, value in options.items() for text in (f"--{name}", str(value)))]
        # Ctrl-C at a terminal is for the parent, which ends this.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        refuse_unless_release(self._answer())
        if plan.ramp_s > 0:
            self._run(plan.ramp_s)

    def drive(self, seconds: float) -> Driven:
        """A run of the program."""
        assert self._process is not None, "begin() comes first"
        waited = waited_seconds(self._process.pid)
        told = self._run(seconds)
        gets, puts = (self._side(told, name) for name in ("gets", "puts"))
        outcome = Outcome()
        for side in (gets, puts):
            outcome.add(side.outcome)
        mixed = len(puts.latencies_us) > 0
        timing = Timing(
            told["seconds"],
            np.concatenate([gets.latencies_us, puts.latencies_us]),
            outcome,
            None,
            gets if mixed and len(gets.latencies_us) else None,
            puts if mixed else None,
        )
        rate = told["rate"]
        kept = None if rate is None else Rate(seconds, rate["calls_due"], rate["calls_begun_in_time"], rate["calls_made"])
        return Driven(timing, told["cpu_s"], kept, difference(waited, waited_seconds(self._process.pid)))

    def stored(self) -> list[Numbers]:
        """None that others could compare."""
        return []

    def close(self) -> None:
        """Ends the program."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.communicate(timeout=END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()

    def _run(self, seconds: float) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{_milliseconds(seconds)}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._why_ended() from None
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._why_ended()
        told: dict[str, Any] = json.loads(line)
        return told

    def _why_ended(self) -> InternalError:
        assert self._process is not None
        try:
            status = self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            return InternalError(f"{self._program}: neither answers nor ends; start it again")
        how = f"by signal {-status}" if status < 0 else f"with status {status}"
        return InternalError(f"{self._program}: ended {how} before its time; what it said stands above")

    def _side(self, told: dict[str, Any], name: str) -> Side:
        side = told[name]
        wrong = side["wrong"] + side["present"]
        looked = side["ok"] + side["wrong"] if name == "gets" else 0
        latencies_us = np.fromfile(f"{self._latencies}.{name}", np.float64)
        return Side(latencies_us, Outcome(side["blocks"], side["ok"], looked, wrong, side["answers_not_ok"]))


def native_drives(program: Path) -> Callable[[Plan, Place, halfstep.Client, Content], Any]:
    """For `measure`: each run by this program."""

    @contextmanager
    def drives(plan: Plan, _place: Place, client: halfstep.Client, content: Content) -> Iterator[NativeDriver]:
        with tempfile.TemporaryDirectory(prefix="halfstep-native-") as scratch:
            driver = NativeDriver(program, plan, client.url, content.block_bytes, Path(scratch))
            try:
                yield driver
            finally:
                driver.close()

    return drives


def _milliseconds(seconds: float) -> int:
    return max(1, round(1e3 * seconds))
