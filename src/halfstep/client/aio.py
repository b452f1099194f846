"""The asyncio face: a queue per event loop, read when its eventfd is ready.

Thread: the loop's. A cancelled call is over when CancelledError leaves it: nothing lands in its target after that.
"""

from __future__ import annotations

import asyncio
import errno
import os
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

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
from halfstep.client.results import (
    REASON_NO_DESCRIPTORS,
    ChangeResult,
    DeleteResult,
    GetResult,
    MatchResult,
    PrefetchResult,
    PutResult,
    ReleaseResult,
)
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
            queue = self._queue(loop)
        except Unavailable:
            request.end(REASON_NO_DESCRIPTORS)
            return request.result()
        ticket = queue.submit(request)
        cancelled: asyncio.CancelledError | None = None
        while not ticket.done:
            ended: asyncio.Future[None] = loop.create_future()
            ticket.add_done_callback(_ends(loop, ended))
            try:
                await ended
            except asyncio.CancelledError as error:
                cancelled = error
                ticket.cancel()
        if cancelled is not None:
            raise cancelled
        return request.result()

    def _queue(self, loop: asyncio.AbstractEventLoop) -> Queue:
        home = self._homes.get(weakref.ref(loop))
        if home is None:
            queue = self._open_queue()
            try:
                home = _Home(loop, queue)
            except Unavailable:
                queue.close()
                raise
            homes = self._homes
            homes[weakref.ref(loop, lambda gone: homes.pop(gone, None))] = home
        return home.queue

    def forked(self) -> None:
        """In a child: the parent's loops are not ours."""
        self._homes = {}

    def close(self) -> None:
        """Stop reading. The queues are the client's to close."""
        for reference, home in self._homes.copy().items():
            if (loop := reference()) is not None:
                home.close(loop)
        self._homes.clear()


class _Home:
    """A loop's queue, and the descriptor by which the loop hears of it.

    The descriptor is a duplicate, and closed only when the loop has let go of it: the queue may be closed by another thread
    first, and its own number be somebody else's by then.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, queue: Queue) -> None:
        self.queue = queue
        try:
            self._descriptor = os.dup(queue.fileno())
        except OSError as error:
            name = errno.errorcode.get(error.errno or 0, str(error))
            raise Unavailable(f"dup: {name}; raise the limit on open files (ulimit -n)") from None
        loop.add_reader(self._descriptor, self._hear, weakref.ref(loop))
        # For a loop that is dropped before the client is closed.
        self._closes = weakref.finalize(loop, os.close, self._descriptor)

    def _hear(self, reference: weakref.ref[asyncio.AbstractEventLoop]) -> None:
        try:
            self.queue.poll()
        except ConfigError:
            # Closed by who did not know of this loop yet, whose first call came meanwhile: who closes ends its tickets.
            if (loop := reference()) is not None:
                self._let_go(loop)

    def close(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have the loop stop reading: at once if this is its thread or it does not run, else when it comes to it."""
        if loop.is_running() and not _runs_here(loop):
            # Its thread may close it meanwhile: then it reads no more.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._let_go, loop)
                return
        self._let_go(loop)
        if loop.is_running():
            # It may be a handler of a signal that came while the loop sleeps, which does not look for what is settled then.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(_nothing)

    def _let_go(self, loop: asyncio.AbstractEventLoop) -> None:
        if not loop.is_closed():
            loop.remove_reader(self._descriptor)
        self._closes()


def _nothing() -> None:
    pass


def _runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def _ends(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> Callable[[object], None]:
    def settle() -> None:
        if not future.done():
            future.set_result(None)

    def ended(_ticket: object) -> None:
        if _runs_here(loop):
            settle()
            return
        # The thread that closes the client. A loop that is closed has nobody who awaits.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(settle)

    return ended
