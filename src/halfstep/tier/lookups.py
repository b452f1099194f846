"""Whether values are there, for a scheduler that must not wait: asked one by one, in every step, until it is known.

A question is answered at once with what is known; the new ones of a step go to the daemon in one match, and what has come back
is looked at when the next step begins. Whatever goes wrong is a miss: the engine computes the block.

Invariants: with nothing in flight no call here reaches the client. Each question ends by the deadline of its match. What was
lost is a miss for as long as anybody still asks for it, so that nothing is asked for again and again.
Thread: one at a time, the engine's scheduler.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from halfstep.tier.channel import Pending
from halfstep.tier.counts import Counts
from halfstep.tier.values import BATCH_KEYS, Present, Values
from halfstep.tier.waits import Wait, Waits

log = logging.getLogger("halfstep.connectors")


@dataclass(slots=True)
class _Question:
    verdict: bool | None = None
    owners: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Asked:
    keys: list[bytes]
    pending: Pending[Present]
    wait: Wait


class Lookups:
    """Questions to one store of values. counts: where matches, keys and the longest wait go.

    hold_ms: for so long what is found is kept from eviction, until the load that follows; see Values.begin_match.
    """

    def __init__(self, values: Values, counts: Counts | None = None, *, hold_ms: int = 0) -> None:
        self.counts = Counts() if counts is None else counts
        self._values, self._waits = values, Waits(self.counts)
        values.hold_options(hold_ms)  # refuses what is no time
        self._hold_ms = hold_ms
        self._questions: dict[bytes, _Question] = {}
        self._asked_by: dict[str, list[bytes]] = {}
        self._new: list[bytes] = []
        self._flying: list[_Asked] = []

    def ask(self, key: bytes, owner: str) -> bool | None:
        """Whether a value is there; None: not known yet, ask again in the next step. owner: the request that wants to know."""
        question = self._questions.get(key)
        if question is None:
            question = self._questions[key] = _Question()
            self._new.append(key)
        if owner not in question.owners:
            question.owners.add(owner)
            self._asked_by.setdefault(owner, []).append(key)
        return question.verdict

    def forget(self, owner: str) -> None:
        """A request is over: what only it has asked is asked anew by the next one."""
        for key in self._asked_by.pop(owner, ()):
            question = self._questions.get(key)
            if question is not None:
                question.owners.discard(owner)
                if not question.owners:
                    del self._questions[key]

    def lost(self, keys: Iterable[bytes]) -> None:
        """These did not come, whatever was answered."""
        for key in keys:
            if (question := self._questions.get(key)) is not None:
                question.verdict = False

    def flush(self) -> None:
        """Send the questions of this step."""
        if not self._new:
            return
        keys = [key for key in self._new if key in self._questions]
        self._new = []
        for at in range(0, len(keys), BATCH_KEYS):
            some = keys[at : at + BATCH_KEYS]
            self.counts.matches += 1
            self.counts.keys_asked += len(some)
            wait = self._waits.begin(self._values.client.match_deadline_ms)
            self._flying.append(_Asked(some, self._values.begin_match(some, hold_ms=self._hold_ms), wait))

    def look(self) -> None:
        """What has come back since. Never waits."""
        if not self._flying:
            return
        self._values.poll()
        flying, self._flying = self._flying, []
        for asked in flying:
            if not asked.pending.done:
                self._waits.look(asked.wait)
                self._flying.append(asked)
                continue
            self._waits.end(asked.wait)
            try:
                there = asked.pending.result().there
            except Exception:
                # A mistake of ours, and no reason that a request waits for ever.
                log.exception("a lookup")
                self.lost(asked.keys)
                continue
            self.counts.keys_hit += int(there.sum())
            for key, hit in zip(asked.keys, there.tolist(), strict=True):
                question = self._questions.get(key)
                if question is not None and question.verdict is None:
                    question.verdict = hit
