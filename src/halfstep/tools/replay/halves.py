"""Two halves of a trace, by its sessions: settings are chosen on one and judged on the other, which had no part in the choice.

A session is what follows a system prompt: all requests whose first block of their own is the same. System prompts are those of
both halves, as they are of all sessions. Times stay as they are, so that each half is as busy as half of the traffic.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from halfstep.errors import ConfigError
from halfstep.tools.replay.hints import system_blocks
from halfstep.tools.replay.trace import ROOT, Trace


def halves(trace: Trace, seed: int = 1) -> tuple[Trace, Trace]:
    """Which half a session is of, its name decides, and the seed. Errors: ConfigError (a trace of one session)."""
    first = np.zeros(trace.requests, np.bool_)
    system = system_blocks(trace)
    for index in range(trace.requests):
        first[index] = _of_first(trace, index, system, seed)
    if not 0 < first.sum() < trace.requests:
        raise ConfigError(f"{trace.name}: all of its requests are of one half; a trace of several sessions is needed")
    return part(trace, first, f"{trace.name}, first half"), part(trace, ~first, f"{trace.name}, second half")


def _of_first(trace: Trace, index: int, system: NDArray[np.bool_], seed: int) -> bool:
    blocks = trace.request(index)
    own = blocks[~system[blocks]]
    name = trace.keys[own[0] if len(own) else blocks[-1]].tobytes()
    return hashlib.blake2b(name, digest_size=1, salt=seed.to_bytes(8, "little")).digest()[0] < 128


def part(trace: Trace, chosen: NDArray[np.bool_], name: str) -> Trace:
    """Those requests alone, and their blocks, numbered anew in the order of their first appearance."""
    numbers = np.full(trace.unique_blocks, -1, np.int64)
    old: list[int] = []
    blocks: list[int] = []
    starts = [0]
    indices = np.flatnonzero(chosen)
    for index in indices:
        for block in trace.request(int(index)).tolist():
            if numbers[block] < 0:
                numbers[block] = len(old)
                old.append(block)
            blocks.append(int(numbers[block]))
        starts.append(len(blocks))
    # A block's parent comes before it in each request that has the block.
    parents = trace.parents[old]
    return Trace(
        name=name,
        blocks=np.array(blocks, np.int32),
        starts=np.array(starts, np.int64),
        times_us=trace.times_us[indices] - trace.times_us[indices[0]],
        ttl_s=trace.ttl_s[indices],
        chained=trace.chained[indices],
        parents=np.where(parents == ROOT, ROOT, numbers[parents]).astype(np.int32),
        keys=trace.keys[old],
    )
