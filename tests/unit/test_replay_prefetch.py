"""The prefetch policy over the real store, in virtual time: its goals, and that policies which are broken miss them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence

import pytest

from halfstep.client.ahead import Ahead, Ask, Item, Kind
from halfstep.tools.replay.flash import FlashCache
from halfstep.tools.replay.prefetch import DRAM_PER_BUDGET, Outcome, Run, Terms
from halfstep.tools.replay.trace import Trace, load

BLOCK_BYTES = 64 << 20
BUDGET_BLOCKS = 256


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """Conversations that grow by a few blocks a turn; about half of the next turns come."""
    dice, path, fresh = random.Random(5), tmp_path_factory.mktemp("trace") / "chats.jsonl", iter(range(1000, 1 << 30))
    live: list[list[int]] = []
    lines = []
    for at in range(600):
        chain = live.pop(dice.randrange(len(live))) if len(live) > 40 else [1, 2]
        chain = chain + [next(fresh) for _ in range(dice.randrange(2, 12))]
        lines.append(json.dumps({"timestamp": 500 * at, "hash_ids": chain}) + "\n")
        if dice.random() < 0.7:
            live.append(chain)
    path.write_text("".join(lines))
    return load(path)


def outcome(trace: Trace, policy: Ahead | None, *, wrong: float = 0.05, lead_s: float = 1.0) -> Outcome:
    terms = Terms(BLOCK_BYTES, BUDGET_BLOCKS * BLOCK_BYTES, lead_s=lead_s, wrong=wrong).validated()
    dram_blocks = DRAM_PER_BUDGET * BUDGET_BLOCKS
    store = FlashCache(trace, trace.unique_blocks // 2, segments=32, dram_blocks=dram_blocks)
    try:
        return Run(trace, store, terms, policy).run()  # type: ignore[arg-type]
    finally:
        store.close()


def met(one: Outcome) -> bool:
    return one.in_time_share >= 0.95 and one.unused_share <= 0.2


def ahead() -> Ahead:
    return Ahead(BUDGET_BLOCKS * BLOCK_BYTES)


def test_blocks_are_there_in_time_and_few_for_nothing(trace: Trace) -> None:
    one = outcome(trace, ahead())
    assert one.demanded - one.memory > 100, "memory had it all: the goals say nothing"
    assert met(one), one.as_json()
    assert one.requests == trace.requests


def test_the_same_run_gives_the_same_figures(trace: Trace) -> None:
    assert outcome(trace, ahead()) == outcome(trace, ahead())


def test_readers_wait_longer_without_it(trace: Trace) -> None:
    without = outcome(trace, None)
    assert without.in_time == 0
    assert without.stall_s > 5 * outcome(trace, ahead()).stall_s


class FromTheEnd(Ahead):
    """Asks for the last of a window first, and for one block at a time."""

    def follow(self, items: Sequence[Item], *, kind: Kind, window: int, keep_s: float, now_s: float) -> int:
        return super().follow(items[::-1], kind=kind, window=1, keep_s=keep_s, now_s=now_s)


class NeverGivesUp(Ahead):
    """Believes every announcement: no kind rests, however much of it nobody read."""

    def due(self, now_s: float) -> list[Ask]:
        for trust in self._trust.values():
            trust.items = 0  # never judged
        return super().due(now_s)


class Forgets(Ahead):
    """Asks for every other block alone."""

    def follow(self, items: Sequence[Item], *, kind: Kind, window: int, keep_s: float, now_s: float) -> int:
        return super().follow(items[::2], kind=kind, window=window, keep_s=keep_s, now_s=now_s)


@pytest.mark.parametrize(("broken", "wrong"), [(FromTheEnd, 0.05), (Forgets, 0.05), (NeverGivesUp, 2.0)])
def test_broken_policies_miss_the_goals(trace: Trace, broken: Callable[[int], Ahead], wrong: float) -> None:
    assert not met(outcome(trace, broken(BUDGET_BLOCKS * BLOCK_BYTES), wrong=wrong))


def test_who_is_misled_mostly_stops_wasting(trace: Trace) -> None:
    """Two of three announcements are wrong."""
    careful, careless = (outcome(trace, policy, wrong=2.0) for policy in (ahead(), NeverGivesUp(BUDGET_BLOCKS * BLOCK_BYTES)))
    wasted = [sum(counts.unused_bytes for counts in one.kinds.values()) for one in (careful, careless)]
    assert wasted[0] < wasted[1] / 2
