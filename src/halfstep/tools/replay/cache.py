"""The cache under replay: one request after the other, and the sums of their results."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


@dataclass
class Tally:
    """What a cache did, in blocks and in bytes that reached its device.

    blocks_missed: could not be read. blocks_overtaken: were evicted between their request's match and their read, which is an
    honest miss: a match holds nothing. batches: requests that wrote anything. side_bytes: of the record log and the touch maps,
    which go by segments and by blocks, not by their size. sizing and device_bytes are empty for what has no device.
    blocks_hit_dram: of the hits, those that came from the memory before the device, where there was one.
    """

    blocks_written: int = 0
    blocks_rewritten: int = 0
    blocks_refused: int = 0
    blocks_missed: int = 0
    blocks_overtaken: int = 0
    blocks_hit_dram: int = 0
    blocks_wrong: int = 0
    blocks_peak: int = 0
    batches: int = 0
    segments_sealed: int = 0
    side_bytes: int = 0
    evicted: dict[str, int] = field(default_factory=dict)
    device_bytes: dict[str, int] = field(default_factory=dict)
    sizing: dict[str, int] = field(default_factory=dict)


class Cache(Protocol):
    """A policy with its capacity. Blocks are the trace's numbers."""

    def request(self, index: int) -> int:
        """Replays request `index` of the trace: how many of its first blocks were there."""
        ...

    def present(self) -> NDArray[np.bool_]:
        """For each block of the trace, whether it is there."""
        ...

    def tally(self) -> Tally:
        """So far."""
        ...

    def close(self) -> None:
        """Gives back what it holds."""
        ...


def prefix(blocks: Iterable[int], present: Container[int]) -> int:
    """How many of the first `blocks` are present."""
    count = 0
    for block in blocks:
        if block not in present:
            break
        count += 1
    return count


def mask_of(blocks: Collection[int], unique_blocks: int) -> NDArray[np.bool_]:
    """True for these."""
    mask = np.zeros(unique_blocks, np.bool_)
    mask[np.fromiter(blocks, np.int64, len(blocks))] = True
    return mask
