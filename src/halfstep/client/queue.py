"""Where batches are submitted to, and where their ends come from.

Invariants: one thread at a time is inside the core's poll or wait: the leader, or who runs a synchronous call on a queue of its
own; the others wait for it and see what it brought. A ticket ends for all at once: its memory is fenced in the core before any
thread learns of it. Call-backs run without a lock. After a fork the queue is empty and has another descriptor; the parent's
tickets have ended as cancelled (forked).
Thread: any.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from halfstep import _peer
from halfstep.arguments import real_number
from halfstep.client.options import CommonOptions, GetOptions, HoldOptions, Keys, MatchOptions, PrefetchOptions, PutOptions
from halfstep.client.request import Request, Requests
from halfstep.client.results import ChangeResult, DeleteResult, GetResult, MatchResult, PrefetchResult, PutResult, ReleaseResult
from halfstep.client.ticket import Event, Ticket
from halfstep.errors import ConfigError

if TYPE_CHECKING:
    from typing import Unpack

    from halfstep.client.link import Links

R = TypeVar("R")

# Between two looks at a thread that waits in the core while this one wants the queue closed.
_CLOSE_SLICE_S = 0.05
# The core's wait without an end.
_FOR_EVER = -1.0


class Queue:
    """Submits without waiting; poll or wait says what has ended.

    fileno() is readable when poll has something to say. Every ticket ends exactly once.
    """

    def __init__(self, links: Links, requests: Requests) -> None:
        self._links = links
        self._requests = requests
        self._changed = threading.Condition()
        self._leader = False
        # Threads that wait for a change: a call that nobody else waits for wakes nobody, which would cost it a tenth of what it
        # does here.
        self._sleepers = 0
        self._closed = False
        self._native: _peer.Queue | None = None
        self._core: _peer.Core | None = None
        self._offline_signal = -1
        self._watched = False
        # What the core said and no leader has sorted yet: a signal's exception may come between the two.
        self._inbox: list[tuple[Any, bool, int]] = []
        # Over, and their call-backs not all called: in the same way.
        self._finished: dict[Ticket[Any], None] = {}
        # By ticket: its newest event that no poll has returned yet.
        self._pending: dict[Ticket[Any], Event] = {}

    # ---- submit ----

    def match(self, keys: Keys, **options: Unpack[MatchOptions]) -> Ticket[MatchResult]:
        """See Client.match."""
        return self.submit(self._requests.match(keys, **options))

    def get(self, keys: Keys, target: object, **options: Unpack[GetOptions]) -> Ticket[GetResult]:
        """See Client.get. `target` must stay as it is until the ticket is done; it is kept alive here."""
        return self.submit(self._requests.get(keys, target, **options))

    def put(self, keys: Keys, source: object, **options: Unpack[PutOptions]) -> Ticket[PutResult]:
        """See Client.put. `source` must not change until the ticket is done; it is kept alive here."""
        return self.submit(self._requests.put(keys, source, **options))

    def delete(self, keys: Keys, **options: Unpack[CommonOptions]) -> Ticket[DeleteResult]:
        """See Client.delete."""
        return self.submit(self._requests.delete(keys, **options))

    def release(self, owner: int, keys: Keys | None = None, **options: Unpack[CommonOptions]) -> Ticket[ReleaseResult]:
        """See Client.release."""
        return self.submit(self._requests.release(owner, keys, **options))

    def prefetch(self, keys: Keys, **options: Unpack[PrefetchOptions]) -> Ticket[PrefetchResult]:
        """See Client.prefetch."""
        return self.submit(self._requests.prefetch(keys, **options))

    def touch(self, keys: Keys, **options: Unpack[CommonOptions]) -> Ticket[ChangeResult]:
        """See Client.touch."""
        return self.submit(self._requests.touch(keys, **options))

    def hold(self, keys: Keys, *, owner: int, **options: Unpack[HoldOptions]) -> Ticket[ChangeResult]:
        """See Client.hold."""
        return self.submit(self._requests.hold(keys, owner=owner, **options))

    def renew(self, owner: int, seconds: float, *, deadline_ms: float | None = None) -> Ticket[ChangeResult]:
        """See Client.renew."""
        return self.submit(self._requests.renew(owner, seconds, deadline_ms=deadline_ms))

    def expire(self, keys: Keys, ttl_s: int, **options: Unpack[CommonOptions]) -> Ticket[ChangeResult]:
        """See Client.expire."""
        return self.submit(self._requests.expire(keys, ttl_s, **options))

    def submit(self, request: Request[R]) -> Ticket[R]:
        """Hand over a request. Errors: ConfigError (it breaks a rule, the queue or the client is closed)."""
        if not request.online:
            ticket = Ticket(self, request)
            with self._changed:
                self._check_open()
                self._pending[ticket] = Event(ticket, done=True, steps_done=0)
                self._wake_watcher()
                self._changed.notify_all()
                if self._native is not None:
                    self._native.nudge()
            ticket.finish()
            return ticket
        with self._changed:
            native = self._ready()
            # Whoever closes a Region finds it once it is submitted, or over: what never began would have no end to wait for.
            ticket = Ticket(self, request)
            try:
                native.submit(request.batch, ticket)
            except ConfigError:
                ticket.finish()
                raise
        return ticket

    def run(self, request: Request[R]) -> R:
        """Submit and wait, for a thread that has the queue for itself.

        An exception that a signal's handler raises (KeyboardInterrupt) leaves after the terminal event: no byte lands later.
        """
        if not request.online:
            return request.result()
        try:
            native = self._native
            if native is None or self._core is not self._links.core():
                with self._changed:
                    native = self._ready()
            if request.regions:
                self._run_in_view(native, request)
            else:
                # Nobody but close() may want the queue meanwhile. It needs no lock of this side, which would cost a call of
                # 64 KiB a hundredth: the core's queue says whether a thread is in it, and refuses who comes after close().
                native.run(request.batch)
                if self._sleepers:
                    with self._changed:
                        self._changed.notify_all()
        except ConfigError:
            if not self._links.ending:
                raise
            request.end()
        return request.result()

    # ---- events ----

    def poll(self) -> list[Event]:
        """What has happened since the last poll or wait; never waits. Progress is one event a ticket."""
        with self._changed:
            self._check_open()
            busy = self._leader or self._native is None
            if not busy:
                self._leader = True
        if not busy:
            self._lead(None)
        return self._take()

    def wait(self, timeout_s: float | None = None) -> list[Event]:
        """As poll, but waits for at least one event; an empty list after `timeout_s`."""
        until = _end_of(timeout_s)
        while True:
            with self._changed:
                self._check_open()
                while (self._leader or self._links.mode == "off") and not (self._pending or self._closed):
                    if not self._sleep(_left(until)):
                        return []
                led = bool(self._pending)
                if not led:
                    self._ready()
                    self._leader = True
            if led:
                return self.poll()
            self._lead(_FOR_EVER if until is None else _left(until))
            events = self._take()
            if events or (until is not None and time.monotonic() >= until):
                return events

    def wait_for(self, ticket: Ticket[Any], timeout_s: float | None = None) -> bool:
        """Wait for one ticket; events of others are kept for poll. False after `timeout_s`."""
        until = _end_of(timeout_s)
        while not ticket.done:
            with self._changed:
                while self._leader and not ticket.done:
                    if not self._sleep(_left(until)):
                        return False
                if ticket.done or self._native is None:
                    break
                self._leader = True
            self._lead(_FOR_EVER if until is None else _left(until))
            if until is not None and time.monotonic() >= until:
                break
        with self._changed:
            if ticket.done:
                self._pending.pop(ticket, None)
            self._wake_watcher()
        return ticket.done

    def fileno(self) -> int:
        """An eventfd for select, poll or a loop: readable when poll has something to say. Another one after a fork."""
        with self._changed:
            self._check_open()
            self._watched = True
            if self._links.mode == "off":
                if self._offline_signal < 0:
                    self._offline_signal = os.eventfd(1 if self._pending else 0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
                return self._offline_signal
            return self._ready().descriptor()

    def cancel(self, ticket: Ticket[Any]) -> None:
        """Ask for a ticket's end."""
        native = self._native
        if native is not None:
            native.cancel(ticket.request.batch)

    def close(self) -> None:
        """Cancel what is in flight, wait until nothing of it can land any more, and end. Idempotent."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
        native = self._native
        while native is not None:
            native.end()
            with self._changed:
                if self._leader or native.polled:
                    self._sleep(_CLOSE_SLICE_S)
                    continue
                self._leader = True
                if native.in_flight == 0:
                    break
            self._lead(_CLOSE_SLICE_S)
        if native is not None:
            native.close()
        with self._changed:
            self._native = None
            self._leader = False
            self._changed.notify_all()
        if self._offline_signal >= 0:
            os.close(self._offline_signal)
            self._offline_signal = -1

    def forked(self) -> None:
        """In a child, before anything else: end the parent's tickets here, forget the parent's queue."""
        self._changed = threading.Condition()
        self._leader = False
        self._sleepers = 0
        native, self._native = self._native, None
        self._core = None
        tickets: list[Ticket[Any]] = [] if native is None else [owner for owner in native.abandon() if owner is not None]
        for ticket in tickets:
            self._pending[ticket] = Event(ticket, done=True, steps_done=ticket.steps_done)
        for ticket in tickets:
            ticket.finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- within ----

    def _check_open(self) -> None:
        if self._closed:
            raise ConfigError("queue is closed; open another with client.queue()")

    def _ready(self) -> _peer.Queue:
        """The core's queue, made anew for a new core. Call with the lock."""
        self._check_open()
        core = self._links.core()
        if self._native is None or self._core is not core:
            self._native = _peer.Queue(core)
            self._core = core
        return self._native

    def _sleep(self, timeout_s: float | None) -> bool:
        """Until something changes; False after `timeout_s`. Call with the lock."""
        changed = self._changed
        self._sleepers += 1
        try:
            return changed.wait(timeout_s)
        finally:
            # In a child that a signal's handler forked meanwhile the count is another's.
            if changed is self._changed:
                self._sleepers -= 1

    def _run_in_view(self, native: _peer.Queue, request: Request[Any]) -> None:
        """Run it as a ticket's: a Region that is closed meanwhile has to find it, and wait for it.

        Who finds it finds the leader too, and is told of the end before somebody else may lead.
        """
        with self._changed:
            self._check_open()
            self._leader = True
        try:
            ticket = Ticket(self, request)
            try:
                native.run(request.batch)
            finally:
                ticket.finish()  # over, or refused and never begun
        finally:
            self._end_lead()

    def _end_lead(self) -> None:
        with self._changed:
            self._leader = False
            if self._sleepers:
                self._changed.notify_all()

    def _lead(self, timeout_s: float | None) -> None:
        """Ask the core for events, as the leader that this thread has become; None = without waiting."""
        try:
            native = self._native
            assert native is not None
            if self._inbox or timeout_s is None:
                native.poll(self._inbox)
            else:
                native.wait(self._inbox, timeout_s)
            # Nothing is taken out of a list before it has its next place: each step may be done again.
            for ticket, done, steps_done in self._inbox:
                self._pending[ticket] = Event(ticket, done, steps_done)
                if done:
                    self._finished[ticket] = None
            self._inbox.clear()
        finally:
            self._end_lead()
        for ticket in tuple(self._finished):
            ticket.finish()
            self._finished.pop(ticket, None)

    def _take(self) -> list[Event]:
        with self._changed:
            events = list(self._pending.values())
            self._pending.clear()
            if self._offline_signal >= 0:
                with suppress(BlockingIOError):
                    os.eventfd_read(self._offline_signal)
        return events

    def _wake_watcher(self) -> None:
        """Pending events that the core does not know of: whoever watches the descriptor has to come for them."""
        if not self._watched or not self._pending or self._closed:
            return
        if self._offline_signal >= 0:
            os.eventfd_write(self._offline_signal, 1)
        elif self._native is not None:
            os.eventfd_write(self._native.descriptor(), 1)


def _end_of(timeout_s: float | None) -> float | None:
    """Of the monotonic clock; None = never."""
    return None if timeout_s is None else time.monotonic() + min(real_number("timeout_s", timeout_s), threading.TIMEOUT_MAX)


@overload
def _left(until: float) -> float: ...
@overload
def _left(until: None) -> None: ...
def _left(until: float | None) -> float | None:
    """Seconds until then; None = for ever."""
    return None if until is None else max(0.0, until - time.monotonic())
