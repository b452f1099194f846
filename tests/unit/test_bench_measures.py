"""What `halfstep bench` makes of blocks, walks, times and runs, without a daemon."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import halfstep

pytest.importorskip("click")

from halfstep.errors import Unavailable
from halfstep.tools.bench import driver as driving
from halfstep.tools.bench import loopback, wire_limit
from halfstep.tools.bench import measure as measuring
from halfstep.tools.bench.clones import merged
from halfstep.tools.bench.content import BODIES, Content
from halfstep.tools.bench.device import BlockDevice
from halfstep.tools.bench.driver import Driven, Driver
from halfstep.tools.bench.plan import Plan
from halfstep.tools.bench.proof import why_not_cold
from halfstep.tools.bench.report import CpuTime, Limit, Proof, Result, Run
from halfstep.tools.bench.workload import GetLane, LayerLane, Layers, Outcome, PutLane, Timing, endless, median_run, put_whole


def test_content_differs_in_every_page_of_every_block() -> None:
    content = Content(3 * 4096, seed=7)
    rows = np.empty((2 * BODIES, content.words), np.uint64)
    numbers = content.numbers(0, len(rows))
    content.fill(numbers, rows)
    pages = rows.reshape(-1, 512)
    assert len(np.unique(pages, axis=0)) == len(pages)
    assert content.wrong_blocks(numbers, rows) == 0
    assert not content.wrong_heads(numbers, rows, 2).any()
    # A block in another's place, also in that of one whose body is the same; a page; a word.
    assert content.wrong_blocks(numbers, np.roll(rows, BODIES, axis=0)) == len(rows)
    assert content.wrong_heads(numbers, np.roll(rows, BODIES, axis=0), 1).all()
    rows[5, 512:1024] = rows[5 + BODIES, 512:1024]
    rows[9, 700] ^= np.uint64(1)
    assert content.wrong_blocks(numbers, rows) == 2


def test_a_source_that_is_stamped_anew_holds_the_next_blocks() -> None:
    content = Content(64 * 1024, seed=7)
    rows = np.empty((3, content.words), np.uint64)
    content.fill(content.numbers(0, 3), rows)
    content.stamp(content.numbers(BODIES, 3), rows)
    assert content.wrong_blocks(content.numbers(BODIES, 3), rows) == 0


def test_blocks_of_other_seeds_and_numbers_have_other_keys() -> None:
    names = {bytes(key) for seed in (1, 2) for key in Content(4096, seed).keys(Content(4096, seed).numbers(0, 300))}
    assert len(names) == 600


def test_a_walk_asks_for_every_block_before_it_asks_again() -> None:
    content = Content(4096, seed=1)
    walk = endless(content, 32, 4, np.random.default_rng(1))
    first = [next(walk) for _ in range(8)]
    assert sorted(np.concatenate(first).tolist()) == list(range(32))
    assert sorted(np.concatenate(first[:4]).tolist()) == list(range(16)), "what was put last comes last"
    assert [next(walk).tolist() for _ in range(8)] == [batch.tolist() for batch in first]


def test_clones_walk_through_a_cold_set_together() -> None:
    content = Content(4096, seed=1)
    walks = [endless(content, 40, 4, np.random.default_rng(1), (clone, 3)) for clone in range(3)]
    seen = [next(walk) for walk, batches in zip(walks, (4, 3, 3), strict=True) for _ in range(batches)]
    assert sorted(np.concatenate(seen).tolist()) == list(range(40))
    assert next(endless(content, 4, 4, np.random.default_rng(1), (1, 3))).tolist() == [0, 1, 2, 3], "one batch for three"


def test_a_plan_makes_cold_sets_that_memory_cannot_hold() -> None:
    plan = Plan(batch=16).validated()
    for block_bytes in (4096, 65536, 1 << 20):
        blocks = plan.cold_blocks(block_bytes, 256 << 20)
        assert blocks * block_bytes >= 2 * (256 << 20)
        assert blocks % 16 == 0


def test_percentiles_are_latencies_that_were_measured() -> None:
    timing = Timing(1.0, np.arange(1, 1001, dtype=np.float64), Outcome())
    assert [timing.percentile_us(share) for share in (0.5, 0.99, 0.999)] == [500, 990, 999]
    assert Timing(1.0, np.array([7.0]), Outcome()).percentile_us(0.999) == 7


def test_the_run_with_the_median_ratio_is_reported_whole() -> None:
    def run(bytes_per_s: float, limit: float) -> Run:
        timing = Timing(1.0, np.array([1.0]), Outcome(blocks=1, ok=1, looked=1))
        return Run(bytes_per_s, timing, Limit(limit, "x"), Proof(1, 0, None, 1, 0), CpuTime(1.0, None))

    runs = [run(1e9, 2e9), run(9e9, 10e9), run(3e9, 4e9)]
    result = Result.of("get", 4096, 1, 1, runs, Outcome(blocks=1, ok=1, looked=1))
    assert result.run is runs[2]
    assert result.as_json()["ratio_to_limit"] == 0.75
    assert result.verified
    assert not Result.of("get", 4096, 1, 1, runs, Outcome(blocks=2, ok=1, looked=1)).verified, "one is missing"
    assert not Result.of("get", 4096, 1, 1, runs, Outcome(blocks=1, ok=0, looked=1, wrong=1)).verified, "one is wrong"


@pytest.mark.parametrize(
    ("engine", "device", "why"),
    [
        (1000, 1000, ""),
        (10, 1000, "memory"),
        (1000, 10, "page cache"),
        (1000, None, "tmpfs"),
        (990, 990, ""),
        (990, 985, "985 bytes of 1000"),  # 0.99 of 0.99 is not enough
        (2000, 1500, "1500 bytes of 2000"),
    ],
)
def test_cold_is_what_engine_and_device_both_read(engine: int, device: int | None, why: str) -> None:
    told = why_not_cold(Proof(1000, engine, device, 0, 0), BlockDevice("vda", (Path("/sys/block/vda/stat"),)))
    assert why in told
    assert bool(told) == bool(why)


def test_a_layer_that_is_announced_before_it_is_there_makes_its_blocks_wrong() -> None:
    content = Content(8 * 4096, seed=1)
    read = GetLane(content, endless(content, 8, 4, np.random.default_rng(1)), 4, np.random.default_rng(1))
    lane = LayerLane(read, content, halfstep.Layout({}, [halfstep.Group(8, (4096,))]))
    came = SimpleNamespace(ok=np.array([True, True, True, False]), reason=lambda _item: "miss (absent)")
    queue: Any = SimpleNamespace(get=lambda *_arguments, **_options: None)
    # Block 1, as it is when its first layer is announced, and at the end.
    for early, late, wrong in ((0, 0, 0), (1, 0, 1), (0, 1, 1), (1, 1, 1)):
        lane.prepare()
        lane.submit(queue)
        content.fill(read.numbers, read.target)
        read.target[1, 0] ^= np.uint64(early)
        lane.progress(3, lane._begun + 1000)
        content.fill(read.numbers, read.target)
        read.target[1, ::512] ^= np.uint64(late)
        lane.progress(8, lane._begun + 6000)
        outcome = lane.check(came)
        assert (outcome.ok, outcome.looked, outcome.wrong) == (3 - wrong, 3, wrong)
    assert lane.first_ns == [1000] * 4
    assert lane.each_ns == [(0, 2), (5000, 5)] * 4, "two layers came with the first one"


def test_bytes_that_are_left_of_the_last_get_are_not_those_of_this_one() -> None:
    content = Content(8 * 4096, seed=1)
    read = GetLane(content, endless(content, 4, 4, np.random.default_rng(1)), 4, np.random.default_rng(1))
    layers = LayerLane(read, content, halfstep.Layout({}, [halfstep.Group(8, (4096,))]))
    came = SimpleNamespace(ok=np.array([True] * 4))
    for _ in range(3):
        read.prepare()
        content.fill(read.numbers, read.target)
        assert read.check(came).ok == 4
        read.prepare()
        assert read.check(came).wrong == 4, "nothing was written, though the same blocks were asked for"
        content.fill(read.numbers, read.target)
        layers.prepare()
        layers.progress(1, 1)
        content.fill(read.numbers, read.target)
        assert layers.check(came).wrong == 4, "its first layer came late"


def test_a_put_that_is_throttled_is_counted_and_its_blocks_are_not_asked_for_again() -> None:
    content = Content(4096, seed=1)
    lane = PutLane(content, 4, 0, 1, BODIES, "cache")
    shed = SimpleNamespace(ok=np.array([True, False, True, False]), present=0, reason=lambda _item: "throttled (load)")
    whole = SimpleNamespace(ok=np.array([True] * 4), present=0)
    total = Outcome()
    for came in (shed, whole, shed):
        lane.prepare()
        total.add(lane.check(came))
    assert (total.blocks, total.ok, total.wrong, total.reasons) == (12, 8, 0, {"throttled (load)": 4})
    assert [numbers.tolist() for numbers in lane.stored] == [[64, 66], [128, 129, 130, 131], [192, 194]]
    timing = Timing(2.0, np.array([1.0] * 3), total)
    assert timing.blocks_per_s == 4.0, "of those that were taken"


def test_blocks_are_offered_until_all_of_them_are_on_media(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _s: None)
    answers = [[False, True], [True, False], [True, True]]
    asked = []

    def put(keys: Any, rows: Any, **terms: Any) -> Any:
        asked.append((len(keys), len(rows), terms["durability"]))
        return SimpleNamespace(ok=np.array(answers[len(asked) - 1]), throttled=True, reason=lambda _item: "throttled (busy)")

    client: Any = SimpleNamespace(put=put, url="halfstep://node7")
    keys, rows = np.zeros((2, 16), np.uint8), np.zeros((2, 512), np.uint64)
    put_whole(client, keys, rows)
    assert asked == [(2, 2, "persist")] * 3
    refusing = SimpleNamespace(ok=np.array([True, False]), throttled=False, reason=lambda _item: "rejected (layout)")
    client.put = lambda *_arguments, **_terms: refusing
    with pytest.raises(Unavailable, match=r"halfstep://node7: took 1 of 2 blocks: .*rejected \(layout\)"):
        put_whole(client, keys, rows)


def test_the_median_run_is_one_that_was_made() -> None:
    assert median_run([4.0, 1.0, 3.0, 2.0], float) == 2.0
    assert median_run(["ccc", "a", "bb"], len) == "bb"


def test_the_slowest_clone_says_how_long_it_took() -> None:
    def driven(seconds: float, *latencies: float) -> Driven:
        outcome = Outcome(blocks=4, ok=3, looked=3, wrong=1, reasons={"late": 1})
        return Driven(Timing(seconds, np.array(latencies), outcome, Layers(np.array(latencies), np.array([1.0]))), 0.5)

    told = merged([driven(1.0, 5.0), driven(2.0, 7.0, 9.0)])
    assert told.cpu_s == 1.0
    assert told.timing.seconds == 2.0
    assert told.timing.blocks_per_s == 3.0
    assert told.timing.latencies_us.tolist() == [5.0, 7.0, 9.0]
    assert told.timing.outcome == Outcome(blocks=8, ok=6, looked=6, wrong=2, reasons={"late": 2})
    assert told.timing.layers is not None
    assert (len(told.timing.layers.first_us), len(told.timing.layers.each_us)) == (3, 2)


def test_a_clone_that_starts_late_has_the_time_before_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def driven(_client: Any, _lanes: Any, *, seconds: float) -> Timing:
        asked.append(seconds)
        return Timing(0.5, np.array([1.0]), Outcome())

    monkeypatch.setattr(driving, "drive", driven)
    driver = Driver(Plan().validated(), cast("halfstep.Client", None), Content(4096, 1))
    assert driver.drive(3.0).timing.seconds == 0.5
    late = driver.drive(3.0, time.perf_counter_ns() - 2_000_000_000)
    assert late.timing.seconds >= 2.5
    assert driver.drive(3.0, time.perf_counter_ns() - 4_000_000_000).timing.seconds >= 4.5
    assert asked[0] == 3.0
    assert 0 <= asked[1] <= 1.0
    assert asked[2] == 0.0


def test_a_copy_beside_shared_memory_is_not_one_of_pythons_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces: list[int] = []

    def copy(*, set_bytes: int, target_bytes: int, piece_bytes: int, seconds: float) -> float:
        pieces.append(piece_bytes)
        assert set_bytes % piece_bytes == target_bytes % piece_bytes == 0
        return loopback.copy(set_bytes=set_bytes, target_bytes=target_bytes, piece_bytes=piece_bytes, seconds=seconds)

    monkeypatch.setattr(measuring, "loopback", SimpleNamespace(copy=copy))
    for block_bytes in (4096, 64 << 10):
        plan = Plan(block_bytes=(block_bytes,), batch=6, hot_bytes=3 << 20).validated()
        stream = measuring.Stream(
            "shm", "unix:/x", "get", block_bytes, 6, 1, 1, 1, plan.hot_blocks(block_bytes) * block_bytes, "", 0.05, None, None
        )
        assert measuring.plain_sockets(stream).bytes_per_s > 0
    assert pieces == [6 * 4096, 64 << 10]


def test_a_slow_round_trip_counts_in_their_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_limit.loopback, "ping_pong", lambda **_options: [1000, 1000, 8000])
    plan = wire_limit.WirePlan(("tcp",), (4096,), 1, (1,), (64,), 1 << 20, "", 0.05, 1, pin=False)
    told = wire_limit._ping(plan, "tcp", "", 64, None, lambda _text, _steps=1: None)
    assert (told.p50_us, told.round_trips, told.round_trips_per_s) == (1.0, 3, 300_000.0)
