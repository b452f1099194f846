"""A submitted batch: whether it is over, what came of it, and how to call it off."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from halfstep.client.request import Request

R_co = TypeVar("R_co", covariant=True)

_log = logging.getLogger("halfstep")


class Home(Protocol):
    """The queue that a ticket lives on."""

    def wait_for(self, ticket: Ticket[Any], timeout_s: float | None) -> bool:
        """Wait until it is done; False after `timeout_s`."""
        ...

    def cancel(self, ticket: Ticket[Any]) -> None:
        """Ask for its end."""
        ...


class Ticket(Generic[R_co]):
    """A batch on its way. It may be dropped: its memory is kept until nothing can write there any more.

    Invariants: `done` turns true once; from then on no byte of the target is written, whatever the answers are.
    """

    __slots__ = ("__weakref__", "_batch", "_callbacks", "_queue", "_request")

    def __init__(self, queue: Home, request: Request[R_co]) -> None:
        self._queue = queue
        self._request = request
        self._batch = request.batch
        self._callbacks: list[Callable[[Ticket[R_co]], object]] = []
        for region in request.regions:
            region.used_by(self)

    @property
    def id(self) -> int:
        """The core's number for it; 0 where none was needed (mode "off")."""
        return self._batch.ticket

    @property
    def done(self) -> bool:
        """The terminal event was seen, by whichever thread polls the queue."""
        return self._batch.over

    @property
    def steps_done(self) -> int:
        """How far it is, as of the last poll.

        Gets in layer order: how many of the selected parts, from the first on, are complete over all items, where items that
        failed count as complete. Everything else: items answered.
        """
        return self._batch.steps_done

    def result(self, timeout_s: float | None = None) -> R_co:
        """What came of it; waits until it is done. Raises nothing for misses.

        Errors: TimeoutError after `timeout_s`; the batch goes on then.
        """
        if not self.wait(timeout_s):
            raise TimeoutError(f"not done after {timeout_s} s; it ends by its own deadline, or after cancel()")
        return self._request.result()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is done; False after `timeout_s`."""
        return self._queue.wait_for(self, timeout_s)

    def cancel(self) -> None:
        """Ask for its end. It is over when `done`, as ever; what was complete by then stays ok."""
        self._queue.cancel(self)

    def add_done_callback(self, callback: Callable[[Ticket[R_co]], object]) -> None:
        """Have `callback(ticket)` called by the thread that polls the terminal event; at once if it is done already."""
        # In this order: the terminal event may be another thread's, right now.
        self._callbacks.append(callback)
        if self.done:
            self.finish()

    # ---- for the queue ----

    @property
    def request(self) -> Request[R_co]:
        """What was asked."""
        return self._request

    def finish(self) -> None:
        """Call the call-backs. What they raise is logged: it is nobody's who polls."""
        # Each is called once, whoever else is here: between the look and the deletion there is no call, and so neither another
        # thread nor a signal's handler.
        callbacks = self._callbacks
        while callbacks:
            callback = callbacks[0]
            del callbacks[0]
            try:
                callback(self)
            except Exception:
                _log.exception("call-back of ticket %d", self.id)

    def __repr__(self) -> str:
        return f"Ticket({self.id}, {'done' if self.done else f'{self.steps_done} steps done'})"


class Event(NamedTuple):
    """What poll and wait say: `ticket` is over (done), or it has moved on (steps_done)."""

    ticket: Ticket[object]
    done: bool
    steps_done: int
