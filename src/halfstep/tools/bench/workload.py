"""The workload driver: batches kept at a client until the time is over, and a check of every block that comes back.

A latency is that of one batch call: from handing the batch to the client until its terminal event is seen; with --rate from
when it was due (arrivals.py). The clock of the throughput also runs over what happens between calls: keys are made, page heads
of puts are written, and one page of every block that came is looked at, microseconds a batch. Whole blocks are compared outside
of it, by verify().
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from numpy.random import Generator

from halfstep import Client, Layout, Queue, Ticket
from halfstep.errors import Unavailable
from halfstep.tools.bench.content import BODIES, Content, Numbers, Words
from halfstep.tools.bench.trail import Trail
from halfstep.tools.options import refusal

DEADLINE_MS = 30_000.0

T = TypeVar("T")

# What is put or compared at once outside of timed runs.
_BULK_BYTES = 16 << 20
_BULK_BLOCKS_MAX = 1024


@dataclass
class Outcome:
    """What batches came to. blocks: asked for. ok: answered as they should be. looked, wrong: of the check of their bytes."""

    blocks: int = 0
    ok: int = 0
    looked: int = 0
    wrong: int = 0
    reasons: dict[str, int] = field(default_factory=dict)

    def add(self, other: Outcome) -> None:
        """Sums up."""
        self.blocks += other.blocks
        self.ok += other.ok
        self.looked += other.looked
        self.wrong += other.wrong
        for reason, count in other.reasons.items():
            self.reasons[reason] = self.reasons.get(reason, 0) + count


@dataclass
class Layers:
    """When the layers of gets could be used. first_us: one per call, from submit to its first layer over all blocks.

    each_us: of every further layer, from the one before it; those that were seen at once share the time equally, and those that
    were seen with the first one came with it, in no time.
    """

    first_us: npt.NDArray[np.float64]
    each_us: npt.NDArray[np.float64]


@dataclass
class Side:
    """The gets, or the puts, of a run that has both."""

    latencies_us: npt.NDArray[np.float64]
    outcome: Outcome


@dataclass
class Timing:
    """One timed run. latencies_us: one per batch call. layers: of gets in layer order. reads, writes: of gets among puts."""

    seconds: float
    latencies_us: npt.NDArray[np.float64]
    outcome: Outcome
    layers: Layers | None = None
    reads: Side | None = None
    writes: Side | None = None

    @property
    def blocks_per_s(self) -> float:
        """Blocks that were answered as they should be."""
        return self.outcome.ok / self.seconds

    def percentile_us(self, share: float) -> float:
        """The latency that `share` of the calls do not exceed."""
        return percentile_us(self.latencies_us, share)


def percentile_us(times_us: npt.NDArray[np.float64], share: float) -> float:
    """The time that `share` of them do not exceed: one that was measured, never a mean of two."""
    return float(np.quantile(times_us, share, method="inverted_cdf"))


def percentiles_us(times_us: npt.NDArray[np.float64]) -> tuple[float, float, float]:
    """p50, p99 and p99.9."""
    p50, p99, p999 = (percentile_us(times_us, share) for share in (0.5, 0.99, 0.999))
    return p50, p99, p999


def median_run(runs: Sequence[T], key: Callable[[T], float]) -> T:
    """The run with the median of `key`: one that was made, of an even number the lower of the two in the middle."""
    return sorted(runs, key=key)[(len(runs) - 1) // 2]


class Lane(Protocol):
    """One batch at the client at a time, with the memory that it needs."""

    def prepare(self) -> None:
        """Choose the next batch. Comes before the clock of its latency starts."""
        ...

    def submit(self, queue: Queue) -> Ticket[Any]:
        """Hand it to the client."""
        ...

    def check(self, result: Any) -> Outcome:
        """What became of it."""
        ...


class GetLane:
    """Reads the batches that `batches` names, into a target of its own."""

    def __init__(self, content: Content, batches: Iterator[Numbers], batch: int, rng: Generator) -> None:
        self._content = content
        self._batches = batches
        self._rng = rng
        # Written to, so that no page fault falls into a timed run.
        self.target: Words = np.full((batch, content.words), 0xA5, np.uint64)
        self.numbers = content.numbers(0, 0)
        self.keys = content.keys(self.numbers)
        self._page = 0

    def prepare(self) -> None:
        """The next batch of numbers, and the page that will be looked at."""
        self.numbers = next(self._batches)
        self.keys = self._content.keys(self.numbers)
        self._page = int(self._rng.integers(self._content.pages))
        self._content.forget_heads(self.target, self._page)

    def submit(self, queue: Queue) -> Ticket[Any]:
        """A get."""
        return queue.get(self.keys, self.target, deadline_ms=DEADLINE_MS)

    def check(self, result: Any, wrong_before: npt.NDArray[np.bool_] | bool = False) -> Outcome:
        """Every block that came is looked at, at one page that changes from batch to batch.

        wrong_before: which were already seen to be wrong.
        """
        ok = result.ok
        seen = int(ok.sum())
        wrong = self._content.wrong_heads(self.numbers, self.target, self._page)
        wrong_count = int(((wrong | wrong_before) & ok).sum())
        return Outcome(len(ok), seen - wrong_count, seen, wrong_count, _reasons(result, ok))


class LayerLane:
    """Reads as GetLane does, first layers first, and notes when each layer may be used.

    One page of every block of the first layer is looked at when that is said to be complete: usable means right.
    """

    def __init__(self, read: GetLane, content: Content, layout: Layout) -> None:
        self._read = read
        self._content = content
        self._layout = layout
        self._begun = self._seen_at = self._seen = 0
        self._early_wrong: npt.NDArray[np.bool_] | bool = False
        self.first_ns: list[int] = []
        self.each_ns: list[tuple[int, int]] = []

    def prepare(self) -> None:
        """The next batch of numbers."""
        self._read.prepare()
        self._content.forget_heads(self._read.target, 0)
        self._seen, self._early_wrong = 0, False

    def submit(self, queue: Queue) -> Ticket[Any]:
        """A get in layer order."""
        self._begun = time.perf_counter_ns()
        return queue.get(self._read.keys, self._read.target, deadline_ms=DEADLINE_MS, layout=self._layout, order="layer")

    def progress(self, steps_done: int, at_ns: int) -> None:
        """So many layers are complete."""
        more = steps_done - self._seen
        if more <= 0:
            return
        if self._seen == 0:
            self.first_ns.append(at_ns - self._begun)
            self._early_wrong = self._content.wrong_heads(self._read.numbers, self._read.target, 0)
            self._seen_at = at_ns
            more -= 1
        if more:
            self.each_ns.append((at_ns - self._seen_at, more))
        self._seen, self._seen_at = steps_done, at_ns

    def check(self, result: Any) -> Outcome:
        """As of any get; a block whose first layer was said to be there and was not is wrong."""
        return self._read.check(result, self._early_wrong)


class PutLane:
    """Stores blocks that were never there. Lane `lane` of `lanes`; numbers grow from `first`, which is a multiple of BODIES.

    trail: learns what was stored.
    """

    def __init__(
        self, content: Content, batch: int, lane: int, lanes: int, first: int, durability: str, trail: Trail | None = None
    ) -> None:
        self._content = content
        self._batch = batch
        self._durability: Literal["cache", "persist"] = "persist" if durability == "persist" else "cache"
        # A row keeps its number mod BODIES for good, so that only page heads change between batches.
        self._step = -(-lanes * batch // BODIES) * BODIES
        self._next = first + lane * batch
        self._source: Words = np.empty((batch, content.words), np.uint64)
        content.fill(content.numbers(self._next, batch), self._source)
        self._numbers = content.numbers(0, 0)
        self._keys = content.keys(self._numbers)
        self._trail = trail
        # The newest numbers that are surely stored, to be read back.
        self.stored: list[Numbers] = []

    def prepare(self) -> None:
        """New numbers, and their page heads in the source."""
        self._numbers = self._content.numbers(self._next, self._batch)
        self._next += self._step
        self._content.stamp(self._numbers, self._source)
        self._keys = self._content.keys(self._numbers)

    def submit(self, queue: Queue) -> Ticket[Any]:
        """A put."""
        return queue.put(self._keys, self._source, durability=self._durability, deadline_ms=DEADLINE_MS)

    def check(self, result: Any) -> Outcome:
        """What was stored; `present` would mean that a number was used twice."""
        ok = result.ok
        self.stored.append(self._numbers[ok])
        del self.stored[:-4]
        if self._trail is not None:
            self._trail.add(self._numbers[ok])
        return Outcome(len(ok), int(ok.sum()), 0, result.present, _reasons(result, ok))


class MatchLane:
    """Asks for batches of which every other block was never put, and checks that exactly those are absent."""

    def __init__(self, content: Content, batches: Iterator[Numbers], batch: int) -> None:
        self._content = content
        self._batches = batches
        self._expected = np.arange(batch) % 2 == 0
        self._absent = np.where(self._expected, np.uint64(0), np.uint64(1) << np.uint64(62))
        self._keys = content.keys(content.numbers(0, 0))

    def prepare(self) -> None:
        """The next batch, every other number moved to where nothing is."""
        self._keys = self._content.keys(next(self._batches) | self._absent)

    def submit(self, queue: Queue) -> Ticket[Any]:
        """A match."""
        return queue.match(self._keys, deadline_ms=DEADLINE_MS)

    def check(self, result: Any) -> Outcome:
        """Presence, key by key."""
        if not result.answered:
            return Outcome(len(self._expected), 0, 0, 0, {result.reason: len(self._expected)})
        wrong = int((result.present != self._expected).sum())
        return Outcome(len(self._expected), len(self._expected) - wrong, len(self._expected), wrong)


class MixedLane:
    """A get with the chance of `read_share`, else a put."""

    def __init__(self, read: Lane, write: Lane, read_share: float, rng: Generator) -> None:
        self._lanes = (read, write)
        self._read_share = read_share
        self._rng = rng
        self._current = read

    @property
    def reads(self) -> bool:
        """Whether the present batch is a get."""
        return self._current is self._lanes[0]

    def prepare(self) -> None:
        """Decides which kind it is."""
        self._current = self._lanes[0 if self._rng.random() < self._read_share else 1]
        self._current.prepare()

    def submit(self, queue: Queue) -> Ticket[Any]:
        """A get or a put."""
        return self._current.submit(queue)

    def check(self, result: Any) -> Outcome:
        """As the lane that was chosen does."""
        return self._current.check(result)


def endless(content: Content, count: int, batch: int, rng: Generator, share: tuple[int, int] = (0, 1)) -> Iterator[Numbers]:
    """Numbers 0 to `count`, by neighbours of `batch`, in one random order over and over, the first half before the second.

    Over and over in the same order, and never so that what was put last comes first: at least half of the set lies between two
    uses of a block, its put included. share: (i, n): every n-th of them from the i-th on, so that n walkers go through all of
    it together.
    """
    starts = list(range(0, count - batch + 1, batch))
    halves = starts[: len(starts) // 2], starts[len(starts) // 2 :]
    for half in halves:
        rng.shuffle(half)
    starts = [*halves[0], *halves[1]]
    # Where there are more walkers than batches, each walks through all.
    starts = starts[share[0] :: share[1]] or starts
    while True:
        for start in starts:
            yield content.numbers(start, batch)


class Tally:
    """What calls came to: all together, and where there are both, those that read and those that write."""

    def __init__(self) -> None:
        self.outcome = Outcome()
        self.latencies_ns: list[int] = []
        self._reads: tuple[list[int], Outcome] = [], Outcome()
        self._writes: tuple[list[int], Outcome] = [], Outcome()

    def ended(self, lane: Lane, took_ns: int) -> None:
        """A call, before its lane has another."""
        self.latencies_ns.append(took_ns)
        if isinstance(lane, MixedLane):
            (self._reads if lane.reads else self._writes)[0].append(took_ns)

    def checked(self, lane: Lane, outcome: Outcome) -> None:
        """What came of it."""
        self.outcome.add(outcome)
        if isinstance(lane, MixedLane):
            (self._reads if lane.reads else self._writes)[1].add(outcome)

    def timing(self, seconds: float, layers: Layers | None = None) -> Timing:
        """All of it."""
        latencies_us = np.array(self.latencies_ns, np.float64) / 1e3
        return Timing(seconds, latencies_us, self.outcome, layers, _side(*self._reads), _side(*self._writes))


def _side(latencies_ns: list[int], outcome: Outcome) -> Side | None:
    return Side(np.array(latencies_ns, np.float64) / 1e3, outcome) if latencies_ns else None


def drive(client: Client, lanes: Sequence[Lane], *, seconds: float = 0.0, batches: int = 0) -> Timing:
    """Keeps every lane's batch at the client for `seconds`, or for `batches` in all; returns when the last one has ended."""
    tally = Tally()
    with client.queue() as queue:
        started = ended = time.perf_counter_ns()
        until = started + int(seconds * 1e9)
        begun: dict[Ticket[Any], tuple[Lane, int]] = {}
        submitted = 0

        def submit(lane: Lane) -> None:
            lane.prepare()
            now = time.perf_counter_ns()
            begun[lane.submit(queue)] = lane, now

        for lane in lanes[: batches or None]:
            submit(lane)
            submitted += 1
        while begun:
            for event in queue.wait():
                ended = time.perf_counter_ns()
                lane, at = begun[event.ticket]
                if isinstance(lane, LayerLane):
                    lane.progress(event.steps_done, ended)
                if not event.done:
                    continue
                del begun[event.ticket]
                tally.ended(lane, ended - at)
                tally.checked(lane, lane.check(event.ticket.result()))
                if submitted < batches or (not batches and ended < until):
                    submit(lane)
                    submitted += 1
    return tally.timing((ended - started) / 1e9, _layers(lanes))


def _layers(lanes: Sequence[Lane]) -> Layers | None:
    """What the lanes noted since they were asked last."""
    noting = [lane for lane in lanes if isinstance(lane, LayerLane)]
    if not noting:
        return None
    first = np.array([ns for lane in noting for ns in lane.first_ns], np.float64)
    spans = np.array([span for lane in noting for span in lane.each_ns], np.float64).reshape(-1, 2)
    for lane in noting:
        lane.first_ns, lane.each_ns = [], []
    return Layers(first / 1e3, np.repeat(spans[:, 0] / spans[:, 1], spans[:, 1].astype(np.int64)) / 1e3)


def populate(client: Client, content: Content, count: int, layout: Layout | None = None, first: int = 0) -> None:
    """Makes `count` numbers from `first` on present and on media: what still has to be written stays in memory.

    layout: theirs; None = the client's. Errors: Unavailable where the daemon will not take them.
    """
    bulk = _bulk(content)
    source: Words = np.empty((bulk, content.words), np.uint64)
    for at in range(0, count, bulk):
        numbers = content.numbers(first + at, min(bulk, count - at))
        rows = source[: len(numbers)]
        content.fill(numbers, rows)
        put_whole(client, content.keys(numbers), rows, layout)


def put_whole(client: Client, keys: npt.NDArray[np.uint8], rows: npt.NDArray[Any], layout: Layout | None = None) -> None:
    """Puts a block a row until all of them are on media, however often the daemon throttles some.

    layout: theirs; None = the client's. Errors: Unavailable where it will not take them, or not within DEADLINE_MS.
    """
    until = time.monotonic() + DEADLINE_MS / 1e3
    while True:
        result = client.put(keys, rows, durability="persist", deadline_ms=DEADLINE_MS, layout=layout)
        ok = result.ok
        if ok.all():
            return
        if not result.throttled or time.monotonic() > until:
            raise Unavailable(
                f"{client.url}: took {int(ok.sum())} of {len(ok)} blocks: "
                f"{refusal(client, result.reason(int(np.argmin(ok))), rows[0].nbytes)}"
            )
        # Full for the moment: what it took meanwhile is answered as present.
        time.sleep(0.01)


def verify(client: Client, content: Content, numbers: Numbers, layout: Layout | None = None) -> Outcome:
    """Reads blocks and compares every byte. Not timed."""
    outcome = Outcome()
    bulk = _bulk(content)
    target: Words = np.empty((bulk, content.words), np.uint64)
    for first in range(0, len(numbers), bulk):
        some = numbers[first : first + bulk]
        rows = target[: len(some)]
        result = client.get(content.keys(some), rows, deadline_ms=DEADLINE_MS, layout=layout)
        ok = result.ok
        wrong = content.wrong_blocks(some[ok], rows[ok])
        outcome.add(Outcome(len(some), int(ok.sum()) - wrong, int(ok.sum()), wrong, _reasons(result, ok)))
    return outcome


def _bulk(content: Content) -> int:
    return max(1, min(_BULK_BLOCKS_MAX, _BULK_BYTES // content.block_bytes))


def _reasons(result: Any, ok: Any) -> dict[str, int]:
    """How often each answer was given instead of ok."""
    reasons: dict[str, int] = {}
    if ok.all():
        return reasons
    for item in np.flatnonzero(~ok):
        why = result.reason(int(item))
        reasons[why] = reasons.get(why, 0) + 1
    return reasons
