"""Results of a benchmark as JSON and as a table, with their reservations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from halfstep.daemon.units import format_bytes
from halfstep.tools.bench.arrivals import Rate
from halfstep.tools.bench.workload import Outcome, Timing, median_run, percentile_us, percentiles_us

# With fewer calls than this the 99.9th percentile is the slowest call.
_CALLS_FOR_P999 = 1000
# Of a run's time; what a machine's own housekeeping takes is far less.
_WAITED_SHARE_MAX = 0.02


@dataclass(frozen=True)
class Limit:
    """bytes_per_s that something plain reaches on the same machine; by: what."""

    bytes_per_s: float
    by: str


@dataclass(frozen=True)
class Proof:
    """What moved during a run by others' count. device_read_bytes: None where nothing counts them.

    reclaimed_segments, rewritten_bytes: of the store, by the daemon's count. gets_read_bytes: what the engine moved in
    the class of gets, which has the pages of the record log, too: a few for each segment. device_reads, device_queue_ms:
    see DeviceWork.
    """

    payload_bytes: int
    engine_read_bytes: int
    device_read_bytes: int | None
    hits_memory: int
    hits_flash: int
    reclaimed_segments: int = 0
    rewritten_bytes: int = 0
    gets_read_bytes: int = 0
    device_reads: int | None = None
    device_queue_ms: int | None = None


@dataclass(frozen=True)
class CpuTime:
    """Seconds of CPU time during a run, kernel's included. daemon: None where it is somebody else's."""

    client: float
    daemon: float | None

    def per_gib(self, payload_bytes: int) -> dict[str, float | None]:
        """Of payload; None where nothing moved."""
        gib = payload_bytes / 2**30
        return {
            "client": self.client / gib if gib else None,
            "daemon": self.daemon / gib if gib and self.daemon is not None else None,
        }


@dataclass(frozen=True)
class CpuWait:
    """Seconds during a run in which a thread was ready and something else had its core. None where that is not known.

    host: in which the host of this virtual machine had a core that was to run, summed over all of them.
    """

    client: float | None
    daemon: float | None
    host: float = 0.0


def latency(times_us: npt.NDArray[np.float64]) -> dict[str, float]:
    """Percentiles that were measured, by name."""
    return dict(zip(("p50", "p99", "p999"), percentiles_us(times_us), strict=True))


@dataclass(frozen=True)
class Run:
    """One timed run. bytes_per_s: of verified payload; None where none moves (match). rate: at which calls came, if at one.

    waited: seconds that client and daemon waited for a core, where the kernel tells.
    """

    bytes_per_s: float | None
    timing: Timing
    limit: Limit | None
    proof: Proof
    cpu: CpuTime
    rate: Rate | None = None
    waited: CpuWait | None = None

    def _rate(self) -> dict[str, Any]:
        rate = self.rate
        if rate is None:
            return {}
        return {
            "rate": {
                "offered_calls_per_s": rate.offered_per_s,
                "achieved_calls_per_s": rate.achieved_per_s,
                "kept": rate.kept,
                "calls_due": rate.due,
                "calls_never_made": rate.due - rate.made,
            }
        }

    def _sides(self) -> dict[str, Any]:
        both = (("reads", self.timing.reads), ("writes", self.timing.writes))
        return {
            name: {
                "calls": len(side.latencies_us),
                "blocks_per_s": side.outcome.ok / self.timing.seconds,
                "latency_us": latency(side.latencies_us),
                "answers_not_ok": side.outcome.reasons,
            }
            for name, side in both
            if side is not None
        }

    def _layers(self) -> dict[str, Any]:
        layers = self.timing.layers
        if layers is None:
            return {}
        times = (("first_layer_us", layers.first_us), ("further_layer_us", layers.each_us))
        return {
            name: {"p50": percentile_us(us, 0.5), "p99": percentile_us(us, 0.99)} if len(us) else None for name, us in times
        }

    @property
    def ratio(self) -> float | None:
        """To the mean of the limits that were measured right before and right after."""
        if self.limit is None or self.bytes_per_s is None:
            return None
        return self.bytes_per_s / self.limit.bytes_per_s

    def as_json(self) -> dict[str, Any]:
        """Speeds in GB/s, times in microseconds."""
        return {
            "gigabytes_per_s": _giga(self.bytes_per_s),
            "blocks_per_s": self.timing.blocks_per_s,
            "latency_us": latency(self.timing.latencies_us),
            **self._sides(),
            **self._rate(),
            **self._layers(),
            "limit_gigabytes_per_s": _giga(self.limit.bytes_per_s if self.limit else None),
            "ratio_to_limit": self.ratio,
            "cpu_s_per_gib": self.cpu.per_gib(0 if self.bytes_per_s is None else self.proof.payload_bytes),
            "waited_for_core_s": asdict(self.waited) if self.waited else None,
            "calls": len(self.timing.latencies_us),
            "seconds": self.timing.seconds,
        }


@dataclass(frozen=True)
class Result:
    """One scenario at one block size. iodepth: batches at the client at once. run: the one reported; runs: all, in order."""

    name: str
    block_bytes: int
    batch: int
    iodepth: int
    run: Run
    runs: tuple[Run, ...]
    looked: int
    compared: int
    wrong: int
    missing: int
    answers: dict[str, int]

    @classmethod
    def of(cls, name: str, block_bytes: int, batch: int, iodepth: int, runs: Sequence[Run], whole: Outcome) -> Result:
        """`whole`: what comparing whole blocks afterwards came to, and what was answered in runs that were set aside."""
        within = Outcome()
        for run in runs:
            within.add(run.timing.outcome)
        for reason, count in whole.reasons.items():
            within.reasons[reason] = within.reasons.get(reason, 0) + count
        return cls(
            name=name,
            block_bytes=block_bytes,
            batch=batch,
            iodepth=iodepth,
            run=median_run(runs, lambda run: run.timing.blocks_per_s if run.ratio is None else run.ratio),
            runs=tuple(runs),
            looked=within.looked,
            compared=whole.looked,
            wrong=within.wrong + whole.wrong,
            missing=whole.blocks - whole.looked,
            answers=within.reasons,
        )

    @property
    def verified(self) -> bool:
        """Bytes (of a match: answers) were compared with what they have to be, none was wrong, and all were there."""
        return self.looked + self.compared > 0 and self.wrong == 0 and self.missing == 0

    def as_json(self) -> dict[str, Any]:
        """With what qualifies it."""
        return {
            "name": self.name,
            "block_bytes": self.block_bytes,
            "batch": self.batch,
            "iodepth": self.iodepth,
            **self.run.as_json(),
            "verified": self.verified,
            "limit": self.run.limit.by if self.run.limit else None,
            "blocks_looked_at": self.looked,
            "blocks_compared_whole": self.compared,
            "blocks_wrong": self.wrong,
            "blocks_missing": self.missing,
            "answers_not_ok": self.answers,
            "moved": asdict(self.run.proof),
            "runs": [run.as_json() for run in self.runs],
        }


@dataclass(frozen=True)
class Refusal:
    """A scenario that did not happen as asked, and why."""

    name: str
    block_bytes: int
    iodepth: int
    why: str


@dataclass
class Report:
    """header: see machine.py. goal_us: what 99 of 100 calls shall not exceed; 0 = there is no goal."""

    header: dict[str, Any]
    goal_us: float = 0.0
    results: list[Result] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Everything asked for was measured, and every byte was right."""
        return not self.refused and all(result.verified for result in self.results)

    def within_goal(self) -> Iterator[tuple[str, int, Result | None]]:
        """Of each scenario and block size the fastest depth whose p99 keeps the goal; None where none does."""
        for name, block_bytes in dict.fromkeys((result.name, result.block_bytes) for result in self.results):
            kept = [
                result
                for result in self.results
                if (result.name, result.block_bytes) == (name, block_bytes)
                and result.run.timing.percentile_us(0.99) <= self.goal_us
            ]
            yield name, block_bytes, max(kept, key=lambda result: result.run.timing.blocks_per_s, default=None)

    def as_json(self) -> dict[str, Any]:
        """The whole document."""
        document = {
            "header": self.header,
            "results": [result.as_json() for result in self.results],
            "refused": [asdict(refusal) for refusal in self.refused],
        }
        if self.goal_us:
            document["latency_goal"] = {
                "p99_us": self.goal_us,
                "kept_by": [
                    {"name": name, "block_bytes": block_bytes, "iodepth": best.iodepth if best else None}
                    for name, block_bytes, best in self.within_goal()
                ],
            }
        return document

    def columns(self) -> list[str | tuple[str, str]]:
        """Of the table."""
        numbers = ("GB/s", "blocks/s", "p50 us", "p99 us", "p99.9 us", "limit GB/s", "of limit")
        return [
            "",
            ("block", "right"),
            ("batch", "right"),
            ("depth", "right"),
            *((title, "right") for title in numbers),
            "bytes",
        ]

    def rows(self) -> Iterator[list[str]]:
        """One per result."""
        for result in self.results:
            run = result.run.as_json()
            latency = run["latency_us"]
            yield [
                result.name,
                format_bytes(result.block_bytes),
                str(result.batch),
                str(result.iodepth),
                _number(run["gigabytes_per_s"], ".2f"),
                _number(run["blocks_per_s"], ",.0f"),
                *(_number(latency[name], ",.0f") for name in ("p50", "p99", "p999")),
                _number(run["limit_gigabytes_per_s"], ".2f"),
                _number(run["ratio_to_limit"], ".2f"),
                "verified" if result.verified else "NOT VERIFIED",
            ]

    def remarks(self) -> Iterator[str]:
        """What a reader has to know to read the table rightly."""
        head = self.header
        yield f"halfstep {head['version']} ({head['build']}), commit {head['commit']}"
        yield f"kernel {head['kernel']}, {head['cpu']}, {head['cores']} cores"
        yield f"path {head['path']}; pinned: {head['pinned']}; load {head['load_average']:.1f} at the start"
        if head["engine"]:
            direct = "O_DIRECT" if head["direct"] else "buffered"
            yield f"store on {head['device']}, engine {head['engine']}, {direct}, {format_bytes(head['arena_bytes'])} of memory"
        begins = f"the moment it was due at {head['rate']:g} a second" if head["rate"] else "submit"
        most = " at most" if head["rate"] else ""
        yield (
            f"a latency is one batch call, from {begins} to its terminal event; "
            f"depth: how many are at the client at once{most}; the run with the median ratio of {head['repeat']} is shown"
        )
        if head["numjobs"] > 1:
            yield f"{head['numjobs']} client processes at once: all blocks in the time until the last was done, all latencies"
        for limit in dict.fromkeys(result.run.limit.by for result in self.results if result.run.limit):
            yield f"limit by {limit}, mean of right before and right after each run"
        few = sum(len(result.run.timing.latencies_us) < _CALLS_FOR_P999 for result in self.results)
        if few:
            yield (
                f"p99.9 is the slowest call in {few} of {len(self.results)} rows: fewer than {_CALLS_FOR_P999} calls; "
                "a longer --runtime tells more"
            )
        for name, block_bytes, best in self.within_goal() if self.goal_us else ():
            what = f"{name} {format_bytes(block_bytes)}: p99 within {self.goal_us:,.0f} us"
            if best is None:
                yield f"{what}: at no depth that was measured; try a smaller --iodepth or --batch"
            else:
                yield f"{what}: fastest at depth {best.iodepth}, {best.run.timing.blocks_per_s:,.0f} blocks/s"
        for result in self.results:
            yield from self._remarks_on(result)
        for refusal in self.refused:
            yield f"{refusal.name} {format_bytes(refusal.block_bytes)} depth {refusal.iodepth}: refused: {refusal.why}"

    @staticmethod
    def _moved(name: str, proof: Proof) -> Iterator[str]:
        mixed = name == "coldmixed"
        yield f"{format_bytes(proof.payload_bytes)} delivered"
        yield f"engine read {format_bytes(proof.engine_read_bytes)}"
        if mixed:
            yield f"{format_bytes(proof.gets_read_bytes)} of it for gets"
        if proof.device_read_bytes is not None:
            yield f"device read {format_bytes(proof.device_read_bytes)}"
        if mixed:
            yield f"{proof.reclaimed_segments} segments reclaimed, {format_bytes(proof.rewritten_bytes)} copied"

    def _remarks_on(self, result: Result) -> Iterator[str]:
        what = f"{result.name} {format_bytes(result.block_bytes)} depth {result.iodepth}"
        proof = result.run.proof
        if result.name in ("cold", "coldmixed"):
            yield f"{what}: {', '.join(self._moved(result.name, proof))}"
        told = result.run.as_json()
        for side in ("reads", "writes"):
            if side in told:
                us = told[side]["latency_us"]
                yield (
                    f"{what}: {side}: {told[side]['calls']:,} calls, p50 {us['p50']:,.0f} us, p99 {us['p99']:,.0f}, "
                    f"p99.9 {us['p999']:,.0f}"
                )
        yield from self._waited(what, result.run)
        if rate := result.run.rate:
            yield f"{what}: {rate.offered_per_s:,.0f} calls/s were due, {rate.achieved_per_s:,.0f} begun in time"
            if not rate.kept:
                yield (
                    f"{what}: THE RATE WAS NOT KEPT: percentiles are those of a queue that grew as long as the run lasted; "
                    "lower --rate, or raise --iodepth if the client had no place left"
                )
            if left := rate.due - rate.made:
                yield f"{what}: {left:,} calls were still waiting when the time was over twice, and were not made"
        if result.name == "layerwise":
            for name, title in (("first_layer_us", "first layer after"), ("further_layer_us", "each further one after")):
                if us := told[name]:
                    yield f"{what}: {title} {us['p50']:,.0f} us at the median, {us['p99']:,.0f} at p99"
        if result.name in ("get", "layerwise") and result.run.proof.hits_flash:
            yield f"{what}: {result.run.proof.hits_flash} blocks came from flash: the set does not fit into the daemon's memory"
        for reason, count in result.answers.items():
            yield f"{what}: {count} blocks answered {reason}, not counted"
        if result.wrong or result.missing:
            yield f"{what}: {result.wrong} WRONG blocks, {result.missing} missing"

    def _waited(self, what: str, run: Run) -> Iterator[str]:
        for who, seconds in (("client", run.waited.client), ("daemon", run.waited.daemon)) if run.waited else ():
            if seconds is not None and seconds > _WAITED_SHARE_MAX * run.timing.seconds * self.header["numjobs"]:
                yield (
                    f"{what}: the {who} waited {seconds:.2f} s of {run.timing.seconds:.1f} for a core that something else had: "
                    "percentiles are those of a busy machine"
                )
        if run.waited and run.waited.host > _WAITED_SHARE_MAX * run.timing.seconds:
            yield (
                f"{what}: the host of this virtual machine kept {run.waited.host:.2f} s of its cores' time in "
                f"{run.timing.seconds:.1f} for others: percentiles are those of a busy host"
            )


def _giga(bytes_per_s: float | None) -> float | None:
    return None if bytes_per_s is None else bytes_per_s / 1e9


def _number(value: float | None, style: str) -> str:
    return "-" if value is None else format(value, style)
