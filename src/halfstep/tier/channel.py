"""Calls that nobody waits for, and what has become of them: what a Tier and Values have in common.

Invariants: a call's memory is not touched once it is `done`. Nothing here waits but result() and wait(). A failure is said once
for all calls of one kind, where there is somebody to say it (Notices).
Thread: any may call anything.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypedDict, TypeVar

import numpy as np

from halfstep.arguments import unsigned, whole_number
from halfstep.client.request import choice_of_durability
from halfstep.client.results import Answer
from halfstep.client.ticket import Ticket
from halfstep.errors import ConfigError
from halfstep.tier.ahead import AHEAD_BYTES, TierAhead
from halfstep.tier.notices import Notices

if TYPE_CHECKING:
    from halfstep.client import Client, Queue
    from halfstep.client.options import Mode
    from halfstep.client.tally import Tally
    from halfstep.layout import Layout

R = TypeVar("R")
T = TypeVar("T")

# Priority of what no request waits for, such as a store beside loads; smaller ones go first.
BACKGROUND = 1
# How long an engine's match keeps what it found where nothing else is said: a request may wait so long for its load.
HOLD_MS = 10_000
# A wait for layers looks again so often: a ticket's own wait ends with its end alone.
LOOK_S = 0.0005


class HoldOptions(TypedDict, total=False):
    """Of a match that keeps what it finds."""

    lengths: bool
    hold_ms: int
    owner: int


def submitted(tickets: Iterable[Ticket[R]]) -> list[Ticket[R]]:
    """Batches of one call, each submitted as `tickets` comes to it. Where one is refused, none stays under way."""
    begun: list[Ticket[R]] = []
    try:
        begun.extend(tickets)
    except BaseException:
        fence(begun)
        raise
    return begun


def fence(tickets: Sequence[Ticket[Any]]) -> None:
    """Call off, and wait until nothing touches their memory any more; an interruption does not shorten that."""
    for ticket in tickets:
        ticket.cancel()
    for ticket in tickets:
        while not ticket.done:
            with contextlib.suppress(KeyboardInterrupt):
                ticket.wait()


class Pending(Generic[T]):
    """A call on its way. What has not ended goes on if it is dropped, and touches its memory until it has."""

    def __init__(self, tickets: Sequence[Ticket[Any]], finish: Callable[[list[Any]], T]) -> None:
        self._tickets = tickets
        self._finish = finish
        self._told: list[T] = []

    @property
    def done(self) -> bool:
        """Nothing of it touches memory any more. As of the last poll or wait of its tier."""
        return all(ticket.done for ticket in self._tickets)

    def result(self, timeout_s: float | None = None) -> T:
        """What came of it; waits. Errors: TimeoutError after `timeout_s`; it goes on then."""
        if not self._told:
            until = None if timeout_s is None else time.monotonic() + timeout_s
            results = [ticket.result(None if until is None else max(0, until - time.monotonic())) for ticket in self._tickets]
            self._told.append(self._finish(results))
        return self._told[0]

    def whole_result(self) -> T:
        """As result(), for a caller who keeps no handle: what interrupts it (Ctrl-C) leaves once nothing touches its memory."""
        try:
            return self.result()
        except BaseException:
            fence(self._tickets)
            raise

    def cancel(self) -> None:
        """Ask for its end; it is over when `done`."""
        for ticket in self._tickets:
            ticket.cancel()


class Layered(Pending[T]):
    """A get on its way whose layers land one after the other: which have come is known before it is over.

    layers: the model's numbers of those that it brings, ascending.
    """

    def __init__(
        self,
        tickets: Sequence[Ticket[Any]],
        finish: Callable[[list[Any]], T],
        layers: Sequence[int],
        steps: Sequence[Sequence[int]],
    ) -> None:
        """steps: of each ticket, with how many of its steps it has brought each layer; 0: it has nothing of it."""
        super().__init__(tickets, finish)
        self.layers = tuple(layers)
        self._steps = [np.asarray(of_ticket, np.int64) for of_ticket in steps]

    @property
    def layers_done(self) -> int:
        """How many of `layers`, from the first on, have landed for all blocks. As of the last poll or wait of its tier.

        A block that does not come holds no layer up: its bytes are undefined in every layer, and result() says which blocks are
        whole. Who goes on before that has to compute again what came of the others.
        """
        count = len(self.layers)
        for ticket, steps in zip(self._tickets, self._steps, strict=True):
            if not ticket.done:
                landed = steps[:count] <= ticket.steps_done
                count = count if landed.all() else int(landed.argmin())
        return count

    def wait_layers(self, count: int, timeout_s: float | None = None) -> bool:
        """Wait until so many of `layers` have landed; False after `timeout_s`. Errors: ConfigError (there are not so many).

        Learns what has ended even where it need not wait, as poll does: who calls nothing else sees `done` in the end.
        """
        if not 0 <= whole_number("count", count) <= len(self.layers):
            raise ConfigError(f"count={count}: must be 0 to {len(self.layers)}, which are the layers of this get")
        until = None if timeout_s is None else time.monotonic() + timeout_s
        # The last layer's bytes may come before the word that the get is over, and no later call would learn of that.
        self._wait_for_flying(0)
        while self.layers_done < count:
            left_s = LOOK_S if until is None else until - time.monotonic()
            if left_s <= 0:
                return False
            self._wait_for_flying(min(LOOK_S, left_s))
        return True

    def _wait_for_flying(self, timeout_s: float) -> None:
        # Not for any event: one of another call is its owner's to see, and would end the wait again and again.
        flying = next((ticket for ticket in self._tickets if not ticket.done), None)
        if flying is not None:  # else another thread has seen the last one's end meanwhile
            flying.wait(timeout_s)


class Channel:
    """A client's queue with the terms of what goes through it.

    ttl_s: of stored blocks, 0 = the namespace's default. durability: of stored blocks. priority: of gets and puts that name
    none; 0 is the most urgent. notices: who says what fails; None = the results alone. ahead_bytes: budget of what is brought
    ahead for readers that are expected. Errors: ConfigError.
    """

    def __init__(
        self,
        client: Client,
        *,
        ttl_s: int = 0,
        durability: Literal["cache", "persist"] = "cache",
        priority: int = 0,
        notices: Notices | None = None,
        ahead_bytes: int = AHEAD_BYTES,
    ) -> None:
        choice_of_durability(durability)
        if notices is not None and not isinstance(notices, Notices):
            raise ConfigError(f"notices ({type(notices).__name__}): must be a halfstep.tier.Notices, or None")
        if unsigned("ahead_bytes", ahead_bytes, 63) == 0:
            raise ConfigError("ahead_bytes=0: must be above 0; who wants nothing brought ahead expects nothing")
        self.client = client
        self.ttl_s, self.durability = unsigned("ttl_s", ttl_s, 32), durability
        self.priority = unsigned("priority", priority, 8)
        self.notices = notices
        # Whose leases those of its matches are. It says no end of them: each lapses by itself, and costs no request.
        self.owner = secrets.randbits(63) + 1
        self.queue: Queue = client.queue(counted=False)
        self._ahead_bytes = ahead_bytes
        self._ahead_lock = threading.Lock()
        # What is brought before its get; None until somebody is expected.
        self.ahead: TierAhead | None = None
        self._closed = False

    @property
    def mode(self) -> Mode:
        """Its client's: on, off (every call is a miss at once) or shadow (all the work is done, and a miss is said)."""
        return self.client.mode

    @property
    def tally(self) -> Tally | None:
        """Its client's: where its calls count themselves; None: nowhere."""
        return self.client.tally

    def ahead_of(self, layout: Layout) -> TierAhead:
        """`ahead`, from now on, of blocks of this layout. Errors: ConfigError (the client is closed)."""
        with self._ahead_lock:
            if self.ahead is None:
                self.ahead = TierAhead(self.client, layout, self._ahead_bytes)
            return self.ahead

    def poll(self) -> None:
        """Learn what has ended: afterwards `done` of each Pending says so. Moves on what is brought ahead. Never waits."""
        self.queue.poll()
        if self.ahead is not None:
            self.ahead.go_on()

    def wait(self, timeout_s: float | None = None) -> None:
        """As poll, but waits until something has ended, or `timeout_s`."""
        self.queue.wait(timeout_s)

    def fileno(self) -> int:
        """An eventfd: readable when poll has something to learn. Another one after a fork. Errors: Unavailable, ConfigError."""
        return self.queue.fileno()

    def note(self, what: str, why: Answer, reason: str) -> None:
        """A call has ended. what: its kind of work. That a block is absent is an answer, and no failure."""
        self.tell(what, "" if why in (Answer.OK, Answer.MISS) else reason)

    def tell(self, what: str, failure: str) -> None:
        """Say what has failed here or in another process that says nothing itself; "" = it was done. See Notices.note."""
        if self.notices is not None and not self._closed:
            self.notices.note(what, failure)

    def hold_options(self, hold_ms: int) -> HoldOptions:
        """Of a match: to keep what it finds for so long, 0 = not. Errors: ConfigError."""
        if unsigned("hold_ms", hold_ms, 32) == 0:
            return {}
        # With lengths a block that is there and could not be held is told from one that nobody answered for.
        return {"hold_ms": hold_ms, "owner": self.owner, "lengths": True}

    def urgency(self, priority: int | None) -> int:
        """Of a call. priority: as it names it; None = the channel's. Errors: ConfigError."""
        return self.priority if priority is None else unsigned("priority", priority, 8)

    def close(self) -> None:
        """End what is on its way; nothing is touched afterwards, and nothing of it is said. Idempotent.

        `notices` goes on: others may have it, and whoever made it ends it.
        """
        self._closed = True
        self.queue.close()
        if self.ahead is not None:
            self.ahead.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
