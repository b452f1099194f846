"""Requests that are counted in a Tally when their results are taken: those of calls that name keys themselves.

A Tier and Values count their own calls, of which they know more, and ask through requests that are not counted here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from halfstep.client.numbers import OP_GET, OP_MATCH
from halfstep.client.request import Request, Requests, Terms
from halfstep.client.results import Answers, GetResult, MatchResult, PrefetchResult, PutResult
from halfstep.client.tally import Tally

R = TypeVar("R")


class RecordedRequests(Requests):
    """As Requests."""

    def __init__(self, terms: Terms, tally: Tally) -> None:
        super().__init__(terms)
        self._tally = tally

    def match(self, *arguments: Any, **options: Any) -> Request[MatchResult]:
        """See Requests.match."""
        return _once(super().match(*arguments, **options), self._tally.clock, self._matched)

    def get(self, *arguments: Any, **options: Any) -> Request[GetResult]:
        """See Requests.get."""
        return _once(super().get(*arguments, **options), self._tally.clock, self._got)

    def put(self, *arguments: Any, **options: Any) -> Request[PutResult]:
        """See Requests.put."""
        return _once(super().put(*arguments, **options), self._tally.clock, lambda _, put: self._put([put]))

    def prefetch(self, *arguments: Any, **options: Any) -> Request[PrefetchResult]:
        """See Requests.prefetch."""
        return _once(super().prefetch(*arguments, **options), self._tally.clock, self._prefetched)

    def of_sections(self, operation: int, request: Request[list[R]]) -> Request[list[R]]:
        """See Requests.of_sections: one call, whose blocks are those of all sections."""
        if operation == OP_MATCH:
            return _once(request, self._tally.clock, self._matched_sections)
        if operation == OP_GET:
            return _once(request, self._tally.clock, self._got_sections)
        return _once(request, self._tally.clock, lambda _, puts: self._put(puts))

    # ---- what was answered ----

    def _matched(self, began_s: float, found: MatchResult) -> None:
        self._matched_sections(began_s, [found])

    def _matched_sections(self, began_s: float, results: list[Any]) -> None:
        truths = [one if one.shadow is None else one.shadow for one in results]
        blocks, found = sum(len(one.present) for one in truths), sum(int(one.present.sum()) for one in truths)
        self._tally.looked_up(began_s, blocks, found, answered=all(one.answered for one in truths))

    def _got(self, began_s: float, got: GetResult) -> None:
        self._got_sections(began_s, [got])

    def _got_sections(self, began_s: float, results: list[Any]) -> None:
        truths = [one if one.shadow is None else one.shadow for one in results]
        blocks, whole = sum(one.keys for one in truths), sum(int(one.keys_ok.sum()) for one in truths)
        # What lengths say is of blocks.
        of_parts = any(one.answers.ndim > 1 for one in truths)
        self._tally.loaded(began_s, blocks, whole, None if of_parts else sum(_bytes_of(one) for one in truths))

    def _put(self, puts: list[Any]) -> None:
        self._tally.stored(sum(put.keys for put in puts), sum(put.stored / put.components for put in puts))

    def _prefetched(self, _: float, result: PrefetchResult) -> None:
        self._tally.prefetched(result.keys, int(result.keys_ok.sum()))


def _bytes_of(got: GetResult) -> int:
    """Of whole items."""
    return int(got.lengths[got.items_ok].sum(dtype=np.int64))


def _once(request: Request[R], clock: Callable[[], float], count: Callable[[float, R], None]) -> Request[R]:
    """The same, counted when its result is taken first: whoever waits, and however many look."""
    if not request.online:
        return request
    began_s, uncounted = clock(), [count]

    def read(told: Answers | None) -> R:
        request.instead = told
        result = request.result()
        try:
            counting = uncounted.pop()  # of two threads one has it
        except IndexError:
            return result
        counting(began_s, result)
        return result

    return Request(request.batch, read, request.regions)
