"""The asyncio face: a queue per event loop, read when its eventfd is ready.

Thread: the loop's. A cancelled call is over when CancelledError leaves it: nothing lands in its target after that.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from halfstep.client.queue import Queue
from halfstep.client.request import (
    CommonOptions,
    GetOptions,
    Keys,
    MatchOptions,
    PutOptions,
    Request,
    Requests,
)
from halfstep.client.results import DeleteResult, GetResult, MatchResult, PutResult, ReleaseResult

if TYPE_CHECKING:
    from typing import Unpack

R = TypeVar("R")


class Aio:
    """Client's calls, awaited. Same arguments, same results."""

    def __init__(self, open_queue: Callable[[], Queue], requests: Requests) -> None:
        self._open_queue = open_queue
        self._requests = requests
        self._queues: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[Queue, int]] = weakref.WeakKeyDictionary()

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

    async def _run(self, request: Request[R]) -> R:
        if not request.online:
            return request.result()
        loop = asyncio.get_running_loop()
        ticket = self._queue(loop).submit(request)
        cancelled: asyncio.CancelledError | None = None
        while not ticket.done:
            ended: asyncio.Future[None] = loop.create_future()
            ticket.add_done_callback(_ends(ended))
            try:
                await ended
            except asyncio.CancelledError as error:
                cancelled = error
                ticket.cancel()
        if cancelled is not None:
            raise cancelled
        return request.result()

    def _queue(self, loop: asyncio.AbstractEventLoop) -> Queue:
        known = self._queues.get(loop)
        if known is not None:
            return known[0]
        queue = self._open_queue()
        descriptor = queue.fileno()
        loop.add_reader(descriptor, queue.poll)
        self._queues[loop] = queue, descriptor
        return queue

    def forked(self) -> None:
        """In a child: the parent's loops are not ours."""
        self._queues = weakref.WeakKeyDictionary()

    def close(self) -> None:
        """Stop reading. The queues are the client's to close."""
        for loop, (_, descriptor) in list(self._queues.items()):
            if loop.is_closed():
                continue
            if loop.is_running():
                loop.call_soon_threadsafe(loop.remove_reader, descriptor)
            else:
                loop.remove_reader(descriptor)
        self._queues.clear()


def _ends(future: asyncio.Future[None]) -> Callable[[object], None]:
    def ended(_ticket: object) -> None:
        if not future.done():
            future.set_result(None)

    return ended
