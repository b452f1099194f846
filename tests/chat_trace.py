"""A small trace in the Mooncake format, as chats look: system prompts that many share, conversations that grow turn by turn."""

from __future__ import annotations

import json
import random
from pathlib import Path


def write_chat_trace(path: Path, *, requests: int = 800, seed: int = 7) -> Path:
    """The same seed writes the same bytes. About ten blocks a request."""
    dice = random.Random(seed)
    fresh = iter(range(1, 1 << 30))
    prompts = [[next(fresh) for _ in range(dice.randint(1, 4))] for _ in range(5)]
    conversations: list[list[int]] = []
    lines = []
    for number in range(requests):
        if not conversations or dice.random() < 0.35:
            conversations.append(list(dice.choice(prompts)))
        # Mostly one that was heard of lately.
        turn = min(int(dice.expovariate(0.12)), len(conversations) - 1)
        conversation = conversations.pop(-1 - turn)
        conversation += [next(fresh) for _ in range(dice.randint(1, 6))]
        conversations.append(conversation)
        lines.append(json.dumps({"timestamp": number * 250, "hash_ids": conversation}))
    path.write_text("\n".join(lines) + "\n")
    return path
