"""Engines with paged memory and no host tier: what a scheduler plans, and what its workers move.

A Planner lives beside the engine's scheduler, a Mover in each worker. A Step goes from one to the other with every step of the
engine, and Done comes back (steps.py).

Invariants: nothing here waits but Mover.fence. With nothing to move no call reaches the client or takes a lock. A block that a
store reads is kept by the engine until every worker has said that the store is over. What was loaded once is not asked for
again before the request is preempted, so that a block which cannot be loaded is computed.
With a tier that plans (plan="auto") the planner decides how much of what was found is loaded; the movers measure what computing
and loads take. The engine looks once a step: what it waited for counts as long as until the last look that found it under way,
so that a busy engine's steps are not put down to the tier.
Thread: a planner has the scheduler's, a mover its worker's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from halfstep.connectors.steps import Computed, Done, Landed, Load, Step, Store
from halfstep.tier import BACKGROUND, MEASURED_TOKENS_MIN, Answer, Counts, Found, Loaded, Memory, Pending, Planned, Stored, Tier

log = logging.getLogger("halfstep.connectors")

# How long a preemption waits for stores of the blocks that it takes, before it calls them off; and for kept blocks instead.
FENCE_S = 0.05
# Of a step, for each of its requests: fewer are decoding more than prefill, and tell nothing of what a prompt costs.
MEASURED_TOKENS_EACH = 16
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
    pending: Pending[Found] | None
    began: float
    there: int = 0
    start: int = 0
    taken: bool = False
    # When it was looked at last, and the answer was under way.
    looked: float = 0.0
    planned: Planned | None = None


@dataclass(slots=True)
class _Running:
    request: Request
    # Blocks from the first on that need no store; None until it was scheduled.
    stored: int | None = None
    reading: set[int] = field(default_factory=set)


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
        tier.hold_options(hold_ms)  # refuses what is no time
        self._hold_ms = hold_ms
        self._workers, self._hashes, self._reading_max = workers, hashes, reading_max
        self._asked: dict[str, _Asked] = {}
        self._running: dict[str, _Running] = {}
        self._open: dict[int, _Open] = {}
        self._number = 0
        self._reading = 0
        self._unstored: dict[bytes, None] = {}
        self._loads: list[Load] = []
        self._delayed: list[str] = []
        self._kept: dict[str, float] = {}
        # Planned loads under way, by number, each with what workers have said of it.
        self._planned: dict[int, tuple[Planned, Landed | None]] = {}

    # ---- A request that waits ----

    def ask(self, name: str, turn: int, request: Request, first: int, last: int, tokens: int = 0) -> int | None:
        """How many blocks from number `first` on, before `last`, are to be loaded; None: not known yet.

        turn: another one for each time that the request begins anew. tokens: of the whole request.
        """
        asked = self._asked.get(name)
        if asked is None or asked.turn != turn or (first < asked.first and not asked.taken):
            if first >= last:
                return 0
            keys = self._keys(request, first, last)
            asked = self._asked[name] = _Asked(turn, first, keys, None, time.monotonic())
            if self._tier.planning is None or self._tier.planning.may_ask():
                asked.pending = self._begin(keys)
        if asked.taken:
            return 0
        if asked.pending is not None:
            self._tier.poll()
            if not asked.pending.done:
                asked.looked = time.monotonic()
                return None
            self._answered(asked, asked.pending, tokens)
        asked.start = first
        return max(0, min(asked.first + asked.there, last) - first)

    def admit(self, name: str, request: Request, blocks: Sequence[int], count: int) -> None:
        """It has its blocks. count: how many are to be loaded, from where it was asked last; blocks: all of its."""
        run = self._running.get(name)
        if run is None:
            run = self._running[name] = _Running(request)
        run.stored = None
        asked = self._asked.get(name)
        if count and asked is not None:
            asked.taken = True
            at = asked.start - asked.first
            load = Load(name, asked.keys[at : at + count], list(blocks[asked.start : asked.start + count]))
            if asked.planned is not None:
                self._number += 1
                load.number, load.deadline_ms = self._number, asked.planned.deadline_ms
                self._planned[load.number] = asked.planned, None
            self._loads.append(load)

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
        self.counts.held(asked.began)
        try:
            found = pending.result()
        except Exception:
            log.exception("a match")
            return
        asked.there = found.blocks
        self.counts.keys_hit += found.blocks
        if (planning := self._tier.planning) is not None:
            planning.matched([found], (asked.looked or time.monotonic()) - asked.began)
            asked.planned = planning.plan(found.blocks, tokens, first=asked.first)
            asked.there = asked.planned.blocks

    # ---- A step ----

    def step(self, scheduled: Mapping[str, int], preempted: Iterable[str], blocks_of: Callable[[str], Sequence[int]]) -> Step:
        """What workers do in this step. scheduled: tokens of each request that runs in it."""
        tokens = sum(scheduled.values())
        prefill = tokens >= max(MEASURED_TOKENS_MIN, MEASURED_TOKENS_EACH * len(scheduled))
        step = Step(self._loads, [], list(preempted), self._delayed, tokens if prefill else 0)
        if step.tokens and self._tier.planning is not None:
            step.position = self._position(scheduled, tokens)
        self._loads, self._delayed = [], []
        for name in step.preempted:
            if (run := self._running.get(name)) is not None:
                run.reading.clear()  # the workers fence them before this step
        block_tokens = self._tier.layout.block_tokens
        for name, tokens in scheduled.items() if self._stores else ():
            run = self._running.get(name)
            if run is None:
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
        return [bytes(key) for key in request.block_hashes[first * each + each - 1 : last * each : each]]

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
        loaded = Loaded(landed.blocks, landed.blocks * self._tier.layout.block_tokens, 0, "", landed.why)
        if (planning := self._tier.planning) is not None:
            planning.loaded(planned, [loaded], landed.seconds)

    def finished(self, name: str) -> bool:
        """A request is over. True: stores read its blocks; a worker says when they are free."""
        self._asked.pop(name, None)
        run = self._running.pop(name, None)
        # Before it was scheduled nothing of this turn is stored, and a load ends by itself.
        if run is None or run.stored is None:
            return False
        if left := self._keys(run.request, run.stored, run.request.num_computed_tokens // self._tier.layout.block_tokens):
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
        """What is there is asked anew."""
        self._asked = {name: asked for name, asked in self._asked.items() if asked.taken}


@dataclass(slots=True)
class _Loading:
    load: Load
    pending: Pending[Loaded]
    began: float
    looked: float = 0.0


@dataclass(slots=True)
class _Storing:
    store: Store
    pending: list[Pending[Stored]] = field(default_factory=list)
    refused: bool = False


class Mover:
    """A worker's half. tier: says nothing; the planner's does. writes: no other rank writes the same.

    tells: what computing and loads take, to a planner whose tier plans; that one sets deadlines then.
    """

    def __init__(self, tier: Tier, *, writes: bool, tells: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self.counts = Counts()
        self._clock, self._began_s, self._tells = clock, 0.0, tells
        self._tier, self._writes = tier, writes
        tier.counted_share = int(writes)
        self._memory: Memory | None = None
        # The layers of each cell, in their order; None: of all of them at once.
        self._cells: Sequence[range | None] = (None,)
        self._step = Step()
        self._loads: Sequence[Load] = ()
        self._begun = 0
        self._loading: list[_Loading] = []
        self._storing: dict[int, _Storing] = {}
        self._delayed: set[str] = set()
        self._done = Done()
        self._loaded: set[str] = set()
        self._bad: set[int] = set()

    def attach(self, memory: Memory, cells: Sequence[range | None] = (None,)) -> None:
        """Where the engine's blocks are. cells: the model's layers of each layer cell, in their order; None: all of them."""
        self.detach()
        self._memory, self._cells = memory, cells

    def detach(self) -> None:
        """Afterwards nothing touches the engine's memory."""
        if self._memory is not None:
            self._memory.close()
        self._memory = None

    # ---- A step ----

    def begin(self, step: Step) -> None:
        """Afterwards its loads and stores may be begun."""
        self._step, self._loads, self._begun = step, step.loads, 0
        if step.tokens:
            self._began_s = self._clock()
        self._delayed.update(step.delayed)

    def load(self) -> None:
        """Begin the loads of the step: the first layers of all blocks come first."""
        loads, self._loads = self._loads, ()
        for load in loads:
            try:
                assert self._memory is not None
                prefix = self._tier.prefix_of(load.keys)
                pending = prefix.begin_get(self._memory, rows=load.blocks, order="layer", deadline_ms=load.deadline_ms)
            except Exception:
                log.exception("a load")
                self._over(load, None, 0.0)
            else:
                self._loading.append(_Loading(load, pending, time.monotonic()))

    def end(self) -> None:
        """All layers of the step are computed."""
        if not self._step.tokens:
            return
        seconds = self._clock() - self._began_s
        if self._tells:
            self._done.computed = Computed(self._step.tokens, seconds, self._step.position)
        else:
            self._tier.computed(self._step.tokens, seconds)

    def store(self, cells: int | None = None) -> None:
        """Begin the stores of the step: of its first cells, whose layers are computed; None: of all."""
        last = len(self._cells) if cells is None else cells
        while self._begun < last:
            layers, self._begun = self._cells[self._begun], self._begun + 1
            for store in self._step.stores:
                self._put(store, layers)

    def _put(self, store: Store, layers: range | None) -> None:
        storing = self._storing.get(store.number)
        if storing is None:
            storing = self._storing[store.number] = _Storing(store)
        if not self._writes:
            return
        try:
            assert self._memory is not None
            prefix = self._tier.prefix_of(store.keys, first=store.first)
            storing.pending.append(prefix.begin_put(self._memory, rows=store.blocks, layers=layers, priority=BACKGROUND))
        except Exception:
            log.exception("a store")
            storing.refused = True

    def fence(self, names: Sequence[str]) -> None:
        """Blocks of these requests are about to be overwritten. Waits until no store reads them."""
        if not names or not self._storing:
            return
        until = time.monotonic() + FENCE_S
        for storing in self._storing.values():
            if storing.store.request not in names:
                continue
            for pending in storing.pending:
                try:
                    pending.result(max(0.0, until - time.monotonic()))
                except TimeoutError:
                    pending.cancel()
                    pending.result()

    # ---- What has ended ----

    @property
    def idle(self) -> bool:
        """Nothing moves, and nothing that has ended was not said."""
        return not (self._loading or self._storing or self._delayed or self._loaded)

    def finished(self) -> tuple[set[str], set[str]]:
        """Requests whose blocks no store reads any more, of those that are delayed; and those whose load is over."""
        if self._loading or self._storing:
            self._tier.poll()
            self._loading = [one for one in self._loading if not self._end_load(one)]
            if self._begun >= len(self._cells) or not self._step.stores:
                for number in [number for number, one in self._storing.items() if self._end_store(number, one)]:
                    del self._storing[number]
        reading = {one.store.request for one in self._storing.values()} if self._delayed else set()
        free = self._delayed - reading
        self._delayed &= reading
        loaded, self._loaded = self._loaded, set()
        return free, loaded

    def bad(self) -> set[int]:
        """Blocks that were to be loaded and were not, since the last call."""
        bad, self._bad = self._bad, set()
        return bad

    def done(self) -> Done | None:
        """What has ended since the last call; None: nothing."""
        done = self._done
        if not (done.workers or done.said or done.landed or done.computed):
            return None
        self._done = Done()
        return done

    def _end_load(self, one: _Loading) -> bool:
        if not one.pending.done:
            one.looked = time.monotonic()
            return False
        self.counts.held(one.began)
        loaded = self._result(one.pending)
        if loaded is not None:
            # A miss is an answer.
            self._done.note("load", "" if loaded.why is Answer.MISS else loaded.reason)
        self._over(one.load, loaded, (one.looked or time.monotonic()) - one.began)
        return True

    def _over(self, load: Load, loaded: Loaded | None, seconds: float) -> None:
        whole = 0 if loaded is None else loaded.blocks
        self._loaded.add(load.request)
        if self._tells and load.number:
            self._done.landed[load.number] = Landed(whole, Answer.MISS if loaded is None else loaded.why, seconds)
        self._bad.update(load.blocks[whole:])
        self.counts.loads += whole
        self.counts.loads_failed += len(load.blocks) - whole

    def _end_store(self, number: int, one: _Storing) -> bool:
        if not all(pending.done for pending in one.pending):
            return False
        for pending in one.pending:
            stored = self._result(pending)
            if stored is None or stored.refused:
                one.refused = True
            if stored is not None:
                self._done.note("store", stored.reason)
        blocks = len(one.store.keys)
        self.counts.stores += 0 if one.refused else blocks
        self.counts.stores_failed += blocks if one.refused else 0
        self._done.workers[number] = 1
        if one.refused:
            self._done.refused.add(number)
        return True

    def _result(self, pending: Pending[Any]) -> Any:
        try:
            return pending.result()
        except Exception:
            log.exception("a transfer")
            return None

    def close(self) -> None:
        """End what is under way; nothing touches the engine's memory afterwards. Idempotent."""
        self._tier.close()
        self.detach()
