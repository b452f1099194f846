"""A sequence of tokens as the tier has it: what is there, into memory, from memory.

How far a prefix reaches is one rule for a match and a get: as far as every kind that looks at all tokens has each block from
the first on, and each kind with a window has those that its last tokens lie in. What a get brings is answered by the same rule:
a block that was lost in between shortens the prefix, and never leaves a hole.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from halfstep.arguments import whole_number
from halfstep.client.arrays import PARENT_ROOT, PARENT_UNKNOWN
from halfstep.client.region import Rows
from halfstep.client.results import REASON_PENDING, Answer, GetResult, MatchResult, PutResult
from halfstep.client.sections import SECTIONS_MAX, Section
from halfstep.client.ticket import Ticket
from halfstep.errors import ConfigError
from halfstep.tier.memory import Memory, Piece
from halfstep.tier.shapes import Kind, KVLayout

if TYPE_CHECKING:
    from halfstep.tier.face import Tier, TierSession

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Found:
    """How far a prefix reaches. tokens: of those blocks. reason: who did not answer, and why; "" = everybody did."""

    blocks: int
    tokens: int
    reason: str


@dataclass(frozen=True)
class Loaded:
    """What a get brought: the first `blocks` are whole in memory; what lies after them is undefined.

    bytes: landed, verified. reason: why it ended where it did, or "".
    """

    blocks: int
    tokens: int
    bytes: int
    reason: str


@dataclass(frozen=True)
class Stored:
    """What became of a put, counted in blocks of cells: written now, there already, or refused (dead, full or slow daemon).

    Where two ranks have a cell, such as a latent's, the second may find the first one writing: that counts as there, unless it
    asked for persistence.
    unowned: of cells of which this process has a part alone: whoever has them whole writes them. bytes: of those written now.
    reason: why the first refused one was refused, or "".
    """

    stored: int
    present: int
    refused: int
    unowned: int
    bytes: int
    reason: str


class Pending(Generic[T]):
    """A call on its way. What has not ended goes on if it is dropped, and touches its memory until it has.

    tickets: of the tier's queue, whose poll() says when they are over.
    """

    def __init__(self, tickets: Sequence[Ticket[Any]], finish: Callable[[list[Any]], T]) -> None:
        self.tickets = tickets
        self._finish = finish

    @property
    def done(self) -> bool:
        """Nothing of it touches memory any more."""
        return all(ticket.done for ticket in self.tickets)

    def result(self, timeout_s: float | None = None) -> T:
        """What came of it; waits. Errors: TimeoutError after `timeout_s`; it goes on then."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        return self._finish(
            [ticket.result(None if until is None else max(0, until - time.monotonic())) for ticket in self.tickets]
        )

    def cancel(self) -> None:
        """Ask for its end; it is over when `done`."""
        for ticket in self.tickets:
            ticket.cancel()


class Prefix:
    """The full blocks of a sequence of tokens; those after the last full block have no key and are never stored.

    keys: one a block, each of which covers all tokens before it. Made by Tier.prefix().
    """

    def __init__(self, tier: Tier, keys: Sequence[bytes]) -> None:
        self._tier = tier
        self.keys = list(keys)

    @property
    def blocks(self) -> int:
        """How many full blocks there are."""
        return len(self.keys)

    @property
    def tokens(self) -> int:
        """Tokens of the full blocks."""
        return self.blocks * self._tier.layout.block_tokens

    # ---- What is there ----

    def match(self, *, deadline_ms: float | None = None) -> Found:
        """How far it reaches, with every kind and cell. One request. Deadline: the client's of a match."""
        return self.begin_match(deadline_ms=deadline_ms).result()

    def begin_match(self, *, deadline_ms: float | None = None) -> Pending[Found]:
        """As match, without waiting."""
        tier = self._tier
        layout = tier.layout
        sections = []
        for kind in layout.kinds:
            cells = layout.cells(kind.name)
            sections.append(
                Section(
                    self.keys,
                    layout=layout.layout,
                    first_component=cells[0].component,
                    components=len(cells),
                    stop_at_miss=not kind.window,
                )
            )

        def finish(results: list[list[MatchResult]]) -> Found:
            answers = [one for some in results for one in some]
            present = {kind.name: found.present for kind, found in zip(layout.kinds, answers, strict=True)}
            reason = next((found.reason for found in answers if found.reason), "")
            return self._found(reach(layout, present, self.blocks), reason)

        asked = sections if self.keys else []
        tickets = [tier.queue.match_sections(some, deadline_ms=deadline_ms) for some in _sixteen(asked)]
        return Pending(tickets, finish if asked else lambda _: self._found(0, ""))

    # ---- Into memory ----

    def get(self, into: Memory, **options: Any) -> Loaded:
        """Read the first blocks into memory, verified. The options are those of begin_get, which does not wait."""
        return self.begin_get(into, **options).result()

    def begin_get(
        self,
        into: Memory,
        *,
        blocks: int | None = None,
        rows: npt.ArrayLike | None = None,
        order: Literal["key", "layer"] = "layer",
        session: TierSession | None = None,
        deadline_ms: float | None = None,
    ) -> Pending[Loaded]:
        """Read the first `blocks` (all of them) of the layers and heads that `into` has.

        rows: for each of these blocks, the block of `into` that takes it; None: the same number. order: "layer" brings the
        first layers of all blocks first. session: whose urgency it has. Kinds with a window get the blocks that it needs.
        Errors: ConfigError. What did not come in time, or did not verify, ends the prefix before it.
        """
        tier, layout = self._tier, self._tier.layout
        _check(into, layout, session)
        count = _count("blocks", blocks, self.blocks)
        places = _places(rows, 0, count, into)
        asked = [(piece, count - _needed(layout, piece.cell.kind, count)) for piece in into.pieces]
        taken = places[min((first for _, first in asked), default=0) :]
        if len(np.unique(taken)) != len(taken):
            raise ConfigError("rows: a block of memory is named twice; each block needs one of its own")
        sections = [
            Section(
                self.keys[first:count],
                Rows(piece.template, places[first:]),
                layout=layout.layout,
                first_component=piece.cell.component,
                parts=piece.parts,
                stop_at_miss=not piece.cell.kind.window,
            )
            for piece, first in asked
        ]

        def finish(results: list[list[GetResult]]) -> Loaded:
            present: dict[str, npt.NDArray[np.bool_]] = {}
            moved, reason = 0, ""
            answers = [one for some in results for one in some]
            for (piece, first), got in zip(asked, answers, strict=True):
                whole = got.items_ok
                # What was not read is not there, whatever the tier has.
                read = np.arange(count) >= first
                read[first:] = whole
                present[piece.cell.kind.name] = present.get(piece.cell.kind.name, read) & read
                moved += int(whole.sum()) * _bytes_of(piece)
                if not reason and not whole.all():
                    reason = got.reason(int(np.argmin(whole)))
            reached = reach(layout, present, count)
            return Loaded(reached, reached * layout.block_tokens, moved, "" if reached == count else reason)

        urgency = tier.priority if session is None else session.urgency
        tickets = [
            tier.queue.get_sections(some, order=order, priority=urgency, deadline_ms=deadline_ms)
            for some in _sixteen(sections if count else [])
        ]
        return Pending(tickets, finish if count else lambda _: Loaded(0, 0, 0, ""))

    # ---- From memory ----

    def put(self, from_: Memory, **options: Any) -> Stored:
        """Store blocks from memory. The options are those of begin_put, which does not wait."""
        return self.begin_put(from_, **options).result()

    def begin_put(
        self,
        from_: Memory,
        *,
        first: int = 0,
        blocks: int | None = None,
        rows: npt.ArrayLike | None = None,
        session: TierSession | None = None,
        deadline_ms: float | None = None,
    ) -> Pending[Stored]:
        """Store the blocks from number `first` to `blocks` (all of them), of the cells that `from_` has whole.

        rows: for each of these blocks, the block of `from_` that holds it; None: the same number. session: whose urgency it
        has, and which knows of them afterwards. Blocks that are there already are not sent. Errors: ConfigError.
        """
        tier, layout = self._tier, self._tier.layout
        _check(from_, layout, session)
        last = _count("blocks", blocks, self.blocks)
        begin = min(_count("first", first, self.blocks), last)
        count = last - begin
        places = _places(rows, begin, count, from_)
        keys = self.keys[begin:last]
        own = [piece for piece in from_.pieces if piece.parts is None]
        parents = np.arange(-1, count - 1, dtype=np.int64)
        if count:
            parents[0] = PARENT_ROOT if begin == 0 else PARENT_UNKNOWN
        sections = [
            Section(
                keys,
                Rows(piece.template, places),
                layout=layout.layout,
                first_component=piece.cell.component,
                parents=parents,
                depths=np.minimum(np.arange(begin, last), 0xFFFF),
                ttl_s=tier.ttl_s,
            )
            for piece in own
        ]
        unowned = (len(from_.pieces) - len(own)) * count

        def finish(results: list[list[PutResult]]) -> Stored:
            answers = [one for some in results for one in some]
            stored = present = refused = moved = 0
            reason = ""
            for piece, put in zip(own, answers, strict=True):
                pending = put.pending if tier.durability == "cache" else 0
                stored += put.stored
                present += put.present + pending
                refused += count - put.hits - pending
                moved += put.stored * piece.cell.block_bytes
                if not reason and put.hits + pending < count:
                    failed = (put.answers != Answer.OK.value) & ((put.reasons != REASON_PENDING) | (pending == 0))
                    reason = put.reason(int(np.argmax(failed)))
                if session is not None:
                    session.note(piece.cell, keys, put)
            return Stored(stored, present, refused, unowned, moved, reason)

        urgency = tier.priority if session is None else session.urgency
        asked = sections if count else []
        tickets = [
            tier.queue.put_sections(some, durability=tier.durability, priority=urgency, deadline_ms=deadline_ms)
            for some in _sixteen(asked)
        ]
        return Pending(tickets, finish if asked else lambda _: Stored(0, 0, 0, unowned, 0, ""))

    # ---- Its life ----

    def hold(self, session: TierSession, *, blocks: int | None = None) -> int:
        """Keep the first blocks from eviction until the session ends. Returns how many blocks, from the first on, are held."""
        return session.hold(self, blocks=blocks)

    def touch(self) -> None:
        """Say that it is in use without reading it, as a get does."""
        for kind in self._tier.layout.kinds:
            cells = self._tier.layout.cells(kind.name)
            # Leaf first: the root counts as used last, and outlives what hangs on it.
            self._tier.client.touch(
                self.keys[::-1],
                layout=self._tier.layout.layout,
                first_component=cells[0].component,
                components=len(cells),
            )

    def _found(self, blocks: int, reason: str) -> Found:
        return Found(blocks, blocks * self._tier.layout.block_tokens, reason)


def reach(layout: KVLayout, present: Mapping[str, npt.NDArray[np.bool_]], blocks: int) -> int:
    """How many of the first `blocks` can be gone on from. present: per kind and block; what is not named is not needed."""
    reached = blocks
    for kind in layout.kinds:
        if kind.name in present and not kind.window:
            there = present[kind.name][:blocks]
            reached = min(reached, blocks if there.all() else int(there.argmin()))
    # The longest of those that leave no window with a gap.
    good = np.ones(reached + 1, np.bool_)
    numbers = np.arange(reached + 1)
    for kind in layout.kinds:
        if kind.name in present and kind.window:
            gaps = np.concatenate(([0], np.cumsum(~present[kind.name][:reached])))
            first = np.maximum(numbers - _needed(layout, kind, blocks), 0)
            good &= gaps[numbers] == gaps[first]
    return int(np.flatnonzero(good)[-1])


def _needed(layout: KVLayout, kind: Kind, blocks: int) -> int:
    """Of a prefix of `blocks`, how many of its last a kind needs."""
    return min(blocks, -(-kind.window // layout.block_tokens)) if kind.window else blocks


def _bytes_of(piece: Piece) -> int:
    """Of a block, what a process takes of it."""
    cell = piece.cell
    if piece.parts is None:
        return cell.block_bytes
    sizes = layout_sizes(cell.kind, cell.entries)
    heads = len(cell.heads)
    return sum(sizes[_plane(cell.kind, part, heads)] for some in piece.parts for part in some)


def layout_sizes(kind: Kind, entries: int) -> tuple[int, ...]:
    """Bytes of a part of each plane."""
    return tuple(plane * entries for plane in kind.planes)


def _plane(kind: Kind, part: int, heads: int) -> int:
    planes = len(kind.planes)
    return part % (planes * heads) // heads if kind.plane_major else part % planes


def _check(memory: Memory, layout: KVLayout, session: TierSession | None) -> None:
    """Of another layout's memory every byte would be another model's."""
    if not isinstance(memory, Memory):
        raise ConfigError(f"memory ({type(memory).__name__}): must be a halfstep.tier.Memory; Tier.memory makes one")
    if memory.layout != layout:
        raise ConfigError(f"memory: is of layout {memory.layout.layout.id.hex()}, this tier has {layout.layout.id.hex()}")
    if session is not None and not hasattr(session, "urgency"):
        raise ConfigError(f"session ({type(session).__name__}): must be a TierSession; Tier.session makes one")


def _count(name: str, blocks: int | None, there: int) -> int:
    if blocks is None:
        return there
    if not 0 <= whole_number(name, blocks) <= there:
        raise ConfigError(f"{name}={blocks}: must be 0 to {there}, which are the full blocks of this prefix")
    return blocks


def _places(rows: npt.ArrayLike | None, first: int, count: int, memory: Memory) -> npt.NDArray[np.int64]:
    """Which blocks of memory are meant. Beyond its last one lies somebody else's head, where heads come before blocks."""
    try:
        places = np.arange(first, first + count, dtype=np.int64) if rows is None else np.asarray(rows)
    except ValueError as error:
        raise ConfigError(f"rows: {error}") from None
    if places.shape != (count,) or (count and places.dtype.kind not in "iu"):
        raise ConfigError(f"rows: shape {places.shape} of {places.dtype}; must be {count} whole numbers, one a block")
    there = memory.blocks or 0
    if count and not (int(places.min()) >= 0 and int(places.max()) < there):
        raise ConfigError(f"rows: {int(places.min())} to {int(places.max())}; this memory has the blocks 0 to {there - 1}")
    return places.astype(np.int64, copy=False)


def _sixteen(sections: Sequence[Section]) -> list[Sequence[Section]]:
    return [sections[at : at + SECTIONS_MAX] for at in range(0, len(sections), SECTIONS_MAX)]
