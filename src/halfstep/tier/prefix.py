"""A sequence of tokens as the tier has it: what is there, into memory, from memory.

How far a prefix reaches is one rule for a match and a get: as far as every kind that looks at all tokens has each block from
the first on, and each kind with a window has those that its last tokens lie in. What a get brings is answered by the same rule:
a block that was lost in between shortens the prefix, and never leaves a hole.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from halfstep.arguments import whole_number
from halfstep.client.ahead import Item
from halfstep.client.region import Rows
from halfstep.client.results import Answer, GetResult, MatchResult
from halfstep.client.sections import Section
from halfstep.errors import ConfigError
from halfstep.tier.ahead import EXPECT_S, Expected, Wanted
from halfstep.tier.asking import batches_of, check_memory, places_of, sixteen, urgency_of
from halfstep.tier.channel import Layered, Pending, submitted
from halfstep.tier.memory import Memory, Piece
from halfstep.tier.shapes import Kind, KVLayout
from halfstep.tier.storing import Run, Stored, begin_put

if TYPE_CHECKING:
    from halfstep.tier.face import Tier, TierSession

T = TypeVar("T")

# More steps than a get has.
UNTIL_DONE = 1 << 62


@dataclass(frozen=True)
class Found:
    """How far a prefix reaches. tokens: of those blocks. reason: who did not answer, and why; "" = everybody did.

    why: the same for programs; OK = everybody did. held: of those blocks, how many from the first on are kept for as long as
    the match asked; the others may be evicted before their get, as all may where it asked for none.
    """

    blocks: int
    tokens: int
    reason: str
    why: Answer = Answer.OK
    held: int = 0


@dataclass(frozen=True)
class Loaded:
    """What a get brought: the first `blocks` are whole in memory; what lies after them is undefined.

    bytes: landed, verified. reason: why it ended where it did, or "". why: the same for programs, or OK.
    """

    blocks: int
    tokens: int
    bytes: int
    reason: str
    why: Answer = Answer.OK


class Prefix:
    """The full blocks of a sequence of tokens; those after the last full block have no key and are never stored.

    keys: one a block, each of which covers all tokens before it. first: blocks of the sequence that lie before them: those that
    an engine has itself. Blocks are numbered here from the first key on. Made by Tier.prefix() and Tier.prefix_of().
    """

    def __init__(self, tier: Tier, keys: Sequence[bytes], first: int = 0) -> None:
        self._tier = tier
        self.keys = list(keys)
        self.first = first

    @property
    def tier(self) -> Tier:
        """Whose it is."""
        return self._tier

    @property
    def blocks(self) -> int:
        """How many full blocks there are."""
        return len(self.keys)

    @property
    def tokens(self) -> int:
        """Tokens of the full blocks."""
        return self.blocks * self._tier.layout.block_tokens

    # ---- What is there ----

    def match(self, *, hold_ms: int = 0, deadline_ms: float | None = None) -> Found:
        """How far it reaches, with every kind and cell. One request. Deadline: the client's of a match.

        hold_ms: for so long what is found is kept from eviction, so that a get which comes later finds it; it takes no further
        request. 0 = not at all. The daemon cuts it to its longest lease, and holds no more than a share of its store:
        `Found.held` says how much. Another match of the same tier begins anew to count. Errors: ConfigError.
        """
        return self.begin_match(hold_ms=hold_ms, deadline_ms=deadline_ms).result()

    def begin_match(self, *, hold_ms: int = 0, deadline_ms: float | None = None) -> Pending[Found]:
        """As match, without waiting."""
        tier = self._tier
        layout = tier.layout
        hold = tier.hold_options(hold_ms)
        began_s = time.monotonic()
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
            there = {kind.name: found.present | found.unheld for kind, found in zip(layout.kinds, answers, strict=True)}
            why, reason = next(((found.why, found.reason) for found in answers if found.reason), (Answer.OK, ""))
            tier.note("lookup", why, reason)
            blocks = reach(layout, there, self.blocks)
            held = reach(layout, present, blocks) if hold else 0
            if tier.tally is not None:
                truths = [one if one.shadow is None else one.shadow for one in answers]
                found = {kind.name: one.present | one.unheld for kind, one in zip(layout.kinds, truths, strict=True)}
                tier.tally.looked_up(
                    began_s,
                    self.blocks,
                    reach(layout, found, self.blocks),
                    answered=all(one.answered for one in truths),
                    block_tokens=layout.block_tokens,
                )
            return Found(blocks, blocks * layout.block_tokens, reason, why, held)

        asked = sections if self.keys else []
        tickets = submitted(tier.queue.match_sections(some, deadline_ms=deadline_ms, **hold) for some in sixteen(asked))
        return Pending(tickets, finish if asked else lambda _: Found(0, 0, ""))

    # ---- Into memory ----

    def get(self, into: Memory, **options: Any) -> Loaded:
        """Read the first blocks into memory, verified. The options are those of begin_get, which does not wait."""
        return self.begin_get(into, **options).whole_result()

    def begin_get(
        self,
        into: Memory,
        *,
        blocks: int | None = None,
        rows: npt.ArrayLike | None = None,
        order: Literal["key", "layer"] = "layer",
        session: TierSession | None = None,
        priority: int | None = None,
        deadline_ms: float | None = None,
        stream: object = None,
        wait: bool = False,
    ) -> Layered[Loaded]:
        """Read the first `blocks` (all of them) of the layers and heads that `into` has.

        rows: for each of these blocks, the block of `into` that takes it; None: the same number. order: "layer" brings the
        first layers of all blocks first, and `layers_done` says how many have come; layer cells come side by side, each in that
        order. session: whose urgency it has. priority: another one, of this call; 0 = the most urgent. deadline_ms: None = see
        Tier.computed. stream: of CUDA, whose work so far comes before memory of a GPU is written; None: the legacy default
        stream, -1: none. Kinds with a window get the blocks that it needs. wait: cells that another process is still storing
        come when they are stored, until the deadline; each cell's layers are known to be there without those of other cells.
        Errors: ConfigError. What did not come in time, or did not verify, ends the prefix before it.
        """
        tier, layout = self._tier, self._tier.layout
        check_memory(into, layout, session)
        count = _count("blocks", blocks, self.blocks)
        places = places_of(rows, 0, count, into)
        asked = [(piece, count - _needed(layout, piece.cell.kind, count)) for piece in into.pieces]
        taken = np.sort(places[min((first for _, first in asked), default=0) :])
        if (taken[1:] == taken[:-1]).any():  # np.unique would import numpy.ma, on an engine's thread
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

        began_s = time.monotonic()

        def read(answers: list[GetResult]) -> Loaded:
            present: dict[str, npt.NDArray[np.bool_]] = {}
            moved, reason, why = 0, "", Answer.OK
            for (piece, first), got in zip(asked, answers, strict=True):
                whole = got.items_ok
                # What was not read is not there, whatever the tier has.
                read = np.arange(count) >= first
                read[first:] = whole
                present[piece.cell.kind.name] = present.get(piece.cell.kind.name, read) & read
                moved += int(whole.sum()) * _bytes_of(piece)
                if not reason and not whole.all():
                    failed = int(np.argmin(whole))
                    reason, why = got.reason(failed), got.answer_of(failed)
            reached = reach(layout, present, count)
            if reached == count:
                reason, why = "", Answer.OK
            return Loaded(reached, reached * layout.block_tokens, moved, reason, why)

        def finish(results: list[list[GetResult]]) -> Loaded:
            answers = [one for some in results for one in some]
            loaded = read(answers)
            tier.note("load", loaded.why, loaded.reason)
            if tier.tally is not None:
                truths = [one if one.shadow is None else one.shadow for one in answers]
                truth = read(truths) if tier.mode == "shadow" else loaded
                share = tier.counted_share * sum(map(_bytes_of, into.pieces)) / layout.block_bytes
                tier.tally.loaded(began_s, count, truth.blocks, truth.bytes, block_tokens=layout.block_tokens, share=share)
            return loaded

        if tier.ahead is not None:
            tier.ahead.read(Wanted(piece.cell.component, key) for piece, first in asked for key in self.keys[first:count])
        urgency = urgency_of(tier, session, priority)
        deadline_ms = tier.deadline_ms(count * layout.block_tokens, deadline_ms)
        batches = batches_of(sections if count else [], alone=wait)
        tickets = submitted(
            tier.queue.get_sections(some, order=order, priority=urgency, deadline_ms=deadline_ms, stream=stream, wait=wait)
            for some in batches
        )
        if tier.ahead is not None:
            tier.ahead.go_on()  # behind the get: who reads now goes before who is expected
        layers = sorted({layer for piece in into.pieces for layer in piece.steps})
        # Key by key a layer is there with the last key.
        steps = [
            [max(piece.steps.get(layer, 0) for piece in some) if order == "layer" else UNTIL_DONE for layer in layers]
            for some in batches_of(into.pieces if count else [], alone=wait)
        ]
        return Layered(tickets, finish if count else lambda _: Loaded(0, 0, 0, ""), layers, steps)

    # ---- From memory ----

    def put(self, from_: Memory, **options: Any) -> Stored:
        """Store blocks from memory. The options are those of begin_put, which does not wait."""
        return self.begin_put(from_, **options).whole_result()

    def begin_put(
        self,
        from_: Memory,
        *,
        first: int = 0,
        blocks: int | None = None,
        rows: npt.ArrayLike | None = None,
        layers: range | None = None,
        session: TierSession | None = None,
        priority: int | None = None,
        deadline_ms: float | None = None,
        stream: object = None,
    ) -> Pending[Stored]:
        """Store the blocks from number `first` to `blocks` (all of them), of the cells that `from_` has whole.

        rows: for each of these blocks, the block of `from_` that holds it; None: the same number. layers: of the model, those
        alone: a block that is computed layer by layer is put as its layer cells (Grid.layers) are done; a range may cut no
        cell. session: whose urgency it has, and which knows of them afterwards. priority: another one, of this call. stream: as
        for begin_get, before memory of a GPU is read. Blocks that are there already are not sent. Errors: ConfigError.
        """
        check_memory(from_, self._tier.layout, session)
        last = _count("blocks", blocks, self.blocks)
        begin = min(_count("first", first, self.blocks), last)
        run = Run(self.keys[begin:last], self.first + begin, places_of(rows, begin, last - begin, from_))
        return begin_put(
            self._tier, [run], from_, layers=layers, session=session, priority=priority, deadline_ms=deadline_ms, stream=stream
        )

    # ---- Its life ----

    def expect(self, *, into: Memory | None = None, blocks: int | None = None, seconds: float = EXPECT_S) -> Expected:
        """Somebody will read the first `blocks` (all of them): have the daemon bring them into its memory before their get.

        Waits for nothing. into: for whose layers and heads; None: for all. seconds: within which the get begins; later, and
        from Expected.end() on, nobody is expected any more. Blocks that are on flash stay subject to eviction: hold them.
        What is brought stays below the tier's `ahead_bytes`; `tier.ahead.counts()` says how it ended. Errors: ConfigError.
        """
        tier, layout = self._tier, self._tier.layout
        if into is not None:
            check_memory(into, layout, None)
        count = _count("blocks", blocks, self.blocks)
        cells = (
            [piece.cell for piece in into.pieces]
            if into is not None
            else [cell for kind in layout.kinds for cell in layout.cells(kind.name)]
        )
        asked = [(cell, count - _needed(layout, cell.kind, count)) for cell in cells]
        items = [
            Item(Wanted(cell.component, key), cell.block_bytes)
            for at, key in enumerate(self.keys[:count])
            for cell, first in asked
            if at >= first
        ]
        return tier.expecting().expect(items, seconds)

    def read_elsewhere(self) -> None:
        """Another process begins to get it: an expected reader has come."""
        tier, layout = self._tier, self._tier.layout
        if tier.ahead is None:
            return
        cells = [cell for kind in layout.kinds for cell in layout.cells(kind.name)]
        tier.ahead.read(Wanted(cell.component, key) for key in self.keys for cell in cells)

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


def _count(name: str, blocks: int | None, there: int) -> int:
    if blocks is None:
        return there
    if not 0 <= whole_number(name, blocks) <= there:
        raise ConfigError(f"{name}={blocks}: must be 0 to {there}, which are the full blocks of this prefix")
    return blocks
