"""What is brought ahead, for whom, and how it ends."""

from __future__ import annotations

import random

import pytest

from halfstep import ConfigError
from halfstep.client.ahead import JUDGED_ITEMS_MIN, PROBE_EVERY, Ahead, Item, Kind


def items(first: int, last: int) -> list[Item]:
    return [Item(number, 10) for number in range(first, last)]


def asked(ahead: Ahead, now_s: float = 0) -> list[object]:
    return [ask.item.key for ask in ahead.due(now_s)]


def test_a_window_slides_ahead_of_its_reader() -> None:
    ahead = Ahead(1000)
    ahead.follow(items(0, 10), kind="window", window=3, keep_s=5, now_s=0)
    assert asked(ahead) == [0, 1, 2]
    for number in range(3):
        ahead.landed(number, there=True)
    ahead.read([0, 1], 0)
    assert asked(ahead) == [3, 4]
    assert ahead.counts["window"].used == 2
    assert ahead.bytes == 30


def test_what_is_read_on_its_way_is_late_and_leaves_when_it_has_come() -> None:
    ahead = Ahead(1000)
    ahead.follow(items(0, 2), kind="layers", window=2, keep_s=5, now_s=0)
    asked(ahead)
    ahead.read([0], 0)
    assert (ahead.counts["layers"].late_bytes, ahead.bytes) == (10, 20)
    ahead.landed(0, there=True)
    assert ahead.bytes == 10


def test_the_budget_holds_and_the_nearest_go_first() -> None:
    ahead = Ahead(40)
    ahead.follow(items(100, 110), kind="turn", window=4, keep_s=5, now_s=0)
    reads = ahead.follow(items(0, 10), kind="window", window=4, keep_s=5, now_s=0)
    ahead.read([0], 0)  # it has begun: it goes before the one that is expected
    assert asked(ahead) == [1, 2, 3, 4]
    assert asked(ahead) == []
    assert ahead.counts["window"].unasked == 1
    for key in ahead.end(reads):
        ahead.withdrawn(key)
    assert ahead.counts["window"].asked == 0, "what was called off cost nothing"
    assert asked(ahead) == [100, 101, 102, 103]


def test_one_staging_serves_many_readers() -> None:
    ahead = Ahead(1000)
    first = ahead.follow(items(0, 4), kind="turn", window=4, keep_s=5, now_s=0)
    ahead.follow(items(0, 6), kind="turn", window=6, keep_s=5, now_s=0)
    assert asked(ahead) == [0, 1, 2, 3, 4, 5]
    for number in range(6):
        ahead.landed(number, there=True)
    assert ahead.end(first) == []
    assert ahead.counts["turn"].unused == 0, "another one waits for them"
    ahead.read(range(6), 1)
    assert (ahead.counts["turn"].used, ahead.bytes) == (6, 0)


def test_who_does_not_come_is_given_up_and_counted() -> None:
    ahead = Ahead(1000)
    ahead.follow(items(0, 4), kind="named", window=4, keep_s=5, now_s=0)
    asked(ahead)
    ahead.landed(0, there=True)
    ahead.landed(1, there=False)
    assert asked(ahead, 4.9) == []
    assert ahead.counts["named"].unused == 0
    asked(ahead, 5)
    ahead.landed(2, there=True)
    counts = ahead.counts["named"]
    assert (counts.asked, counts.unused, counts.absent) == (4, 2, 1)


def test_what_follows_a_turn_that_has_begun_is_a_window() -> None:
    ahead = Ahead(1000)
    ahead.follow(items(0, 4), kind="turn", window=1, keep_s=5, now_s=0)
    assert asked(ahead) == [0]
    ahead.read([0], 0)
    assert [ask.kind for ask in ahead.due(0)] == ["window"]


def test_a_kind_that_is_mostly_unused_rests_and_is_tried_now_and_then() -> None:
    ahead, tried = Ahead(100_000), []
    for number in range(JUDGED_ITEMS_MIN + 2 * PROBE_EVERY):
        reader = ahead.follow([Item(number, 10)], kind="turn", window=1, keep_s=5, now_s=0)
        tried.append(bool(asked(ahead)))
        ahead.landed(number, there=True)
        ahead.end(reader)
    assert all(tried[:JUDGED_ITEMS_MIN])
    assert tried[JUDGED_ITEMS_MIN:].count(True) == 2
    assert ahead.counts["turn"].rested == 2 * PROBE_EVERY - 2
    ahead.follow([Item("other kind", 10)], kind="window", window=1, keep_s=5, now_s=0)
    assert asked(ahead) == ["other kind"]


@pytest.mark.parametrize("seed", range(20))
def test_every_item_ends_once_and_the_budget_is_never_passed(seed: int) -> None:
    dice, ahead = random.Random(seed), Ahead(200)
    kinds: list[Kind] = ["window", "layers", "turn", "named"]
    under_way: set[object] = set()
    readers: list[int] = []
    for step in range(2000):
        now_s = step * 0.1
        first = dice.randrange(40)
        act = dice.randrange(4)
        if act == 0:
            readers.append(ahead.follow(items(first, first + 8), kind=dice.choice(kinds), window=4, keep_s=2, now_s=now_s))
        elif act == 1:
            ahead.read(range(first, first + 3), now_s)
        elif act == 2 and under_way:
            key = dice.choice(sorted(under_way, key=repr))
            under_way.discard(key)
            ahead.landed(key, there=dice.random() < 0.9)
        elif readers:
            for key in ahead.end(readers.pop(dice.randrange(len(readers)))):
                under_way.discard(key)
                ahead.withdrawn(key)
        for ask in ahead.due(now_s):
            assert ask.item.key not in under_way
            under_way.add(ask.item.key)
        assert 0 <= ahead.bytes <= 200
    for key in list(under_way):
        ahead.landed(key, there=True)
    ahead.close()
    assert ahead.bytes == 0
    for counts in ahead.counts.values():
        assert counts.asked == counts.used + counts.late + counts.unused + counts.absent
        assert counts.asked_bytes == 10 * counts.asked


def test_ends_are_told_once_each_with_their_bytes() -> None:
    told: list[tuple[str, str, int]] = []
    ahead = Ahead(1000, lambda kind, how, count: told.append((kind, how, count)))
    ahead.follow(items(0, 4), kind="turn", window=4, keep_s=5, now_s=0)
    asked(ahead)
    for number, there in ((0, True), (1, False), (3, True)):
        ahead.landed(number, there)
    ahead.read([0, 2], 1)
    ahead.landed(2, there=True)
    ahead.close()
    assert told == [("turn", "absent", 10), ("turn", "used", 10), ("turn", "late", 10), ("turn", "unused", 10)]
    assert sum(getattr(ahead.counts["turn"], how) for how in ("used", "late", "unused", "absent")) == ahead.counts["turn"].asked


def test_without_room_or_window_none_is_made() -> None:
    with pytest.raises(ConfigError, match="budget_bytes=0"):
        Ahead(0)
    with pytest.raises(ConfigError, match="window=0"):
        Ahead(10).follow(items(0, 1), kind="window", window=0, keep_s=1, now_s=0)


def test_who_has_read_all_of_it_is_forgotten() -> None:
    ahead = Ahead(1000)
    ahead.follow(items(0, 4), kind="window", window=4, keep_s=500, now_s=0)
    assert asked(ahead) == [0, 1, 2, 3]
    for number in range(4):
        ahead.landed(number, there=True)
    ahead.read([3], 0)
    assert not ahead.idle, "the others may still be read"
    ahead.read([0, 1, 2], 0)
    assert ahead.idle
    assert (ahead.counts["window"].used, ahead.counts["window"].unused, ahead.bytes) == (4, 0, 0)


def test_what_was_passed_over_leaves_the_budget_with_its_reader() -> None:
    ahead = Ahead(1000)
    ahead.follow(items(0, 4), kind="window", window=4, keep_s=5, now_s=0)
    asked(ahead)
    for number in range(4):
        ahead.landed(number, there=True)
    ahead.read([2], 0)
    assert ahead.bytes == 30
    assert asked(ahead, now_s=6) == []
    assert ahead.idle
    assert (ahead.counts["window"].used, ahead.counts["window"].unused, ahead.bytes) == (1, 3, 0)
