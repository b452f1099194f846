"""Blocks of two prompts that change places in a daemon: engines that answer the same afterwards would show no wrong byte.

Blocks of one prompt that change places would not show: keys are turned to their positions, and attention sums over all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

import halfstep
from halfstep.client.entries import Entry

# For stores that nobody waits for, on a busy machine.
PATIENCE_S = 60.0


def stored_by(client: halfstep.Client, act: Callable[[], object], count: int) -> list[Entry]:
    """The blocks of the client's layout that come of it, once there are so many."""
    before = blocks_of(client)
    act()
    end_s = time.monotonic() + PATIENCE_S
    while len(new := blocks_of(client) - before) < count:
        assert time.monotonic() < end_s, f"{len(new)} blocks of {count} were stored"
        time.sleep(0.1)
    return sorted(new)


def blocks_of(client: halfstep.Client) -> set[Entry]:
    """Of its layout."""
    return {entry for entry in client.list() if entry.layout_id == client.layout.id}


def exchange(client: halfstep.Client, ones: list[Entry], others: list[Entry]) -> None:
    """Each has the bytes of one of the other prompt's from now on, verified as any."""
    entries = ones + others
    (block_bytes,) = {entry.block_bytes for entry in entries}
    assert len(ones) == len(others)
    blocks = np.zeros((len(entries), block_bytes), np.uint8)
    keys = [entry.key for entry in entries]
    assert client.get(keys, blocks).ok.all()
    assert client.delete(keys).ok.all()
    assert client.put([entry.key for entry in others + ones], blocks).ok.all()
