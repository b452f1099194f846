"""Objects that are held weakly and gone through by others: clients, queues, tickets.

Invariants: an object leaves by itself when nothing else holds it. Every method is one step of the interpreter where it touches
the set, without a lock: threads add while others go through a copy, and a signal's handler or a forked child never waits for
somebody who is not there any more. (A WeakSet that is gone through while a thread adds raises RuntimeError.)
Thread: any.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Living(Generic[T]):
    """A weak set. Who goes through it goes through a copy, whatever others add meanwhile."""

    def __init__(self) -> None:
        self._references: set[weakref.ref[T]] = set()

    def add(self, one: T) -> None:
        """Hold `one` weakly."""
        self._references.add(weakref.ref(one, self._references.discard))

    def discard(self, one: T) -> None:
        """Let go of it."""
        self._references.discard(weakref.ref(one))

    def __iter__(self) -> Iterator[T]:
        """Those that live now, in no order; what is added meanwhile is not among them."""
        return iter([one for reference in self._references.copy() if (one := reference()) is not None])
