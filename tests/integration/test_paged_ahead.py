"""Requests of an engine that wait behind others: what they will load is in the daemon's memory when their turn comes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from tests.integration.commands import PATIENT
from tests.integration.conftest import Daemon
from tests.integration.test_paged import Asking, Engine, keys, layout_of

import halfstep
from halfstep.connectors import paged

pytestmark = pytest.mark.integration

STORED = 6


class Cold:
    """An engine over a daemon that has prompts on flash, and nothing in its memory."""

    def __init__(self, daemon: Daemon, request: pytest.FixtureRequest) -> None:
        layout = layout_of(request, cells=2)
        with halfstep.connect(daemon.unix_url, required=True, **PATIENT) as writer:
            engine = Engine(writer, layout)
            engine.tier.durability = "persist"
            for name in ("a", "b"):
                engine.compute(name, Asking(keys(STORED, name)), list(range(STORED)), seed=1)
                engine.until_idle()
            engine.close()
        daemon.restart()
        self.client = halfstep.connect(daemon.unix_url, required=True, **PATIENT)
        self.engine = Engine(self.client, layout)

    def hits(self, whence: str) -> int:
        return int(self.client.stat()[f'halfstep_store_hits_total{{from="{whence}"}}'])

    def ahead(self) -> dict[str, int]:
        """How it ended, over all kinds; nothing where nobody was expected."""
        ahead = self.engine.planner._tier.ahead
        kinds = [] if ahead is None else list(ahead.counts().values())
        return {what: sum(getattr(one, what) for one in kinds) for what in ("asked", "used", "late", "unused", "absent")}

    def landed(self) -> int:
        ahead = self.engine.planner._tier.ahead
        return 0 if ahead is None else ahead.landed

    def until(self, true: Callable[[], bool]) -> None:
        """Steps in which nobody is admitted."""
        end_s = time.monotonic() + 60
        while not true():
            assert time.monotonic() < end_s
            self.engine.step({})
            time.sleep(0.01)

    def load(self, name: str, of: str) -> None:
        """Its turn has come."""
        prompt = Asking(keys(STORED, of) + keys(1, "more"))
        assert self.engine.ask(name, prompt) == STORED
        self.engine.admit(name, prompt, list(range(10, 17)), STORED)
        self.engine.step({})
        assert self.engine.until_idle() == (set(), {name}, set())


@pytest.fixture
def cold(own_daemon: Daemon, request: pytest.FixtureRequest) -> Iterator[Cold]:
    made = Cold(own_daemon, request)
    yield made
    made.engine.close()
    made.client.close()


def test_what_a_request_needs_that_waits_behind_others_is_in_memory_before_its_load(cold: Cold) -> None:
    waiting = Asking(keys(STORED, "a") + keys(1, "more"))
    cold.engine.planner.arrived("w", waiting, STORED)
    cold.until(lambda: cold.landed() == 2 * STORED)
    assert (cold.hits("memory"), cold.hits("flash")) == (0, 0), "nobody has read it"
    cold.load("w", "a")
    assert cold.engine.planner.counts.matches == 1, "one a request, ahead of its turn or in it"
    assert (cold.hits("memory"), cold.hits("flash")) == (2 * STORED, 0)
    assert cold.ahead() == {"asked": 2 * STORED, "used": 2 * STORED, "late": 0, "unused": 0, "absent": 0}


def test_a_request_that_was_found_and_has_no_room_is_expected_from_then_on(cold: Cold) -> None:
    prompt = Asking(keys(STORED, "b") + keys(1, "more"))
    assert cold.engine.ask("w", prompt) == STORED
    assert cold.ahead()["asked"] == 0
    cold.until(lambda: cold.landed() == 2 * STORED)
    cold.load("w", "b")
    assert (cold.engine.planner.counts.matches, cold.ahead()["used"]) == (1, 2 * STORED)


def test_a_request_that_is_admitted_at_once_is_read_and_not_expected(cold: Cold) -> None:
    cold.engine.planner.arrived("w", Asking(keys(STORED, "a") + keys(1, "more")), STORED)
    cold.load("w", "a")
    assert cold.engine.planner.counts.matches == 1
    assert cold.engine.planner._tier.ahead is None


def test_a_step_names_few_blocks_and_the_next_one_goes_on(cold: Cold) -> None:
    cold.engine.planner._expected_step = 2
    cold.engine.planner.arrived("w", Asking(keys(STORED, "a") + keys(1, "more")), STORED)
    seen = set[int]()
    cold.until(lambda: seen.add(cold.ahead().get("asked", 0)) or cold.landed() == 2 * STORED)  # type: ignore[func-returns-value]
    assert seen == {0, 4, 8, 12}, "two blocks of two cells in each of three steps"
    cold.load("w", "a")
    assert cold.ahead()["used"] == 2 * STORED


def test_who_leaves_the_queue_is_expected_no_more(cold: Cold) -> None:
    cold.engine.planner.arrived("w", Asking(keys(STORED, "a") + keys(1, "more")), STORED)
    cold.until(lambda: cold.landed() == 2 * STORED)
    assert not cold.engine.planner.finished("w")
    assert cold.ahead()["unused"] == 2 * STORED
    assert not cold.engine.planner._ahead
    assert not cold.engine.planner._asked


def test_few_are_matched_ahead_and_what_is_nowhere_is_not_expected(cold: Cold, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(paged.AHEAD_REQUESTS_MAX + 3):
        cold.engine.planner.arrived(f"{number}", Asking(keys(STORED + 1, "a")), STORED)
    cold.until(lambda: len(cold.engine.planner._ahead) == paged.AHEAD_REQUESTS_MAX)
    cold.until(lambda: cold.landed() == 2 * STORED)
    assert cold.engine.planner.counts.matches == paged.AHEAD_REQUESTS_MAX
    assert cold.ahead()["asked"] == 2 * STORED, "they all want the same"
    for number in range(paged.AHEAD_REQUESTS_MAX):
        cold.engine.planner.finished(f"{number}")
    asked = cold.ahead()["asked"]
    cold.engine.planner.arrived("nowhere", Asking(keys(STORED + 1, "nowhere")), STORED)
    cold.until(lambda: not cold.engine.planner._arrived)
    cold.until(lambda: "nowhere" not in cold.engine.planner._ahead)
    assert cold.ahead()["asked"] >= asked
    assert cold.engine.ask("nowhere", Asking(keys(STORED + 1, "nowhere"))) == 0
    # What was found long ago is asked for anew.
    matches = cold.engine.planner.counts.matches
    cold.engine.planner.arrived("old", Asking(keys(STORED + 1, "b")), STORED)
    cold.until(lambda: "old" in cold.engine.planner._ahead)
    monkeypatch.setattr(paged, "AHEAD_FRESH_S", -1.0)
    assert cold.engine.ask("old", Asking(keys(STORED + 1, "b"))) == STORED
    assert cold.engine.planner.counts.matches == matches + 2


def test_a_dead_daemon_brings_nothing_and_holds_nobody_up(cold: Cold, own_daemon: Daemon) -> None:
    cold.engine.planner.arrived("w", Asking(keys(STORED + 1, "a")), STORED)
    own_daemon.kill()
    cold.engine.step({})
    cold.until(lambda: "w" not in cold.engine.planner._ahead)
    assert cold.engine.ask("w", Asking(keys(STORED + 1, "a"))) == 0
    assert cold.engine.planner.counts.overdue == 0
