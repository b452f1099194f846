"""The yardsticks against implementations that are as plain as they are slow."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.chat_trace import write_chat_trace

from halfstep.tools.replay.reference import REFERENCES
from halfstep.tools.replay.reuse import CLASSES, ReuseModel
from halfstep.tools.replay.run import orphan_share
from halfstep.tools.replay.trace import Trace, load

Request = list[int]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return load(write_chat_trace(tmp_path_factory.mktemp("trace") / "chat.jsonl", requests=500))


def requests_of(trace: Trace) -> list[Request]:
    return [trace.request(index).tolist() for index in range(trace.requests)]


def leading(blocks: Request, present: object) -> int:
    hits = 0
    while hits < len(blocks) and blocks[hits] in present:  # type: ignore[operator]
        hits += 1
    return hits


def plain_fifo(trace: Trace, capacity: int) -> tuple[int, int]:
    queue: list[int] = []
    hits = writes = 0
    for blocks in requests_of(trace):
        hits += leading(blocks, queue)
        for block in blocks:
            if block not in queue:
                queue.append(block)
                writes += 1
                queue = queue[-capacity:]
    return hits, writes


def plain_lru(trace: Trace, capacity: int) -> tuple[int, int]:
    used: dict[int, int] = {}
    hits = writes = now = 0
    for blocks in requests_of(trace):
        hits += leading(blocks, used)
        for block in blocks:
            now += 1
            writes += block not in used
            used[block] = now
            if len(used) > capacity:
                del used[min(used, key=used.__getitem__)]
    return hits, writes


def plain_leaf_lru(trace: Trace, capacity: int) -> tuple[int, int]:
    """A tree in earnest: a block may go if none of those present has it for a parent."""
    parents = trace.parents.tolist()
    used: dict[int, int] = {}
    hits = writes = 0
    for now, blocks in enumerate(requests_of(trace)):
        found = leading(blocks, used)
        hits += found
        used.update(dict.fromkeys(blocks[:found], now))
        for block in blocks[found:]:
            if len(used) >= capacity:
                inner = {parents[other] for other in used}
                leaves = [other for other in used if other not in inner and used[other] < now]
                if not leaves:
                    break
                # Of one request the deepest, which has the highest number.
                del used[min(leaves, key=lambda leaf: (used[leaf], -leaf))]
            used[block] = now
            writes += 1
    return hits, writes


def plain_min(trace: Trace, capacity: int) -> tuple[int, int]:
    asked = requests_of(trace)
    present: set[int] = set()
    hits = writes = 0
    for now, blocks in enumerate(asked):
        hits += leading(blocks, present)
        needed = {}
        for later in range(len(asked) - 1, now, -1):
            needed.update(dict.fromkeys(asked[later], later))
        wanted = sorted((block for block in present | set(blocks) if block in needed), key=lambda block: (needed[block], block))
        kept = set(wanted[:capacity])
        writes += len(kept - present)
        present = kept
    return hits, writes


def plain_hazard(trace: Trace, capacity: int) -> tuple[int, int]:
    """From the description of the model: three lists, ghosts, counts of reuses and of oblivion by age."""
    buckets = 72
    width = [2 ** ((q + 1) / 3) - 2 ** (q / 3) for q in range(buckets)]
    reused = [[0.02 * (c + 1)] * buckets for c in range(3)]
    forgotten = [[0.02] * buckets for _ in range(3)]

    def bucket(age: int) -> int:
        return min(buckets - 1, int(3 * math.log2(age + 1)))

    def learned() -> list[list[float]]:
        table = []
        for c in range(3):
            older = [sum(reused[c][q:]) + sum(forgotten[c][q:]) for q in range(buckets)]
            row = []
            for start in range(buckets):
                best = gain = cost = 0.0
                for q in range(start, buckets):
                    gain += reused[c][q]
                    cost += older[q] * width[q]
                    best = max(best, gain / max(cost, 1e-12))
                row.append(best)
            table.append(row)
        return table

    worth = learned()
    lists: list[list[int]] = [[], [], []]
    ghosts: list[int] = []
    touches: dict[int, int] = {}
    touched: dict[int, int] = {}
    hits = writes = now = 0
    for number, blocks in enumerate(requests_of(trace)):
        hits += leading(blocks, [*lists[0], *lists[1], *lists[2]])
        now += len(blocks)
        for block in reversed(blocks):
            there = [members for members in lists if block in members]
            before = touches.get(block, 0)
            if there or block in ghosts:
                reused[before][bucket(now - touched[block])] += 1
                (there[0] if there else ghosts).remove(block)
                touches[block] = min(before + 1, 2)
            else:
                touches[block] = 0
            if not there:
                writes += 1
                while sum(map(len, lists)) >= capacity:
                    heads = [members[0] for members in lists if members]
                    victim = min(heads, key=lambda head: worth[touches[head]][bucket(now - touched[head])])
                    lists[touches[victim]].remove(victim)
                    ghosts.append(victim)
                    if len(ghosts) > 4 * capacity:
                        gone = ghosts.pop(0)
                        forgotten[touches[gone]][bucket(now - touched[gone])] += 1
            touched[block] = now
            lists[touches[block]].append(block)
        if number % 256 == 255:
            worth = learned()
            for counts in (*reused, *forgotten):
                counts[:] = [0.97 * count for count in counts]
    return hits, writes


PLAIN: dict[str, Callable[[Trace, int], tuple[int, int]]] = {
    "fifo": plain_fifo,
    "lru": plain_lru,
    "leaf-lru": plain_leaf_lru,
    "min": plain_min,
    "hazard": plain_hazard,
}


def replayed(name: str, trace: Trace, capacity: int) -> tuple[int, int]:
    cache = REFERENCES[name](trace, capacity)
    hits = 0
    for index in range(trace.requests):
        hits += cache.request(index)
        assert int(cache.present().sum()) <= capacity
    return hits, cache.tally().blocks_written


def test_every_yardstick_is_checked_here() -> None:
    assert set(PLAIN) == set(REFERENCES)


@pytest.mark.parametrize("capacity", [1, 7, 40, 150])
@pytest.mark.parametrize("name", PLAIN)
def test_yardstick_hits_and_writes_what_a_plain_one_does(name: str, capacity: int, trace: Trace) -> None:
    assert replayed(name, trace, capacity) == PLAIN[name](trace, capacity)


@pytest.mark.parametrize("name", PLAIN)
def test_with_room_for_all_every_yardstick_hits_all_that_can_be_hit(name: str, trace: Trace) -> None:
    hits, _ = replayed(name, trace, trace.unique_blocks)
    assert hits / len(trace.blocks) == pytest.approx(trace.hit_ratio_max)


def test_the_bound_is_a_bound(trace: Trace) -> None:
    for capacity in (10, 100):
        bound, _ = replayed("min", trace, capacity)
        assert all(replayed(name, trace, capacity)[0] <= bound for name in PLAIN)


def test_leaf_lru_and_the_bound_leave_no_orphans(trace: Trace) -> None:
    for name in ("leaf-lru", "min"):
        cache = REFERENCES[name](trace, 60)
        for index in range(trace.requests):
            cache.request(index)
            assert orphan_share(trace, cache.present()) == 0


def test_orphans_are_blocks_below_a_gap(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 0, "hash_ids": [1, 2, 3, 4]}\n{"timestamp": 1, "hash_ids": [1, 5]}\n')
    trace = load(path)
    assert orphan_share(trace, np.array([True, True, False, True, True])) == 0.25
    assert orphan_share(trace, np.array([False, True, True, True, True])) == 1.0
    assert orphan_share(trace, np.array([False] * 5)) == 0.0


def test_a_block_that_is_named_twice_in_a_request_is_one_block(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 0, "hash_ids": [1, 2, 1]}\n{"timestamp": 1, "hash_ids": [1, 2, 1]}\n')
    trace = load(path)
    for name in PLAIN:
        hits, writes = replayed(name, trace, 8)
        assert (hits, writes) == (3, 2)


def test_more_touches_are_worth_more_before_anything_is_known() -> None:
    model = ReuseModel()
    for age in (1, 50, 10_000):
        worths = [model.worth(touch_class, age) for touch_class in range(CLASSES)]
        assert worths == sorted(worths)
        assert worths[0] < worths[-1]
