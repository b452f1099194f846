"""What goes from memory into the tier: one put for blocks of a sequence, or of several, in sections of their cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from halfstep.client.arrays import PARENT_ROOT, PARENT_UNKNOWN
from halfstep.client.canary import SIBLING
from halfstep.client.numbers import REASON_PENDING
from halfstep.client.region import Rows
from halfstep.client.results import Answer, PutResult
from halfstep.client.sections import Section
from halfstep.errors import ConfigError
from halfstep.tier.asking import check_memory, lies_in, places_of, sixteen, urgency_of
from halfstep.tier.channel import Pending, submitted
from halfstep.tier.memory import Memory, Piece

if TYPE_CHECKING:
    from halfstep.tier.face import Tier, TierSession
    from halfstep.tier.prefix import Prefix


@dataclass(frozen=True)
class Stored:
    """What became of a put, counted in blocks of cells: written now, there already, or refused (dead, full or slow daemon).

    Where two ranks have a cell, such as a latent's, the second may find the first one writing: that counts as there, unless it
    asked for persistence.
    unowned: of cells of which this process has a part alone: whoever has them whole writes them. bytes: of those written now.
    reason: why the first refused one was refused, or "". why: the same for programs, or OK.
    """

    stored: int
    present: int
    refused: int
    unowned: int
    bytes: int
    reason: str
    why: Answer = Answer.OK


@dataclass(frozen=True, slots=True)
class Run:
    """Blocks of one sequence that follow one another: depth: of the first one; places: blocks of memory that hold them."""

    keys: Sequence[bytes]
    depth: int
    places: npt.NDArray[np.int64]


def begin_put_all(
    tier: Tier,
    prefixes: Sequence[Prefix],
    from_: Memory,
    rows: Sequence[npt.ArrayLike],
    *,
    layers: range | None = None,
    priority: int | None = None,
) -> Pending[Stored]:
    """See Tier.begin_put_all."""
    if not prefixes or any(one.tier is not tier for one in prefixes):
        raise ConfigError(f"prefixes ({len(prefixes)}): must be one at least, and all of this tier")
    if len(rows) != len(prefixes):
        raise ConfigError(f"rows: of {len(rows)} prefixes; there are {len(prefixes)}")
    check_memory(from_, tier.layout, None)
    runs = [
        Run(one.keys, one.first, places_of(places, 0, one.blocks, from_)) for one, places in zip(prefixes, rows, strict=True)
    ]
    return begin_put(tier, runs, from_, layers=layers, priority=priority)


def begin_put(
    tier: Tier,
    runs: Sequence[Run],
    from_: Memory,
    *,
    layers: range | None,
    priority: int | None,
    session: TierSession | None = None,
    deadline_ms: float | None = None,
    stream: object = None,
) -> Pending[Stored]:
    """Of all blocks of these runs, one after the other. Else as Prefix.begin_put."""
    layout = tier.layout
    keys = [key for run in runs for key in run.keys]
    count = len(keys)
    places = np.concatenate([run.places for run in runs])
    parents, depths = _lineage(runs)
    pieces = from_.pieces if layers is None else [piece for piece in from_.pieces if lies_in(piece, layers)]
    own = [piece for piece in pieces if piece.parts is None]
    sections = [
        Section(
            keys,
            Rows(piece.template, places),
            layout=layout.layout,
            first_component=piece.cell.component,
            parents=parents,
            depths=depths,
            ttl_s=tier.ttl_s,
        )
        for piece in own
    ]
    unowned = (len(pieces) - len(own)) * count
    siblings = [section for run in runs for section in _siblings(tier, own, run)]

    def finish(results: list[list[PutResult]]) -> Stored:
        every = [one for some in results for one in some]
        answers = every[: len(own)]
        for sibling in every[len(own) :]:
            tier.client.canary.count(sibling)
        stored = present = refused = moved = 0
        reason, why = "", Answer.OK
        for piece, put in zip(own, answers, strict=True):
            pending = put.pending if tier.durability == "cache" else 0
            stored += put.stored
            present += put.present + pending
            refused += count - put.hits - pending
            moved += put.stored * piece.cell.block_bytes
            if not reason and put.hits + pending < count:
                failed = (put.answers != Answer.OK.value) & ((put.reasons != REASON_PENDING) | (pending == 0))
                reason, why = put.reason(int(np.argmax(failed))), put.answer_of(int(np.argmax(failed)))
            if session is not None:
                session.note(piece.cell, keys, put)
        tier.note("store", why, reason)
        if tier.tally is not None:
            shares = [piece.cell.block_bytes / layout.block_bytes for piece in own]
            written = sum(share * put.stored for share, put in zip(shares, answers, strict=True))
            tier.tally.stored(sum(shares) * count, written, share=sum(shares))
        return Stored(stored, present, refused, unowned, moved, reason, why)

    urgency = urgency_of(tier, session, priority)
    asked = sections if count and own else []
    tickets = submitted(
        tier.queue.put_sections(some, durability=tier.durability, priority=urgency, deadline_ms=deadline_ms, stream=stream)
        for some in (*sixteen(asked), *sixteen(siblings if asked else []))
    )
    return Pending(tickets, finish if asked else lambda _: Stored(0, 0, 0, unowned, 0, ""))


def _lineage(runs: Sequence[Run]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Of the blocks of these runs, one after the other: which of them is the parent of each, and at which depth it is."""
    counts = [len(run.keys) for run in runs]
    parents = np.arange(-1, sum(counts) - 1, dtype=np.int64)
    at = 0
    for run, count in zip(runs, counts, strict=True):
        if count:
            parents[at] = PARENT_ROOT if run.depth == 0 else PARENT_UNKNOWN
        at += count
    depths = np.concatenate([np.arange(run.depth, run.depth + count) for run, count in zip(runs, counts, strict=True)])
    return parents, np.minimum(depths, 0xFFFF)


def _siblings(tier: Tier, pieces: Sequence[Piece], run: Run) -> list[Section]:
    """Of these blocks: see halfstep.tier.canary."""
    layout = tier.layout.layout
    chosen = tier.client.canary.chosen(layout, run.keys, run.depth)
    return [
        Section(
            [run.keys[at] for at in chosen],
            Rows(piece.template, run.places[chosen]),
            layout=layout,
            first_component=piece.cell.component | SIBLING,
            parents=np.full(len(chosen), PARENT_UNKNOWN, np.int64),
            depths=np.minimum(run.depth + np.array(chosen), 0xFFFF),
            ttl_s=tier.ttl_s,
        )
        for piece in (pieces if chosen else ())
    ]
