"""The rules of a hostile run, each shown a fault: a rule that cannot fail proves nothing."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable

import pytest
from tests.torture import judging
from tests.torture.attack import LATE_S, Attack, Target
from tests.torture.judging import RULES, Phase, judge

GOOD = {"matches_whole": 970, "matches_late": 30, "puts_ok": 40, "gets_ok": 200}


def phase() -> Phase:
    """One in which all is well, though not perfect."""
    return Phase(
        "any",
        seconds=10,
        good=Counter(GOOD),
        control=Counter(GOOD),
        calm=Counter(GOOD),
        attack=Counter(acts=1000, refused=7, closed_by_daemon=3),
        newcomers=Counter(ok=20),
        operators=Counter(ok=20),
        memory_growth_bytes=judging.MEMORY_GROWTH_BYTES_MAX,
        memory_kept_bytes=judging.MEMORY_KEPT_BYTES_MAX,
        memory_run_bytes=judging.MEMORY_RUN_BYTES_MAX,
    )


def counted(where: str, **counts: int) -> Callable[[Phase], None]:
    return lambda each: getattr(each, where).update(counts)


def changed(**fields: object) -> Callable[[Phase], None]:
    def change(each: Phase) -> None:
        for name, value in fields.items():
            setattr(each, name, value)

    return change


FAULTS = [
    ("alive", changed(alive=False)),
    ("wrong-bytes", counted("good", bytes_wrong=1)),
    ("wrong-bytes", counted("calm", bytes_wrong=1)),
    ("pinned-lost", counted("good", matches_partial=1)),
    ("pinned-lost", counted("good", gets_missed=1)),
    ("pinned-lost", counted("calm", gets_missed=1)),
    ("put-refused", counted("good", puts_refused=1)),
    ("put-refused", counted("good", puts_late=1)),
    ("put-refused", counted("calm", puts_refused=1)),
    ("get-late", counted("good", gets_late=1)),
    ("memory", changed(memory_growth_bytes=judging.MEMORY_GROWTH_BYTES_MAX + 1)),
    ("memory-kept", changed(memory_kept_bytes=judging.MEMORY_KEPT_BYTES_MAX + 1)),
    ("memory-run", changed(memory_run_bytes=judging.MEMORY_RUN_BYTES_MAX + 1)),
    ("newcomer", counted("newcomers", TimeoutError=1)),
    ("newcomer", changed(newcomers=Counter())),
    ("operator", counted("operators", Closed=1)),
    ("operator", changed(operators=Counter())),
    ("page", counted("attack", server_faults=1)),
    ("shown", changed(attack=Counter(refused=1000))),
    ("shown", changed(good=Counter(GOOD | {"gets_ok": 0}))),
    ("shown", changed(good=Counter(GOOD | {"puts_ok": 0}))),
    ("match-deadline", counted("good", matches_late=200)),
    ("match-deadline", changed(good=Counter(GOOD | {"matches_whole": 20, "matches_late": 0}))),
    ("match-deadline", changed(control=Counter())),
]


def broken(each: Phase, *, timed: bool = True) -> list[str]:
    return [breach.rule.name for breach in judge([each], timed=timed)]


def test_a_phase_in_which_all_is_well_breaks_no_rule() -> None:
    assert broken(phase()) == []


@pytest.mark.parametrize(("name", "fault"), FAULTS)
def test_a_fault_breaks_its_rule_alone(name: str, fault: Callable[[Phase], None]) -> None:
    faulty = phase()
    fault(faulty)
    assert broken(faulty) == [name]
    assert all(breach.seen for breach in judge([faulty], timed=True))


def test_every_rule_was_shown_a_fault() -> None:
    assert {rule.name for rule in RULES} == {name for name, _ in FAULTS}
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_rules_of_time_are_left_out_where_time_says_nothing() -> None:
    slow = phase()
    slow.good = Counter(GOOD | {"matches_late": 5000})
    assert broken(slow) == ["match-deadline"]
    assert broken(slow, timed=False) == []


def test_a_share_is_judged_against_the_same_machine_under_the_same_load() -> None:
    slow = phase()
    slow.good = Counter(GOOD | {"matches_late": 970})
    slow.control = Counter(GOOD | {"matches_late": 950})
    assert broken(slow) == []
    slow.control = Counter(GOOD | {"matches_late": 800})
    assert broken(slow) == ["match-deadline"]


def test_breaches_name_the_scenario_that_they_were_seen_in() -> None:
    first, second = phase(), phase()
    second.scenario, second.alive = "second", False
    assert [breach.scenario for breach in judge([first, second], timed=True)] == ["second"]


def test_an_attacker_whose_time_is_over_before_it_began_still_does_something() -> None:
    target = Target(("127.0.0.1", 1), "", "any", 0)
    late = Attack(target, random.Random(1), time.monotonic() - LATE_S / 2, Counter())
    assert late.going()
    late.tally["acts"] += 1
    assert not late.going()
    assert not Attack(target, random.Random(1), time.monotonic() - LATE_S, Counter()).going(), "a daemon that answers nothing"
