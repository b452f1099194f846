"""Fetch or recompute: how much of a prefix to take from the tier, so that all of it is there first.

`plan` is a pure function of what is asked (Work, Terms) and of what is known (PrefillSpeed, FetchSpeed, loads of shards). For
each number k of blocks it adds up what fetching the first k and computing the others takes, and takes the k that ends first.

The overlap of both. Computing a token needs keys and values of all tokens before it, in the layer at hand. So an engine that
waits for a load begins to compute when it is over: k blocks end after `fetch(k) + compute(k)`. An engine that goes on layer by
layer computes the first layer while the second one arrives: a line of two stages, fed in `layers` equal pieces, which ends
after `f + (layers - 1) * max(f, c) + c`, where f and c are a piece's share of both. With one layer these are the same.

Invariants: with an engine or a link that nobody measured all is fetched within the caller's deadline, as without a planner.
A deadline is never longer than the caller's. Nothing here waits, reads a clock, or keeps anything.
Thread: any.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from halfstep.client.facts import ShardLoad
from halfstep.client.speeds import FetchSpeed, PrefillSpeed

# Fetching has to end earlier than computing by this share: an estimate is not better than that, and computing is certain.
GAIN_MIN = 0.05
# A get is given up after so many times what it should take, if computing its blocks would take less than that.
PATIENCE = 2.0
# A probe is at most so much of the prefix, and as little as its time allows. It is given up after so many times what it took
# when the tier was well, doubled with each that failed up to that share of computing all; but not before PROBE_S_MIN, and
# always after that share of the caller's deadline. A tier that needs longer for a block at its best gets up to half of the
# deadline, or as long as computing the block takes.
PROBE_SHARE = 8
PROBE_PATIENCE = 4.0
PROBE_S_MIN = 0.020
PROBE_DEADLINE_SHARE, PROBE_DEADLINE_SHARE_MAX = 4, 2

_Floats = npt.NDArray[np.float64]


class Reason(StrEnum):
    """Why a plan is as it is."""

    NOTHING = "nothing"  # there is nothing to fetch
    PREFILL_UNKNOWN = "prefill_unknown"  # the engine was not seen to compute: all is fetched
    LINK_UNKNOWN = "link_unknown"  # the link was not seen to move blocks: all is fetched
    FETCH = "fetch"  # all: it ends first
    FETCH_SOME = "fetch_some"  # the first ones: that ends first
    RECOMPUTE = "recompute"  # none: computing ends first
    OPEN = "circuit_open"  # none: the tier failed
    PROBE = "probe"  # a few: to see whether the tier is back, or how quick it is now


@dataclass(frozen=True, slots=True)
class Work:
    """A prefix. blocks: that the tier has, from the first on. block_bytes: as they are stored, coded ones are smaller.

    before_tokens: of the sequence, that the engine has before the first block. after_tokens: that lie behind the last one, and
    are computed whatever is fetched. shard_of: of each block, its shard; None: they are spread evenly.
    """

    blocks: int
    block_tokens: int
    block_bytes: float
    before_tokens: int = 0
    after_tokens: int = 0
    shard_of: Sequence[int] | None = None


@dataclass(frozen=True, slots=True)
class Terms:
    """deadline_s: the caller's, of the fetch. goal_s: until all is there, for the first token; None: as soon as it can be.

    layers: in how many pieces the engine goes on while a fetch arrives; 1: it waits for all.
    """

    deadline_s: float
    goal_s: float | None = None
    layers: int = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """blocks: to fetch, from the first on. deadline_s: of that fetch; what is not there by then is computed.

    fetch_s, end_s: expected, of the fetch and until all is there; queue_s: of fetch_s, what it waits for its turn.
    recompute_s: until all is there with no fetch. in_goal: end_s is within the goal. Seconds are 0 where they are not known.
    """

    blocks: int
    deadline_s: float
    reason: Reason
    fetch_s: float = 0.0
    queue_s: float = 0.0
    end_s: float = 0.0
    recompute_s: float = 0.0
    in_goal: bool = True


@dataclass(frozen=True, slots=True)
class Curves:
    """Seconds for each k from 0 to blocks: of fetching the first k, of computing the others, and until both are done."""

    fetch_s: _Floats
    compute_s: _Floats
    end_s: _Floats
    queue_s: float


def curves(work: Work, prefill: PrefillSpeed, fetch: FetchSpeed, loads: Sequence[ShardLoad] = (), *, layers: int = 1) -> Curves:
    """What each k would take. Both speeds are known."""
    k = np.arange(work.blocks + 1, dtype=np.float64)
    border = work.before_tokens + k * work.block_tokens
    last = border[-1] + work.after_tokens
    compute_s = prefill.token_s * ((last - border) + prefill.growth / 2 * (last * last - border * border))
    moving_s = k * (work.block_bytes / fetch.bytes_per_s)
    queue_s = 0.0
    if loads:
        # What a shard told is what it served, which is little where little was asked: it does at least its share of what the
        # link was seen to bring. What waits there is told as time at its own rate.
        share = fetch.bytes_per_s / len(loads)
        rates = [max(load.bytes_per_s, share) for load in loads]
        waits = [load.queue_us * 1e-6 * load.bytes_per_s / rate for load, rate in zip(loads, rates, strict=True)]
        moving_s, queue_s = _through_shards(work, k, moving_s, rates, waits)
    fetch_s = fetch.round_trip_s + moving_s
    fetch_s[0] = 0.0
    f, c = fetch_s / layers, compute_s / layers
    end_s = fetch_s + compute_s if layers == 1 else f + (layers - 1) * np.maximum(f, c) + c
    return Curves(fetch_s, compute_s, end_s, queue_s)


def _through_shards(
    work: Work, k: _Floats, moving_s: _Floats, rates: Sequence[float], waits: Sequence[float]
) -> tuple[_Floats, float]:
    """When the last of the first k has come from the shards, which serve side by side; and the longest wait of all."""
    if work.shard_of is None:
        each = work.block_bytes / len(rates)
        slowest = min(waits) + moving_s  # the link begins with the first shard that is free
        least = math.inf
        for wait, rate in sorted(zip(waits, rates, strict=True), key=lambda shard: (-shard[0], shard[1])):
            if rate < least:  # or it is behind one that waits as long and is as slow, whatever k is
                least = rate
                slowest = np.maximum(slowest, wait + k * (each / rate))
        return slowest, max(waits)
    of = np.asarray(work.shard_of)
    slowest = np.zeros(len(k))
    concerned = [shard for shard in range(len(rates)) if (of == shard).any()]
    for shard in concerned:
        mine = np.concatenate(([0], np.cumsum(of == shard)))
        slowest = np.maximum(slowest, np.where(mine > 0, waits[shard] + mine * (work.block_bytes / rates[shard]), 0.0))
    first = min((waits[shard] for shard in concerned), default=0.0)
    return np.maximum(slowest, first + moving_s), max((waits[shard] for shard in concerned), default=0.0)


def plan(work: Work, terms: Terms, prefill: PrefillSpeed, fetch: FetchSpeed, loads: Sequence[ShardLoad] = ()) -> Plan:
    """How much to fetch. loads: of the shards, as the last answer told them."""
    if work.blocks <= 0:
        return Plan(0, 0.0, Reason.NOTHING)
    if prefill.token_s <= 0:
        return Plan(work.blocks, terms.deadline_s, Reason.PREFILL_UNKNOWN)
    if fetch.bytes_per_s <= 0:
        last = work.before_tokens + work.blocks * work.block_tokens
        recompute_s = prefill.seconds(work.before_tokens, last + work.after_tokens)
        return Plan(
            work.blocks,
            _patient(terms, prefill.seconds(work.before_tokens, last), recompute_s, 0.0),
            Reason.LINK_UNKNOWN,
            recompute_s=recompute_s,
        )
    each = curves(work, prefill, fetch, loads, layers=terms.layers)
    recompute_s = float(each.end_s[0])
    # What cannot be there in time is no choice. Of ends that are equal the most blocks count: the engine has more for others.
    ends_s = np.where(each.fetch_s <= terms.deadline_s, each.end_s, np.inf)
    best = work.blocks - int(ends_s[::-1].argmin())
    if best == 0 or ends_s[best] > (1 - GAIN_MIN) * recompute_s:
        in_goal = terms.goal_s is None or recompute_s <= terms.goal_s
        return Plan(0, 0.0, Reason.RECOMPUTE, 0.0, each.queue_s, recompute_s, recompute_s, in_goal)
    saved_s = float(each.compute_s[0] - each.compute_s[best])
    fetch_s, end_s = float(each.fetch_s[best]), float(each.end_s[best])
    return Plan(
        best,
        _patient(terms, saved_s, recompute_s, fetch_s),
        Reason.FETCH if best == work.blocks else Reason.FETCH_SOME,
        fetch_s,
        each.queue_s,
        end_s,
        recompute_s,
        terms.goal_s is None or end_s <= terms.goal_s,
    )


def probe(
    work: Work, terms: Terms, prefill: PrefillSpeed, fetch: FetchSpeed, loads: Sequence[ShardLoad] = (), *, failed: int = 0
) -> Plan:
    """A few blocks, to see whether the tier does what it did. fetch: as it was; failed: probes before this one that did not.

    No blocks (Reason.OPEN): the load that was told leaves no time for one.
    """
    last = work.before_tokens + work.blocks * work.block_tokens + work.after_tokens
    recompute_s = prefill.seconds(work.before_tokens, last)
    longest_s = terms.deadline_s / PROBE_DEADLINE_SHARE
    blocks, fetch_s, queue_s = 1, 0.0, 0.0
    wait_s = recompute_s / 2
    if fetch.bytes_per_s > 0:
        each = curves(work, prefill, fetch, loads)
        queue_s = each.queue_s
        in_time = int(np.count_nonzero(PROBE_PATIENCE * each.fetch_s[1:] <= longest_s))
        blocks = min(in_time, max(1, work.blocks // PROBE_SHARE))
        # Of a tier that takes so long for a block at its best, one is asked for all the same.
        least_s = fetch.round_trip_s + work.block_bytes / fetch.bytes_per_s
        block_s = prefill.seconds(work.before_tokens, work.before_tokens + work.block_tokens)
        most_s = max(terms.deadline_s / PROBE_DEADLINE_SHARE_MAX, block_s)
        longest_s = min(terms.deadline_s, max(longest_s, min(PATIENCE * least_s, most_s)))
        # What it took may be long ago: where it is not the queue that takes the time, it may be quicker now.
        if blocks == 0 and (each.fetch_s[1] <= longest_s or queue_s <= longest_s / 2):
            blocks = 1
        fetch_s = float(each.fetch_s[blocks])
        usual_s = PROBE_PATIENCE * fetch_s
        wait_s = max(usual_s, min(usual_s * 2.0 ** min(failed, 16), recompute_s / PROBE_SHARE))
    in_goal = terms.goal_s is None or recompute_s <= terms.goal_s
    if blocks == 0:
        return Plan(0, 0.0, Reason.OPEN, 0.0, queue_s, recompute_s, recompute_s, in_goal)
    end_s = fetch_s + prefill.seconds(work.before_tokens + blocks * work.block_tokens, last)
    in_goal = terms.goal_s is None or end_s <= terms.goal_s
    return Plan(blocks, min(longest_s, max(PROBE_S_MIN, wait_s)), Reason.PROBE, fetch_s, queue_s, end_s, recompute_s, in_goal)


def go_on(
    made: Plan, work: Work, terms: Terms, prefill: PrefillSpeed, fetch: FetchSpeed, *, landed: int, elapsed_s: float
) -> Plan:
    """Asked again while a fetch is under way, key by key, `landed` whole blocks of which have come after elapsed_s > 0.

    Returns: what to do about the others, from number `landed` on. No blocks: call the fetch off, and compute. What has come
    tells more of this fetch than what others took: its own rate counts, and neither a round trip nor a queue any more.
    """
    rest = Work(
        made.blocks - landed,
        work.block_tokens,
        work.block_bytes,
        work.before_tokens + landed * work.block_tokens,
        (work.blocks - made.blocks) * work.block_tokens + work.after_tokens,
    )
    left_s = made.deadline_s - elapsed_s
    if rest.blocks <= 0 or left_s <= 0 or made.reason in (Reason.PREFILL_UNKNOWN, Reason.PROBE):
        on = rest.blocks if left_s > 0 else 0
        return Plan(
            max(0, on), max(0.0, left_s), made.reason if on > 0 else Reason.RECOMPUTE if left_s <= 0 else Reason.NOTHING
        )
    # Between so many blocks and one more have come so far; nothing is known where they land layer by layer.
    seen = max(fetch.bytes_per_s, landed * work.block_bytes / elapsed_s)
    seen = min(seen, (landed + 1) * work.block_bytes / elapsed_s)
    goal_s = None if terms.goal_s is None else terms.goal_s - elapsed_s
    return plan(rest, Terms(left_s, goal_s, terms.layers), prefill, FetchSpeed(0.0, seen))


def _patient(terms: Terms, saved_s: float, recompute_s: float, fetch_s: float) -> float:
    """How long to wait for a fetch: as long as computing its blocks takes, or twice what it should take, if that is longer.

    A goal that computing alone would meet shortens the first of both: giving up then still meets it.
    """
    if terms.goal_s is not None and terms.goal_s > recompute_s:
        saved_s = min(saved_s, terms.goal_s - recompute_s)
    return min(terms.deadline_s, max(saved_s, PATIENCE * fetch_s))
