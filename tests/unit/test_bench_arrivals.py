"""Calls at a rate, and the trail that `coldmixed` reads from: on a clock, a queue and lanes that are made up."""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

pytest.importorskip("click")

from halfstep.errors import ConfigError, Unavailable
from halfstep.tools.bench.arrivals import Rate, drive_arrivals, due_ns
from halfstep.tools.bench.clones import merged
from halfstep.tools.bench.content import Content
from halfstep.tools.bench.device import BlockDevice
from halfstep.tools.bench.driver import Driven
from halfstep.tools.bench.machine import difference, stolen_seconds, waited_seconds
from halfstep.tools.bench.plan import OPEN_LOOP, SCENARIOS, Plan
from halfstep.tools.bench.proof import why_not_coldmixed
from halfstep.tools.bench.report import CpuTime, CpuWait, Proof, Report, Result, Run
from halfstep.tools.bench.trail import Trail
from halfstep.tools.bench.workload import Lane, MixedLane, Outcome, Side, Tally, Timing

MS = 1_000_000


class Clock:
    """Nanoseconds that pass when somebody says so, and one with every look."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += 1
        return self.now


class Queue:
    """Calls that take as long as `takes_ns` says, one after the other, each from its submit."""

    def __init__(self, clock: Clock, takes_ns: Sequence[int]) -> None:
        self._clock = clock
        self._takes_ns = list(takes_ns)
        self._ends: list[tuple[int, Any]] = []
        self.submitted_at: list[int] = []
        self.looks = 0

    def submit(self) -> Any:
        ticket = SimpleNamespace(result=lambda: None)
        token = _Ticket(ticket)
        self.submitted_at.append(self._clock.now)
        self._ends.append((self._clock.now + self._takes_ns.pop(0), token))
        return token

    def poll(self) -> list[Any]:
        self.looks += 1
        self._clock.now += 1000
        over = [one for one in self._ends if one[0] <= self._clock.now]
        self._ends = [one for one in self._ends if one[0] > self._clock.now]
        return [SimpleNamespace(ticket=token, done=True) for _, token in over]

    def wait(self, timeout_s: float | None = None) -> list[Any]:
        until = min((end for end, _ in self._ends), default=None)
        if timeout_s is not None:
            limit = self._clock.now + int(timeout_s * 1e9)
            until = limit if until is None else min(until, limit)
        assert until is not None, "it would wait for ever"
        self._clock.now = max(self._clock.now, until)
        return self.poll()


class _Ticket:
    def __init__(self, inner: Any) -> None:
        self.result = inner.result


class FakeLane:
    """Counts what is asked of it."""

    def __init__(self, clock: Clock, prepare_ns: int = 0) -> None:
        self._clock = clock
        self._prepare_ns = prepare_ns
        self.prepared_at: list[int] = []

    def prepare(self) -> None:
        self._clock.now += self._prepare_ns
        self.prepared_at.append(self._clock.now)

    def submit(self, queue: Any) -> Any:
        return queue.submit()

    def check(self, _result: Any) -> Outcome:
        return Outcome(1, 1, 1, 0)


def driven(due: Sequence[int], takes: Sequence[int], lanes: int = 1, seconds: float = 1.0) -> tuple[Timing, Rate, Queue]:
    clock = Clock()
    queue = Queue(clock, takes)
    some = cast("list[Lane]", [FakeLane(clock) for _ in range(lanes)])
    timing, rate = drive_arrivals(cast("Any", queue), some, np.array(due, np.int64), seconds, clock)
    return timing, rate, queue


def test_gaps_are_exponential_and_follow_from_the_seed() -> None:
    due = due_ns(5000, 20.0, np.random.default_rng(7))
    assert np.array_equal(due, due_ns(5000, 20.0, np.random.default_rng(7)))
    assert (np.diff(due) >= 0).all()
    assert due[0] >= 0
    assert due[-1] < 20e9
    gaps = np.diff(due)
    assert len(due) == pytest.approx(100_000, rel=0.02)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.03), "an exponential distribution has one parameter"
    assert (gaps > gaps.mean()).mean() == pytest.approx(np.exp(-1), rel=0.03)
    assert len(due_ns(0.001, 0.001, np.random.default_rng(7))) == 1, "a run has a call at least"


def test_a_call_that_waited_for_a_slow_one_has_waited() -> None:
    """One lane: the first takes 50 ms, the others 1; all are due every 10 ms."""
    due = [10 * MS * n for n in range(1, 9)]
    timing, rate, queue = driven(due, [50 * MS] + [1 * MS] * 7)
    late = timing.latencies_us / 1e3
    # Due at 10, over at 60; due at 20, begun at 60, over at 61; …; the last ones are on time again.
    assert late == pytest.approx([50, 41, 32, 23, 14, 5, 1, 1], abs=0.3)
    assert queue.submitted_at[0] == pytest.approx(10 * MS, abs=0.3 * MS)
    assert queue.submitted_at[-1] == pytest.approx(80 * MS, abs=0.3 * MS)
    assert (rate.due, rate.begun, rate.made, rate.kept) == (8, 8, 8, True)
    assert timing.outcome.ok == 8


def test_calls_that_are_late_take_together_what_has_come() -> None:
    timing, rate, queue = driven(due=[0] * 40, takes=[1] * 40, lanes=8)
    assert len(timing.latencies_us) == rate.made == 40
    assert queue.looks <= 40 / 8 + 2


def test_with_a_place_left_a_slow_call_makes_none_wait() -> None:
    due = [10 * MS * n for n in range(1, 9)]
    timing, _, _ = driven(due, [50 * MS] + [1 * MS] * 7, lanes=2)
    assert sorted(timing.latencies_us / 1e3) == pytest.approx([1] * 7 + [50], abs=0.3)


def test_no_call_comes_before_it_is_due() -> None:
    due = [5 * MS, 6 * MS, 300 * MS, 300 * MS, 900 * MS]
    _, _, queue = driven(due, [1 * MS] * 5, lanes=3)
    for at, submitted in zip(due, queue.submitted_at, strict=True):
        assert at <= submitted <= at + MS // 10


def test_keys_are_made_before_a_call_is_due() -> None:
    clock = Clock()
    queue = Queue(clock, [1 * MS] * 3)
    lane = FakeLane(clock, prepare_ns=5 * MS)
    due = np.array([10 * MS, 20 * MS, 30 * MS], np.int64)
    timing, _ = drive_arrivals(cast("Any", queue), cast("Any", [lane]), due, 1.0, clock)
    assert timing.latencies_us / 1e3 == pytest.approx([1, 1, 1], abs=0.3), "what is prepared takes no time of the call"
    assert len(lane.prepared_at) == 3, "no batch is chosen that nobody asks for"


def test_a_rate_that_cannot_be_kept_shows() -> None:
    """100 calls of 10 ms are due within half a second: twice what one lane can do."""
    due = [5 * MS * n for n in range(100)]
    timing, rate, _ = driven(due, [10 * MS] * 100, seconds=0.5)
    assert (rate.due, rate.made) == (100, pytest.approx(100, abs=1))
    assert rate.begun == pytest.approx(50, abs=2)
    assert rate.offered_per_s == 200
    assert rate.achieved_per_s == pytest.approx(100, abs=4)
    assert not rate.kept
    assert timing.latencies_us.max() == pytest.approx(505e3, rel=0.05), "the queue has grown for half a second"


def test_what_is_late_for_as_long_as_the_run_was_is_left_out_and_counted() -> None:
    timing, rate, _ = driven([MS * n for n in range(100)], [10 * MS] * 100, seconds=0.1)
    assert rate.made == pytest.approx(20, abs=1)
    assert rate.due == 100
    assert len(timing.latencies_us) == rate.made
    assert timing.seconds < 0.25


def test_clones_have_one_rate_together() -> None:
    timings = [Timing(1.0, np.array([1.0]), Outcome(1, 1), None, Side(np.array([float(n)]), Outcome(1, 1))) for n in range(2)]
    both = merged([Driven(timing, 0.5, Rate(1.0, 100, 90 + n, 100)) for n, timing in enumerate(timings)])
    assert both.rate == Rate(1.0, 200, 181, 200)
    assert both.timing.reads is not None
    assert both.timing.reads.latencies_us.tolist() == [0, 1]
    assert both.timing.writes is None


def test_reads_and_writes_of_a_mixed_run_are_told_apart() -> None:
    clock = Clock()
    lane = MixedLane(cast("Any", FakeLane(clock)), cast("Any", FakeLane(clock)), 0.7, np.random.default_rng(1))
    tally = Tally()
    reads = 0
    for _ in range(1000):
        lane.prepare()
        reads += lane.reads
        tally.ended(lane, 1000 if lane.reads else 5000)
        tally.checked(lane, Outcome(1, 1, 1, 0))
    timing = tally.timing(1.0)
    assert reads == pytest.approx(700, abs=50)
    assert timing.reads is not None
    assert timing.writes is not None
    assert (set(timing.reads.latencies_us), set(timing.writes.latencies_us)) == ({1.0}, {5.0})
    assert (timing.reads.outcome.ok, timing.writes.outcome.ok) == (reads, 1000 - reads)
    assert timing.outcome.ok == len(timing.latencies_us) == 1000


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_rate_is_for_those_whose_calls_can_come_by_themselves(scenario: str) -> None:
    plan = Plan(scenarios=(scenario,), rate=100)
    if scenario in OPEN_LOOP:
        assert plan.validated() is plan
    else:
        with pytest.raises(ConfigError, match=f"rate=100: {scenario} makes each call .* choose from get, cold, put"):
            plan.validated()


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        (Plan(rate=-1), "rate=-1: must be 0.0 to"),
        (Plan(rate=2e6), "rate=2000000.0: must be 0.0 to"),
        (Plan(rate=3, seconds=2), "rate=3 x runtime=2: fewer than 10 calls a run; raise one"),
        (Plan(scenarios=("coldmixed",), url="halfstep://node7"), "rw=coldmixed: fills the whole store of halfstep://node7"),
    ],
)
def test_a_plan_that_cannot_be_measured_is_refused(plan: Plan, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        plan.validated()


def run_at(rate: Rate | None, timing: Timing) -> Run:
    return Run(1e9, timing, None, Proof(1, 0, None, 1, 0), CpuTime(1.0, None), rate)


def test_a_report_says_how_the_calls_came() -> None:
    side = Side(np.array([1.0, 2.0]), Outcome(2, 2, 2, reasons={}))
    timing = Timing(
        2.0, np.arange(1, 5, dtype=np.float64), Outcome(4, 4, 4), None, side, Side(np.array([3.0, 4.0]), Outcome(2, 2))
    )
    kept, lost = run_at(Rate(2.0, 100, 99, 100), timing), run_at(Rate(2.0, 100, 97, 98), timing)
    told = lost.as_json()
    assert told["rate"] == {
        "offered_calls_per_s": 50,
        "achieved_calls_per_s": 48.5,
        "kept": False,
        "calls_due": 100,
        "calls_never_made": 2,
    }
    assert told["reads"] == {
        "calls": 2,
        "blocks_per_s": 1.0,
        "latency_us": {"p50": 1.0, "p99": 2.0, "p999": 2.0},
        "answers_not_ok": {},
    }
    assert told["writes"]["latency_us"]["p50"] == 3.0
    assert set(run_at(None, Timing(1.0, np.array([1.0]), Outcome())).as_json()) & {"rate", "reads", "writes"} == set()
    head = dict.fromkeys(("version", "build", "commit", "kernel", "cpu", "path", "pinned", "engine"), "")
    header = {**head, "cores": 2, "load_average": 0.0, "repeat": 1, "numjobs": 1, "rate": 50.0}
    for run, grows in ((kept, False), (lost, True)):
        report = Report(header)
        report.results.append(Result.of("mixed", 4096, 1, 1, [run], Outcome(4, 4, 4)))
        said = "\n".join(report.remarks())
        assert "from the moment it was due at 50 a second to its terminal event" in said
        assert "reads: 2 calls, p50 1 us, p99 2, p99.9 2" in said
        assert ("THE RATE WAS NOT KEPT" in said) is grows
        assert ("2 calls were still waiting" in said) is grows


def test_a_busy_machine_is_told_of() -> None:
    timing = Timing(2.0, np.array([1.0]), Outcome(1, 1, 1))
    head = dict.fromkeys(("version", "build", "commit", "kernel", "cpu", "path", "pinned", "engine"), "")
    report = Report({**head, "cores": 2, "load_average": 0.0, "repeat": 1, "numjobs": 1, "rate": 0.0})
    for client, daemon, who in ((0.03, 0.0, ""), (0.5, 0.0, "client"), (0.0, 0.5, "daemon"), (None, None, "")):
        run = Run(1e9, timing, None, Proof(1, 0, None, 1, 0), CpuTime(1.0, None), None, CpuWait(client, daemon))
        report.results[:] = [Result.of("get", 4096, 1, 1, [run], Outcome(1, 1, 1))]
        said = "\n".join(report.remarks())
        assert ("percentiles are those of a busy machine" in said) == bool(who)
        assert f"the {who} waited 0.50 s of 2.0 for a core" in said or not who
        assert run.as_json()["waited_for_core_s"] == {"client": client, "daemon": daemon, "host": 0.0}


@pytest.mark.parametrize(("host", "told"), [(0.03, False), (0.5, True)])
def test_a_busy_host_is_told_of(host: float, told: bool) -> None:
    head = dict.fromkeys(("version", "build", "commit", "kernel", "cpu", "path", "pinned", "engine"), "")
    report = Report({**head, "cores": 2, "load_average": 0.0, "repeat": 1, "numjobs": 1, "rate": 0.0})
    wait = CpuWait(None, None, host)
    run = Run(
        1e9, Timing(2.0, np.array([1.0]), Outcome(1, 1, 1)), None, Proof(1, 0, None, 1, 0), CpuTime(1.0, None), None, wait
    )
    report.results[:] = [Result.of("get", 4096, 1, 1, [run], Outcome(1, 1, 1))]
    said = "\n".join(report.remarks())
    assert ("the host of this virtual machine kept 0.50 s of its cores' time in 2.0 for others" in said) is told
    assert run.as_json()["waited_for_core_s"]["host"] == host


def test_what_the_host_takes_only_grows() -> None:
    before = stolen_seconds()
    assert 0 <= before <= stolen_seconds()


def test_who_waits_for_a_core_has_waited() -> None:
    before = waited_seconds(os.getpid())
    if before is None:
        pytest.skip("this kernel does not say who waited")
    after = waited_seconds(os.getpid())
    assert after is not None
    assert after >= before
    assert waited_seconds(1 << 30) is None, "there is no such process"
    assert difference(before, None) is None


# ---- coldmixed ----


@pytest.mark.parametrize("share", [0.05, 0.3, 0.5, 0.7, 0.95])
def test_a_block_of_coldmixed_is_forgotten_before_it_comes_again(share: float) -> None:
    """By a daemon that knows for four times its memory what it had; and no turn is cut short."""
    nearest, width, farthest = Plan(read_share=share).trail_bytes(1000)
    assert nearest / (1 - share) > 5000, "puts and reads between its put and its first read"
    assert width / share > 5000, "between two reads"
    assert farthest >= nearest + width * (1 - share) / share + width - 2, "what is put in a turn"
    assert nearest >= 1000
    assert Plan(read_share=share, cold_bytes=3000).trail_bytes(1000)[1] == 3000


def trail_of(puts: int, nearest: int = 10, width: int = 40, farthest: int = 70) -> tuple[Trail, Content]:
    content = Content(4096, seed=1)
    trail = Trail(content, 4, nearest, width, farthest, np.random.default_rng(1))
    for put in range(puts):
        trail.add(content.numbers(put * 4, 4))
    return trail, content


def test_a_trail_asks_for_what_is_neither_new_nor_old() -> None:
    trail, content = trail_of(200)
    for put in range(200, 1200):
        for _ in range(2):
            numbers = next(trail)
            age = put - int(numbers[0]) // 4
            assert len(numbers) == 4
            assert 10 < age <= 70
        trail.add(content.numbers(put * 4, 4))


def test_a_trail_asks_for_nothing_again_before_the_turn_is_over() -> None:
    trail, content = trail_of(200)
    asked: list[int] = []
    for call in range(4000):
        asked.append(int(next(trail)[0]) // 4)
        if call % 7 < 3:  # 70 / 30
            trail.add(content.numbers((200 + len(asked)) * 4, 4))
    last: dict[int, int] = {}
    gaps = []
    for call, batch in enumerate(asked):
        if batch in last:
            gaps.append(call - last[batch])
        last[batch] = call
    assert len(gaps) > 1000
    assert min(gaps) > 40 // 2, "a turn has 40 batches; those that leave it and those that come shift the rest a little"


def test_a_trail_passes_over_what_was_not_stored_whole() -> None:
    trail, content = trail_of(0)
    assert not trail.ready
    for put in range(60):
        trail.add(content.numbers(put * 4, 4 if put % 2 else 3))
    assert trail.ready
    assert all(int(next(trail)[0]) // 4 % 2 == 1 for _ in range(100))
    nothing, content = trail_of(0)
    for put in range(60):
        nothing.add(content.numbers(put * 4, 0))
    with pytest.raises(Unavailable, match="throttled"):
        next(nothing)


def coldmixed(proof: Proof, reads: Outcome | None) -> str:
    side = None if reads is None else Side(np.array([1.0]), reads)
    timing = Timing(1.0, np.array([1.0]), Outcome(), None, side)
    return why_not_coldmixed(proof, timing, 100, BlockDevice("vda", ()))


@pytest.mark.parametrize(
    ("proof", "reads", "why"),
    [
        (Proof(5000, 1000, 1000, 0, 10, 2, 0, 1000), Outcome(10, 10), ""),
        # Copied meanwhile, and read before the run began.
        (Proof(5000, 1100, 1100, 0, 10, 2, 500, 1000), Outcome(10, 10), ""),
        (Proof(5000, 1000, 1000, 0, 10, 0, 0, 1000), Outcome(10, 10), "reclaim did not run"),
        (Proof(5000, 1000, 1000, 0, 10, 2, 0, 1000), None, "nothing was read"),
        (Proof(5000, 1000, 1000, 0, 10, 2, 0, 1000), Outcome(0, 0), "nothing was read"),
        (Proof(5000, 1000, 1000, 0, 10, 2, 0, 1000), Outcome(12, 10, reasons={"miss (absent)": 2}), "2 of 12 blocks asked"),
        (Proof(5000, 1000, 1000, 0, 10, 2, 0, 1000), Outcome(12, 10, reasons={"throttled (load)": 2}), ""),
        (Proof(5000, 1000, 1000, 5, 10, 2, 500, 500), Outcome(10, 10), "engine read 500 bytes for 1000 delivered"),
        (Proof(5000, 1500, 1000, 5, 10, 2, 500, 1000), Outcome(10, 10), "vda read 1000 bytes of 1500 that the engine read"),
        (Proof(5000, 1500, None, 0, 10, 2, 500, 1000), Outcome(10, 10), "no block device"),
    ],
)
def test_coldmixed_is_reads_from_flash_while_segments_are_reclaimed(proof: Proof, reads: Outcome | None, why: str) -> None:
    told = coldmixed(proof, reads)
    assert why in told
    assert bool(told) == bool(why)
