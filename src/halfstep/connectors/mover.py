"""Moves blocks between an engine's paged memory and the tier, in a worker: what a Planner of paged.py says in each Step.

Invariants: nothing here waits but fence(). With nothing to move no call reaches the client or takes a lock. What was begun
ends, and is said once; nothing touches the engine's memory after detach().
What a load took counts as long as until the last look that found it under way (halfstep.tier.waits), so that a busy engine's
steps are not put down to the tier.
Thread: the worker's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from halfstep.connectors.steps import Computed, Done, Landed, Load, Step, Store
from halfstep.tier import BACKGROUND, Answer, Counts, Loaded, Memory, Pending, Stored, Tier, Wait, Waits

log = logging.getLogger("halfstep.connectors")

# How long a preemption waits for stores of the blocks that it takes, before it calls them off; and for kept blocks instead.
FENCE_S = 0.05


@dataclass(slots=True)
class _Loading:
    load: Load
    pending: Pending[Loaded]
    wait: Wait
    wanted: bool = True


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
        self._waits = Waits(self.counts)
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
        for one in self._loading if step.unwanted else ():
            if one.load.request in step.unwanted:
                one.wanted = False
                one.pending.cancel()

    def load(self) -> None:
        """Begin the loads of the step: the first layers of all blocks come first."""
        loads, self._loads = self._loads, ()
        for load in loads:
            try:
                assert self._memory is not None
                prefix = self._tier.prefix_of(load.keys)
                within_ms = self._tier.deadline_ms(prefix.tokens, load.deadline_ms) or self._tier.client.deadline_ms
                wait = self._waits.begin(within_ms)
                pending = prefix.begin_get(self._memory, rows=load.blocks, order="layer", deadline_ms=load.deadline_ms)
            except Exception:
                log.exception("a load")
                self._over(load, None, 0.0)
            else:
                self._loading.append(_Loading(load, pending, wait))

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
            if self._step.stores:
                self._put(self._step.stores, layers)

    def _put(self, stores: Sequence[Store], layers: range | None) -> None:
        """All in one call: one for each would take the engine's thread as many times as long."""
        storing = [self._storing.setdefault(store.number, _Storing(store)) for store in stores]
        if not self._writes:
            return
        try:
            assert self._memory is not None
            prefixes = [self._tier.prefix_of(store.keys, first=store.first) for store in stores]
            rows = [store.blocks for store in stores]
            pending = self._tier.begin_put_all(prefixes, self._memory, rows, layers=layers, priority=BACKGROUND)
        except Exception:
            log.exception("stores")
            for one in storing:
                one.refused = True
        else:
            for one in storing:
                one.pending.append(pending)

    def fence(self, names: Sequence[str]) -> None:
        """Blocks of these requests are about to be overwritten. Waits until no store reads them, nor those that go with it."""
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
            self._waits.look(one.wait)
            return False
        seconds = self._waits.end(one.wait)
        loaded = self._result(one.pending)
        if not one.wanted:
            self._loaded.add(one.load.request)  # its blocks are free
            return True
        if loaded is not None:
            # A miss is an answer.
            self._done.note("load", "" if loaded.why is Answer.MISS else loaded.reason)
        self._over(one.load, loaded, seconds)
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
            if stored is not None and stored.why is not Answer.CANCELLED:  # by fence(): the engine needs its blocks
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
