"""What a connector costs while the tier has nothing to give: requests to the daemon, and functions of ours in each step.

Counted on both sides, so that nothing depends on how fast the machine is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.connectors.conftest import Engine
from tests.connectors.outages import requests_of

import halfstep

# What is counted must not be what a busy machine gave up.
PATIENT = {"deadline_ms": 30_000, "match_deadline_ms": 30_000}


@dataclass(frozen=True)
class Overhead:
    """What an engine told and its daemon was asked.

    asked: requests by command, of a prompt that is nowhere. cold: what the scheduler's side counted of that prompt; warm: of
    one that is in the engine; decoding: of the next one, whose steps were watched. tokens: of an answer that is watched.
    """

    asked: Counter[str]
    cold: dict[str, Any]
    warm: dict[str, Any]
    decoding: dict[str, Any]
    steps: list[dict[str, Any]]
    tokens: int

    @classmethod
    def of(
        cls,
        engine: Engine,
        client: halfstep.Client,
        prompts: Callable[..., list[list[int]]],
        counts: str,
        *,
        tail: int = 5,
        tokens: int = 24,
    ) -> Overhead:
        """Has the prompts made and answered. counts: under which name the engine tells what the scheduler's side counted.

        tail, tokens: of a prompt after its first 300, and of its answer, which must not fill a block.
        """
        warming, prompt = prompts(32, (tail,))[0], prompts(33, (tail,))[0]
        engine.generate(warming, 1)
        engine.reset()  # waits for the stores
        before = requests_of(client)
        cold = engine.watched(prompt, tokens)
        engine.reset()
        asked = requests_of(client) - before
        engine.generate(prompt, 1)
        before, warm = requests_of(client), engine.generate(prompt, 1)
        decoding = engine.watched(prompt, tokens)
        assert requests_of(client) == before, "all that it needs is in the engine, and no block gets full"
        return cls(asked, cold[counts], warm[counts], decoding[counts], decoding["steps"], tokens)

    def in_steps(self, modules: set[str]) -> int:
        """The most functions of ours in a step that decodes a token; all of them are of these modules."""
        decoded = [step for step in self.steps if step["tokens"] == 1]
        assert len(decoded) == self.tokens - 1, "the first token comes of the prompt"
        assert set().union(*(step["calls"] for step in self.steps)) <= modules
        return max(sum(step["calls"].values()) for step in decoded)
