"""concurrent.futures over a queue: one thread, started on first use, that sleeps until a ticket ends.

Invariants: futures are completed by that thread alone, never by a signal's handler that closes the client in the midst of
somebody's Future.result(). It needs no file descriptor. A child has none of the parent's threads: one of its own ends the
parent's futures as cancelled (forked), and calls none of their call-backs.
Thread: any may submit.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from halfstep.client.numbers import REASON_NO_DESCRIPTORS
from halfstep.client.queue import Queue
from halfstep.client.request import Request
from halfstep.client.ticket import Ticket
from halfstep.errors import Unavailable

T = TypeVar("T")


class _OwnFuture(Future[T]):
    """A future whose call-backs belong to the process that asked for them."""

    def add_done_callback(self, fn: Callable[[Future[T]], object]) -> None:
        """As Future's, in this process alone."""
        process = os.getpid()
        super().add_done_callback(lambda future: fn(future) if os.getpid() == process else None)


class Futures:
    """Submits requests and completes futures. A running future cannot be cancelled; its deadline ends it."""

    def __init__(self, open_queue: Callable[[], Queue]) -> None:
        self._open_queue = open_queue
        # A handler may close the client in the thread that holds it.
        self._lock = threading.RLock()
        self._queue: Queue | None = None
        self._closes: weakref.finalize[..., Any] | None = None

    def submit(self, request: Request[Any]) -> Future[Any]:
        """The future of `request`'s result."""
        future: Future[Any] = _OwnFuture()
        future.set_running_or_notify_cancel()

        def done(ticket: Ticket[Any]) -> None:
            future.set_result(ticket.request.result())

        try:
            queue = self._running_queue()
        except Unavailable:
            request.end(REASON_NO_DESCRIPTORS)
            future.set_result(request.result())
        else:
            queue.submit(request).add_done_callback(done)
        return future

    def forked(self) -> None:
        """In a child: the thread is the parent's."""
        self._lock = threading.RLock()
        queue, self._queue = self._queue, None
        # The queue is the parent's to close: not by us, and not by our exit.
        if self._closes is not None:
            self._closes.detach()
            self._closes = None
        if queue is None:
            return
        queue.forked()
        if queue.inherited:
            threading.Thread(target=queue.end_inherited, name="halfstep-forked", daemon=True).start()

    def close(self) -> None:
        """Take no more. The queue is the client's to close, which ends the thread when its futures are complete."""
        with self._lock:
            self._queue = None

    def _running_queue(self) -> Queue:
        with self._lock:
            queue = self._queue
            if queue is None:
                queue = self._open_queue()
                queue.serve("halfstep-futures")
                # For a client that nobody closes and that is collected.
                self._closes = weakref.finalize(self, queue.close)
                self._queue = queue
            return queue
