"""Engines with paged memory and no host tier: what a scheduler plans, and its workers move.

A Planner lives beside the engine's scheduler, a Mover (mover.py) in each worker. A Step goes from one to the other with every
step of the engine, and Done comes back (steps.py).

Invariants: nothing here waits. With nothing to move no call reaches the client or takes a lock. A block that a
store reads is kept by the engine until every worker has said that the store is over. What was loaded once is not asked for
again before the request is preempted, so that a block which cannot be loaded is computed.
With a tier that plans (plan="auto") the planner decides how much of what was found is loaded; the movers measure what computing
and loads take. The engine looks once a step: what it waited for counts as long as until the last look that found it under way,
so that a busy engine's steps are not put down to the tier.
A request that waits behind others is matched meanwhile, and what was found for one that has no blocks yet is brought into the
daemon's memory before its load (READ AHEAD below). Each request costs one match all the same.
Thread: a planner has the scheduler's, a mover its worker's.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from halfstep.connectors.mover import FENCE_S
from halfstep.connectors.steps import Done, Landed, Load, Step, Store
from halfstep.tier import (
    MEASURED_TOKENS_MIN,
    Counts,
    Expected,
    Found,
    Loaded,
    Pending,
    Planned,
    Tier,
    Wait,
    Waits,
)

log = logging.getLogger("halfstep.connectors")

# Of a step, for each of its requests: fewer are decoding more than prefill, and tell nothing of what a prompt costs.
MEASURED_TOKENS_EACH = 16
# Requests behind others that are matched ahead of their turn; one more is asked for in a step.
AHEAD_REQUESTS_MAX = 4
# What was found then is asked for anew when the turn comes later than that.
AHEAD_FRESH_S = 5.0
# What was answered to one that still has no blocks, if nothing holds it for longer.
ANSWER_FRESH_S = 10.0
# Blocks of cells that are expected for one request, and in one step: to name more takes more of the scheduler's thread.
EXPECTED_MAX, EXPECTED_STEP = 512, 64
# Keys that a planner remembers as refused, the oldest leave first.
UNSTORED_MAX = 1 << 16


class Request(Protocol):
    """What a planner reads of an engine's request. block_hashes: grows with its tokens."""

    num_computed_tokens: int
    block_hashes: Sequence[bytes]


@dataclass(slots=True)
class _Asked:
    turn: int
    first: int
    keys: list[bytes]
    wait: Wait
    pending: Pending[Found] | None = None
    there: int = 0
    start: int = 0
    taken: bool = False
    # When it was matched before its turn had come, or answered in its turn; None: it was not yet.
    asked_s: float | None = None
    expected: list[Expected] = field(default_factory=list)
    # So many of its blocks, from the first on.
    brought: int = 0
    # Of its load, where that was planned.
    number: int = 0
    planned: Planned | None = None


@dataclass(slots=True)
class _Running:
    request: Request
    # Blocks from the first on that need no store; None until it was scheduled.
    stored: int | None = None
    reading: set[int] = field(default_factory=set)
    # It began before forget(): what it computes now follows from what it had then.
    old: bool = False


@dataclass(slots=True)
class _Open:
    request: str
    keys: list[bytes]
    left: int
    refused: bool = False


class Planner:
    """The scheduler's half, whose tier also says what fails in its workers: once, for all of them.

    workers: how many answer each step. hashes: the engine's per block, of which the last is its key. reading_max: blocks that
    stores may read at once, so that a slow daemon keeps few from others; the next ones wait for them. hold_ms: for so long what
    a request was promised is kept from eviction, until its load. stores: False = what is computed is measured and not stored.
    """

    def __init__(
        self, tier: Tier, *, workers: int, hashes: int, reading_max: int, hold_ms: int = 0, stores: bool = True
    ) -> None:
        self.counts = Counts()
        self._tier, self._stores = tier, stores
        self._waits = Waits(self.counts)
        # Of the layout, which is asked for nothing in a step.
        self._block_tokens = tier.layout.block_tokens
        cells = sum(len(tier.layout.cells(kind.name)) for kind in tier.layout.kinds)
        self._expected_max, self._expected_step = max(1, EXPECTED_MAX // cells), max(1, EXPECTED_STEP // cells)
        tier.hold_options(hold_ms)  # refuses what is no time
        self._hold_ms = hold_ms
        self._epoch = b""
        self._workers, self._hashes, self._reading_max = workers, hashes, reading_max
        self._asked: dict[str, _Asked] = {}
        # Requests that nobody has asked about, with how many of their blocks may be loaded; those matched ahead of their turn.
        self._arrived: dict[str, tuple[Request, int]] = {}
        self._ahead: dict[str, None] = {}
        self._running: dict[str, _Running] = {}
        self._open: dict[int, _Open] = {}
        self._number = 0
        self._reading = 0
        self._unstored: dict[bytes, None] = {}
        self._loads: list[Load] = []
        self._delayed: list[str] = []
        self._unwanted: list[str] = []
        self._kept: dict[str, float] = {}
        # Planned loads under way, by number, each with what workers have said of it.
        self._planned: dict[int, tuple[Planned, Landed | None]] = {}

    # ---- A request that waits ----

    def arrived(self, name: str, request: Request, last: int) -> None:
        """It waits from now on. last: see ask."""
        if last > 0:
            self._arrived[name] = request, last

    def ask(self, name: str, turn: int, request: Request, first: int, last: int, tokens: int = 0) -> int | None:
        """How many blocks from number `first` on, before `last`, are to be loaded; None: not known yet.

        turn: another one for each time that the request begins anew. tokens: of the whole request.
        """
        self._arrived.pop(name, None)
        if first >= last:
            return 0
        asked = self._asked.get(name)
        if asked is None or asked.turn != turn or (not asked.taken and (first < asked.first or self._is_stale(asked))):
            asked = self._match(name, turn, request, first, last)
        if asked.taken:
            return 0
        if asked.pending is not None:
            self._tier.poll()
            if not asked.pending.done:
                self._waits.look(asked.wait)
                return None
            self._answered(asked, asked.pending, tokens)
        asked.start = first
        found = max(0, min(asked.first + asked.there, last) - first)
        if found:
            self._ahead[name] = None  # unless it is admitted in this step
        return found

    def admit(self, name: str, request: Request, blocks: Sequence[int], count: int) -> None:
        """It has its blocks. count: how many are to be loaded, from where it was asked last; blocks: all of its."""
        run = self._running.get(name)
        if run is None:
            run = self._running[name] = _Running(request)
        run.stored, run.old = None, False
        asked = self._asked.get(name)
        at = 0 if asked is None else asked.start - asked.first
        if asked is not None:
            self._expect_no_more(name, asked, range(at, at + count))
        if count and asked is not None:
            asked.taken = True
            load = Load(name, asked.keys[at : at + count], list(blocks[asked.start : asked.start + count]))
            if asked.planned is not None:
                self._number += 1
                asked.number = self._number
                load.number, load.deadline_ms = self._number, asked.planned.deadline_ms
                self._planned[load.number] = asked.planned, None
            self._loads.append(load)

    def _match(self, name: str, turn: int, request: Request, first: int, last: int) -> _Asked:
        """Of its blocks from number `first` on."""
        if (before := self._asked.get(name)) is not None:
            self._expect_no_more(name, before)
        keys = self._keys(request, first, last)
        asked = self._asked[name] = _Asked(turn, first, keys, self._waits.begin(self._tier.client.match_deadline_ms))
        if self._tier.planning is None or self._tier.planning.may_ask():
            asked.pending = self._begin(keys)
        return asked

    def _is_stale(self, asked: _Asked) -> bool:
        """Matched ahead of its turn, or answered in it, so long ago that others may have stored more, or dropped some."""
        fresh_s = AHEAD_FRESH_S if asked.pending is not None else max(ANSWER_FRESH_S, self._hold_ms / 1000)
        return asked.asked_s is not None and time.monotonic() - asked.asked_s > fresh_s

    def _begin(self, keys: list[bytes]) -> Pending[Found] | None:
        self.counts.matches += 1
        self.counts.keys_asked += len(keys)
        try:
            return self._tier.prefix_of(keys).begin_match(hold_ms=self._hold_ms)
        except Exception:
            log.exception("a match")
            return None

    def _answered(self, asked: _Asked, pending: Pending[Found], tokens: int) -> None:
        asked.pending = None
        seconds = self._waits.end(asked.wait)
        try:
            found = pending.result()
        except Exception:
            log.exception("a match")
            return
        asked.there, asked.asked_s = found.blocks, time.monotonic()
        self.counts.keys_hit += found.blocks
        if (planning := self._tier.planning) is not None:
            planning.matched([found], seconds)
            asked.planned = planning.plan(found.blocks, tokens, first=asked.first)
            asked.there = asked.planned.blocks

    # ---- READ AHEAD: requests that this step has not admitted ----

    def _look_ahead(self) -> None:
        """Ask about the next request that waits behind others, and expect what was found for those before it."""
        if self._ahead:
            self._tier.poll()
            for name in list(self._ahead):
                asked = self._asked[name]
                if (asked.pending is None or asked.pending.done) and self._expect(name, asked):
                    break  # the next ones in the next step
        if self._arrived and len(self._ahead) < AHEAD_REQUESTS_MAX and self._tier.planning is None:
            name = next(iter(self._arrived))
            request, last = self._arrived.pop(name)
            self._match(name, 0, request, 0, last).asked_s = time.monotonic()
            self._ahead[name] = None

    def _expect(self, name: str, asked: _Asked) -> bool:
        """Have the next blocks of what is there brought into the daemon's memory. False: there are none."""
        try:
            there = asked.there if asked.pending is None else asked.pending.result().blocks
            last = min(there, self._expected_max, asked.brought + self._expected_step)
            if last > asked.brought:
                asked.expected.append(self._tier.prefix_of(asked.keys[asked.brought : last]).expect())
                asked.brought = last
                return True
        except Exception:
            log.exception("an expectation")
        if not asked.expected:
            self._ahead.pop(name, None)
        return False

    def _expect_no_more(self, name: str, asked: _Asked, read: range = range(0)) -> None:
        """It waits no more. read: those of its keys that workers begin to load now."""
        self._ahead.pop(name, None)
        if asked.expected:
            self._tier.prefix_of(asked.keys[: asked.brought][read.start : read.stop]).read_elsewhere()
            for one in asked.expected:
                one.end()
            asked.expected = []

    # ---- A step ----

    def step(self, scheduled: Mapping[str, int], preempted: Iterable[str], blocks_of: Callable[[str], Sequence[int]]) -> Step:
        """What workers do in this step. scheduled: tokens of each request that runs in it."""
        tokens = sum(scheduled.values())
        prefill = tokens >= max(MEASURED_TOKENS_MIN, MEASURED_TOKENS_EACH * len(scheduled))
        step = Step(self._loads, [], list(preempted), self._delayed, tokens if prefill else 0, unwanted=self._unwanted)
        if step.tokens and self._tier.planning is not None:
            step.position = self._position(scheduled, tokens)
        self._loads, self._delayed, self._unwanted = [], [], []
        if self._arrived or self._ahead:
            self._look_ahead()
        for name in step.preempted:
            if (run := self._running.get(name)) is not None:
                run.reading.clear()  # the workers fence them before this step
        block_tokens = self._block_tokens
        for name, tokens in scheduled.items() if self._stores else ():
            run = self._running.get(name)
            if run is None or run.old:
                continue
            computed = run.request.num_computed_tokens
            if run.stored is None:
                run.stored = self._first_unstored(run.request, computed // block_tokens)
            last = (computed + tokens) // block_tokens
            if last > run.stored:
                self._store(step, name, run, last, blocks_of)
        return step

    def _position(self, scheduled: Mapping[str, int], tokens: int) -> int:
        """Where one prefill of so many tokens would begin whose tokens lie where these do on average."""
        runs = [(run.request.num_computed_tokens, some) for name, some in scheduled.items() if (run := self._running.get(name))]
        middle = sum(some * (before + some / 2) for before, some in runs) / tokens
        return max(0, round(middle - tokens / 2))

    def _store(self, step: Step, name: str, run: _Running, last: int, blocks_of: Callable[[str], Sequence[int]]) -> None:
        first = run.stored or 0
        last = min(last, len(run.request.block_hashes) // self._hashes)
        if self._reading:
            last = min(last, first + self._reading_max - self._reading)
        if last <= first:
            return  # what finds no room is tried again in the next step
        run.stored = last
        keys = self._keys(run.request, first, last)
        self._number += 1
        self._reading += len(keys)
        self._open[self._number] = _Open(name, keys, self._workers)
        run.reading.add(self._number)
        step.stores.append(Store(self._number, name, first, keys, list(blocks_of(name)[first:last])))

    def _first_unstored(self, request: Request, computed: int) -> int:
        """Of the blocks that it has already, the first that was refused when it was to be stored."""
        if self._unstored:
            for at, key in enumerate(self._keys(request, 0, computed)):
                if key in self._unstored:
                    return at
        return computed

    def _remember(self, keys: Iterable[bytes]) -> None:
        self._unstored.update(dict.fromkeys(keys))
        while len(self._unstored) > UNSTORED_MAX:
            del self._unstored[next(iter(self._unstored))]

    def _keys(self, request: Request, first: int, last: int) -> list[bytes]:
        each = self._hashes
        keys = [bytes(key) for key in request.block_hashes[first * each + each - 1 : last * each : each]]
        return keys if not self._epoch else [hashlib.sha256(self._epoch + key).digest() for key in keys]

    # ---- What has ended ----

    def ended(self, done: Done) -> None:
        """Workers have ended something."""
        for what, why in done.said.items():
            self._tier.tell(what, why)
        if (computed := done.computed) is not None:
            self._tier.computed(computed.tokens, computed.seconds, computed.position)
        for number, landed in done.landed.items():
            self._landed(number, landed)
        for number, workers in done.workers.items():
            store = self._open.get(number)
            if store is None:
                continue
            store.left -= workers
            store.refused |= number in done.refused
            if store.left > 0:
                continue
            del self._open[number]
            self._reading -= len(store.keys)
            if (run := self._running.get(store.request)) is not None:
                run.reading.discard(number)
            if store.refused:
                self._remember(store.keys)
                self.counts.stores_failed += len(store.keys)
            else:
                self.counts.stores += len(store.keys)
                for key in store.keys if self._unstored else ():
                    self._unstored.pop(key, None)

    def _landed(self, number: int, landed: Landed) -> None:
        if (known := self._planned.pop(number, None)) is None:
            return
        planned, before = known
        if before is not None:
            landed.add(before)
        if landed.workers < self._workers:
            self._planned[number] = planned, landed
            return
        loaded = Loaded(landed.blocks, landed.blocks * self._block_tokens, 0, "", landed.why)
        if (planning := self._tier.planning) is not None:
            planning.loaded(planned, [loaded], landed.seconds)

    def finished(self, name: str) -> bool:
        """A request is over. True: stores read its blocks; a worker says when they are free."""
        self._arrived.pop(name, None)
        if (asked := self._asked.pop(name, None)) is not None:
            self._expect_no_more(name, asked)
        run = self._running.pop(name, None)
        if run is None or run.stored is None:
            # Before it was scheduled nothing of this turn is stored, and nobody wants its load any more.
            if run is not None and asked is not None and asked.taken:
                self._unwanted.append(name)
                self._planned.pop(asked.number, None)
            return False
        last = run.stored if run.old else run.request.num_computed_tokens // self._block_tokens
        if left := self._keys(run.request, run.stored, last):
            self._remember(left)
            self.counts.stores_failed += len(left)
        if not run.reading:
            return False
        self._delayed.append(name)
        self._kept[name] = time.monotonic()
        return True

    def freed(self, names: Iterable[str]) -> None:
        """Blocks that were kept are free."""
        for name in names:
            self._kept.pop(name, None)

    @property
    def keeps_blocks(self) -> bool:
        """Blocks of requests that are over will be free in a moment; False also where that is taking long."""
        since = time.monotonic() - FENCE_S
        return any(kept > since for kept in self._kept.values())

    def forget(self) -> None:
        """What is there holds no more, for this engine: its weights may be others now, which the layout does not say.

        From here on its blocks have names of their own, which no other engine has and no restart of this one.
        """
        if not self._epoch:
            log.warning(
                "the engine has reset its caches: of what was stored before nothing is used any more, and what it stores from "
                "now on is its own; restart it to share again"
            )
        self._epoch = os.urandom(16)
        self._unstored.clear()
        for run in self._running.values():
            run.old = True
        for name, asked in [(name, asked) for name, asked in self._asked.items() if not asked.taken]:
            self._expect_no_more(name, asked)
            del self._asked[name]
