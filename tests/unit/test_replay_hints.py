"""What a trace tells of system prompts and last turns, and what the store makes of it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from halfstep import ConfigError
from halfstep.tools.replay.hints import FINAL, FOLLOWERS_MIN, NONE, Hints, final_requests, system_blocks
from halfstep.tools.replay.plan import Capacity, Plan
from halfstep.tools.replay.run import run
from halfstep.tools.replay.trace import Trace, load


def trace_of(tmp_path: Path, chains: list[list[int]]) -> Trace:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps({"timestamp": 1000 * at, "hash_ids": ids}) + "\n" for at, ids in enumerate(chains)))
    return load(path)


def test_a_system_prompt_is_what_many_conversations_share(tmp_path: Path) -> None:
    trace = trace_of(tmp_path, [[1, 2, 10 + number] for number in range(FOLLOWERS_MIN)] + [[3, 40], [3, 41]])
    shared = {trace.keys[block].tobytes() for block, is_system in enumerate(system_blocks(trace)) if is_system}
    assert shared == {trace.keys[block].tobytes() for block in trace.request(0)[:2]}


def test_the_last_turn_of_a_conversation_is_final(tmp_path: Path) -> None:
    others = [[1, 100 + number] for number in range(FOLLOWERS_MIN)]
    trace = trace_of(tmp_path, [[1, 5, 6], [1, 5, 6, 7], *others, [1, 5, 6, 7, 8]])
    final = final_requests(trace, system_blocks(trace))
    assert final.tolist() == [False, False, *([True] * FOLLOWERS_MIN), True]
    hints = Hints(trace)
    assert hints.of(0).tolist() == [NONE, NONE, NONE]
    assert hints.of(trace.requests - 1).tolist() == [NONE, FINAL, FINAL, FINAL, FINAL]


def chats(tmp_path: Path) -> Path:
    """Conversations side by side, of which most end with their first turn."""
    dice, path, fresh = random.Random(3), tmp_path / "chats.jsonl", iter(range(1000, 1 << 30))
    live: list[list[int]] = []
    lines = []
    for at in range(1500):
        chain = live.pop(dice.randrange(len(live))) if len(live) > 20 else [1, 2]
        chain = chain + [next(fresh) for _ in range(4)]
        lines.append(json.dumps({"timestamp": 1000 * at, "hash_ids": chain}) + "\n")
        if dice.random() < 0.4:
            live.append(chain)
    path.write_text("".join(lines))
    return path


def test_final_turns_go_first_and_others_are_found(tmp_path: Path) -> None:
    path = chats(tmp_path)
    trace = load(path)

    def hit_ratio(*hints: str) -> float:
        plan = Plan(path, ("seg-adapt10",), (Capacity.parse("10%"),), segments=64, hints=hints).validated()  # type: ignore[arg-type]
        (result,) = run(plan, trace)
        assert result.tally.blocks_wrong == 0
        return result.hit_ratio

    plain, told = hit_ratio(), hit_ratio("final")
    assert told > plain * 1.05, "what nobody asks for again took the place of what somebody does"


@pytest.mark.parametrize("hint", ["paused", "system"])
def test_a_hint_that_no_trace_tells_is_refused(hint: str) -> None:
    with pytest.raises(ConfigError, match=f"hints='{hint}': unknown; a trace tells final"):
        Plan(Path("x"), ("seg-adapt10",), (Capacity.parse("10%"),), hints=(hint,)).validated()  # type: ignore[arg-type]
