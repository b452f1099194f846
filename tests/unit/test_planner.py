"""Fetch or recompute: single decisions, what they are made of, and the circuit."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfstep.client.circuit import PAUSE_S_MAX, PAUSE_S_MIN, Circuit
from halfstep.client.facts import ShardLoad
from halfstep.client.fetch_planner import FetchPlanner
from halfstep.client.planner import PATIENCE, Plan, Reason, Terms, Work, curves, go_on, plan, probe
from halfstep.client.speeds import FetchSpeed, LinkModel, PrefillModel, PrefillSpeed
from halfstep.client.tally import COUNTERS, Tally
from halfstep.tier.planning import Planning
from halfstep.tier.prefix import Loaded

if TYPE_CHECKING:
    from halfstep.tier import Tier

# A block of 16 tokens takes 16 ms to compute, and 1 ms to fetch.
ENGINE, LINK = PrefillSpeed(0.001), FetchSpeed(0.0005, 1e9)
WORK, TERMS = Work(100, 16, 1e6), Terms(2.0)


def approx(expected: float, rel: float | None = None) -> Any:
    """pytest's, which mypy would not compare with a number within a tuple."""
    return pytest.approx(expected, rel=rel)


# ---- Decisions ----


def test_a_quick_link_brings_all_and_a_slow_one_nothing() -> None:
    quick, slow = plan(WORK, TERMS, ENGINE, LINK), plan(WORK, TERMS, ENGINE, FetchSpeed(0.0005, 5e7))
    assert (quick.blocks, quick.reason) == (100, Reason.FETCH)
    assert quick.end_s == approx(0.1005)
    assert quick.recompute_s == approx(1.6)
    assert (slow.blocks, slow.reason, slow.end_s) == (0, Reason.RECOMPUTE, approx(1.6))


def test_what_is_not_known_is_fetched_within_the_callers_deadline() -> None:
    assert plan(WORK, TERMS, PrefillSpeed(), LINK) == Plan(100, 2.0, Reason.PREFILL_UNKNOWN)
    unknown = plan(WORK, TERMS, ENGINE, FetchSpeed())
    assert (unknown.blocks, unknown.reason, unknown.deadline_s) == (100, Reason.LINK_UNKNOWN, approx(1.6))
    assert plan(replace(WORK, blocks=0), TERMS, ENGINE, LINK).reason is Reason.NOTHING


def test_a_fetch_may_take_as_long_as_computing_its_blocks_and_never_longer_than_the_caller_waits() -> None:
    assert plan(WORK, TERMS, ENGINE, LINK).deadline_s == approx(1.6)
    assert plan(WORK, Terms(0.5), ENGINE, LINK).deadline_s == 0.5
    close = plan(WORK, TERMS, ENGINE, FetchSpeed(0.0, 1e6 / 0.014))
    assert close.deadline_s == approx(2.0), "twice what it should take, and no more than the caller's"


def test_a_goal_that_computing_meets_is_met_when_the_fetch_fails() -> None:
    made = plan(WORK, replace(TERMS, goal_s=2.0), ENGINE, LINK)
    assert made.in_goal
    assert made.deadline_s + made.recompute_s == approx(2.0)
    assert plan(WORK, replace(TERMS, goal_s=1.7), ENGINE, LINK).deadline_s == approx(PATIENCE * made.fetch_s)
    hopeless = plan(WORK, replace(TERMS, goal_s=0.05), ENGINE, LINK)
    assert (hopeless.blocks, hopeless.in_goal) == (100, False), "it is missed by as little as can be"


def test_what_cannot_come_before_the_deadline_is_not_asked_for() -> None:
    made = plan(WORK, Terms(0.0505), ENGINE, LINK)
    assert (made.blocks, made.reason, made.deadline_s) == (50, Reason.FETCH_SOME, 0.0505)


def test_smaller_blocks_as_they_are_stored_are_fetched_where_larger_ones_are_not() -> None:
    slow = FetchSpeed(0.0, 6e7)
    assert plan(WORK, TERMS, ENGINE, slow).blocks == 0
    assert plan(replace(WORK, block_bytes=7e5), TERMS, ENGINE, slow).blocks == 100


def test_a_long_context_is_worth_a_fetch_that_a_short_one_is_not() -> None:
    grows, slow = PrefillSpeed(0.001, 1e-3), FetchSpeed(0.0, 5e7)
    assert plan(replace(WORK, blocks=10), TERMS, grows, slow).blocks == 0
    assert plan(replace(WORK, blocks=10, before_tokens=4000), TERMS, grows, slow).blocks == 10


def test_a_queue_at_the_shards_is_waited_for_or_computed_meanwhile() -> None:
    idle, busy = ShardLoad(0, 0, 500_000_000), ShardLoad(90, 3_000_000, 500_000_000)
    assert plan(WORK, TERMS, ENGINE, LINK, (idle, idle)).blocks == 100
    made = plan(WORK, TERMS, ENGINE, LINK, (idle, busy))
    assert (made.blocks, made.reason, made.queue_s) == (0, Reason.RECOMPUTE, approx(3.0))
    only = replace(WORK, shard_of=[0] * 40 + [1] * 60)
    some = plan(only, TERMS, ENGINE, LINK, (idle, busy))
    assert (some.blocks, some.reason) == (40, Reason.FETCH_SOME), "the busy shard has the others"


def test_a_shard_that_served_little_is_not_taken_for_a_slow_one() -> None:
    lazy = ShardLoad(1, 1_000_000, 1_000_000)  # a megabyte waits there
    assert plan(WORK, TERMS, ENGINE, LINK, (lazy, lazy)).fetch_s == approx(0.0005 + 0.002 + 0.1)


def test_an_engine_that_goes_on_layer_by_layer_hides_one_behind_the_other() -> None:
    work, link = replace(WORK, after_tokens=1600), FetchSpeed(0.0, 1e6 / 0.016)
    waits, overlaps = curves(work, ENGINE, link), curves(work, ENGINE, link, layers=80)
    assert waits.end_s[-1] == approx(1.6 + 1.6)
    assert overlaps.end_s[-1] == approx(1.6 + 1.6 / 80)
    assert plan(work, Terms(5.0), ENGINE, link).blocks == 0, "as long as computing alone"
    assert plan(work, Terms(5.0, layers=80), ENGINE, link).blocks == 100


@given(
    blocks=st.integers(1, 200),
    after=st.integers(0, 2000),
    token_s=st.floats(1e-6, 1e-2),
    growth=st.floats(0, 1e-3),
    rate=st.floats(1e6, 1e12),
    deadline_s=st.floats(0.001, 10),
    layers=st.integers(1, 100),
    queue_us=st.integers(0, 10_000_000),
)
def test_no_other_number_of_blocks_ends_clearly_earlier(
    blocks: int, after: int, token_s: float, growth: float, rate: float, deadline_s: float, layers: int, queue_us: int
) -> None:
    work, engine, link = Work(blocks, 16, 1e6, 0, after), PrefillSpeed(token_s, growth), FetchSpeed(0.0005, rate)
    loads = (ShardLoad(1, queue_us, 1_000_000_000), ShardLoad(0, 0, 0))
    made = plan(work, Terms(deadline_s, layers=layers), engine, link, loads)
    each = curves(work, engine, link, loads, layers=layers)
    in_time = each.end_s[each.fetch_s <= deadline_s]
    assert made.end_s <= in_time.min() / 0.95 * (1 + 1e-9)
    assert made.end_s <= made.recompute_s * (1 + 1e-9)
    assert made.deadline_s <= deadline_s
    assert (made.blocks == 0) == (made.deadline_s == 0)


# ---- Asked again ----


def test_a_fetch_that_brings_nothing_is_called_off_and_one_that_runs_goes_on() -> None:
    made = plan(WORK, TERMS, ENGINE, LINK)
    runs = go_on(made, WORK, TERMS, ENGINE, LINK, landed=50, elapsed_s=0.05)
    assert (runs.blocks, runs.reason) == (50, Reason.FETCH)
    assert runs.end_s == approx(0.05)
    stalls = go_on(made, WORK, TERMS, ENGINE, LINK, landed=2, elapsed_s=0.5)
    assert (stalls.blocks, stalls.reason) == (0, Reason.RECOMPUTE), "three blocks in half a second are slower than computing"
    over = go_on(made, WORK, TERMS, ENGINE, LINK, landed=99, elapsed_s=1.7)
    assert (over.blocks, over.reason) == (0, Reason.RECOMPUTE)
    assert go_on(made, WORK, TERMS, ENGINE, LINK, landed=100, elapsed_s=0.1).reason is Reason.NOTHING


def test_blocks_that_were_not_asked_for_are_computed_whatever_comes() -> None:
    made = plan(WORK, Terms(0.0505), ENGINE, LINK)
    on = go_on(made, WORK, Terms(0.0505), ENGINE, LINK, landed=10, elapsed_s=0.01)
    assert on.blocks == 40
    assert on.recompute_s == approx(90 * 0.016)


def test_an_engine_that_nobody_measured_waits_as_it_would() -> None:
    made = plan(WORK, TERMS, PrefillSpeed(), LINK)
    on = go_on(made, WORK, TERMS, PrefillSpeed(), LINK, landed=0, elapsed_s=1.5)
    assert (on.blocks, on.deadline_s, on.reason) == (100, 0.5, Reason.PREFILL_UNKNOWN)


# ---- Speeds ----


def test_the_growth_with_the_context_is_found_and_outliers_move_nothing() -> None:
    model = PrefillModel()
    for position in (0, 512, 2048, 8192, 0, 512, 2048, 8192):
        model.add(512, PrefillSpeed(2e-4, 5e-5).seconds(position, position + 512), position)
    model.add(512, 900.0, 512)
    assert model.speed.token_s == approx(2e-4, rel=0.05)
    assert model.speed.growth == approx(5e-5, rel=0.2)


@pytest.mark.parametrize(
    ("tokens", "seconds", "position"), [(0, 1.0, 0), (100, 0.0, 0), (100, math.nan, 0), (100, math.inf, 0), (1000, 1.0, -5000)]
)
def test_nothing_is_learned_of_what_no_engine_can_have_done(tokens: int, seconds: float, position: int) -> None:
    planner = FetchPlanner()
    planner.computed(1000, 1.0)
    planner.computed(1000, 3.0, 9000)
    before = planner.prefill
    planner.computed(tokens, seconds, position)
    assert planner.prefill == before


def test_an_engine_that_has_become_quick_is_so_after_two_prefills() -> None:
    model = PrefillModel()
    for _ in range(10):
        model.add(512, 1.0)
    model.add(512, 0.25)
    assert model.speed.token_s == approx(1 / 512)
    model.add(512, 0.25)
    assert model.speed.token_s == approx(0.25 / 512)


@given(st.lists(st.tuples(st.integers(1, 10_000), st.floats(1e-6, 1e3), st.integers(0, 100_000)), min_size=1, max_size=60))
def test_more_tokens_never_cost_less_whatever_was_measured(measured: list[tuple[int, float, int]]) -> None:
    model = PrefillModel()
    for one in measured:
        model.add(*one)
    costs = [model.speed.seconds(0, last) for last in range(0, 200_000, 10_000)]
    assert all(later > sooner for sooner, later in pairwise(costs))
    assert len(model._growths) <= 32


def test_a_links_rate_is_without_its_round_trip_and_queue() -> None:
    link = LinkModel()
    link.asked(0.001)
    link.moved(10_000_000, 0.001 + 0.5 + 0.01, 0.5)
    assert link.speed.bytes_per_s == approx(10_000_000 / (0.511 / 4)), "a queue is believed for three quarters at most"
    link.forget()
    link.moved(10_000_000, 0.011, 0.0)
    assert (link.speed.round_trip_s, link.speed.bytes_per_s) == (0.001, approx(1e9))
    link.moved(1000, 0.0015, 0.0)
    assert link.speed.bytes_per_s == approx(1e9), "mostly a round trip"
    link.moved(0, 1.0, 0.0)
    assert link.speed.bytes_per_s == approx(1e9)


# ---- The circuit ----


def test_a_circuit_doubles_its_pause_while_probes_fail_and_closes_with_the_first_that_does_not() -> None:
    circuit, now_s = Circuit(), 100.0
    circuit.fail(now_s, is_probe=False)
    pause_s = PAUSE_S_MIN
    for failed in range(10):
        assert circuit.is_open
        assert circuit.failed_probes == failed
        assert not circuit.is_due(now_s + pause_s * 0.99)
        now_s += pause_s
        assert circuit.is_due(now_s)
        circuit.probe(now_s)
        assert not circuit.is_due(now_s), "one at a time"
        circuit.fail(now_s, is_probe=True)
        circuit.fail(now_s, is_probe=False)  # of a fetch that was under way
        pause_s = min(PAUSE_S_MAX, 2 * pause_s)
    circuit.succeed()
    assert not circuit.is_open
    circuit.fail(now_s, is_probe=False)
    assert circuit.is_due(now_s + PAUSE_S_MIN)
    assert (circuit.opened, circuit.failed_probes) == (2, 0)


def test_a_planner_pays_one_deadline_and_is_back_with_the_first_probe() -> None:
    now = [0.0]
    planner = FetchPlanner(lambda: now[0])
    planner.computed(1000, 1.0)
    planner.asked(0.0005, answered=True)
    first = planner.plan(WORK, TERMS)
    assert first.reason is Reason.LINK_UNKNOWN
    planner.fetched(first, WORK, 100, 0.1005, failed=False)
    made = planner.plan(WORK, TERMS)
    assert made.reason is Reason.FETCH
    planner.fetched(made, WORK, 0, made.deadline_s, failed=True)
    assert planner.is_open
    assert not planner.may_ask()
    assert planner.plan(WORK, TERMS) == Plan(0, 0.0, Reason.OPEN, end_s=1.6, recompute_s=1.6)
    now[0] += PAUSE_S_MIN
    assert planner.may_ask()
    trying = planner.plan(WORK, TERMS)
    assert (trying.blocks, trying.reason) == (12, Reason.PROBE)
    assert trying.deadline_s < 0.1 < made.deadline_s
    assert planner.plan(WORK, TERMS).reason is Reason.OPEN, "one probe at a time"
    planner.fetched(trying, WORK, 12, trying.fetch_s, failed=False)
    assert planner.plan(WORK, TERMS).reason is Reason.FETCH
    counts = planner.counts()
    assert counts.pop("opened") == 1
    assert {why: count for why, count in counts.items() if count} == {
        "link_unknown": 1,
        "fetch": 2,
        "circuit_open": 3,
        "probe": 1,
    }


def test_a_match_that_nobody_answers_opens_the_circuit_and_a_miss_does_not() -> None:
    planner = FetchPlanner(lambda: 0.0)
    planner.computed(1000, 1.0)
    made = planner.plan(WORK, TERMS)
    planner.fetched(made, WORK, 0, 0.001, failed=False)
    assert not planner.is_open
    planner.asked(0.02, answered=False)
    assert planner.is_open


def test_a_fetch_that_took_longer_than_computing_its_blocks_has_failed() -> None:
    planner = FetchPlanner(lambda: 0.0)
    planner.computed(1000, 1.0)
    planner.fetched(planner.plan(WORK, TERMS), WORK, 100, 1.7, failed=False)
    assert planner.is_open


def test_an_engine_that_nobody_measured_asks_on_while_the_tier_fails() -> None:
    planner = FetchPlanner(lambda: 0.0)
    planner.asked(0.02, answered=False)
    assert planner.is_open
    assert planner.may_ask()
    assert planner.plan(WORK, TERMS).reason is Reason.PREFILL_UNKNOWN


def test_a_link_that_was_slow_is_looked_at_again() -> None:
    now = [1.0]
    planner = FetchPlanner(lambda: now[0])
    planner.computed(1000, 1.0)
    made = planner.plan(WORK, TERMS)
    planner.fetched(made, WORK, 100, 1.58, failed=False)  # just about as quick as computing
    assert planner.plan(WORK, TERMS).reason is Reason.RECOMPUTE
    now[0] += PAUSE_S_MIN
    looks = planner.plan(WORK, TERMS)
    assert looks.reason is Reason.PROBE
    for _ in range(3):
        planner.fetched(looks, WORK, looks.blocks, 0.012, failed=False)
    assert planner.plan(WORK, TERMS).reason is Reason.FETCH


def test_a_probe_is_not_sent_into_a_queue_and_is_sent_to_a_tier_that_was_never_quick() -> None:
    busy = (ShardLoad(90, 3_000_000, 1_000_000_000),)
    assert probe(WORK, TERMS, ENGINE, LINK, busy).reason is Reason.OPEN
    slow = probe(WORK, TERMS, ENGINE, FetchSpeed(0.0, 2e6))
    assert (slow.blocks, slow.reason, slow.deadline_s) == (1, Reason.PROBE, approx(1.0))
    assert probe(WORK, TERMS, ENGINE, FetchSpeed()).blocks == 1


def test_a_probe_never_waits_for_the_callers_whole_deadline() -> None:
    """Unless computing its block takes as long."""
    dice = random.Random(7)
    most = 0.0
    for _ in range(2_000):
        fetch = FetchSpeed(dice.choice((0.0, 1e-3, 0.5)), 10 ** dice.uniform(3, 10))
        work = Work(dice.randint(1, 200), 16, 10 ** dice.uniform(4, 8), dice.randint(0, 10_000))
        terms, engine = Terms(10 ** dice.uniform(-2, 1)), PrefillSpeed(10 ** dice.uniform(-6, -1), dice.choice((0.0, 1e-4)))
        made = probe(work, terms, engine, fetch, failed=dice.randint(0, 20))
        assert made.blocks > 0, "nothing waits there: the tier may be quicker than it was"
        block_s = engine.seconds(work.before_tokens, work.before_tokens + work.block_tokens)
        assert made.deadline_s <= max(terms.deadline_s / 2, min(block_s, terms.deadline_s)), (work, terms, fetch)
        most = max(most, made.deadline_s / terms.deadline_s)
    assert most > 0.25, "none of them was slow"


def _planning(tally: Tally | None) -> Planning:
    tier = SimpleNamespace(
        client=SimpleNamespace(tally=tally, deadline_ms=2000, facts=lambda: SimpleNamespace(shards=())),
        layout=SimpleNamespace(block_tokens=16, block_bytes=1 << 20),
        deadline_ms=lambda _, named: named,
    )
    return Planning(cast("Tier", tier))


def test_rows_of_unequal_padding_are_measured_by_all_that_came() -> None:
    """68 blocks in half a second, which computing takes twice as long for: no failure, and 136 MiB/s, not 24."""
    planning = _planning(None)
    planning.planner.computed(1000, 1.0)
    planned = planning.plan(62, 1000, rows=2)
    assert planned.plan.reason is Reason.LINK_UNKNOWN
    rows = [Loaded(count, 16 * count, count << 20, "") for count in (62, 6)]
    planning.loaded(planned, rows, 0.5)
    assert not planning.planner.is_open
    assert planning.planner.link.bytes_per_s == approx(136 << 20)


def test_decisions_and_openings_go_to_the_record() -> None:
    tally = Tally("chat", "on", _NoWriter())
    planning = _planning(tally)
    began = {name: count for name, count in tally.snapshot().items() if name not in COUNTERS}
    assert began == {"circuit_openings": 0} | {f"plan_{reason}": 0 for reason in Reason}, "what is there and 0 was counted"
    planning.planner.computed(1000, 1.0)
    planned = planning.plan(10, 200)
    assert planned.plan.reason is Reason.LINK_UNKNOWN
    planning.planner.fetched(planned.plan, planned.work, 0, 1.0, failed=True)
    assert not planning.may_ask()
    counted = {name: count for name, count in tally.snapshot().items() if count}
    assert counted == {"plan_link_unknown": 1, "circuit_openings": 1, "plan_circuit_open": 1}
    assert planning.planner.counts()["opened"] == 1


class _NoWriter:
    def begin(self) -> None:
        """Of a thread there is no need."""

    def write(self, *, patience_s: float = 0) -> None:
        """Nobody reads it."""
