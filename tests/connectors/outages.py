"""What may happen to a daemon while an engine runs over it, and what an engine owes its users then: the same tokens.

It dies, it stops without a word, it comes back. Whatever it does, what it does not bring is computed; what it brings again is
used again; and of all that an operator reads one warning.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.connectors.conftest import Engine

import halfstep

# A daemon that is back is used again within ten seconds. Counted, so that a slow machine has as many chances as a quick one.
TRIES, BETWEEN_S = 10, 1.0
# Where a daemon says nothing: long enough for one that does on a busy machine.
HURRIED = {"deadline_ms": 5000, "match_deadline_ms": 1000}
# Of the engine's thread, in one call of ours.
HOOK_NS_MAX = 2_000_000


@dataclass
class Outages:
    """An engine, the daemon under it, and what the engine has to answer.

    expected: the tokens of a prompt, of an engine without a daemon. brought: of an answer, how many tokens of the prompt came
    from the daemon; whole: how many at least where nothing fails. tokens: of an answer.
    """

    engine: Engine
    daemon: Any
    expected: Callable[[list[int]], list[int]]
    brought: Callable[[dict[str, Any]], int]
    whole: int
    tokens: int = 24

    def restored(self, prompt: list[int]) -> None:
        """Whole prefixes come from the daemon: at once, or at one of so many prompts, a second apart."""
        for _ in range(TRIES):
            if self._answer(prompt) >= self.whole:
                return
            time.sleep(BETWEEN_S)
        raise AssertionError(f"the daemon is back, and nothing comes from it in {TRIES} prompts")

    def computed(self, prompts: Sequence[list[int]]) -> None:
        """Nothing comes from the daemon, and no token is another one."""
        for prompt in prompts:
            assert self._answer(prompt) == 0

    def killed(self, prompts: Sequence[list[int]]) -> None:
        """It dies; the first of these prompts was stored before, and is found when it is back."""
        self.daemon.kill()
        self.computed(prompts)
        self.daemon.start()
        self.restored(prompts[0])

    def stopped(self, prompt: list[int]) -> None:
        """It is there and says nothing, then goes on."""
        self.daemon.pause()
        self.computed([prompt])
        self.daemon.resume()
        self.restored(prompt)

    def _answer(self, prompt: list[int]) -> int:
        self.engine.reset()
        told = self.engine.generate(prompt, self.tokens)
        assert told["tokens"] == self.expected(prompt)
        return self.brought(told)


def warnings_of(engine: Engine) -> int:
    """How often it said that the daemon fails."""
    return engine.log.read_text().count("blocks are computed instead")


def nothing_held_nor_long(counts: dict[str, Any]) -> None:
    """By what a connector has counted: no wait went on 100 ms after its deadline, no hook took the engine's thread for long."""
    assert counts["overdue"] == 0, counts
    assert 0 < counts["call_ns_max"] < HOOK_NS_MAX, counts


def requests_of(client: halfstep.Client) -> Counter[str]:
    """What a daemon was asked so far, by command; not counted is the question itself."""
    found = {re.fullmatch(r'halfstep_requests_total\{command="(\w+)"\}', name): count for name, count in client.stat().items()}
    return Counter({name[1]: int(count) for name, count in found.items() if name is not None and name[1] != "stat"})
