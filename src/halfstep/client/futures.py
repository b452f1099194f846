"""concurrent.futures over a queue: one thread, started on first use, that sleeps until a ticket ends."""

from __future__ import annotations

import os
import select
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from halfstep.client.queue import Queue
from halfstep.client.request import Request
from halfstep.client.ticket import Ticket


class Futures:
    """Submits requests and completes futures. A running future cannot be cancelled; its deadline ends it."""

    def __init__(self, open_queue: Callable[[], Queue]) -> None:
        self._open_queue = open_queue
        self._lock = threading.Lock()
        self._queue: Queue | None = None
        self._thread: threading.Thread | None = None
        self._stops: weakref.finalize[..., Any] | None = None

    def submit(self, request: Request[Any]) -> Future[Any]:
        """The future of `request`'s result."""
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()

        def done(ticket: Ticket[Any]) -> None:
            future.set_result(ticket.request.result())

        self._running_queue().submit(request).add_done_callback(done)
        return future

    def forked(self) -> None:
        """In a child: the thread is the parent's."""
        self._lock = threading.Lock()
        self._queue = self._thread = None
        # The thread is the parent's to stop: not by us, and not by our exit.
        if self._stops is not None:
            self._stops.detach()
            self._stops = None

    def close(self) -> None:
        """End the thread; the queue is the client's to close."""
        with self._lock:
            thread, self._thread, self._queue = self._thread, None, None
        if thread is None:
            return
        assert self._stops is not None
        self._stops()
        if thread is not threading.current_thread():
            thread.join()

    def _running_queue(self) -> Queue:
        with self._lock:
            if self._queue is None:
                self._queue = self._open_queue()
                # An end for each side, so that nobody closes what another is writing to.
                stopped, stop = os.pipe2(os.O_CLOEXEC)
                # Once: by close(), or when a client that nobody closed is collected.
                self._stops = weakref.finalize(self, _say_stop, stop)
                arguments = (self._queue, self._queue.fileno(), stopped)
                self._thread = threading.Thread(target=_poll_until, args=arguments, name="halfstep-futures", daemon=True)
                self._thread.start()
            return self._queue


def _say_stop(stop: int) -> None:
    with suppress(BrokenPipeError):  # the thread ended by itself: the queue is closed
        os.write(stop, b"\0")
    os.close(stop)


def _poll_until(queue: Queue, descriptor: int, stopped: int) -> None:
    ready = select.poll()
    ready.register(descriptor, select.POLLIN)
    ready.register(stopped, select.POLLIN)
    try:
        while all(number != stopped for number, _ in ready.poll()):
            queue.poll()
    finally:
        os.close(stopped)
