"""The asyncio face: a queue per event loop, read when its eventfd is ready.

Thread: the loop's. A cancelled call is over when CancelledError leaves it: nothing lands in its target after that.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from halfstep.client.living import Living
from halfstep.client.numbers import REASON_NO_DESCRIPTORS
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
from halfstep.client.queue import Queue
from halfstep.client.request import Request, Requests
from halfstep.client.results import ChangeResult, DeleteResult, GetResult, MatchResult, PrefetchResult, PutResult, ReleaseResult
from halfstep.client.sections import Section, get_request, match_request, put_request
from halfstep.errors import ConfigError, Unavailable

if TYPE_CHECKING:
    from typing import Unpack

R = TypeVar("R")


class Aio:
    """Client's calls, awaited. Same arguments, same results."""

    def __init__(self, open_queue: Callable[[], Queue], requests: Requests) -> None:
        self._open_queue = open_queue
        self._requests = requests
        # By loop, held weakly. Loops of several threads add; who closes goes through a copy.
        self._homes: dict[weakref.ref[asyncio.AbstractEventLoop], _Home] = {}
        self._bells: Living[_Bell] = Living()

    async def match(self, keys: Keys, **options: Unpack[MatchOptions]) -> MatchResult:
        """See Client.match."""
        return await self._run(self._requests.match(keys, **options))

    async def get(self, keys: Keys, target: object, **options: Unpack[GetOptions]) -> GetResult:
        """See Client.get."""
        return await self._run(self._requests.get(keys, target, **options))

    async def put(self, keys: Keys, source: object, **options: Unpack[PutOptions]) -> PutResult:
        """See Client.put."""
        return await self._run(self._requests.put(keys, source, **options))

    async def delete(self, keys: Keys, **options: Unpack[CommonOptions]) -> DeleteResult:
        """See Client.delete."""
        return await self._run(self._requests.delete(keys, **options))

    async def release(self, owner: int, keys: Keys | None = None, **options: Unpack[CommonOptions]) -> ReleaseResult:
        """See Client.release."""
        return await self._run(self._requests.release(owner, keys, **options))

    async def prefetch(self, keys: Keys, **options: Unpack[PrefetchOptions]) -> PrefetchResult:
        """See Client.prefetch."""
        return await self._run(self._requests.prefetch(keys, **options))

    async def touch(self, keys: Keys, **options: Unpack[CommonOptions]) -> ChangeResult:
        """See Client.touch."""
        return await self._run(self._requests.touch(keys, **options))

    async def hold(self, keys: Keys, *, owner: int, **options: Unpack[HoldOptions]) -> ChangeResult:
        """See Client.hold."""
        return await self._run(self._requests.hold(keys, owner=owner, **options))

    async def renew(self, owner: int, seconds: float, *, deadline_ms: float | None = None) -> ChangeResult:
        """See Client.renew."""
        return await self._run(self._requests.renew(owner, seconds, deadline_ms=deadline_ms))

    async def expire(self, keys: Keys, ttl_s: int, **options: Unpack[CommonOptions]) -> ChangeResult:
        """See Client.expire."""
        return await self._run(self._requests.expire(keys, ttl_s, **options))

    async def match_sections(self, sections: Sequence[Section], **options: Unpack[MatchSectionsOptions]) -> list[MatchResult]:
        """See Client.match_sections."""
        return await self._run(match_request(self._requests, sections, **options))

    async def get_sections(self, sections: Sequence[Section], **options: Unpack[GetSectionsOptions]) -> list[GetResult]:
        """See Client.get_sections."""
        return await self._run(get_request(self._requests, sections, **options))

    async def put_sections(self, sections: Sequence[Section], **options: Unpack[PutSectionsOptions]) -> list[PutResult]:
        """See Client.put_sections."""
        return await self._run(put_request(self._requests, sections, **options))

    async def _run(self, request: Request[R]) -> R:
        if not request.online:
            return request.result()
        loop = asyncio.get_running_loop()
        try:
            home = self._enter(loop)
        except Unavailable:
            request.end(REASON_NO_DESCRIPTORS)
            return request.result()
        cancelled: asyncio.CancelledError | None = None
        try:
            ticket = home.queue.submit(request)
            while not ticket.done:
                ended: asyncio.Future[None] = loop.create_future()
                ticket.add_done_callback(_ends(home, loop, ended))
                try:
                    await ended
                except asyncio.CancelledError as error:
                    cancelled = error
                    ticket.cancel()
        finally:
            home.exit(loop)
        if cancelled is not None:
            raise cancelled
        return request.result()

    def _enter(self, loop: asyncio.AbstractEventLoop) -> _Home:
        """The loop's home, which waits for one call more."""
        home = self._homes.get(weakref.ref(loop))
        # A home that a close has taken down is no home: whoever is awaited there would never hear of it.
        if home is None or not home.enter():
            queue = self._open_queue()
            try:
                home = _Home(loop, queue)
            except Unavailable:
                queue.close()
                raise
            self._bells.add(home.bell)
            home.enter()
            homes = self._homes
            homes[weakref.ref(loop, lambda gone: homes.pop(gone, None))] = home
        return home

    def forked(self) -> None:
        """In a child: the parent's loops are not ours."""
        self._homes = {}
        for bell in self._bells:
            bell.forked()
        self._bells = Living()

    def close(self) -> None:
        """Stop reading. The queues are the client's to close."""
        for reference, home in self._homes.copy().items():
            if (loop := reference()) is not None:
                home.close(loop)
        self._homes.clear()


class _Home:
    """A loop's queue, and the descriptors by which the loop hears of it and of other threads.

    The queue's descriptor is a duplicate, and closed only when the loop has let go of it: the queue may be closed by another
    thread first, and its own number be somebody else's by then. Other threads ring a bell and never touch the loop: its
    own descriptors may be closed, and the numbers given away, while they use them.

    Invariants: whoever enters is told of its end; a home goes once, when it is closing and nobody waits, and takes nobody in
    afterwards.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, queue: Queue) -> None:
        self.queue = queue
        self._thread = threading.get_ident()
        self._lock = threading.RLock()  # of the four below; a handler of a signal may close in the midst of anything
        self._waiting = 0
        self._closing = False
        self._gone = False
        self._calls: deque[Callable[[], None]] = deque()  # of other threads, for the loop's
        try:
            self.bell = _Bell(os.dup(queue.fileno()))
        except OSError as error:
            name = errno.errorcode.get(error.errno or 0, str(error))
            raise Unavailable(f"dup: {name}; raise the limit on open files (ulimit -n)") from None
        loop.add_reader(self.bell.queue, self._hear, weakref.ref(loop))
        loop.add_reader(self.bell.descriptor, self._hear, weakref.ref(loop))
        # For a loop that is dropped before the client is closed. Not at exit: a thread may still run its loop then.
        self._closes = weakref.finalize(loop, self.bell.close)
        self._closes.atexit = False

    def enter(self) -> bool:
        """In the loop's thread: one call more waits here. False: this home is gone."""
        with self._lock:
            self._waiting += not self._gone
            return not self._gone

    def exit(self, loop: asyncio.AbstractEventLoop) -> None:
        """After enter(). Where a call is given up by who collects it, that may be another thread."""
        with self._lock:
            self._waiting -= 1
        self._leave_or_ring(loop, only_elsewhere=True)

    def call(self, function: Callable[[], None]) -> None:
        """From any thread, for who waits here: have the loop call it."""
        self._calls.append(function)
        self.bell.ring()

    def close(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have the loop stop reading: at once if nobody waits and this is its thread, else when it hears, or is dropped."""
        with self._lock:
            self._closing = True
        self._leave_or_ring(loop, only_elsewhere=False)

    def _hear(self, reference: weakref.ref[asyncio.AbstractEventLoop]) -> None:
        self.bell.hush()
        # Closed by who did not know of this loop yet, whose first call came meanwhile: who closes ends its tickets.
        try:
            self.queue.poll()
        except ConfigError:
            with self._lock:
                self._closing = True
        while self._calls:
            self._calls.popleft()()
        if (loop := reference()) is not None:
            self._leave(loop)

    def _leave_or_ring(self, loop: asyncio.AbstractEventLoop, *, only_elsewhere: bool) -> None:
        # A loop that does not run is its maker's: it may close it, or run it, while another thread looks.
        here = _runs_here(loop) or (threading.get_ident() == self._thread and not loop.is_running())
        elsewhere = not here and not loop.is_closed()
        gone = not elsewhere and self._leave(loop)
        # Also here: a handler of a signal may have come while the loop sleeps, which does not look for what is settled then.
        if elsewhere or not (gone or only_elsewhere):
            self.bell.ring()

    def _leave(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Go, if it is time; whether this home is gone."""
        with self._lock:
            goes = self._closing and self._waiting == 0 and not self._gone
            self._gone = self._gone or goes
        if goes:
            if not loop.is_closed():
                loop.remove_reader(self.bell.queue)
                loop.remove_reader(self.bell.descriptor)
            self._closes()
        return self._gone


class _Bell:
    """An eventfd that one thread may close while others use it: without a lock they might use the number's next owner's.

    The duplicate of a queue's descriptor is closed with it.
    """

    def __init__(self, queue: int) -> None:
        """Takes `queue`. Errors: OSError, and has closed it."""
        self.queue = queue
        try:
            self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except BaseException:
            os.close(queue)
            raise
        self._open = True
        self._closed = False
        self._using = 0
        self._lock = threading.RLock()  # a handler of a signal may close in the midst of a use

    def ring(self) -> None:
        """Any thread: whoever reads it wakes."""
        self._use(lambda descriptor: os.eventfd_write(descriptor, 1))

    def hush(self) -> None:
        """The loop's thread, before it looks for what it was woken for."""
        with suppress(OSError):  # nobody has rung
            self._use(os.eventfd_read)

    def _use(self, act: Callable[[int], object]) -> None:
        with self._lock:
            if not self._open:
                return
            self._using += 1
            try:
                act(self.descriptor)
            finally:
                self._using -= 1
                self._close_when_unused()

    def close(self) -> None:
        """Once; a use that it interrupts is ended first."""
        with self._lock:
            self._open = False
            self._close_when_unused()

    def forked(self) -> None:
        """In a child: the lock may be a thread's that is not there, and the bell is the parent's."""
        self._lock = threading.RLock()
        self._open = False
        self._using = 0
        self._close_when_unused()
        self.descriptor = self.queue = -1

    def _close_when_unused(self) -> None:
        if not (self._open or self._closed or self._using):
            self._closed = True
            os.close(self.descriptor)
            os.close(self.queue)


def _runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def _ends(home: _Home, loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> Callable[[object], None]:
    def settle() -> None:
        if not future.done():
            future.set_result(None)

    def ended(_ticket: object) -> None:
        if _runs_here(loop):
            settle()
        else:
            home.call(settle)  # the thread that closes the client

    return ended
