"""Engines with paged memory: what is planned beside a scheduler, moved in a worker, and said between the two."""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pytest
from tests.integration.conftest import Daemon

import halfstep
from halfstep.connectors import paged
from halfstep.connectors.mover import Mover
from halfstep.connectors.paged import Planner
from halfstep.connectors.steps import Computed, Done, Landed, Step
from halfstep.tier import MEASURED_TOKENS_MIN, Answer, Grid, Kind, KVLayout, Notices

pytestmark = pytest.mark.integration

TOKENS, LAYERS, HEADS, VALUES, BLOCKS = 16, 4, 2, 8, 24


@dataclass
class Asking:
    """A request of an engine."""

    block_hashes: list[bytes]
    num_computed_tokens: int = 0


@dataclass
class Engine:
    """One process's planner and mover, with memory of BLOCKS blocks, driven as vLLM drives them."""

    client: halfstep.Client
    layout: KVLayout
    memory: Any = field(default_factory=lambda: np.zeros((LAYERS, BLOCKS, HEADS, TOKENS, VALUES), np.uint16))
    reading_max: int = BLOCKS
    hold_ms: int = 0
    plan: Literal["auto", "always"] = "always"
    stores: bool = True

    def __post_init__(self) -> None:
        scheduling = self.client.tier(self.layout, notices=Notices("engine"), plan=self.plan)
        self.tier = self.client.tier(self.layout)
        self.planner = Planner(
            scheduling, workers=1, hashes=1, reading_max=self.reading_max, hold_ms=self.hold_ms, stores=self.stores
        )
        self.mover = Mover(self.tier, writes=True, tells=self.plan == "auto")
        each = LAYERS // self.layout.grid.layers
        cells = [range(at, at + each) for at in range(0, LAYERS, each)]
        self.mover.attach(self.tier.memory([[layer] for layer in self.memory]), cells)
        self.blocks: dict[str, list[int]] = {}

    def ask(self, name: str, request: Asking, first: int = 0, *, turn: int = 0) -> int:
        """As a scheduler does it: again in each step until it is known."""
        while (found := self.planner.ask(name, turn, request, first, len(request.block_hashes) - 1)) is None:
            time.sleep(0.001)
        return found

    def admit(self, name: str, request: Asking, blocks: list[int], count: int) -> None:
        self.blocks[name] = blocks
        self.planner.admit(name, request, blocks, count)

    def step(self, scheduled: dict[str, int], preempted: tuple[str, ...] = ()) -> Step:
        """Plans, and begins in the worker."""
        step: Step = pickle.loads(pickle.dumps(self.planner.step(scheduled, preempted, self.blocks.__getitem__)))
        self.mover.fence(step.preempted)
        self.mover.begin(step)
        self.mover.load()
        self.mover.store()
        return step

    def until_idle(self) -> tuple[set[str], set[str], set[int]]:
        """What is said until nothing moves: free, loaded, bad."""
        free, loaded, bad = set[str](), set[str](), set[int]()
        while not self.mover.idle:
            ended = self.mover.finished()
            free, loaded, bad = free | ended[0], loaded | ended[1], bad | self.mover.bad()
            if (done := self.mover.done()) is not None:
                self.planner.ended(pickle.loads(pickle.dumps(done)))
            time.sleep(0.001)
        return free, loaded, bad

    def compute(self, name: str, request: Asking, blocks: list[int], seed: int) -> None:
        """All of a prompt in one step, stored."""
        self.memory[:, blocks] = np.random.default_rng(seed).integers(0, 1 << 16, self.memory[:, blocks].shape, np.uint16)
        self.admit(name, request, blocks, 0)
        self.step({name: len(blocks) * TOKENS})
        request.num_computed_tokens = len(blocks) * TOKENS

    def close(self) -> None:
        self.mover.close()


def keys(count: int, of: str = "prompt") -> list[bytes]:
    return [f"{of} {number}".encode() for number in range(count)]


def layout_of(request: pytest.FixtureRequest, cells: int = 1) -> KVLayout:
    kind = Kind("full", tuple(range(LAYERS)), HEADS, (2 * VALUES,))
    return KVLayout(request.node.name, "1", "bfloat16", TOKENS, (kind,), Grid(layers=cells))


@pytest.fixture(params=[1, 4])
def layout_cells(request: pytest.FixtureRequest) -> KVLayout:
    return layout_of(request, request.param)


@pytest.fixture
def engines(client: halfstep.Client) -> Iterator[Any]:
    made: list[Engine] = []

    def make(layout: KVLayout, **options: Any) -> Engine:
        made.append(Engine(client, layout, **options))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


def test_blocks_that_several_requests_fill_in_a_step_are_stored_in_one_call(
    engines: Any, layout_cells: KVLayout, client: halfstep.Client
) -> None:
    """Of each cell. Two of the requests are the same; one begins after a block that is stored already."""
    name = 'halfstep_requests_total{command="put"}'
    cold, warm = engines(layout_cells), engines(layout_cells)
    longer = Asking(keys(3, "longer"))
    cold.compute("shorter", Asking(longer.block_hashes[:1]), [0], seed=1)
    cold.until_idle()
    asked = {"a": (Asking(keys(3)), [3, 1, 4]), "twin": (Asking(keys(3)), [5, 9, 2]), "longer": (longer, [0, 6, 7])}
    longer.num_computed_tokens = TOKENS
    cold.memory[:] = np.random.default_rng(2).integers(0, 1 << 16, cold.memory.shape, np.uint16)
    cold.memory[:, [5, 9, 2]] = cold.memory[:, [3, 1, 4]]
    for one, (request, blocks) in asked.items():
        cold.admit(one, request, blocks, 0)
    before = client.stat()[name]
    step = cold.step({one: 3 * TOKENS - request.num_computed_tokens for one, (request, _) in asked.items()})
    cold.until_idle()
    assert [(store.first, len(store.keys)) for store in step.stores] == [(0, 3), (0, 3), (1, 2)]
    assert client.stat()[name] - before == layout_cells.grid.layers
    assert (cold.planner.counts.stores, cold.planner.counts.stores_failed) == (9, 0)

    for one, first in (("a", 0), ("longer", 1)):
        prompt, blocks = asked[one]
        again = Asking(prompt.block_hashes + keys(1, "other"))
        assert warm.ask(one, again) == 3
        warm.admit(one, again, [11, 12, 13, 14], 3)
        warm.step({})
        assert warm.until_idle() == (set(), {one}, set())
        assert (warm.memory[:, [11, 12, 13][first:]] == cold.memory[:, blocks[first:]]).all()


def test_what_one_engine_computed_another_loads_into_blocks_of_its_own(engines: Any, layout_cells: KVLayout) -> None:
    cold, warm = engines(layout_cells), engines(layout_cells)
    prompt = Asking(keys(5))
    assert cold.ask("a", prompt) == 0
    cold.compute("a", prompt, [3, 1, 4, 20, 5], seed=1)
    cold.until_idle()
    assert (cold.planner.counts.stores, cold.mover.counts.stores) == (5, 5)
    assert not cold.planner.finished("a"), "nothing reads its blocks any more"

    again = Asking(keys(5) + keys(1, "other"))
    assert warm.ask("b", again) == 5
    blocks = [9, 2, 6, 7, 11, 12]
    warm.admit("b", again, blocks, 5)
    assert [load.blocks for load in warm.step({}).loads] == [blocks[:5]]
    assert warm.until_idle() == (set(), {"b"}, set())
    assert (warm.memory[:, blocks[:5]] == cold.memory[:, [3, 1, 4, 20, 5]]).all()
    assert not warm.memory[:, [0, 1, 3, 12]].any()

    warm.admit("b", again, blocks, 0)
    again.num_computed_tokens = 5 * TOKENS
    (store,) = warm.step({"b": TOKENS}).stores
    assert (store.first, store.keys, store.blocks) == (5, again.block_hashes[5:], [12]), "what was loaded is not stored again"
    warm.until_idle()
    assert cold.ask("c", again) == 5, "the last token is always computed"


def test_only_what_is_not_in_the_engine_is_asked_for(engines: Any, request: pytest.FixtureRequest) -> None:
    engine = engines(layout_of(request))
    prompt = Asking(keys(4))
    engine.compute("a", prompt, [0, 1, 2, 3], seed=2)
    engine.until_idle()
    assert engine.ask("b", prompt, 1) == 2
    assert engine.ask("b", prompt, 2) == 1, "meanwhile another request has computed a block"
    assert engine.planner.counts.matches == 1
    assert engine.ask("c", prompt, 3) == 0
    assert engine.planner.counts.matches == 1, "nothing is missing"


def test_blocks_that_a_store_reads_are_kept_until_it_is_over(
    engines: Any, request: pytest.FixtureRequest, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paged, "FENCE_S", 60)
    engine = engines(layout_of(request))
    prompt = Asking(keys(3))
    assert engine.ask("a", prompt) == 0
    daemon.pause()
    engine.compute("a", prompt, [0, 1, 2], seed=3)
    assert engine.planner.finished("a")
    assert engine.planner.keeps_blocks
    monkeypatch.setattr(paged, "FENCE_S", 0)
    assert not engine.planner.keeps_blocks, "that takes long: the engine preempts a request rather than wait"
    assert engine.step({}).delayed == ["a"]
    assert engine.mover.finished() == (set(), set())
    daemon.resume()
    assert engine.until_idle() == ({"a"}, set(), set())
    engine.planner.freed({"a"})
    assert not engine.planner._kept
    assert not engine.planner.finished("a"), "it is over"


def test_a_block_that_is_lost_is_computed_and_not_asked_for_again_before_a_preemption(
    client: halfstep.Client, engines: Any, request: pytest.FixtureRequest
) -> None:
    layout = layout_of(request)
    engine = engines(layout)
    prompt = Asking(keys(4))
    engine.compute("a", prompt, [0, 1, 2, 3], seed=4)
    engine.until_idle()
    again = Asking(keys(4))
    assert engine.ask("b", again) == 3
    client.delete([prompt.block_hashes[1]], layout=layout.layout)
    engine.admit("b", again, [10, 11, 12, 13], 3)
    engine.step({})
    assert engine.until_idle() == (set(), {"b"}, {11, 12})
    assert engine.ask("b", again) == 0
    assert not engine.planner.finished("nobody")
    # One block is good: the engine goes on from there, and stores what it computes.
    again.num_computed_tokens = TOKENS
    engine.admit("b", again, [10, 11, 12, 13], 0)
    (store,) = engine.step({"b": 3 * TOKENS}).stores
    assert (store.first, store.blocks) == (1, [11, 12, 13])
    engine.until_idle()
    assert engine.ask("b", again, turn=1) == 3


def test_a_request_that_ends_while_it_loads_keeps_its_blocks_until_the_load_is_over(
    engines: Any, request: pytest.FixtureRequest, daemon: Daemon
) -> None:
    engine = engines(layout_of(request))
    prompt = Asking(keys(4))
    engine.compute("a", prompt, [0, 1, 2, 3], seed=10)
    engine.until_idle()
    again = Asking(keys(4))
    assert engine.ask("b", again) == 3
    daemon.pause()
    engine.admit("b", again, [10, 11, 12, 13], 3)
    engine.step({})
    assert not engine.planner.finished("b"), "the engine frees them once the load is over, and would free them twice"
    assert engine.mover.finished() == (set(), set())
    daemon.resume()
    assert engine.until_idle() == (set(), {"b"}, set())


def test_the_load_of_a_request_that_ends_before_it_ran_is_called_off(
    engines: Any, request: pytest.FixtureRequest, daemon: Daemon, caplog: pytest.LogCaptureFixture
) -> None:
    engine = engines(layout_of(request))
    engine.compute("a", Asking(keys(4)), [0, 1, 2, 3], seed=14)
    engine.until_idle()
    again = Asking(keys(4))
    assert engine.ask("b", again) == 3
    daemon.pause()
    engine.admit("b", again, [10, 11, 12, 13], 3)
    engine.step({})
    assert engine.mover.finished() == (set(), set())
    assert not engine.planner.finished("b")
    assert engine.step({}).unwanted == ["b"]
    # The daemon says nothing: it is over all the same, and no failure.
    assert engine.until_idle() == (set(), {"b"}, set())
    assert (engine.mover.counts.loads, engine.mover.counts.loads_failed) == (0, 0)
    assert engine.step({}).unwanted == []
    daemon.resume()
    assert not [record for record in caplog.records if "blocks are computed instead" in record.getMessage()]
    assert engine.ask("c", Asking(keys(4))) == 3


def test_preempted_blocks_are_read_by_nobody(engines: Any, request: pytest.FixtureRequest, daemon: Daemon) -> None:
    engine = engines(layout_of(request))
    prompt = Asking(keys(3))
    assert engine.ask("a", prompt) == 0
    daemon.pause()
    engine.compute("a", prompt, [0, 1, 2], seed=5)
    began = time.monotonic()
    engine.step({}, preempted=("a",))
    assert time.monotonic() - began < 10, "called off, long before its deadline"
    assert all(pending.done for one in engine.mover._storing.values() for pending in one.pending)
    daemon.resume()
    engine.until_idle()
    assert not engine.planner.finished("a"), "its blocks are others' by now"


def test_a_step_with_nothing_to_move_reaches_no_client(engines: Any, request: pytest.FixtureRequest) -> None:
    engine = engines(layout_of(request))
    prompt = Asking(keys(2))
    assert engine.ask("a", prompt) == 0
    engine.compute("a", prompt, [0, 1], seed=6)
    engine.until_idle()
    prompt.num_computed_tokens = 2 * TOKENS

    class Unreachable:
        layout = engine.tier.layout

        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"{name}: decoding asked for it")

    engine.planner._tier = engine.mover._tier = Unreachable()
    for _ in range(TOKENS - 1):
        assert engine.step({"a": 1}) == Step()
        assert engine.mover.idle
        assert engine.mover.done() is None
        prompt.num_computed_tokens += 1
    engine.mover._tier = engine.tier


def test_what_was_refused_is_stored_when_it_is_used_again(
    own_daemon: Daemon, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "halfstep.connectors")
    with halfstep.connect(own_daemon.unix_url, required=True, deadline_ms=30_000, match_deadline_ms=30_000) as client:
        engine = Engine(client, layout_of(request))
        own_daemon.kill()
        prompt = Asking(keys(4))
        assert engine.ask("a", prompt) == 0
        engine.compute("a", prompt, [0, 1, 2, 3], seed=7)
        engine.until_idle()
        assert (engine.planner.counts.stores_failed, engine.mover.counts.stores_failed) == (4, 4)
        assert not engine.planner.finished("a")
        own_daemon.start()
        client.wait_ready(30_000)
        # vLLM has the blocks still: nothing is asked for, and nothing loaded.
        later = Asking(keys(4), num_computed_tokens=3 * TOKENS)
        assert engine.ask("b", later, 3) == 0
        engine.admit("b", later, [0, 1, 2, 9], 0)
        (store,) = engine.step({"b": TOKENS}).stores
        assert (store.first, store.blocks) == (0, [0, 1, 2, 9])
        engine.until_idle()
        assert engine.ask("c", later) == 3
        again = Asking(keys(4), num_computed_tokens=3 * TOKENS)
        engine.admit("d", again, [0, 1, 2, 9], 0)
        assert [store.first for store in engine.step({"d": TOKENS}).stores] == [3]
        engine.until_idle()
        engine.close()
    told = [record.message for record in caplog.records if "blocks are computed instead" in record.message]
    assert len(told) == 1, "neither half repeats the other"


def test_a_slow_daemon_keeps_few_blocks(engines: Any, request: pytest.FixtureRequest, daemon: Daemon) -> None:
    engine = engines(layout_of(request), reading_max=4)
    daemon.pause()
    for number in range(3):
        engine.compute(f"{number}", Asking(keys(3, f"{number}")), [3 * number, 3 * number + 1, 3 * number + 2], seed=number)
    assert len(engine.planner._open) == 2, "three blocks of one request, one of the next"
    assert not engine.planner.finished("2"), "it has nothing under way"
    daemon.resume()
    engine.until_idle()
    assert (engine.planner.counts.stores, engine.planner.counts.stores_failed) == (4, 3)
    assert [store.blocks for store in engine.step({"0": 1, "1": 1}).stores] == [[4, 5]]
    engine.until_idle()
    assert engine.planner.counts.stores == 6


def test_a_load_may_take_as_long_as_the_engine_would_compute(
    engines: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long prompt is worth a longer wait; what its tokens cost is seen in steps of prefills, however many decode."""
    engine = engines(layout_of(request))
    now_s = 0.0
    engine.mover._clock = lambda: now_s
    said: list[tuple[int, float]] = []
    monkeypatch.setattr(engine.tier, "computed", lambda tokens, seconds: said.append((tokens, seconds)))
    decoding = {str(request): 1 for request in range(200)}
    least = paged.MEASURED_TOKENS_EACH * 201 - 200
    for scheduled, took_s in (
        ({"a": 2048}, 8.0),
        (decoding, 1.0),
        (decoding | {"a": least - 1}, 1.0),
        (decoding | {"a": least}, 3.0),
    ):
        engine.step(scheduled)
        now_s += took_s
        engine.mover.end()
    assert said == [(2048, 8.0), (least + 200, 3.0)]


def test_what_workers_say_is_added_up() -> None:
    one, other = (
        Done({1: 1, 2: 1}, {2}, {"load": "", "store": "full"}),
        Done({1: 1, 3: 1}, set(), {"load": "late", "store": ""}),
    )
    one.add(other)
    assert one == Done({1: 2, 2: 1, 3: 1}, {2}, {"load": "late", "store": "full"})


def test_a_store_is_over_when_each_worker_has_said_so(engines: Any, request: pytest.FixtureRequest) -> None:
    engine = engines(layout_of(request))
    engine.planner._workers = 2
    engine.compute("a", Asking(keys(2)), [0, 1], seed=9)
    engine.until_idle()
    assert engine.planner.finished("a"), "one of two workers has stored"
    engine.planner.ended(Done({1: 1}, {1}))
    assert (engine.planner.counts.stores, engine.planner.counts.stores_failed) == (0, 2), "half of the heads are no block"


def tell(engine: Engine, token_s: float) -> None:
    """What a token costs the engine: a worker has said so often enough; the first one is passed over."""
    for _ in range(4):
        engine.planner.ended(Done(computed=Computed(1000, 1000 * token_s, 0)))


def planned(engine: Engine) -> dict[str, int]:
    """Decisions by reason; each time those since the last one."""
    assert engine.planner._tier.planning is not None
    counts = engine.planner._tier.planning.planner.counts()
    before = engine.__dict__.setdefault("told", {})
    engine.__dict__["told"] = counts
    return {why: count - before.get(why, 0) for why, count in counts.items() if count != before.get(why, 0)}


def test_with_a_plan_no_more_is_loaded_than_ends_before_computing_it(engines: Any, request: pytest.FixtureRequest) -> None:
    layout = layout_of(request)
    engine = engines(layout, plan="auto")
    prompt = Asking(keys(8))
    assert engine.ask("a", prompt) == 0
    engine.compute("a", prompt, list(range(8)), seed=12)
    engine.until_idle()
    assert planned(engine) == {"nothing": 1}

    assert engine.ask("b", Asking(keys(8))) == 7, "an engine that nobody measured loads all"
    engine.admit("b", Asking(keys(8)), list(range(8, 16)), 7)
    (load,) = engine.step({}).loads
    assert (load.number > 0, load.deadline_ms) == (True, None), "as without a plan"
    assert engine.until_idle()[1:] == ({"b"}, set())
    assert planned(engine) == {"prefill_unknown": 1}
    assert not engine.planner._planned, "what came of it was told"

    tell(engine, 1.0)
    assert engine.ask("c", Asking(keys(8))) == 7
    engine.admit("c", Asking(keys(8)), list(range(8, 16)), 7)
    (load,) = engine.step({}).loads
    assert load.deadline_ms is not None
    engine.until_idle()
    assert planned(engine) == {"fetch": 1}
    assert engine.ask("d", Asking(keys(8)), 7) == 0, "nothing is missing"

    tell(engine, 1e-9)
    assert engine.ask("e", Asking(keys(8))) == 0
    assert planned(engine) == {"recompute": 1}
    assert engine.planner.counts.loads == 0, "those are counted where they are made"
    assert engine.mover.counts.loads == 14


def test_a_plan_with_a_load_that_is_late_asks_no_more_for_a_while(engines: Any, request: pytest.FixtureRequest) -> None:
    engine = engines(layout_of(request), plan="auto")
    engine.compute("a", Asking(keys(4)), [0, 1, 2, 3], seed=13)
    engine.until_idle()
    tell(engine, 1.0)
    assert engine.ask("b", Asking(keys(4))) == 3
    engine.admit("b", Asking(keys(4)), [4, 5, 6, 7], 3)
    (load,) = engine.planner.step({}, (), engine.blocks.__getitem__).loads
    engine.planner.ended(Done(landed={load.number: Landed(1, Answer.LATE, 3.0)}))
    planned(engine)
    matches = engine.planner.counts.matches
    assert engine.ask("c", Asking(keys(4))) == 0
    assert engine.planner.counts.matches == matches, "the daemon was not asked"
    assert planned(engine) == {"circuit_open": 1}


def test_a_worker_tells_what_a_prefill_took_and_where_it_lay(engines: Any, request: pytest.FixtureRequest) -> None:
    engine = engines(layout_of(request), plan="auto")
    now_s = 5.0
    engine.mover._clock = lambda: now_s
    first, second = Asking(keys(24), 16 * TOKENS), Asking(keys(2, "other"))
    engine.admit("a", first, list(range(24)), 0)
    step = engine.step({"a": 8 * TOKENS})
    assert (step.tokens, step.position) == (8 * TOKENS, 16 * TOKENS)
    now_s += 2.0
    engine.mover.end()
    done = engine.mover.done()
    assert done is not None
    assert done.computed == Computed(8 * TOKENS, 2.0, 16 * TOKENS)
    engine.admit("b", second, [1, 2], 0)
    both = engine.planner.step({"a": 4 * TOKENS, "b": 4 * TOKENS}, (), {"a": list(range(24)), "b": [1, 2]}.__getitem__)
    assert (both.tokens, both.position) == (8 * TOKENS, 6 * TOKENS), "their middles are at 18 and 2 blocks"
    engine.until_idle()


def test_an_engine_that_stores_nothing_is_measured_all_the_same(engines: Any, request: pytest.FixtureRequest) -> None:
    engine = engines(layout_of(request), plan="auto", stores=False)
    prompt = Asking(keys(6), TOKENS)
    engine.admit("a", prompt, list(range(6)), 0)
    step = engine.step({"a": 5 * TOKENS})
    assert (step.stores, step.tokens, step.position) == ([], 5 * TOKENS, TOKENS)
    assert engine.step({"a": MEASURED_TOKENS_MIN - 1}).tokens == 0, "so few tell nothing, and no worker is asked for their time"
    assert not engine.planner.finished("a")
    assert engine.planner.counts.stores_failed == 0
    assert not engine.planner._running


def test_of_a_planned_load_the_slowest_worker_and_the_first_failure_count() -> None:
    one = Done(landed={7: Landed(3, Answer.OK, 0.2)}, computed=Computed(100, 0.5, 0))
    one.add(Done(landed={7: Landed(2, Answer.LATE, 0.1), 8: Landed(1, Answer.OK, 0.3)}, computed=Computed(100, 0.7, 0)))
    assert one.landed == {7: Landed(2, Answer.LATE, 0.2, 2), 8: Landed(1, Answer.OK, 0.3)}
    assert one.computed == Computed(100, 0.7, 0)


def test_what_was_stored_before_the_weights_changed_is_found_no_more(engines: Any, request: pytest.FixtureRequest) -> None:
    cold, other = engines(layout_of(request)), engines(layout_of(request))
    prompt = Asking(keys(4))
    assert cold.ask("a", prompt) == 0
    cold.compute("a", prompt, [0, 1, 2, 3], seed=1)
    cold.until_idle()
    assert cold.ask("b", Asking(keys(4))) == 3
    cold.planner.forget()
    assert cold.ask("c", Asking(keys(4))) == 0
    cold.compute("c", Asking(keys(4)), [4, 5, 6, 7], seed=2)
    cold.until_idle()
    assert cold.ask("d", Asking(keys(4))) == 3, "its own, of the weights that it has now"
    cold.planner.forget()
    assert cold.ask("e", Asking(keys(4))) == 0
    assert other.ask("a", Asking(keys(4))) == 3, "whose weights are the old ones"
    again = Asking(keys(4))
    other.admit("a", again, [9, 10, 11, 12], 3)
    other.step({})
    assert other.until_idle()[1] == {"a"}
    assert (other.memory[:, 9:12] == cold.memory[:, 0:3]).all()


def test_a_request_that_runs_while_weights_change_stores_nothing_more(
    engines: Any, request: pytest.FixtureRequest, client: halfstep.Client, caplog: pytest.LogCaptureFixture
) -> None:
    """What it computes afterwards follows from keys and values of before."""
    engine = engines(layout_of(request))
    prompt = Asking(keys(4))
    engine.admit("a", prompt, [0, 1, 2, 3], 0)
    engine.step({"a": 2 * TOKENS})
    prompt.num_computed_tokens = 2 * TOKENS
    engine.until_idle()
    engine.planner.forget()
    engine.planner.forget()
    assert ["reset its caches" in record.getMessage() for record in caplog.records] == [True], "said once"
    step = engine.step({"a": 2 * TOKENS})
    prompt.num_computed_tokens = 4 * TOKENS
    assert step.stores == []
    assert engine.planner.finished("a") is False
    assert engine.planner.counts.stores_failed == 0
    again = Asking(keys(4))
    assert engine.ask("b", again) == 0
    engine.admit("b", again, [4, 5, 6, 7], 0)
    assert len(engine.step({"b": 4 * TOKENS}).stores) == 1, "of the weights that it has now"
    engine.until_idle()


def test_a_request_that_waits_for_long_is_matched_anew(
    engines: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, other = engines(layout_of(request)), engines(layout_of(request))
    prompt = Asking(keys(4))
    assert engine.ask("waits", prompt) == engine.ask("waits", prompt) == 0
    assert engine.planner.counts.matches == 1
    other.compute("a", Asking(keys(4)), [0, 1, 2, 3], seed=1)
    other.until_idle()
    later = time.monotonic() + paged.ANSWER_FRESH_S + 1
    monkeypatch.setattr(paged.time, "monotonic", lambda: later)
    assert engine.ask("waits", prompt) == 3, "another engine has stored it meanwhile"
    assert engine.planner.counts.matches == 2
    engine.admit("waits", prompt, [4, 5, 6, 7], 3)
    assert engine.ask("waits", prompt) == 0, "what was loaded once is not asked for again"
    assert engine.planner.counts.matches == 2
