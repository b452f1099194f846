"""What connectors share: lookups that are asked in batches, transfers that nobody waits for, one word for each failure.

Engines ask on a scheduler's thread, which must never wait. So a question is answered at once with what is known, the questions
of a step go to the daemon in one match, and what has come back is looked at when the next step begins. Whatever goes wrong is a
miss: the engine computes the block.

Invariants: with nothing in flight no call here reaches the client. Each question and each transfer ends by its deadline. What
failed to load is a miss for as long as anybody still asks for it, so that nothing is asked for again and again.
Thread: one at a time, the engine's scheduler.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from halfstep.client import Answer, Client, GetResult, MatchResult, PutResult, Queue, Rows, Template, Ticket
from halfstep.client.results import REASON_PENDING
from halfstep.errors import ConfigError
from halfstep.layout import Layout

log = logging.getLogger("halfstep.connectors")

# Of one batch. A scheduler's thread packs it: a thousand keys are some 100 us of its time.
BATCH_KEYS = 1024


@dataclass(slots=True)
class _Question:
    verdict: bool | None = None
    owners: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Transfer:
    """One job of an engine's, once it is over.

    number: the engine's. good: of its keys, those that were moved (or were there already), in no order. bytes: moved.
    seconds: since it was handed over.
    """

    number: int
    keys: Sequence[bytes]
    good: list[bytes]
    bytes: int
    seconds: float

    @property
    def whole(self) -> bool:
        """Nothing of it failed."""
        return len(self.good) == len(self.keys)


@dataclass(slots=True)
class _Job:
    number: int
    keys: Sequence[bytes]
    load: bool
    began: float
    left: int = 0  # batches
    good: list[bytes] = field(default_factory=list)
    moved: int = 0


@dataclass(slots=True)
class Counts:
    """What a connector did, for whoever asks it.

    call_ns: CPU time of the engine's thread in hooks; call_ns_max: in one. held_s_max: the longest that the engine waited for
    an answer or a transfer, until it asked again.
    """

    matches: int = 0
    keys_asked: int = 0
    keys_hit: int = 0
    loads: int = 0
    loads_failed: int = 0
    stores: int = 0
    stores_failed: int = 0
    calls: int = 0
    call_ns: int = 0
    call_ns_max: int = 0
    held_s_max: float = 0.0


class Counting(Protocol):
    """What has hooks that are counted."""

    @property
    def counts(self) -> Counts:
        """Where they go."""
        ...


S = TypeVar("S", bound=Counting)
P = ParamSpec("P")
R = TypeVar("R")


class Notices:
    """Says once that something fails, and once that it works again: of each kind of work, as one may do and another not."""

    # Between two warnings. What fails every other time is not worth one each.
    SPACE_S = 10.0

    def __init__(self, name: str) -> None:
        self._name = name
        self._failed: dict[str, int] = {}
        self._said_s = -self.SPACE_S
        self._over = False

    def note(self, what: str, why: str) -> None:
        """what: a kind of work. why: it failed, for another reason than absence; "" = it was done."""
        if self._over:
            return
        failed = self._failed.get(what, 0)
        if why:
            now_s = time.monotonic()
            first = not self._failed and now_s - self._said_s >= self.SPACE_S
            self._failed[what] = failed + 1
            if first:
                self._said_s = now_s
                log.warning("%s: %s: %s; blocks are computed instead until it works again", self._name, what, why)
        elif failed:
            self._failed.pop(what, None)  # another thread may have said so
            log.info("%s: %s works again, after %d failures", self._name, what, failed)

    def end(self) -> None:
        """What is called off from here on is no failure."""
        self._over = True


class Plan:
    """Lookups and transfers of one engine process, through one queue.

    template: how a row of the engine's host memory is cut into the parts of a block.
    """

    def __init__(self, client: Client, layout: Layout, template: Template, *, ttl_s: int = 0, name: str = "halfstep") -> None:
        self.counts = Counts()
        self.notices = Notices(name)
        self._layout = layout
        self._template = template
        self._ttl_s = ttl_s
        self._queue: Queue = client.queue()
        self._questions: dict[bytes, _Question] = {}
        self._asked_by: dict[str, list[bytes]] = {}
        self._new: list[bytes] = []
        self._flying: dict[Ticket[Any], Callable[[Any], None]] = {}
        self._jobs = 0
        self._over: list[Transfer] = []

    # ---- Questions ----

    def ask(self, key: bytes, owner: str) -> bool | None:
        """Whether a block is there; None: not known yet, ask again in the next step. owner: the request that wants to know."""
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

    def flush(self) -> None:
        """Send the questions of this step."""
        if not self._new:
            return
        keys = [key for key in self._new if key in self._questions]
        self._new = []
        for some in _batches(keys):
            self.counts.matches += 1
            self.counts.keys_asked += len(some)
            ticket = self._queue.match(some, layout=self._layout)
            self._fly(ticket, _bind(self._matched, some, time.monotonic()))

    def _matched(self, keys: Sequence[bytes], began: float, result: MatchResult) -> None:
        self._held(began)
        there = result.present
        self.notices.note("lookup", result.reason)
        self.counts.keys_hit += int(there.sum())
        for key, hit in zip(keys, there.tolist(), strict=True):
            question = self._questions.get(key)
            if question is not None and question.verdict is None:
                question.verdict = hit

    # ---- Transfers ----

    def load(self, number: int, keys: Iterable[bytes], rows: npt.NDArray[np.integer[Any]]) -> None:
        """Blocks into rows of the engine's memory. `number` comes back from `finished`."""
        self._begin(_Job(number, [bytes(key) for key in keys], load=True, began=time.monotonic()), rows)

    def store(self, number: int, keys: Iterable[bytes], rows: npt.NDArray[np.integer[Any]]) -> None:
        """Blocks from rows of the engine's memory, which must not change until `number` comes back from `finished`."""
        self._begin(_Job(number, [bytes(key) for key in keys], load=False, began=time.monotonic()), rows)

    def finished(self) -> list[Transfer]:
        """What is over and was not said before. Also the moment at which answers to questions are looked at."""
        self.look()
        over, self._over = self._over, []
        return over

    @property
    def busy(self) -> bool:
        """A transfer is under way, or over and not said yet."""
        return self._jobs > 0 or bool(self._over)

    def _begin(self, job: _Job, rows: npt.NDArray[np.integer[Any]]) -> None:
        self._jobs += 1
        places = np.asarray(rows, dtype=np.int64)
        batches = list(_batches(job.keys))
        job.left = len(batches)
        if not batches:
            self._end(job)
        at = 0
        for some in batches:
            memory = Rows(self._template, places[at : at + len(some)])
            at += len(some)
            if job.load:
                self._fly(self._queue.get(some, memory, layout=self._layout), _bind(self._moved, some, job))
            else:
                put = self._queue.put(some, memory, layout=self._layout, ttl_s=self._ttl_s)
                self._fly(put, _bind(self._moved, some, job))

    def _moved(self, keys: Sequence[bytes], job: _Job, result: GetResult | PutResult) -> None:
        done = result.items_ok
        self.notices.note("load" if job.load else "store", why_not(result))
        good = [key for key, ok in zip(keys, done.tolist(), strict=True) if ok]
        job.good += good
        job.moved += len(good) * self._template.block_bytes
        if job.load:
            for at in np.flatnonzero(~done).tolist():
                if (question := self._questions.get(keys[at])) is not None:
                    question.verdict = False
        job.left -= 1
        if job.left == 0:
            self._end(job)

    def _end(self, job: _Job) -> None:
        self._jobs -= 1
        counts = self.counts
        failed = len(job.keys) - len(job.good)
        if job.load:
            self._held(job.began)
            counts.loads += len(job.good)
            counts.loads_failed += failed
        else:
            counts.stores += len(job.good)
            counts.stores_failed += failed
        self._over.append(Transfer(job.number, job.keys, job.good, job.moved, time.monotonic() - job.began))

    # ---- The queue ----

    def look(self) -> None:
        """What has come back since. Never waits."""
        if self._flying:
            self._settle(event.ticket for event in self._queue.poll() if event.done)

    def drain(self) -> None:
        """Waits until every transfer is over: by its deadline."""
        while self._jobs > 0:
            self._settle(event.ticket for event in self._queue.wait() if event.done)

    def close(self) -> None:
        """Ends what is in flight; no byte lands afterwards. What was a transfer is over, as failed, for `finished`."""
        self.notices.end()
        self._queue.close()
        self._settle(list(self._flying))

    def _fly(self, ticket: Ticket[Any], then: Callable[[Any], None]) -> None:
        self._flying[ticket] = then

    def _settle(self, tickets: Iterable[Ticket[Any]]) -> None:
        for ticket in tickets:
            then = self._flying.pop(ticket, None)
            if then is None:
                continue
            try:
                then(ticket.result())
            except Exception:
                # A mistake of ours, and no reason that the others of this look never end.
                log.exception("ticket %d", ticket.id)

    def _held(self, began: float) -> None:
        self.counts.held_s_max = max(self.counts.held_s_max, time.monotonic() - began)


def why_not(result: GetResult | PutResult) -> str:
    """Why the first item failed that did; "" where none did: what is absent, or just being written by another, has not."""
    failed = np.flatnonzero(~result.items_ok & (result.answers != Answer.MISS) & (result.reasons != REASON_PENDING))
    return result.reason(int(failed[0])) if len(failed) else ""


def warn_of_version(engine: str, version: str, known: Sequence[str]) -> None:
    """One word about an engine that a connector was not made for. known: versions, or how those begin."""
    if not any(version == one or version.startswith(f"{one}.") for one in known):
        log.warning("halfstep: %s %s is not one that this was made for (%s)", engine, version, " and ".join(known))


def refuse_unknown_methods(kind: type, what: str, engine: str, version: str, known: Sequence[str], remedy: str) -> None:
    """For an engine that asks for more than `kind` has. what: the engine's name of it. Errors: ConfigError."""
    if unknown := getattr(kind, "__abstractmethods__", ()):
        raise ConfigError(
            f"{engine} {version}: a {what} has to have {', '.join(sorted(unknown))} there, which this release of Halfstep has "
            f"not; it was made for {engine} {' and '.join(known)}: upgrade Halfstep, or take {remedy}"
        )


def _batches(keys: Sequence[bytes]) -> Iterable[Sequence[bytes]]:
    return (keys[at : at + BATCH_KEYS] for at in range(0, len(keys), BATCH_KEYS))


def _bind(function: Callable[..., None], *first: Any) -> Callable[[Any], None]:
    return lambda result: function(*first, result)


def counted(hook: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """A hook on an engine's thread: its CPU time goes to the `counts` of what it belongs to."""

    def call(self: S, /, *arguments: P.args, **named: P.kwargs) -> R:
        began = time.thread_time_ns()
        try:
            return hook(self, *arguments, **named)
        finally:
            spent = time.thread_time_ns() - began
            counts = self.counts
            counts.calls += 1
            counts.call_ns += spent
            counts.call_ns_max = max(counts.call_ns_max, spent)

    functools.update_wrapper(call, hook)
    return call
