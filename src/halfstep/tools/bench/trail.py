"""Puts of one client, in order, and an endless walk through the part of them that is on flash alone (`coldmixed`).

Nothing is held: a held set would be written again whenever reclaim comes round to it, all of it at once if it was put at once,
and that is not what reclaim does for anybody. Instead the set moves along with the puts: what was put last may still be in
memory, what was put long ago is next to be reclaimed, and what lies between the two is read.

Invariants: no batch comes before `nearest` more were put, nor after `farthest` were; one that comes again comes about
`width` batches later, as the order of the batches is one and the same.
"""

from __future__ import annotations

from collections import deque

from numpy.random import Generator

from halfstep.errors import Unavailable
from halfstep.tools.bench.content import Content, Numbers


class Trail:
    """nearest, width, farthest: in batches that were put. rng: of the order."""

    def __init__(self, content: Content, batch: int, nearest: int, width: int, farthest: int, rng: Generator) -> None:
        self._content = content
        self._batch = batch
        self._nearest, self._width, self._farthest = nearest, width, farthest
        self._rng = rng
        # (number of the put, its place in the order, first number of its blocks), the newest last.
        self._put: deque[tuple[int, float, int]] = deque(maxlen=nearest + width)
        self._puts = 0
        # Of the present turn, the next one last.
        self._turn: list[tuple[float, int, int]] = []

    def add(self, numbers: Numbers) -> None:
        """They were stored just now. What is no whole batch cannot be asked for again, and is passed over."""
        if len(numbers) == self._batch:
            self._put.append((self._puts, float(self._rng.random()), int(numbers[0])))
        self._puts += 1

    @property
    def ready(self) -> bool:
        """Whether enough was put for there to be a batch."""
        return self._puts > self._nearest

    def __iter__(self) -> Trail:
        return self

    def __next__(self) -> Numbers:
        """The next batch. Errors: Unavailable where too little was stored for one."""
        while True:
            while self._turn:
                _, put, first = self._turn.pop()
                if put >= self._puts - self._farthest:
                    return self._content.numbers(first, self._batch)
            newest = self._puts - self._nearest
            window = ((place, put, first) for put, place, first in self._put if newest - self._width <= put < newest)
            self._turn = sorted(window, reverse=True)
            if not self._turn:
                raise Unavailable(
                    f"coldmixed: of the last {self._puts} puts none is both out of memory and whole: the daemon throttled what "
                    "was put; lower --iodepth or --rate"
                )
