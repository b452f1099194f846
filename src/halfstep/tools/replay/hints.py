"""What an application knows of its blocks, derived from a trace that does not say it.

An application often knows that a turn is the last one of its conversation. A trace does not say it, so it is taken from the
whole of it, its future included: an oracle, which bounds what the hint can bring.

A system prompt is the blocks at or above a fork with FOLLOWERS_MIN followers or more: a prefix that many conversations share.
final: a request is the last turn of its conversation if no later one asks for any of its blocks that are no system prompt. Its
other blocks get the hint as they are written.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from halfstep.tools.replay.trace import ROOT, Trace

HintName = Literal["final"]
HINTS: tuple[HintName, ...] = get_args(HintName)
# As the wire protocol numbers them.
NONE, FINAL = 0, 1
# A conversation forks, too, where a turn is tried again: that makes a few followers.
FOLLOWERS_MIN = 8


def system_blocks(trace: Trace) -> NDArray[np.bool_]:
    """For each block, whether it belongs to a system prompt."""
    followers = np.bincount(trace.parents[trace.parents != ROOT], minlength=trace.unique_blocks)
    system: NDArray[np.bool_] = followers >= FOLLOWERS_MIN
    for block in range(trace.unique_blocks - 1, -1, -1):  # a parent after its children
        if system[block] and trace.parents[block] != ROOT:
            system[trace.parents[block]] = True
    return system


def final_requests(trace: Trace, system: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """For each request, whether it is the last turn of its conversation."""
    last = np.zeros(trace.unique_blocks, np.int64)  # request that asks for a block last
    final = np.zeros(trace.requests, np.bool_)
    for index in range(trace.requests):
        last[trace.request(index)] = index
    for index in range(trace.requests):
        blocks = trace.request(index)
        own = blocks[~system[blocks]]
        final[index] = len(own) > 0 and bool((last[own] == index).all())
    return final


class Hints:
    """Of every request, the hints of its blocks."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._system = system_blocks(trace)
        self.final = final_requests(trace, self._system)

    def of(self, index: int) -> NDArray[np.uint8]:
        """One a block of the request."""
        blocks = self._trace.request(index)
        hints = np.full(len(blocks), NONE, np.uint8)
        if self.final[index]:
            hints[~self._system[blocks]] = FINAL
        return hints
