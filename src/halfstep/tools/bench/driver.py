"""One client's side of a run: its lanes, walked through the set once and then driven against the clock.

Driver is one of `clones` clients that do the same at once (--numjobs), each in a process of its own (clones.py) where there are
several. Gets have an order of their own in each; what is cold is walked through by all of them together, or one would find in
memory what another has just read; no number is put twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from numpy.random import default_rng

import halfstep
from halfstep.tools.bench.content import BODIES, Content, Numbers
from halfstep.tools.bench.plan import Plan
from halfstep.tools.bench.workload import (
    DEADLINE_MS,
    GetLane,
    Lane,
    LayerLane,
    MatchLane,
    MixedLane,
    PutLane,
    Timing,
    drive,
    endless,
)

# Numbers of blocks that puts make, far from those that gets ask for, and anew for each depth; multiples of BODIES.
FIRST_PUT, FIRST_MIXED, PUTS_A_DEPTH = 1 << 40, 1 << 41, 1 << 32
_WARM_UP_S_MAX = 0.3
assert FIRST_PUT % BODIES == FIRST_MIXED % BODIES == PUTS_A_DEPTH % BODIES == 0


@dataclass(frozen=True)
class Driven:
    """What a run came to. cpu_s: CPU time of the client, or of all of them."""

    timing: Timing
    cpu_s: float


class Drives(Protocol):
    """A client, or several that do the same at once."""

    def begin(self, scenario: str, depth: int, blocks: int, puts: int) -> None:
        """Make lanes for a scenario at a depth over a set of `blocks`, and warm up. puts: how many numbers were put so far."""
        ...

    def drive(self, seconds: float) -> Driven:
        """Run against the clock."""
        ...

    def stored(self) -> list[Numbers]:
        """The newest numbers that were surely put since begin()."""
        ...


@contextmanager
def bench_client(plan: Plan, url: str) -> Iterator[halfstep.Client]:
    """As all clients of a benchmark are."""
    with halfstep.connect(
        url,
        layout=plan.layout_of("get", 0),
        required=True,
        deadline_ms=DEADLINE_MS,
        match_deadline_ms=DEADLINE_MS,
        connections=plan.connections,
        mode="on",
    ) as client:
        yield client


class Driver:
    """Clone `clone` of `clones`."""

    def __init__(self, plan: Plan, client: halfstep.Client, content: Content, clone: int = 0, clones: int = 1) -> None:
        self._plan = plan
        self._client = client
        self._content = content
        self._clone, self._clones = clone, clones
        self._rng = default_rng([plan.seed, clone] if clone else plan.seed)
        self._lanes: Sequence[Lane] = ()
        self._put_lanes: list[PutLane] = []

    def begin(self, scenario: str, depth: int, blocks: int, puts: int) -> None:
        """Lanes, once through the set: a hot one is then in memory, and of a cold one only its end is. Then the ramp."""
        plan = self._plan
        self._lanes = self._made(scenario, depth, blocks, puts)
        if scenario in ("get", "cold", "layerwise"):
            mine = self._clones if scenario == "cold" else 1
            drive(self._client, self._lanes, batches=max(1, blocks // plan.batch // mine))
        else:
            drive(self._client, self._lanes, seconds=min(_WARM_UP_S_MAX, plan.seconds))
        if plan.ramp_s > 0:
            drive(self._client, self._lanes, seconds=plan.ramp_s)

    def drive(self, seconds: float, start_ns: int | None = None) -> Driven:
        """start_ns: the moment, of time.perf_counter_ns(), which all processes share, from which on the time counts.

        Who is late for it has less of it left: else each would have had a part of the time for itself, and all of them
        together more than the daemon can give.
        """
        late_s = 0.0
        if start_ns is not None:
            time.sleep(max(0, start_ns - time.perf_counter_ns()) / 1e9)
            late_s = (time.perf_counter_ns() - start_ns) / 1e9
        before = time.process_time()
        timing = drive(self._client, self._lanes, seconds=max(0.0, seconds - late_s))
        timing.seconds += late_s
        return Driven(timing, time.process_time() - before)

    def stored(self) -> list[Numbers]:
        """The newest of each lane that puts."""
        return [numbers for lane in self._put_lanes for numbers in lane.stored]

    def _made(self, scenario: str, depth: int, blocks: int, puts: int) -> Sequence[Lane]:
        plan, content = self._plan, self._content
        share = (self._clone, self._clones) if scenario == "cold" else (0, 1)
        # What is walked through together has one order.
        seed = [plan.seed, self._clone] if self._clone and scenario != "cold" else plan.seed
        order = endless(content, blocks, plan.batch, default_rng(seed), share)
        first = (FIRST_MIXED if scenario == "mixed" else FIRST_PUT) + puts
        self._put_lanes = []
        if scenario == "match":
            return [MatchLane(content, order, plan.batch) for _ in range(depth)]
        reads = [GetLane(content, order, plan.batch, self._rng) for _ in range(depth)] if scenario != "put" else []
        if scenario in ("get", "cold"):
            return reads
        if scenario == "layerwise":
            layout = plan.layout_of(scenario, content.block_bytes)
            return [LayerLane(read, content, layout) for read in reads]
        lanes = self._clones * depth
        self._put_lanes = [
            PutLane(content, plan.batch, self._clone * depth + lane, lanes, first, plan.durability) for lane in range(depth)
        ]
        if scenario == "put":
            return self._put_lanes
        return [MixedLane(read, write, plan.read_share, self._rng) for read, write in zip(reads, self._put_lanes, strict=True)]
