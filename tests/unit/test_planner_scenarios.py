"""The rules of fetching or recomputing, over seeded scenarios in virtual time: planner_world.py. Broken planners break them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.unit.planner_world import (
    BLOCK_TOKENS,
    DEADLINE_S,
    Prompt,
    Run,
    World,
    middle_ratio,
    serve,
    world,
)

from halfstep.client.circuit import Circuit
from halfstep.client.fetch_planner import FetchPlanner
from halfstep.client.planner import Plan, Reason, Terms, Work

SCENARIOS = 10_000
# Of broken planners: as many as show that the rules see it.
SCENARIOS_BROKEN = 300
RATIO_MAX = 1.10
PROBES_MAX = 3


class Planned:
    """A connector in small: what it asks, and what it tells."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._planner = FetchPlanner(clock)
        self._made: tuple[Plan, Work] | None = None

    @property
    def is_open(self) -> bool:
        return self._planner.is_open

    def asks(self, now: float) -> bool:
        return self._planner.may_ask()

    def asked(self, now: float, seconds: float, answered: bool) -> None:
        self._planner.asked(seconds, answered=answered)

    def choose(self, now: float, prompt: Prompt, place: World, left_s: float) -> tuple[int, float, str]:
        work = Work(prompt.blocks, BLOCK_TOKENS, place.block_bytes, after_tokens=prompt.rest)
        made = self._changed(self._planner.plan(work, Terms(left_s), place.loads(now)), work)
        self._made = made, work
        return made.blocks, made.deadline_s, made.reason

    def _changed(self, made: Plan, work: Work) -> Plan:
        return made

    def fetched(self, now: float, landed: int, seconds: float, failed: bool) -> None:
        assert self._made is not None
        self._planner.fetched(*self._made, landed, seconds, failed=failed)

    def computed(self, now: float, tokens: int, seconds: float, position: int) -> None:
        self._planner.computed(tokens, seconds, position)


class AlwaysFetches(Planned):
    """As connectors without a planner do."""

    def asks(self, now: float) -> bool:
        return True

    def _changed(self, made: Plan, work: Work) -> Plan:
        return replace(made, blocks=work.blocks, deadline_s=DEADLINE_S, reason=Reason.FETCH)


class NeverFetches(Planned):
    def _changed(self, made: Plan, work: Work) -> Plan:
        return replace(made, blocks=0, reason=Reason.RECOMPUTE)


class NeverOpens(Planned):
    """Its circuit stays closed."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        circuit = Circuit()
        circuit.fail = lambda now_s, *, is_probe: None  # type: ignore[method-assign]
        self._planner._circuit = circuit


class NeverCloses(Planned):
    """Its circuit stays open until an hour has passed."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self._planner._circuit.succeed = lambda: None  # type: ignore[method-assign]


class WaitsForProbes(Planned):
    """Its probes may take as long as anything."""

    def _changed(self, made: Plan, work: Work) -> Plan:
        return replace(made, blocks=work.blocks, deadline_s=DEADLINE_S) if made.reason is Reason.PROBE else made


def broken_rules(runs: list[Run]) -> set[str]:
    broken = set()
    if max(run.late_s for run in runs) > DEADLINE_S + 1e-6:
        broken.add("a request was later than computing by more than the deadline")
    if max(run.lost_s for run in runs) > DEADLINE_S + 1e-6:
        broken.add("an outage cost more than the deadline")
    if max(run.probe_s for run in runs) > DEADLINE_S / 4:
        broken.add("a probe cost more than a quarter of the deadline")
    if max(run.probes for run in runs) > PROBES_MAX:
        broken.add("the circuit stayed open after three probes of a tier that was well")
    if middle_ratio(runs) > RATIO_MAX:
        broken.add("more than a tenth slower than one who knows the future")
    return broken


# Under half a minute of an idle core; the limit is for a busy one.
@pytest.mark.timeout(1800)
def test_planned_requests_are_never_late_and_nearly_as_fast_as_can_be() -> None:
    runs = [serve(world(seed), Planned) for seed in range(SCENARIOS)]
    assert broken_rules(runs) == set()


@pytest.mark.parametrize(
    ("policy", "rule"),
    [
        (AlwaysFetches, "more than a tenth slower than one who knows the future"),
        (NeverFetches, "more than a tenth slower than one who knows the future"),
        (NeverOpens, "an outage cost more than the deadline"),
        (NeverCloses, "the circuit stayed open after three probes of a tier that was well"),
        (WaitsForProbes, "a probe cost more than a quarter of the deadline"),
    ],
)
def test_a_broken_planner_breaks_a_rule(policy: type[Planned], rule: str) -> None:
    assert rule in broken_rules([serve(world(seed), policy) for seed in range(SCENARIOS_BROKEN)])
