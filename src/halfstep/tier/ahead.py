"""Prefixes that a tier is told to expect, and what of them the daemon is asked to have in memory before their get.

The policy (halfstep.client.ahead) says which blocks and when; here they become prefetches, and gets become its reads. An item
is a block of one cell, so that a rank which expects a prefix for its own memory has no more brought than it will read.
Invariants: nothing here waits, and no thread is started: each call that begins a get, expects or polls moves it on. What is on
its way or waits to be read stays within the budget. A daemon that is dead, full or slow brings nothing, and is no error.
Thread: any.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable, Iterable, Sequence
from copy import copy
from typing import TYPE_CHECKING, NamedTuple

from halfstep.arguments import real_number
from halfstep.client.ahead import ENDS, KINDS, Ahead, Ask, Counts, End, Item, Kind
from halfstep.client.results import Answer, PrefetchResult
from halfstep.client.ticket import Ticket
from halfstep.errors import ConfigError

if TYPE_CHECKING:
    from halfstep.client import Client
    from halfstep.layout import Layout

# Of a tier, unless it says otherwise. The daemon has at most a quarter of its memory for prefetched blocks of all clients.
AHEAD_BYTES = 1 << 30
# How long an expected prefix is waited for, unless it is said.
EXPECT_S, EXPECT_S_MAX = 30.0, 3600.0
# Blocks of one request: it ends as a whole, and what landed is known then.
BATCH_BLOCKS = 16
# Of one call: whoever moves it on has other work, and the next call goes on from there.
CALL_BLOCKS = 64


class Wanted(NamedTuple):
    """An item's key: a block of one cell."""

    component: int
    key: bytes


class _Asked(NamedTuple):
    """A prefetch on its way."""

    ticket: Ticket[PrefetchResult]
    wanted: Sequence[Wanted]


class Expected:
    """A prefix that somebody is to read. Made by Prefix.expect() and TierSession.expect()."""

    def __init__(self, ahead: TierAhead, number: int) -> None:
        self._ahead, self._number = ahead, number

    def end(self) -> None:
        """Nobody will read it any more: what has not been brought is called off. Idempotent."""
        self._ahead.end(self._number)


class TierAhead:
    """Of one tier: `budget_bytes` for all that it expects."""

    def __init__(self, client: Client, layout: Layout, budget_bytes: int) -> None:
        self._layout = layout
        self._policy = Ahead(budget_bytes, self._note_end)
        self._tally = client.tally
        if self._tally is not None:
            # From here on one that is not there was none.
            self._tally.add(**{_recorded(kind, how): 0 for kind in KINDS for how in ENDS})
        # A queue of its own: the end of a prefetch is no event of the tier's.
        self._queue = client.queue()
        self._asked: list[_Asked] = []
        self._lock = threading.RLock()  # a signal's handler may read in the thread that has it
        self._closed = False

    def _note_end(self, kind: Kind, how: End, count_bytes: int) -> None:
        if self._tally is not None:
            self._tally.add(**{_recorded(kind, how): count_bytes})

    def expect(self, items: Sequence[Item], seconds: float) -> Expected:
        """Somebody will read these in this order, and begins within so many seconds. Errors: ConfigError."""
        keep_s = real_number("seconds", seconds)
        if not 0 < keep_s <= EXPECT_S_MAX:
            raise ConfigError(f"seconds={seconds}: must be above 0 and at most {EXPECT_S_MAX:g}; expect it again later")
        with self._lock:
            if self._closed:
                raise ConfigError("tier is closed; make another with client.tier()")
            self._learn()
            window = max(1, len(items))  # a get asks for all of it at once; the budget is what bounds it
            number = self._policy.follow(items, kind="turn", window=window, keep_s=keep_s, now_s=time.monotonic())
            self._ask()
        return Expected(self, number)

    def read(self, wanted: Iterable[Wanted]) -> None:
        """A get of these begins."""
        with self._lock:
            if self._closed:
                return
            self._learn()
            self._policy.read(wanted, time.monotonic())

    def go_on(self) -> None:
        """Learn what has come, and ask for what there is room for now."""
        with self._lock:
            if not self._closed and not (self._policy.idle and not self._asked):
                self._learn()
                self._ask()

    def end(self, number: int) -> None:
        """See Expected.end."""
        with self._lock:
            if not self._closed:
                self._learn()
                self._call_off(self._policy.end(number))
                self._ask()

    def counts(self) -> dict[Kind, Counts]:
        """How what was asked for has ended so far, by kind."""
        self.go_on()
        with self._lock:
            return {kind: copy(counts) for kind, counts in self._policy.counts.items()}

    @property
    def bytes(self) -> int:
        """On their way, or waiting to be read, as of the last call."""
        return self._policy.bytes

    @property
    def landed(self) -> int:
        """Blocks of a cell that are in the daemon's memory and wait to be read, as of now."""
        self.go_on()
        with self._lock:
            return self._policy.there

    def close(self) -> None:
        """End what is on its way. Idempotent."""
        with self._lock:
            if not self._closed:
                self._learn()
                self._closed = True
                self._policy.close()
                self._asked.clear()
        self._queue.close()

    def _learn(self) -> None:
        """What has come."""
        self._queue.poll()
        under_way = []
        for asked in self._asked:
            if not asked.ticket.done:
                under_way.append(asked)
                continue
            result = asked.ticket.result()
            for at, wanted in enumerate(asked.wanted):
                answer = result.answer_of(at)
                if answer in (Answer.CANCELLED, Answer.LATE):
                    self._policy.withdrawn(wanted)
                self._policy.landed(wanted, answer == Answer.OK)
        self._asked = under_way

    def _ask(self) -> None:
        """For what is due, in batches of one cell, the nearest to its reader first."""
        batches: dict[tuple[int, float, Kind], list[Ask]] = {}
        for ask in self._policy.due(time.monotonic(), CALL_BLOCKS):
            wanted = ask.item.key
            assert isinstance(wanted, Wanted)
            alike = wanted.component, ask.keep_s, ask.kind
            batch = batches.setdefault(alike, [])
            batch.append(ask)
            if len(batch) == BATCH_BLOCKS:
                self._submit(batches.pop(alike))
        for batch in batches.values():
            self._submit(batch)

    def _submit(self, batch: Sequence[Ask]) -> None:
        wanted = [ask.item.key for ask in batch if isinstance(ask.item.key, Wanted)]
        keep_s = batch[0].keep_s
        ticket = self._queue.prefetch(
            [one.key for one in wanted],
            layout=self._layout,
            first_component=wanted[0].component,
            seconds=keep_s,
            kind=batch[0].kind,
            deadline_ms=keep_s * 1e3,  # later nobody wants it
        )
        self._asked.append(_Asked(ticket, wanted))

    def _call_off(self, idle: Sequence[Hashable]) -> None:
        nobodys = set(idle)
        for asked in self._asked:
            if nobodys.issuperset(asked.wanted):
                asked.ticket.cancel()


def _recorded(kind: Kind, how: End) -> str:
    """What such bytes are called in a record."""
    return f"ahead_{kind}_{how}_bytes"
