"""One client's side of a run: its lanes, walked through the set once and then driven against the clock.

Driver is one of `clones` clients that do the same at once (--numjobs), each in a process of its own (clones.py) where there are
several. Gets have an order of their own in each; what is cold is walked through by all of them together, or one would find in
memory what another has just read; no number is put twice.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.random import default_rng

import halfstep
from halfstep.client.recording import unrecorded
from halfstep.errors import InternalError
from halfstep.tools.bench.arrivals import Rate, drive_arrivals, due_ns
from halfstep.tools.bench.content import BODIES, Content, Numbers
from halfstep.tools.bench.device import PAGE_BYTES
from halfstep.tools.bench.machine import difference, waited_seconds
from halfstep.tools.bench.plan import NUMJOBS_MAX, Plan
from halfstep.tools.bench.trail import Trail
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
    populate,
    verify,
)

# Numbers of blocks that puts make, far from those that gets ask for, and anew for each depth; multiples of BODIES.
FIRST_PUT, FIRST_MIXED, FIRST_COLDMIXED, FIRST_FILL, PUTS_A_DEPTH = 1 << 40, 1 << 41, 1 << 42, 1 << 43, 1 << 32
_FIRST = {"put": FIRST_PUT, "mixed": FIRST_MIXED, "coldmixed": FIRST_COLDMIXED}
_WARM_UP_S_MAX = 0.3
# Of `coldmixed`: when reclaim has found its balance, and after how many fillings of the store it is waited for no longer.
_SETTLED_COPIES_MAX, _SETTLED_HITS_MAX, _FILLINGS_MIN, _FILLINGS_MAX = 0.2, 0.002, 2, 4
_STEPS_A_FILLING, _STEPS_READ = 16, 5
_TOUCHES_A_PUT_MAX = 20.0
_FILL_A_CLONE = PUTS_A_DEPTH // NUMJOBS_MAX
_SETTLES = (
    'halfstep_store_bytes_written_total{of="user"}',
    'halfstep_store_bytes_written_total{of="rewritten"}',
    'halfstep_store_hits_total{from="memory"}',
    'halfstep_store_hits_total{from="flash"}',
)
# Of one client that came late for the start.
_RUN_S_MIN = 1e-3
assert all(first % BODIES == 0 for first in (*_FIRST.values(), FIRST_FILL, PUTS_A_DEPTH))
# Of the seed, so that no two series that are drawn are the same.
_ARRIVALS, _TRAIL = 1, 2


@dataclass(frozen=True)
class Driven:
    """What a run came to. cpu_s: CPU time of the client, or of all of them; waited_s: what they waited for a core.

    rate: of calls that came at one.
    """

    timing: Timing
    cpu_s: float
    rate: Rate | None = None
    waited_s: float | None = None


class Drives(Protocol):
    """A client, or several that do the same at once.

    own_blocks: it makes its set itself and looks at all that comes of it, so that nobody else puts or compares one.
    """

    own_blocks: bool

    def begin(self, scenario: str, depth: int, blocks: int, puts: int) -> None:
        """Make lanes for a scenario at a depth over a set of `blocks`, and warm up. puts: how many numbers were put so far.

        For `coldmixed` `blocks` are put first, by all clients together: as many as the store has room for, or more.
        """
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
    with unrecorded():
        client = halfstep.connect(
            url,
            layout=plan.layout_of("get", 0),
            required=True,
            deadline_ms=DEADLINE_MS,
            match_deadline_ms=DEADLINE_MS,
            connections=plan.connections,
            mode="on",
        )
    with client:
        yield client


class Driver:
    """Clone `clone` of `clones`."""

    own_blocks = False

    def __init__(self, plan: Plan, client: halfstep.Client, content: Content, clone: int = 0, clones: int = 1) -> None:
        self._plan = plan
        self._client = client
        self._content = content
        self._clone, self._clones = clone, clones
        self._rng = default_rng([plan.seed, clone] if clone else plan.seed)
        self._arrivals = default_rng([plan.seed, clone, _ARRIVALS])
        self._lanes: Sequence[Lane] = ()
        self._put_lanes: list[PutLane] = []

    def begin(self, scenario: str, depth: int, blocks: int, puts: int) -> None:
        """Lanes, once through the set: a hot one is then in memory, and of a cold one only its end is. Then the ramp."""
        plan = self._plan
        trail = self._filled(blocks, puts) if scenario == "coldmixed" else None
        self._lanes = self._made(scenario, depth, blocks, puts, trail)
        if scenario in ("get", "cold", "layerwise"):
            mine = self._clones if scenario == "cold" else 1
            drive(self._client, self._lanes, batches=max(1, blocks // plan.batch // mine))
        else:
            drive(self._client, self._lanes, seconds=min(_WARM_UP_S_MAX, plan.seconds))
        if plan.ramp_s > 0:
            self._timed(plan.ramp_s)

    def drive(self, seconds: float, start_ns: int | None = None) -> Driven:
        """start_ns: the moment, of time.perf_counter_ns(), which all processes share, from which on the time counts.

        Who is late for it has less of it left: else each would have had a part of the time for itself, and all of them
        together more than the daemon can give.
        """
        late_s = 0.0
        if start_ns is not None:
            time.sleep(max(0, start_ns - time.perf_counter_ns()) / 1e9)
            late_s = (time.perf_counter_ns() - start_ns) / 1e9
        before, waited = time.process_time(), waited_seconds(os.getpid())
        timing, rate = self._timed(max(0.0, seconds - late_s))
        timing.seconds += late_s
        cpu_s = time.process_time() - before
        return Driven(timing, cpu_s, rate, difference(waited, waited_seconds(os.getpid())))

    def _timed(self, seconds: float) -> tuple[Timing, Rate | None]:
        if not self._plan.rate:
            return drive(self._client, self._lanes, seconds=seconds), None
        seconds = max(seconds, _RUN_S_MIN)
        with self._client.queue() as queue:
            return drive_arrivals(queue, self._lanes, due_ns(self._plan.rate, seconds, self._arrivals), seconds)

    def stored(self) -> list[Numbers]:
        """The newest of each lane that puts."""
        return [numbers for lane in self._put_lanes for numbers in lane.stored]

    def _filled(self, blocks: int, puts: int) -> Trail:
        """Puts this client's share of `blocks`, and remembers them."""
        plan, content = self._plan, self._content
        # A small block takes a page at least in the daemon's memory.
        batch_bytes = plan.batch * max(content.block_bytes, PAGE_BYTES) * self._clones
        memory_bytes = int(self._client.admin.stat()['halfstep_memory_bytes{of="capacity"}'])
        nearest, width, farthest = (-(-size // batch_bytes) for size in plan.trail_bytes(memory_bytes))
        trail = Trail(content, plan.batch, nearest, width, farthest, default_rng([plan.seed, self._clone, _TRAIL]))
        self._fill(trail, -(-blocks // self._clones // plan.batch), FIRST_FILL + puts + self._clone * _FILL_A_CLONE)
        return trail

    def _fill(self, trail: Trail, batches: int, first: int) -> None:
        """Fills the store with `batches` until reclaim copies about what it may, as when it has served for long.

        A store that was just filled copies all that was read, and learns with each segment that this is more than its share of
        the writes; the copies take the place of what was put. So what will be read is touched, as often as it will be read.
        Towards the end it is read: while blocks are only put, memory knows longer what it had, and keeps what it recognizes.
        """
        plan, content = self._plan, self._content
        step = -(-batches // _STEPS_A_FILLING)
        share = plan.read_share
        touches = min(share / (1 - share) if share < 1 else _TOUCHES_A_PUT_MAX, _TOUCHES_A_PUT_MAX)
        for number in range(_STEPS_A_FILLING * _FILLINGS_MAX):
            before = self._client.admin.stat()
            populate(self._client, content, step * plan.batch, first=first)
            for at in range(0, step * plan.batch, plan.batch):
                trail.add(content.numbers(first + at, plan.batch))
            first += step * plan.batch
            wanted = [next(trail) for _ in range(int(touches * step))] if trail.ready else []
            if number < _STEPS_A_FILLING * _FILLINGS_MIN - _STEPS_READ:
                for numbers in wanted:
                    self._client.touch(content.keys(numbers))
            elif wanted and (wrong := verify(self._client, content, np.concatenate(wanted)).wrong):
                raise InternalError(f"{self._client.url}: {wrong} blocks came with other bytes than they were put with")
            after = self._client.admin.stat()
            user, copied, memory, flash = (after[name] - before[name] for name in _SETTLES)
            settled = copied <= _SETTLED_COPIES_MAX * user and memory <= _SETTLED_HITS_MAX * (memory + flash)
            if number >= _STEPS_A_FILLING * _FILLINGS_MIN and settled:
                return

    def _made(self, scenario: str, depth: int, blocks: int, puts: int, trail: Trail | None) -> Sequence[Lane]:
        plan, content = self._plan, self._content
        share = (self._clone, self._clones) if scenario == "cold" else (0, 1)
        # What is walked through together has one order.
        seed = [plan.seed, self._clone] if self._clone and scenario != "cold" else plan.seed
        order = trail or endless(content, blocks, plan.batch, default_rng(seed), share)
        self._put_lanes = []
        if scenario == "match":
            return [MatchLane(content, order, plan.batch) for _ in range(depth)]
        reads = [GetLane(content, order, plan.batch, self._rng) for _ in range(depth)] if scenario != "put" else []
        if scenario in ("get", "cold"):
            return reads
        if scenario == "layerwise":
            layout = plan.layout_of(scenario, content.block_bytes)
            return [LayerLane(read, content, layout) for read in reads]
        lanes, first = self._clones * depth, _FIRST[scenario] + puts
        self._put_lanes = [
            PutLane(content, plan.batch, self._clone * depth + lane, lanes, first, plan.durability, trail)
            for lane in range(depth)
        ]
        if scenario == "put":
            return self._put_lanes
        return [MixedLane(read, write, plan.read_share, self._rng) for read, write in zip(reads, self._put_lanes, strict=True)]
