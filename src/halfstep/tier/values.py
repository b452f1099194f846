"""Blocks whose inside nobody here needs to know, by an engine's own keys: rows of its host memory, pages, objects.

    values = connection.values(layout, notices=Notices("halfstep"))
    rows = values.rows(host_memory, row_bytes)            # once: the memory is registered
    found = values.match(keys)
    moved = values.get(keys, rows, rows=[7, 3])           # or into buffers, one a key

Each value is alone: it is there, or it is not, whatever lies before it. Its layout binds all that its key forgets, as a Tier's
does. What is not whole, of another length or not verified is no success.
Thread: any may call anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from halfstep.arguments import whole_number
from halfstep.client.ahead import Item
from halfstep.client.numbers import REASON_PENDING
from halfstep.client.region import PartDescriptor, Region, Rows, Template
from halfstep.client.results import Answer, DeleteResult, GetResult, MatchResult, PutResult
from halfstep.errors import ConfigError
from halfstep.layout import BLOCK_BYTES_MAX, Layout
from halfstep.tier.ahead import AHEAD_BYTES, EXPECT_S, Expected, Wanted
from halfstep.tier.channel import Channel, Pending, submitted
from halfstep.tier.coding import refuse_unspoken
from halfstep.tier.notices import Notices

if TYPE_CHECKING:
    from halfstep.client import Client

# Of one batch. The engine's thread packs it: a thousand keys are some 100 us of its time.
BATCH_KEYS = 1024

_Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Present:
    """Which values are there. why, reason: who did not answer, OK and "" = everybody did; what has no answer counts as absent.

    there: one a key. held: which of them are kept for as long as the match asked; none where it asked for none.
    """

    there: _Bools
    why: Answer
    reason: str
    held: _Bools

    @property
    def prefix(self) -> int:
        """How many are there from the first on, without a gap."""
        return len(self.there) if self.there.all() else int(self.there.argmin())


@dataclass(frozen=True)
class Moved:
    """What became of a get, put or delete.

    ok: one a key. Of a get: it is whole in its place, whose bytes are undefined else. Of a put: it is there, by this put or
    before. Of a delete: it is gone, whoever dropped it. bytes: of those that are ok. why, reason: of the first that failed; OK
    and "" where none did: what is absent, or just being written by another, has not.
    """

    ok: _Bools
    bytes: int
    why: Answer
    reason: str


class Stride(NamedTuple):
    """A piece of every row: `bytes` from `address` + row * `stride`. Pieces follow one another in a value."""

    address: int
    stride: int
    bytes: int


class RowMemory:
    """Registered memory of rows, each the place of one value; until close(). Made by Values.rows() and Values.memory().

    buffers: whoever owns them must not free them before close(). Errors: ConfigError (a piece lies in none of them).
    """

    def __init__(self, buffers: Sequence[object], pieces: Sequence[Stride] | Callable[[int], Sequence[Stride]]) -> None:
        """pieces: of each row; or made of the address of the first buffer."""
        self._regions: list[Region] = []
        try:
            for buffer in buffers:
                self._regions.append(Region(buffer))
            strides = pieces(self._regions[0].address) if callable(pieces) else pieces
            self.template = Template([self._part(piece) for piece in strides])
        except BaseException:
            self.close()
            raise

    @property
    def row_bytes(self) -> int:
        """Of a value."""
        return self.template.block_bytes

    def close(self) -> None:
        """Fence: afterwards nothing reads or writes the buffers. Idempotent."""
        for region in self._regions:
            region.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _part(self, piece: Stride) -> PartDescriptor:
        for region in self._regions:
            if region.address <= piece.address < region.address + region.bytes:
                return PartDescriptor(piece.address - region.address, piece.stride, 1, piece.bytes, region=region)
        raise ConfigError(f"pieces: one at address {piece.address:#x} lies in none of the buffers")


# Where values come from or go to: rows, or a buffer a key.
Places = RowMemory | Sequence[Any]


class Values(Channel):
    """Values of one layout in a client's namespace. Made by Client.values().

    layout: of one group; what decides the meaning of a value's bytes, and is not in its key, is in the layout's fields. The
    other arguments are Channel's. Errors: ConfigError (an argument, a layout whose codec the client was not opened with).
    """

    def __init__(
        self,
        client: Client,
        layout: Layout,
        *,
        ttl_s: int = 0,
        durability: Literal["cache", "persist"] = "cache",
        priority: int = 0,
        notices: Notices | None = None,
        ahead_bytes: int = AHEAD_BYTES,
    ) -> None:
        if not isinstance(layout, Layout):
            raise ConfigError(
                f"layout ({type(layout).__name__}): must be a halfstep.Layout; Layout.opaque(name) is the simplest"
            )
        if len(layout.groups) != 1:
            raise ConfigError(f"layout: has {len(layout.groups)} groups; values have one, client.tier() takes kinds of layers")
        refuse_unspoken(layout, client.codecs)
        super().__init__(
            client, ttl_s=ttl_s, durability=durability, priority=priority, notices=notices, ahead_bytes=ahead_bytes
        )
        self.layout = layout

    # ---- Memory ----

    def rows(self, buffer: object, row_bytes: int) -> RowMemory:
        """Rows of `row_bytes` one after the other. Errors: ConfigError (the layout's parts are counted: use memory())."""
        (group,) = self.layout.groups
        if group.part_count or len(group.part_bytes) != 1:
            raise ConfigError(
                f"rows: this layout has {group.part_count} parts of {group.part_bytes}; memory() says where they lie"
            )
        (part_bytes,) = group.part_bytes
        if whole_number("row_bytes", row_bytes) < 1:
            raise ConfigError(f"row_bytes={row_bytes}: must be at least 1")
        if row_bytes > BLOCK_BYTES_MAX:
            raise ConfigError(
                f"row_bytes={row_bytes}: a row is a block, and a block has at most {BLOCK_BYTES_MAX} bytes; make rows smaller: "
                "fewer tokens, or fewer of the engine's blocks, in each"
            )
        return RowMemory(
            [buffer],
            lambda address: [
                Stride(address + at, row_bytes, min(part_bytes, row_bytes - at)) for at in range(0, row_bytes, part_bytes)
            ],
        )

    def memory(self, buffers: Sequence[object], pieces: Sequence[Stride]) -> RowMemory:
        """Rows that lie in pieces, one a part of the layout. Errors: ConfigError."""
        return RowMemory(buffers, pieces)

    # ---- Calls: each also without waiting ----

    def match(self, keys: Sequence[bytes], **options: Any) -> Present:
        """Which are there. The options are those of begin_match, which does not wait."""
        return self.begin_match(keys, **options).result()

    def get(self, keys: Sequence[bytes], into: Places, **options: Any) -> Moved:
        """Read values, verified. The options are those of begin_get, which does not wait."""
        return self.begin_get(keys, into, **options).whole_result()

    def put(self, keys: Sequence[bytes], from_: Places, **options: Any) -> Moved:
        """Store values. The options are those of begin_put, which does not wait."""
        return self.begin_put(keys, from_, **options).whole_result()

    def delete(self, keys: Sequence[bytes], *, deadline_ms: float | None = None) -> Moved:
        """Remove values, for good."""
        return self.begin_delete(keys, deadline_ms=deadline_ms).result()

    def begin_match(
        self, keys: Sequence[bytes], *, stop_at_miss: bool = False, hold_ms: int = 0, deadline_ms: float | None = None
    ) -> Pending[Present]:
        """Which are there. stop_at_miss: only how many from the first on matters. Deadline: the client's of a match.

        hold_ms: for so long what is found is kept from eviction; see Prefix.match. Errors: ConfigError.
        """
        hold = self.hold_options(hold_ms)
        began_s = time.monotonic()
        tickets = submitted(
            self.queue.match(some, layout=self.layout, stop_at_miss=stop_at_miss, deadline_ms=deadline_ms, **hold)
            for some in _batches(keys)
        )

        def finish(results: list[MatchResult]) -> Present:
            why, reason = next(((one.why, one.reason) for one in results if one.reason), (Answer.OK, ""))
            if len(keys):  # who was not asked has not answered
                self.note("lookup", why, reason)
            present = _joined([one.present for one in results])
            if self.tally is not None and len(keys):
                truths = [one if one.shadow is None else one.shadow for one in results]
                found = _joined([one.present | one.unheld for one in truths])
                count = (len(found) if found.all() else int(found.argmin())) if stop_at_miss else int(found.sum())
                self.tally.looked_up(began_s, len(keys), count, answered=all(one.answered for one in truths))
            if not hold:
                return Present(present, why, reason, np.zeros_like(present))
            return Present(present | _joined([one.unheld for one in results]), why, reason, present)

        return Pending(tickets, finish)

    def begin_get(
        self,
        keys: Sequence[bytes],
        into: Places,
        *,
        rows: npt.ArrayLike | None = None,
        stop_at_miss: bool = False,
        priority: int | None = None,
        deadline_ms: float | None = None,
    ) -> Pending[Moved]:
        """Read values, verified, into rows of `into`, one a key; or into a buffer a key, each of its value's length.

        stop_at_miss: what follows the first that is not there is not ok. It is not read where it lies in the same BATCH_KEYS
        of keys; later ones are under way by then, and their places undefined. priority: None = the channel's.
        Errors: ConfigError, and nothing of the call is under way.
        """
        urgency, (places, sizes) = self.urgency(priority), _places(keys, into, rows)
        began_s = time.monotonic()
        if self.ahead is not None:
            self.ahead.read(Wanted(0, key) for key in keys)
        tickets = submitted(
            self.queue.get(
                some,
                places(at, len(some)),
                layout=self.layout,
                stop_at_miss=stop_at_miss,
                priority=urgency,
                deadline_ms=deadline_ms,
            )
            for at, some in _numbered(keys)
        )
        if self.ahead is not None:
            self.ahead.go_on()  # behind the get: who reads now goes before who is expected

        def read(results: list[GetResult]) -> tuple[_Bools, list[GetResult]]:
            whole = _joined([one.items_ok for one in results]) & (_joined([one.lengths for one in results]) == sizes)
            if stop_at_miss and (read_batches := _until_miss(results)) < len(results):
                whole[read_batches * BATCH_KEYS :] = False
                results = results[:read_batches]
            return whole, results

        def finish(results: list[GetResult]) -> Moved:
            whole, some = read(results)
            if self.tally is not None and len(keys):
                truth, _ = read([one if one.shadow is None else one.shadow for one in results])
                self.tally.loaded(began_s, len(keys), int(truth.sum()), int(sizes[truth].sum(dtype=np.int64)))
            return self._moved("load", whole, sizes, some)

        return Pending(tickets, finish)

    def begin_put(
        self,
        keys: Sequence[bytes],
        from_: Places,
        *,
        rows: npt.ArrayLike | None = None,
        depths: npt.ArrayLike | None = None,
        priority: int | None = None,
        deadline_ms: float | None = None,
    ) -> Pending[Moved]:
        """Store values from rows of `from_`, or of a buffer each, which must not change until it is done.

        Values that are there already are not sent. depths: per key, at least how many values of its sequence lie before it, for
        a layout whose first ones are exact; None: not known, and all count as first. priority: None = the channel's.
        Errors: ConfigError.
        """
        urgency, (places, sizes) = self.urgency(priority), _places(keys, from_, rows)
        below = None if depths is None else _depths(depths, len(keys))
        tickets = submitted(
            self.queue.put(
                some,
                places(at, len(some)),
                layout=self.layout,
                depths=None if below is None else below[at : at + len(some)],
                ttl_s=self.ttl_s,
                durability=self.durability,
                priority=urgency,
                deadline_ms=deadline_ms,
            )
            for at, some in _numbered(keys)
        )

        def finish(results: list[PutResult]) -> Moved:
            if self.tally is not None and len(keys):
                self.tally.stored(len(keys), sum(one.stored for one in results))
            # What somebody else is just writing will be there as soon as an own write would be, and as surely.
            pending = self.durability == "cache"
            ok = [one.items_ok | ((one.reasons == REASON_PENDING) & pending) for one in results]
            return self._moved("store", _joined(ok), sizes, results)

        return Pending(tickets, finish)

    def begin_delete(self, keys: Sequence[bytes], *, deadline_ms: float | None = None) -> Pending[Moved]:
        """As delete. Errors: ConfigError."""
        tickets = submitted(self.queue.delete(some, layout=self.layout, deadline_ms=deadline_ms) for some in _batches(keys))

        def finish(results: list[DeleteResult]) -> Moved:
            gone = _joined([one.items_ok | (one.answers == Answer.MISS) for one in results])
            return self._moved("delete", gone, np.zeros(len(gone), np.uint32), results)

        return Pending(tickets, finish)

    def expect(self, keys: Sequence[bytes], value_bytes: int, *, seconds: float = EXPECT_S) -> Expected:
        """Somebody will get these, in this order: have the daemon bring them into its memory before. See Prefix.expect."""
        size = whole_number("value_bytes", value_bytes)
        if size < 1:
            raise ConfigError(f"value_bytes={value_bytes}: must be at least 1")
        return self.ahead_of(self.layout).expect([Item(Wanted(0, key), size) for key in keys], seconds)

    def clear(self) -> None:
        """Drop all values of this layout, whoever stored them. Errors: Unavailable (no daemon has done it)."""
        self.client.admin.clear(self.layout)

    # ---- within ----

    def _moved(self, what: str, ok: _Bools, sizes: Any, results: Sequence[GetResult | PutResult | DeleteResult]) -> Moved:
        why, reason = Answer.OK, ""
        for one in results:
            failed = np.flatnonzero(~one.items_ok & (one.answers != Answer.MISS) & (one.reasons != REASON_PENDING))
            if len(failed):
                why, reason = one.answer_of(int(failed[0])), one.reason(int(failed[0]))
                break
        if len(ok):  # nothing was done
            self.note(what, why, reason)
        return Moved(ok, int(sizes[ok].sum(dtype=np.int64)), why, reason)


def _places(
    keys: Sequence[bytes], memory: Places, rows: npt.ArrayLike | None
) -> tuple[Callable[[int, int], Any], npt.NDArray[np.uint32]]:
    """Where so many values from a number on are, as the client wants it; and the bytes of each."""
    if isinstance(memory, RowMemory):
        numbers = np.arange(len(keys), dtype=np.int64) if rows is None else np.asarray(rows)
        if numbers.shape != (len(keys),):
            raise ConfigError(f"rows: shape {numbers.shape}; must be {len(keys)} whole numbers, one a key")
        template = memory.template
        return lambda at, count: Rows(template, numbers[at : at + count]), np.full(len(keys), memory.row_bytes, np.uint32)
    if rows is not None:
        raise ConfigError("rows: of a RowMemory alone; buffers are named one a key")
    if isinstance(memory, (str, bytes)) or not isinstance(memory, Sequence) or len(memory) != len(keys):
        raise ConfigError(f"memory ({type(memory).__name__}): must be a RowMemory, or a list of {len(keys)} buffers, one a key")
    try:
        sizes = np.array([memoryview(one).nbytes for one in memory], np.uint32)
    except TypeError as error:
        raise ConfigError(f"memory: {error}; pass numpy arrays or memoryviews") from None
    return lambda at, count: memory[at : at + count], sizes


def _depths(given: npt.ArrayLike, keys: int) -> npt.NDArray[np.int64]:
    depths = np.asarray(given)
    if depths.shape != (keys,) or (keys and (depths.dtype.kind not in "iu" or int(depths.min()) < 0)):
        raise ConfigError(f"depths: shape {depths.shape} of {depths.dtype}; must be {keys} whole numbers from 0 on, one a key")
    below: npt.NDArray[np.int64] = np.minimum(depths, 0xFFFF).astype(np.int64)
    return below


def _batches(keys: Sequence[bytes]) -> list[Sequence[bytes]]:
    return [some for _, some in _numbered(keys)]


def _numbered(keys: Sequence[bytes]) -> Iterator[tuple[int, Sequence[bytes]]]:
    """Of no keys one batch, too: its end is over at once, and makes the descriptor readable as any other."""
    return ((at, keys[at : at + BATCH_KEYS]) for at in range(0, max(1, len(keys)), BATCH_KEYS))


def _until_miss(results: Sequence[GetResult]) -> int:
    """How many batches there are up to the first in which something is not there."""
    return next((at + 1 for at, one in enumerate(results) if (one.answers == Answer.MISS).any()), len(results))


def _joined(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
