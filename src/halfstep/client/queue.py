"""Where batches are submitted to, and where their ends come from.

Invariants: nothing is kept here that a thread would have to undo: who waits, what is in flight, what nobody has seen yet and
whose call-backs are to be called is the native queue's (native/bind/peer_queue.h). So a signal's exception, a fork or a close
may come between any two lines. A ticket ends for all at once: its memory is fenced in the core before any thread learns of it.
Call-backs run without a lock, and from here: native code would be unwound by the interpreter's end. After a fork the queue is
empty and has another descriptor; the parent's tickets have ended as cancelled (forked).
Thread: any number may submit, poll and wait at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

from halfstep import _peer
from halfstep.arguments import real_number
from halfstep.client.numbers import REASON_CLOSED, REASON_NO_DESCRIPTORS
from halfstep.client.options import (
    CommonOptions,
    GetOptions,
    GetSectionsOptions,
    HoldOptions,
    Keys,
    MatchOptions,
    MatchSectionsOptions,
    PrefetchOptions,
    PutOptions,
    PutSectionsOptions,
)
from halfstep.client.request import Request, Requests
from halfstep.client.results import ChangeResult, DeleteResult, GetResult, MatchResult, PrefetchResult, PutResult, ReleaseResult
from halfstep.client.sections import Section, get_request, match_request, put_request
from halfstep.client.ticket import Event, Ticket
from halfstep.errors import ConfigError, Unavailable

if TYPE_CHECKING:
    from typing import Unpack

    from halfstep.client.link import Links

R = TypeVar("R")


class Queue:
    """Submits without waiting; poll or wait says what has ended.

    fileno() is readable when poll has something to say. Every ticket ends exactly once.
    """

    def __init__(self, links: Links, requests: Requests) -> None:
        self._links = links
        self._requests = requests
        self._native = _peer.Queue(Event)
        # A thread that calls the call-backs, whoever closes the queue.
        self._served = False

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

    def match_sections(self, sections: Sequence[Section], **options: Unpack[MatchSectionsOptions]) -> Ticket[list[MatchResult]]:
        """See Client.match_sections."""
        return self.submit(match_request(self._requests, sections, **options))

    def get_sections(self, sections: Sequence[Section], **options: Unpack[GetSectionsOptions]) -> Ticket[list[GetResult]]:
        """See Client.get_sections."""
        return self.submit(get_request(self._requests, sections, **options))

    def put_sections(self, sections: Sequence[Section], **options: Unpack[PutSectionsOptions]) -> Ticket[list[PutResult]]:
        """See Client.put_sections."""
        return self.submit(put_request(self._requests, sections, **options))

    def submit(self, request: Request[R]) -> Ticket[R]:
        """Hand over a request. Errors: ConfigError (it breaks a rule, the queue or the client is closed)."""
        # Whoever closes a Region finds it once it is submitted, or over: what never began has no end to wait for.
        ticket = Ticket(self, request)
        if request.online:
            try:
                self._native.submit(request.batch, ticket, self._links.core())
            except Unavailable:
                request.end(REASON_NO_DESCRIPTORS)
            else:
                return ticket
        self._native.post(request.batch, ticket)
        return ticket

    def run(self, request: Request[R]) -> R:
        """Submit and wait, for a thread that has the queue for itself.

        An exception that a signal's handler raises (KeyboardInterrupt) leaves after the terminal event: no byte lands later.
        """
        if not request.online:
            return request.result()
        # A Region that is closed meanwhile has to find it, and wait for it.
        in_view = Ticket(self, request) if request.regions else None
        try:
            self._native.run(request.batch, self._links.core())
        except Unavailable:
            request.end(REASON_NO_DESCRIPTORS)
        except ConfigError:
            if not self._links.ending:
                raise
            request.end(REASON_CLOSED)
        del in_view
        return request.result()

    # ---- events ----

    def poll(self) -> list[Event]:
        """What has happened since the last poll or wait; never waits. Progress is one event a ticket."""
        self._native.poll()
        self._call_back()
        return self._native.take()

    def wait(self, timeout_s: float | None = None) -> list[Event]:
        """As poll, but waits for at least one event; an empty list after `timeout_s`."""
        until = _end_of(timeout_s)
        while True:
            called = self._native.wait(until)
            self._call_back()
            events = self._native.take()
            if events or not called:
                return events

    def wait_for(self, ticket: Ticket[Any], timeout_s: float | None = None) -> bool:
        """Wait for one ticket; events of others are kept for poll. False after `timeout_s`."""
        over = self._native.wait_for(ticket.request.batch, _end_of(timeout_s))
        self._call_back()
        return over

    def fileno(self) -> int:
        """An eventfd for select, poll or a loop: readable when poll has something to say. Another one after a fork.

        Errors: Unavailable (out of file descriptors), ConfigError (closed).
        """
        return self._native.descriptor(None if self._links.mode == "off" else self._links.core())

    def cancel(self, ticket: Ticket[Any]) -> None:
        """Ask for a ticket's end."""
        self._native.cancel(ticket.request.batch)

    def close(self) -> None:
        """Cancel what is in flight, wait until nothing of it can land any more, and end. Idempotent.

        May be called by a signal's handler, also in a thread that waits here: that one hears that the queue is closed.
        """
        self._native.close()
        if not self._served:
            self._call_back()

    def serve(self, name: str) -> None:
        """Have a thread of that name call the call-backs until the queue is closed. Errors: Unavailable (out of threads)."""
        self._served = True
        try:
            threading.Thread(target=_serve, args=(self._native, self._call_back), name=name, daemon=True).start()
        except RuntimeError as error:
            raise Unavailable(f"{error}; raise the limit on processes (ulimit -u)") from None

    def forked(self) -> None:
        """In a child, before anything else: end the parent's tickets here, forget the parent's queue."""
        self._native.abandon()

    def end_inherited(self) -> None:
        """In a child: call the call-backs of the parent's tickets, also where the queue is closed by now."""
        self._native.take_inherited()
        self._call_back()

    @property
    def inherited(self) -> int:
        """Tickets of the parent process whose call-backs nobody has called here."""
        return self._native.inherited

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call_back(self) -> None:
        # Each stays the next one until it is done, so that an exception of a signal's handler leaves it to the next call.
        while (ticket := self._native.next_over) is not None:
            ticket.finish()
            self._native.called(ticket)


def _serve(native: _peer.Queue, call_back: Callable[[], None]) -> None:
    while native.serve():
        call_back()
        native.take()


def _end_of(timeout_s: float | None) -> float | None:
    """Of the monotonic clock; None = never."""
    return None if timeout_s is None else time.monotonic() + min(real_number("timeout_s", timeout_s), threading.TIMEOUT_MAX)
