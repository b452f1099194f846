"""A trace as agents make it: roots that all share, conversations that grow by a few blocks a turn, branches that die.

What makes it hard for a log: every turn asks for the whole conversation, so that its first blocks lie in segments that were
written long ago and its last ones in fresh ones, and all of them are touched at the same moment.
"""

from __future__ import annotations

import heapq
import json
import random
from pathlib import Path

ROOTS, ROOT_BLOCKS = 6, (8, 40)
TURN_BLOCKS = (1, 20)
# A tool's answer, somebody who reads, somebody who comes back from lunch.
THINK_S = ((0.7, 5.0), (0.25, 90.0), (0.05, 3600.0))
ENDS, BRANCHES = 0.04, 0.08  # of a turn's outcomes


def write_agentic_trace(path: Path, *, requests: int = 12_000, live: int = 400, seed: int = 7) -> Path:
    """The same seed writes the same bytes. live: conversations under way at once."""
    dice = random.Random(seed)
    fresh = iter(range(1, 1 << 40))
    roots = [[next(fresh) for _ in range(dice.randint(*ROOT_BLOCKS))] for _ in range(ROOTS)]
    due: list[tuple[float, int, list[int]]] = []
    numbers = iter(range(1 << 40))

    def later(at: float, conversation: list[int]) -> None:
        (kind,) = dice.choices(THINK_S, [share for share, _ in THINK_S])
        heapq.heappush(due, (at + dice.expovariate(1 / kind[1]), next(numbers), conversation))

    for _ in range(live):
        heapq.heappush(due, (dice.random() * 600, next(numbers), list(dice.choices(roots, [5, 3, 2, 1, 1, 1])[0])))
    lines = []
    for _ in range(requests):
        at, _number, conversation = heapq.heappop(due)
        conversation = conversation + [next(fresh) for _ in range(dice.randint(*TURN_BLOCKS))]
        lines.append(json.dumps({"timestamp": int(at * 1000), "hash_ids": conversation}))
        outcome = dice.random()
        if outcome < ENDS:
            later(at, list(dice.choices(roots, [5, 3, 2, 1, 1, 1])[0]))
            continue
        later(at, conversation)
        if outcome < ENDS + BRANCHES and len(due) < live * 5 // 4:  # a subagent goes on from here, on its own
            later(at, conversation)
    path.write_text("\n".join(lines) + "\n")
    return path
