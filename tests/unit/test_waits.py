"""Waits of an engine's requests for the tier, on a clock that the test moves."""

from __future__ import annotations

from halfstep.tier import Counts, Waits
from halfstep.tier.waits import GRACE_S


class Clock:
    """Seconds, as the test says."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_a_wait_that_a_look_finds_under_way_after_its_deadline_is_overdue_once() -> None:
    counts, clock = Counts(), Clock()
    waits = Waits(counts, clock)
    wait = waits.begin(50)
    clock.now_s += 0.05 + 0.9 * GRACE_S
    waits.look(wait)
    assert counts.overdue == 0, "a busy machine may take so long to say that it is over"
    clock.now_s += 0.2 * GRACE_S
    waits.look(wait)
    waits.look(wait)
    assert counts.overdue == 1
    clock.now_s += 3
    assert round(waits.end(wait), 6) == round(0.05 + 1.1 * GRACE_S, 6)
    assert counts.overdue == 1
    assert "0.160 s, 1 overdue" in str(counts)


def test_a_step_in_which_nobody_looks_is_not_put_down_to_the_tier() -> None:
    counts, clock = Counts(), Clock()
    waits = Waits(counts, clock)
    wait = waits.begin(50)
    clock.now_s += 0.01
    waits.look(wait)
    clock.now_s += 5
    assert round(waits.end(wait), 6) == 0.01
    assert (counts.overdue, round(counts.held_s_max, 6)) == (0, 0.01)


def test_who_waits_and_does_nothing_else_sees_the_end_as_it_comes() -> None:
    counts, clock = Counts(), Clock()
    waits = Waits(counts, clock)
    for seconds in (0.05, 0.3):
        wait = waits.begin(100)
        clock.now_s += seconds
        waits.end_now(wait)
    assert (counts.overdue, round(counts.held_s_max, 6)) == (1, 0.3)


def test_each_wait_is_counted_for_itself() -> None:
    counts, clock = Counts(), Clock()
    waits = Waits(counts, clock)
    late, patient = waits.begin(10), waits.begin(10_000)
    clock.now_s += 1
    waits.look(late)
    waits.look(patient)
    waits.end(late)
    waits.end(patient)
    assert counts.overdue == 1
