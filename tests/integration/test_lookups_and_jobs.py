"""An engine with rows of host memory: questions of a step in one match, transfers without waiting, one warning a failure."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import halfstep
from halfstep.connectors.jobs import Jobs, Transfer
from halfstep.connectors.versions import warn_of_version
from halfstep.tier import BATCH_KEYS, Counts, Lookups, Notices, Values

pytestmark = pytest.mark.integration

ROWS, ROW_BYTES = 16, 8192


@pytest.fixture
def memory() -> Any:
    """An engine's host memory: rows."""
    return np.zeros((ROWS, ROW_BYTES), np.uint8)


class Plan:
    """A tier below an engine's host memory, as vLLM drives one."""

    def __init__(self, values: Values, memory: Any) -> None:
        self.values = values
        self.counts = Counts()
        self.rows = values.rows(memory, ROW_BYTES)
        self.lookups = Lookups(values, self.counts)
        self.jobs = Jobs(values, self.rows, self.counts)
        self.ask, self.forget, self.flush = self.lookups.ask, self.lookups.forget, self.lookups.flush
        self.load, self.store, self.drain, self.close = self.jobs.load, self.jobs.store, self.jobs.drain, self.jobs.close

    @property
    def busy(self) -> bool:
        return self.jobs.busy

    def finished(self) -> list[Transfer]:
        self.lookups.look()
        over = self.jobs.finished()
        for one in over:
            if one.load:
                self.lookups.lost(set(one.keys) - set(one.good))
        return over


@pytest.fixture
def plan(client: halfstep.Client, layout: halfstep.Layout, memory: Any) -> Iterator[Plan]:
    made = Plan(client.values(layout, notices=Notices("tier")), memory)
    yield made
    made.close()
    made.rows.close()


def names(count: int, first: int = 0) -> list[bytes]:
    return [b"chunk %d" % number for number in range(first, first + count)]


def answered(plan: Plan, keys: list[bytes], owner: str = "request") -> list[bool]:
    """As a scheduler does it: ask in every step until all is known."""
    while True:
        known = [plan.ask(key, owner) for key in keys]
        if None not in known:
            return [bool(there) for there in known]
        plan.flush()
        assert plan.finished() == []
        time.sleep(0.001)


def over(plan: Plan) -> list[Transfer]:
    """All that is under way, once it is over."""
    found = []
    while plan.busy:
        found += plan.finished()
        time.sleep(0.001)
    return found


def test_what_was_stored_is_found_and_loaded(plan: Plan, memory: Any) -> None:
    memory[:] = np.arange(ROWS, dtype=np.uint8)[:, None]
    plan.store(7, names(4), np.array([3, 1, 9, 15]))
    (stored,) = over(plan)
    assert (stored.number, stored.whole, stored.bytes) == (7, True, 4 * ROW_BYTES)
    assert answered(plan, names(5)) == [True] * 4 + [False]
    memory[:] = 0
    plan.load(8, names(4), np.array([0, 2, 4, 6]))
    (loaded,) = over(plan)
    assert (loaded.number, loaded.whole) == (8, True)
    assert memory[[0, 2, 4, 6], 0].tolist() == [3, 1, 9, 15]
    assert (memory == memory[:, :1]).all()
    assert "1 matches of 5 keys, 4 there; 4 blocks loaded, 0 not; 4 stored, 0 not" in str(plan.counts)


def test_the_questions_of_a_step_are_one_match(plan: Plan) -> None:
    for owner in ("one", "another"):
        for key in names(100):
            assert plan.ask(key, owner) is None
    plan.flush()
    assert answered(plan, names(100), "one") == [False] * 100
    assert (plan.counts.matches, plan.counts.keys_asked, plan.counts.keys_hit) == (1, 100, 0)
    plan.forget("one")
    assert plan.ask(names(1)[0], "another") is False, "who else asked knows it still"
    plan.forget("another")
    assert plan.ask(names(1)[0], "a third") is None, "a later request asks anew"


def test_a_step_without_anything_in_flight_reaches_no_client(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    answered(plan, names(3))

    def reached(*_: Any, **__: Any) -> None:
        raise AssertionError("the client was asked")

    for call in ("poll", "wait", "match", "submit"):
        monkeypatch.setattr(plan.values.queue, call, reached)
    for _ in range(3):
        plan.flush()
        assert plan.finished() == []
        assert not plan.busy


def test_many_keys_go_in_several_batches_and_come_back_as_one_job(plan: Plan, memory: Any) -> None:
    memory[:] = 5
    count = BATCH_KEYS + 10
    rows = np.arange(count) % ROWS
    plan.store(1, names(count), rows)
    assert [one.whole for one in over(plan)] == [True]
    assert answered(plan, names(count)) == [True] * count
    plan.load(2, names(count), rows)
    (loaded,) = over(plan)
    assert sorted(loaded.good) == sorted(names(count))


def test_what_fails_to_load_is_a_miss_while_somebody_asks(plan: Plan, client: halfstep.Client) -> None:
    plan.store(1, names(2), np.array([0, 1]))
    over(plan)
    assert answered(plan, names(2)) == [True, True]
    assert client.delete(names(1)).ok.all()
    plan.load(2, names(2), np.array([2, 3]))
    (loaded,) = over(plan)
    assert (loaded.whole, loaded.good) == (False, names(1, 1))
    assert [plan.ask(key, "request") for key in names(2)] == [False, True]


def test_a_daemon_that_is_stopped_costs_one_warning_and_the_deadline(
    plan: Plan, client: halfstep.Client, daemon: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "halfstep.connectors")
    match = plan.values.queue.match
    monkeypatch.setattr(plan.values.queue, "match", lambda *keys, **options: match(*keys, **options | {"deadline_ms": 50}))
    daemon.pause()
    for first in (0, 10, 20):
        assert answered(plan, names(3, first)) == [False] * 3
    daemon.resume()
    client.wait_ready(30_000)
    monkeypatch.setattr(plan.values.queue, "match", match)
    plan.forget("request")
    assert answered(plan, names(3)) == [False] * 3
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2, said
    assert said[0].startswith("tier: lookup: late")
    assert said[1].startswith("tier: lookup works again, after 3 failures")


def test_loads_go_before_stores(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests wait for loads, and nobody for a store."""
    asked: dict[str, int] = {}
    for call in ("get", "put"):
        submit = getattr(plan.values.queue, call)

        def noting(*arguments: Any, call: str = call, submit: Any = submit, **options: Any) -> Any:
            asked[call] = options["priority"]
            return submit(*arguments, **options)

        monkeypatch.setattr(plan.values.queue, call, noting)
    plan.store(1, names(1), np.array([0]))
    plan.load(2, names(1), np.array([1]))
    assert len(over(plan)) == 2
    assert asked["get"] < asked["put"]


def test_a_job_without_keys_is_over_at_once(plan: Plan) -> None:
    plan.load(3, [], np.array([], dtype=np.int64))
    (empty,) = plan.finished()
    assert (empty.number, empty.whole, empty.bytes) == (3, True, 0)


def test_closing_ends_what_is_under_way_as_failed(plan: Plan, daemon: Any) -> None:
    daemon.pause()
    plan.store(4, names(2), np.array([0, 1]))
    plan.close()
    (ended,) = plan.finished()
    assert (ended.number, ended.whole, ended.good) == (4, False, [])


def test_draining_waits_for_transfers_and_keeps_their_ends(plan: Plan) -> None:
    plan.store(5, names(2), np.array([0, 1]))
    plan.drain()
    (ended,) = plan.finished()
    assert (ended.number, ended.whole) == (5, True)


def test_draining_a_transfer_of_nothing_waits_for_nobody(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end may have been polled before, and no other one comes."""
    plan.store(6, [], np.array([], np.int64))
    plan.jobs._values.poll()
    monkeypatch.setattr(plan.jobs._values, "wait", lambda: pytest.fail("waits for an end that was told"))
    plan.drain()
    (ended,) = plan.finished()
    assert (ended.number, ended.whole) == (6, True)


def test_what_fails_every_other_time_is_not_a_warning_each(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "halfstep.connectors")
    notices = Notices("tier")
    for _ in range(10):
        notices.note("lookup", "")
        notices.note("load", "late")
        notices.note("load", "")
    assert [record.getMessage() for record in caplog.records] == [
        "tier: load: late; blocks are computed instead until it works again"
    ]
    notices.end()
    notices.note("lookup", "cancelled (closed)")
    assert len(caplog.records) == 1


@pytest.mark.parametrize(("version", "warned"), [("0.33.1", False), ("0.33", False), ("0.3", True), ("0.330.1", True)])
def test_another_version_is_named(caplog: pytest.LogCaptureFixture, version: str, warned: bool) -> None:
    warn_of_version("an engine", version, ("0.32", "0.33"))
    assert [f"an engine {version}" in record.getMessage() for record in caplog.records] == [True] * warned
