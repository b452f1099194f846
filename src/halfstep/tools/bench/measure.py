"""Runs a plan: populates, warms up, then limit, run, limit, run, …, so that both meet the same noise; verifies; concludes.

What is reported of several runs is one of them, whole: the one with the median ratio to its own limit (the median speed where
there is no limit). Speed, limit, ratio and latencies thus belong together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.random import default_rng

import halfstep
from halfstep.client.url import Endpoint
from halfstep.daemon.units import format_bytes
from halfstep.errors import ConfigError
from halfstep.tools.bench import loopback
from halfstep.tools.bench.clones import Clones
from halfstep.tools.bench.content import Content
from halfstep.tools.bench.device import DEVICE_SHARE_MIN, PIECE_BYTES_MIN, BlockDevice, DeviceWork, extents_of, raw_read_speed
from halfstep.tools.bench.driver import PUTS_A_DEPTH, Driven, Driver, Drives, bench_client
from halfstep.tools.bench.machine import cpu_seconds, difference, header_of, stolen_seconds, waited_seconds
from halfstep.tools.bench.place import Place, own_namespace, place_of
from halfstep.tools.bench.plan import Plan
from halfstep.tools.bench.proof import why_not_cold, why_not_coldmixed
from halfstep.tools.bench.report import CpuTime, CpuWait, Limit, Proof, Refusal, Report, Result, Run
from halfstep.tools.bench.workload import DEADLINE_MS, Outcome, Timing, populate, verify

_VERIFY_BLOCKS_MAX = 16_384
# What the raw device limit reads first, to learn how much takes as long as a timed run.
_RAW_BYTES_FIRST = 256 << 20
# Of the store's size: what is put into it until it is reclaimed at every put.
_FILL_SHARE = 1.02
_HOLD_MS = 60_000
_HOLD_KEYS = 1024


@dataclass(frozen=True)
class Stream:
    """What a stream limit is asked for: as much as the run that it stands beside. Sizes in bytes; kind: "tcp" or "shm".

    connections: of all `numjobs` clients together. address: the daemon's, for those who set it against another of its clients.
    """

    kind: str
    address: str
    scenario: str
    block_bytes: int
    batch: int
    iodepth: int
    connections: int
    numjobs: int
    set_bytes: int
    congestion: str
    seconds: float
    daemon_core: int | None
    client_core: int | None


def plain_sockets(stream: Stream) -> Limit | None:
    """Bytes in one direction, and nothing else; for shared memory one copy of them. Of `coldmixed` it is no limit."""
    if stream.scenario == "coldmixed":
        return None
    target_bytes = stream.batch * stream.iodepth * stream.block_bytes * stream.numjobs
    if stream.kind == "shm":
        # Set and target are whole batches.
        neighbours = 1 if stream.block_bytes >= PIECE_BYTES_MIN else stream.batch
        speed = loopback.copy(
            set_bytes=stream.set_bytes,
            target_bytes=target_bytes,
            piece_bytes=stream.block_bytes * neighbours,
            seconds=stream.seconds,
        )
        return Limit(speed, "memcpy by one thread")
    bytes_per_s = loopback.measure(
        set_bytes=stream.set_bytes,
        target_bytes=target_bytes,
        connections=stream.connections,
        congestion=stream.congestion,
        seconds=stream.seconds,
        sender_core=stream.daemon_core,
    )
    return Limit(bytes_per_s, "plain tcp sockets")


@dataclass(frozen=True)
class Reads:
    """What a limit of cold gets is asked for: reads of what a store wrote, `depth` blocks at once, in batches of neighbours."""

    store: Path
    device: BlockDevice
    block_bytes: int
    batch: int
    depth: int
    seconds: float
    seed: int


class PlainReads:
    """plain preadv in threads, as long as a timed run: a device that is fast for a moment is not a fast device."""

    def __init__(self) -> None:
        self._bytes = _RAW_BYTES_FIRST

    def __call__(self, reads: Reads) -> Limit | None:
        """None where the device did not read it all: no limit of it, and the run itself will not pass for cold either."""
        extents = extents_of(reads.store, reads.block_bytes, reads.batch, self._bytes, reads.seed)
        raw = raw_read_speed(reads.store, reads.device, extents, reads.depth)
        self._bytes = int(raw.bytes_per_s * reads.seconds)
        if raw.device_bytes < DEVICE_SHARE_MIN * raw.bytes:
            return None
        return Limit(raw.bytes_per_s, raw.by)


@dataclass(frozen=True)
class Timed:
    """A timed run, and what daemon, device and kernel counted meanwhile."""

    driven: Driven
    proof: Proof
    cpu: CpuTime
    waited: CpuWait


def once(work: Callable[[], Timed]) -> Timed:
    """A timed run that counts as it is."""
    return work()


def refuse_unless_release(info: Mapping[str, str]) -> None:
    """Figures from a debug or sanitizer build mislead. Errors: ConfigError."""
    if info["build"] != "release":
        raise ConfigError(
            f"build={info['build']}: a benchmark reports from a release build alone, anything else would be taken for the real "
            "thing; build with the release preset (make build)"
        )


def steps_of(plan: Plan) -> int:
    """How often `tell` is called by measure()."""
    return 1 + len(plan.block_bytes) * len(plan.scenarios) * (1 + len(plan.iodepth) * (plan.repeat + 1))


@contextmanager
def python_clients(plan: Plan, place: Place, client: halfstep.Client, content: Content) -> Iterator[Drives]:
    """Who makes the calls: the client of this process, or several processes."""
    if plan.numjobs == 1:
        yield Driver(plan, client, content)
        return
    with Clones(plan, client.url, content.block_bytes, place.client_cores) as clones:
        yield clones


def measure(
    plan: Plan,
    tell: Callable[[str], None],
    command: str,
    stream_limit: Callable[[Stream], Limit | None] = plain_sockets,
    read_limit: Callable[[Reads], Limit | None] | None = None,
    drives_of: Callable[[Plan, Place, halfstep.Client, Content], AbstractContextManager[Drives]] = python_clients,
    steadily: Callable[[Callable[[], Timed]], Timed] = once,
) -> Report:
    """Everything that the plan asks for. `command`: how it was asked, for the record. Errors: HalfstepError.

    What the runs are set against, measured before and after each: stream_limit of gets and puts in memory, read_limit of cold
    gets (PlainReads). A run of `coldmixed` has none of either, but stands in turns with what stream_limit does there.
    drives_of: who makes the calls. steadily: makes a timed run, more than once where the machine was not as it should be.
    """
    refuse_unless_release(halfstep.build_info())
    plan = plan.validated()
    tell("starting a daemon" if not plan.url else f"connecting to {plan.url}")
    with place_of(plan) as place:
        report: Report | None = None
        for block_bytes in plan.block_bytes:
            content = Content(block_bytes, plan.seed)
            with (
                own_namespace(place.url) as url,
                bench_client(plan, url) as client,
                drives_of(plan, place, client, content) as drives,
            ):
                if report is None:
                    report = Report(header_of(plan, place, client, command), plan.goal_us)
                limits = stream_limit, read_limit or PlainReads()
                bench = _Bench(plan, place, client, content, drives, tell, limits, steadily)
                for scenario in plan.scenarios:
                    bench.run(scenario, report)
    assert report is not None, "a plan has a block size"
    return report


@dataclass(frozen=True)
class _Counters:
    """What daemon and device had counted at one moment."""

    engine_read: float
    gets_read: float
    hits_memory: float
    hits_flash: float
    reclaimed: float
    rewritten: float
    # Before and after the daemon was asked: what reclaim reads meanwhile counts for the device, or a run would lack it.
    device: tuple[DeviceWork, DeviceWork] | None

    def since(self, before: _Counters, payload_bytes: int) -> Proof:
        device = None if self.device is None or before.device is None else self.device[1].since(before.device[0])
        return Proof(
            payload_bytes=payload_bytes,
            engine_read_bytes=int(self.engine_read - before.engine_read),
            device_read_bytes=None if device is None else device.read_bytes,
            hits_memory=int(self.hits_memory - before.hits_memory),
            hits_flash=int(self.hits_flash - before.hits_flash),
            reclaimed_segments=int(self.reclaimed - before.reclaimed),
            rewritten_bytes=int(self.rewritten - before.rewritten),
            gets_read_bytes=int(self.gets_read - before.gets_read),
            device_reads=None if device is None else device.reads,
            device_queue_ms=None if device is None else device.queue_ms,
        )


class _Bench:
    """One block size, in one namespace."""

    def __init__(
        self,
        plan: Plan,
        place: Place,
        client: halfstep.Client,
        content: Content,
        drives: Drives,
        tell: Callable[[str], None],
        limits: tuple[Callable[[Stream], Limit | None], Callable[[Reads], Limit | None]],
        steadily: Callable[[Callable[[], Timed]], Timed],
    ) -> None:
        self._stream_limit, self._read_limit = limits
        self._steadily = steadily
        self._plan = plan
        self._place = place
        self._client = client
        self._content = content
        self._drives = drives
        self._tell = tell
        self._device = BlockDevice.of(place.store) if place.store else None
        self._rng = default_rng(plan.seed)
        self._depth = 1
        self._puts = 0
        self._made: list[Timed] = []  # of the run under way

    def run(self, scenario: str, report: Report) -> None:
        """Measures one scenario at every depth; a result each, or a refusal with its reason."""
        self._tell(f"{self._what(scenario)}: making blocks")
        blocks = self._blocks(scenario)
        if scenario not in ("put", "coldmixed") and not self._drives.own_blocks:
            populate(self._client, self._content, blocks, self._layout(scenario))
        for depth in self._plan.iodepth:
            self._depth = depth
            outcome = self._run(scenario, blocks)
            if isinstance(outcome, Refusal):
                report.refused.append(outcome)
            else:
                report.results.append(outcome)
            self._puts += PUTS_A_DEPTH

    def _run(self, scenario: str, blocks: int) -> Result | Refusal:
        """At one depth."""
        plan, what = self._plan, f"{self._what(scenario)} x {self._depth}"
        self._drives.begin(scenario, self._depth, blocks, self._puts)
        runs = []
        whole: Outcome | None = None
        besides = Outcome()
        self._limit(scenario)  # learns how long it takes, and warms up
        limit = self._limit(scenario)
        for number in range(plan.repeat):
            self._tell(f"{what}: run {number + 1} of {plan.repeat}")
            timed = self._steadily(lambda: self._timed(scenario, blocks))
            self._add_besides(timed, besides)
            timing, proof = timed.driven.timing, timed.proof
            if why := self._why_not(scenario, proof, timing):
                return Refusal(scenario, self._content.block_bytes, self._depth, why)
            if self._drives.stored() and number + 1 == plan.repeat:
                whole = self._verify(scenario, blocks)  # before what the limit puts takes its room
            limit_before, limit = limit, self._limit(scenario)
            moved = None if scenario == "match" else float(proof.payload_bytes) / timing.seconds
            runs.append(Run(moved, timing, _between(limit_before, limit), proof, timed.cpu, timed.driven.rate, timed.waited))
        self._tell(f"{what}: verifying")
        if whole is None:
            whole = self._verify(scenario, blocks)
        whole.wrong += besides.wrong
        whole.reasons = besides.reasons
        return Result.of(scenario, self._content.block_bytes, plan.batch, self._depth, runs, whole)

    def _timed(self, scenario: str, blocks: int) -> Timed:
        """One run, and what was counted meanwhile."""
        if scenario == "mixed":
            self._hold(blocks)
        before, daemon_before, waited_before = self._counters(), self._daemon_cpu_s(), self._daemon_waited_s()
        stolen_before = stolen_seconds()
        driven = self._drives.drive(self._plan.seconds)
        stolen = stolen_seconds() - stolen_before
        cpu = _spent(driven.cpu_s, daemon_before, self._daemon_cpu_s())
        waited = CpuWait(driven.waited_s, difference(waited_before, self._daemon_waited_s()), stolen)
        payload = driven.timing.outcome.ok * self._content.block_bytes
        timed = Timed(driven, self._counters().since(before, payload), cpu, waited)
        self._made.append(timed)
        return timed

    def _add_besides(self, counts: Timed, besides: Outcome) -> None:
        """The other times of a run that was made more than once: what went wrong in them counts all the same."""
        made, self._made = self._made, []
        for timed in made:
            if timed is not counts:
                besides.add(timed.driven.timing.outcome)

    def _what(self, scenario: str) -> str:
        return f"{scenario} {format_bytes(self._content.block_bytes)} x {self._plan.batch}"

    def _layout(self, scenario: str) -> halfstep.Layout:
        return self._plan.layout_of(scenario, self._content.block_bytes)

    def _why_not(self, scenario: str, proof: Proof, timing: Timing) -> str:
        """Why a run is not of the scenario; "" if it is."""
        if scenario == "cold":
            return why_not_cold(proof, self._device)
        if scenario == "coldmixed":
            return why_not_coldmixed(proof, timing, self._content.block_bytes, self._device)
        return ""

    def _blocks(self, scenario: str) -> int:
        if scenario == "coldmixed":
            # Whatever a block takes on flash besides its bytes, the store has room for fewer.
            return int(_FILL_SHARE * self._place.facts["geometry"]["device_bytes"]) // self._content.block_bytes
        if scenario != "cold":
            return self._plan.hot_blocks(self._content.block_bytes)
        memory = int(self._client.admin.stat()['halfstep_memory_bytes{of="capacity"}'])
        return self._plan.cold_blocks(self._content.block_bytes, memory)

    def _hold(self, blocks: int) -> None:
        """Keeps the hot set while puts overwrite what is oldest."""
        owner = int(self._rng.integers(1, 1 << 63))
        for first in range(0, blocks, _HOLD_KEYS):
            keys = self._content.keys(self._content.numbers(first, min(_HOLD_KEYS, blocks - first)))
            self._client.match(keys, hold_ms=_HOLD_MS, owner=owner, deadline_ms=DEADLINE_MS)

    def _limit(self, scenario: str) -> Limit | None:
        if scenario == "match":
            return None
        return self._device_limit() if scenario == "cold" else self._loopback_limit(scenario)

    def _loopback_limit(self, scenario: str) -> Limit | None:
        plan, place = self._plan, self._place
        if place.loopback is None:
            return None
        return self._stream_limit(
            Stream(
                kind=place.loopback,
                address=Endpoint.parse(place.url).address,
                scenario=scenario,
                block_bytes=self._content.block_bytes,
                batch=plan.batch,
                iodepth=self._depth,
                connections=plan.connections * plan.numjobs,
                numjobs=plan.numjobs,
                set_bytes=plan.hot_blocks(self._content.block_bytes) * self._content.block_bytes,
                congestion=self._client.facts().congestion,
                seconds=plan.seconds,
                daemon_core=place.daemon_core,
                client_core=place.client_cores[0] if place.client_cores else None,
            )
        )

    def _device_limit(self) -> Limit | None:
        plan, store = self._plan, self._place.store
        if store is None or self._device is None:
            return None
        depth = plan.batch * self._depth * plan.numjobs
        block_bytes = self._content.block_bytes
        return self._read_limit(Reads(store, self._device, block_bytes, plan.batch, depth, plan.seconds, plan.seed))

    def _daemon_cpu_s(self) -> float | None:
        pid = self._place.daemon_pid
        return None if pid is None else cpu_seconds(pid)

    def _daemon_waited_s(self) -> float | None:
        pid = self._place.daemon_pid
        return None if pid is None else waited_seconds(pid)

    def _counters(self) -> _Counters:
        first = self._device_work()
        told = self._client.admin.stat()
        last = self._device_work()
        return _Counters(
            engine_read=told['halfstep_device_bytes_total{op="read"}'],
            gets_read=told["halfstep_device_gets_read_bytes_total"],
            hits_memory=told['halfstep_store_hits_total{from="memory"}'],
            hits_flash=told['halfstep_store_hits_total{from="flash"}'],
            reclaimed=told["halfstep_store_segments_reclaimed_total"],
            rewritten=told['halfstep_store_bytes_written_total{of="rewritten"}'],
            device=(first, last) if first and last else None,
        )

    def _device_work(self) -> DeviceWork | None:
        return self._device.work() if self._device and self._device.stat_files else None

    def _verify(self, scenario: str, blocks: int) -> Outcome:
        """Whole blocks, outside of every clock: of the set (a sample of a large one), or the newest that were put."""
        if scenario == "match" or self._drives.own_blocks:
            return Outcome()  # every answer was looked at as it came
        outcome = Outcome()
        if scenario not in ("put", "coldmixed"):
            count = min(blocks, _VERIFY_BLOCKS_MAX)
            chosen = np.sort(default_rng(self._plan.seed).choice(blocks, count, replace=False))
            outcome.add(verify(self._client, self._content, chosen.astype(np.uint64), self._layout(scenario)))
        for numbers in self._drives.stored():
            outcome.add(verify(self._client, self._content, numbers))
        return outcome


def _spent(client_s: float, daemon_before_s: float | None, daemon_after_s: float | None) -> CpuTime:
    daemon = None if daemon_before_s is None or daemon_after_s is None else daemon_after_s - daemon_before_s
    return CpuTime(client_s, daemon)


def _between(before: Limit | None, after: Limit | None) -> Limit | None:
    """What the limit was during a run, as far as its neighbours tell."""
    if before is None or after is None:
        return None
    by = after.by if before.by == after.by else f"{before.by}, then {after.by}"
    return Limit((before.bytes_per_s + after.bytes_per_s) / 2, by)
