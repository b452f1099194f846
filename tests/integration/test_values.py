"""Opaque values: rows of an engine's memory, pieces of pages, buffers of objects, by the engine's own keys."""

from __future__ import annotations

import logging
import select
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.integration.conftest import Daemon

import halfstep
from halfstep import ConfigError
from halfstep.client.numbers import REASON_PENDING
from halfstep.client.results import new_answers
from halfstep.layout import BLOCK_BYTES_MAX, Group, Layout
from halfstep.tier import BATCH_KEYS, Answer, Notices, Stride, Values, connect

pytestmark = pytest.mark.integration

ROWS, ROW_BYTES = 16, 600_000  # of three parts, the last one shorter


def names(count: int, first: int = 0) -> list[bytes]:
    return [b"value %d" % number for number in range(first, first + count)]


def filled(rows: int, row_bytes: int, seed: int = 1) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (rows, row_bytes), np.uint8)


@pytest.fixture
def values(client: halfstep.Client, layout: Layout) -> Iterator[Values]:
    with client.values(layout) as made:
        yield made


@pytest.fixture
def tickets(values: Values, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """All that is submitted through `values` of gets and puts."""
    seen: list[Any] = []

    def noting(submit: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            seen.append(submit(*arguments, **options))
            return seen[-1]

        return call

    for what in ("get", "put"):
        monkeypatch.setattr(values.queue, what, noting(getattr(values.queue, what)))
    return seen


def test_rows_come_back_into_other_rows(values: Values) -> None:
    saved, into = filled(4, ROW_BYTES), np.zeros((ROWS, ROW_BYTES), np.uint8)
    with values.rows(saved, ROW_BYTES) as source, values.rows(into, ROW_BYTES) as target:
        put = values.put(names(4), source)
        assert (put.ok.all(), put.bytes, put.why, put.reason) == (True, saved.nbytes, Answer.OK, "")
        found = values.match([*names(2), b"another", *names(2, 2)])
        assert (found.there.tolist(), found.prefix, found.reason) == ([True, True, False, True, True], 2, "")
        got = values.get(names(5), target, rows=[9, 1, 15, 4, 0])
        assert (got.ok.tolist(), got.bytes) == ([True] * 4 + [False], saved.nbytes)
        assert (got.why, got.reason) == (Answer.OK, ""), "what is absent is no failure"
    assert (into[[9, 1, 15, 4]] == saved).all()
    assert not into[[0, 2, 3]].any()


def test_pieces_of_a_row_may_lie_anywhere(client: halfstep.Client, request: pytest.FixtureRequest) -> None:
    """K and V of a page in tensors of their own, of different widths."""
    layout = Layout({"name": request.node.name}, [Group(2, (4096, 1024))])
    keys, more = filled(8, 4096), filled(8, 1024, seed=2)
    with client.values(layout) as values:
        pieces = [Stride(keys.ctypes.data, 4096, 4096), Stride(more.ctypes.data, 1024, 1024)]
        with values.memory([more, keys], pieces) as memory:
            assert memory.row_bytes == 5120
            assert values.put(names(3), memory, rows=[5, 6, 7]).ok.all()
            assert values.get(names(3), memory, rows=[0, 2, 1]).ok.all()
        assert (keys[[0, 2, 1]] == keys[5:]).all()
        assert (more[[0, 2, 1]] == more[5:]).all()
        with pytest.raises(ConfigError, match="lies in none of the buffers"):
            values.memory([more], pieces)
        with pytest.raises(ConfigError, match=r"2 parts of \(4096, 1024\) bytes|2 parts of"):
            values.rows(keys, 4096)


def test_a_value_of_another_length_is_no_success(values: Values) -> None:
    before = [filled(1, 100_000)[0], filled(1, 300_000)[0]]
    assert values.put(names(2), before).ok.all()
    short, long, whole = bytearray(50_000), bytearray(300_001), bytearray(300_000)
    got = values.get([names(1)[0], names(1, 1)[0], names(1, 1)[0]], [short, long, whole])
    assert (got.ok.tolist(), got.bytes, got.why) == ([False, False, True], 300_000, Answer.OK)
    assert bytes(whole) == before[1].tobytes()


def test_many_keys_are_one_call_in_several_batches(values: Values) -> None:
    count = BATCH_KEYS + 10
    memory = filled(ROWS, 512)
    with values.rows(memory, 512) as rows:
        places = np.arange(count) % ROWS
        assert values.put(names(count), rows, rows=places).ok.sum() == count
        asked = values.begin_match(names(count + 1))
        while not asked.done:
            values.wait(30)
        assert asked.result().prefix == count
        gone = values.delete([names(1)[0], b"never there"])
        assert gone.ok.all(), "gone is gone, whoever dropped it"
        got = values.get(names(count), rows, rows=places)
        assert np.flatnonzero(~got.ok).tolist() == [0]
        assert got.bytes == (count - 1) * 512


def test_a_refused_batch_leaves_none_of_its_call_under_way(values: Values, daemon: Daemon, tickets: list[Any]) -> None:
    count = BATCH_KEYS + 1
    with values.rows(bytearray(ROWS * 64), 64) as rows:
        daemon.pause()
        for begin in (values.begin_get, values.begin_put):
            with pytest.raises(ConfigError, match="row"):
                begin(names(count), rows, rows=[*[0] * BATCH_KEYS, ROWS])
            assert [ticket.done for ticket in tickets] == [True]
            tickets.clear()


def test_of_several_batches_nothing_after_a_miss_is_ok(values: Values) -> None:
    count = 2 * BATCH_KEYS + 1
    with values.rows(bytearray(64), 64) as rows:
        places = [0] * count
        assert values.put(names(count), rows, rows=places).ok.all()
        assert values.get(names(count), rows, rows=places, stop_at_miss=True).ok.all()
        assert values.delete(names(1, BATCH_KEYS + 3)).ok.all()
        got = values.get(names(count), rows, rows=places, stop_at_miss=True)
        assert np.flatnonzero(got.ok).tolist() == list(range(BATCH_KEYS + 3))
        assert (got.bytes, got.why, got.reason) == ((BATCH_KEYS + 3) * 64, Answer.OK, "")
        assert values.get(names(count), rows, rows=places).ok.sum() == count - 1


@pytest.mark.parametrize("what", ["get", "put"])
def test_an_interruption_leaves_once_no_byte_can_land(
    what: str, values: Values, daemon: Daemon, tickets: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Ctrl-C does it in the wait, and once more in the wait for the end."""
    waited: list[Any] = []
    wait_for = values.queue.wait_for

    def interrupted(ticket: Any, timeout_s: float | None = None) -> bool:
        waited.append(ticket)
        if len(waited) <= 2:
            raise KeyboardInterrupt
        return wait_for(ticket, timeout_s)

    monkeypatch.setattr(values.queue, "wait_for", interrupted)
    daemon.pause()
    with values.rows(bytearray(64), 64) as rows:
        with pytest.raises(KeyboardInterrupt):
            getattr(values, what)(names(BATCH_KEYS + 1), rows, rows=[0] * (BATCH_KEYS + 1))
        monkeypatch.undo()
        assert [ticket.done for ticket in tickets] == [True, True]


def test_nothing_to_move_is_over_at_once(values: Values) -> None:
    with values.rows(np.zeros((1, 512), np.uint8), 512) as rows:
        for empty in (values.begin_match([]), values.begin_get([], rows), values.begin_put([], rows), values.begin_delete([])):
            assert empty.done
        assert values.get([], rows).bytes == 0
        assert values.match([]).prefix == 0
    assert select.select([values.fileno()], [], [], 30)[0], "whoever waits for the descriptor never hears of it"


def test_threads_call_at_once_and_each_hears_of_its_own(values: Values) -> None:
    told: dict[int, list[bool]] = {}

    def work(thread: int) -> None:
        buffer = filled(1, 5000, seed=thread)[0]
        for at in range(10):
            key = b"%d of %d" % (at, thread)
            stored = values.put([key], [buffer])
            into = bytearray(5000)
            loaded = values.get([key], [into])
            told.setdefault(thread, []).extend([bool(stored.ok[0]), bool(loaded.ok[0]), bytes(into) == buffer.tobytes()])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told == {number: [True] * 30 for number in range(4)}


@pytest.mark.parametrize("durability", ["cache", "persist"])
def test_what_somebody_else_is_just_writing_is_there_for_a_cache(
    client: halfstep.Client, layout: Layout, monkeypatch: pytest.MonkeyPatch, durability: Any
) -> None:
    with client.values(layout, durability=durability) as values:
        put = values.queue.put

        class Raced:
            """A ticket whose second value another client had begun to write."""

            def __init__(self, ticket: Any) -> None:
                self._ticket = ticket

            def __getattr__(self, name: str) -> Any:
                return getattr(self._ticket, name)

            def result(self, *arguments: Any) -> Any:
                result = self._ticket.result(*arguments)
                answers = new_answers(3, Answer.OK)
                answers[1] = Answer.THROTTLED, 0, REASON_PENDING
                assert result.ok.all()
                return halfstep.PutResult(answers, result.keys, result.components)

        monkeypatch.setattr(values.queue, "put", lambda *arguments, **options: Raced(put(*arguments, **options)))
        moved = values.put(names(3), [bytes(10)] * 3)
    assert moved.ok.tolist() == [True, durability == "cache", True]
    assert moved.reason == ""


def test_a_row_that_is_larger_than_a_block_is_refused_when_it_is_named(values: Values) -> None:
    with pytest.raises(ConfigError, match=f"row_bytes={BLOCK_BYTES_MAX + 1}: a row is a block, and a block has at most"):
        values.rows(bytearray(10), BLOCK_BYTES_MAX + 1)


def test_clearing_drops_the_values_of_one_layout(client: halfstep.Client, values: Values, request: Any) -> None:
    other = client.values(Layout.opaque(request.node.name, other=1))
    for store in (values, other):
        assert store.put(names(2), [bytes(10), bytes(10)]).ok.all()
    values.clear()
    assert (values.match(names(2)).prefix, other.match(names(2)).prefix) == (0, 2)
    other.close()


def test_a_dead_daemon_is_an_answer_and_one_warning(caplog: pytest.LogCaptureFixture, nobody: str) -> None:
    caplog.set_level(logging.INFO, "halfstep.connectors")
    connection = connect(nobody, deadline_ms=200, match_deadline_ms=50)
    with connection.values(Layout.opaque("a"), notices=Notices("an engine")) as values:
        found, moved = values.match(names(2)), values.get(names(1), [bytearray(10)])
        assert (found.prefix, moved.ok.tolist()) == (0, [False])
        assert {found.why, moved.why} <= {Answer.LATE, Answer.UNAVAILABLE}
        assert found.reason
        assert moved.reason
        assert not values.put(names(1), [bytes(10)]).ok.any()
    connection.close()
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["an engine"]


def test_a_call_of_nothing_does_not_say_that_it_works_again(caplog: pytest.LogCaptureFixture, nobody: str) -> None:
    caplog.set_level(logging.INFO, "halfstep.connectors")
    connection = connect(nobody, deadline_ms=50, match_deadline_ms=50)
    with connection.values(Layout.opaque("a"), notices=Notices("an engine")) as values:
        values.get(names(1), [bytearray(10)])
        values.match(names(1))
        values.get([], [])
        values.match([])
        values.get(names(1), [bytearray(10)])
    connection.close()
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_closing_one_does_not_silence_others_with_the_same_notices(caplog: pytest.LogCaptureFixture, nobody: str) -> None:
    caplog.set_level(logging.INFO, "halfstep.connectors")
    notices = Notices("an engine")
    connection = connect(nobody, deadline_ms=50, match_deadline_ms=60_000)
    one, other = (connection.values(Layout.opaque(name), notices=notices) for name in "ab")
    asked = one.begin_match(names(1))
    one.close()
    assert asked.result().reason
    assert caplog.records == [], "what is called off is no failure"
    other.get(names(1), [bytearray(10)])
    other.close()
    connection.close()
    assert [record.getMessage().split(":")[:2] for record in caplog.records] == [["an engine", " load"]]


def test_a_daemon_that_is_off_or_in_shadow_has_nothing(daemon: Daemon, request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout.opaque(request.node.name)
    for mode in ("off", "shadow", "on"):
        monkeypatch.setenv("HALFSTEP_MODE", mode)
        connection = connect(daemon.url, deadline_ms=30_000, match_deadline_ms=30_000)
        assert connection.mode == mode
        with connection.values(layout) as values:
            stored = values.put(names(1), [bytes(100)]).ok.tolist()
            found, loaded = values.match(names(1)).prefix, values.get(names(1), [bytearray(100)]).ok.tolist()
        connection.close()
        assert (stored, found, loaded) == {
            "off": ([False], 0, [False]),
            "shadow": ([True], 0, [False]),
            "on": ([True], 1, [True]),
        }[mode]


def test_wrong_arguments_are_refused_by_name(client: halfstep.Client, values: Values) -> None:
    for call, said in (
        (lambda: client.values(None), "must be a halfstep.Layout"),  # type: ignore[arg-type]
        (lambda: client.values(Layout({}, [Group(0, (1,)), Group(0, (1,))])), "has 2 groups"),
        (lambda: client.values(values.layout, notices="x"), "must be a halfstep.tier.Notices"),  # type: ignore[typeddict-item]
        (lambda: client.values(values.layout, durability="x"), "durability"),  # type: ignore[typeddict-item]
        (lambda: values.rows(bytearray(10), 0), "row_bytes=0"),
        (lambda: values.get(names(2), [bytearray(10)]), "a list of 2 buffers"),
        (lambda: values.put(names(1), b"x"), "a list of 1 buffers"),
        (lambda: values.put(names(1), [3]), "pass numpy arrays or memoryviews"),
        (lambda: values.put(names(1), [bytes(1)], rows=[0]), "of a RowMemory alone"),
        (lambda: values.put(names(1), [bytes(1)], priority=256), "priority"),
        (lambda: values.get(names(1), values.rows(bytearray(64), 64), rows=[0, 1]), "1 whole numbers"),
        (lambda: values.get(names(1), values.rows(bytearray(64), 64), rows=[1]), "row"),
    ):
        with pytest.raises(ConfigError, match=said):
            call()
