"""From arguments to a batch: checked once, here, whichever face they came through.

A Request has everything that a submit needs and knows how to read its own outcome; the faces (synchronous calls, queues,
asyncio, futures) only differ in who waits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from halfstep import _peer
from halfstep.arguments import real_number, unsigned, whole_number
from halfstep.client.ahead import KINDS, Kind
from halfstep.client.arrays import ordinals_of, per_item
from halfstep.client.numbers import (
    OP_DELETE,
    OP_EXPIRE,
    OP_GET,
    OP_HOLD,
    OP_MATCH,
    OP_PREFETCH,
    OP_PUT,
    OP_RELEASE,
    OP_RENEW,
    OP_TOUCH,
    REASON_SKIPPED,
)
from halfstep.client.options import Keys, Mode, Parts
from halfstep.client.placing import place, place_source, streams_of
from halfstep.client.region import Addresses, Region, Rows
from halfstep.client.results import (
    ANSWER_DTYPE,
    Answer,
    Answers,
    ChangeResult,
    DeleteResult,
    GetResult,
    MatchResult,
    PrefetchResult,
    PutResult,
    ReleaseResult,
    new_answers,
)
from halfstep.errors import ConfigError
from halfstep.layout import PARTS_MAX, Layout

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

RANGES_MAX = 8
_KEY_ORDER: Literal["key"] = "key"
_ZERO, _ONE = 0, 1
_ORDERS = {_KEY_ORDER: 0, "layer": 1}
_DURABILITIES = {"cache": 0, "persist": 1}


class Terms(Protocol):
    """What a client brings to every request."""

    mode: Mode
    layout: Layout
    deadline_us: int
    match_deadline_us: int

    def layout_handle(self, layout: Layout) -> int:
        """The core's handle of a layout."""
        ...


@dataclass(slots=True, repr=False, eq=False)
class Request(Generic[R_co]):
    """A batch that is ready to be submitted.

    online: False is answered here. instead: what is answered here, in place of the core. read: makes the result of the answers;
    None stands for those of `batch`.
    """

    batch: _peer.Batch
    read: Callable[[Answers | None], R_co]
    regions: Sequence[Region] = ()
    online: bool = True
    instead: Answers | None = None

    def result(self) -> R_co:
        """What came of it, once the batch is over."""
        return self.read(self.instead)

    @property
    def outcome(self) -> tuple[int, int]:
        """Answer and reason of a batch without items."""
        if self.instead is None:
            return self.batch.outcome
        return int(self.instead["answer"][0]), int(self.instead["reason"][0])

    def end(self, reason: int) -> None:
        """Answer it here, as unavailable: the process ends, or there is no core to ask."""
        # One for a batch without items.
        self.instead = new_answers(_answer_count(self.batch) or 1, Answer.UNAVAILABLE, reason)


class _WholeGet(Request[GetResult]):
    """The usual get, of whole blocks: without a function made for it."""

    __slots__ = ("_components", "_keys")

    def __init__(self, batch: _peer.Batch, keys: int, components: int, regions: Sequence[Region]) -> None:
        self.batch = batch
        self.regions = regions
        self.online = True
        self.instead = None
        self._keys = keys
        self._components = components

    def result(self) -> GetResult:
        """As the batch has it: once it is over, that has let go of the caller's memory."""
        if self.instead is None:
            return GetResult(None, self._keys, self._components, None, self.batch)
        return GetResult(self.instead, self._keys, self._components, self.batch.lengths)


class Requests:
    """Makes requests on a client's terms. Errors of every method: ConfigError."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms

    def match(
        self,
        keys: Keys,
        *,
        layout: Layout | None = None,
        first_component: int = 0,
        components: int = 1,
        lengths: bool = False,
        hold_ms: int = 0,
        owner: int = 0,
        stop_at_miss: bool = False,
        wait: bool = False,
        deadline_ms: float | None = None,
    ) -> Request[MatchResult]:
        """Which keys are there."""
        if (whole_number("hold_ms", hold_ms) > 0) != (whole_number("owner", owner) != 0):
            raise ConfigError(f"hold_ms={hold_ms}, owner={owner}: a hold needs both, a time over 0 and an owner (not 0)")
        batch, _ = self._batch(OP_MATCH, keys, layout, first_component, components, stop_at_miss=stop_at_miss)
        batch.set_outputs(lengths)
        batch.set_hold(unsigned("owner", owner, 64), unsigned("hold_ms", hold_ms, 32))
        batch.set_options(self.match_deadline_us(deadline_ms), 0, 0, 0, wants_progress=False)
        if wait:
            batch.set_wait()

        def read(told: Answers | None) -> MatchResult:
            answers = _answers(batch, told)
            sizes = np.frombuffer(batch.lengths, np.uint32) if lengths else None
            found = MatchResult(answers, components, sizes)
            if self._terms.mode != "shadow":
                return found
            seen = MatchResult(all_skipped(answers), components, None if sizes is None else np.zeros_like(sizes))
            seen.shadow = found
            return seen

        return self._request(batch, read)

    def get(
        self,
        keys: Keys,
        target: object,
        *,
        layout: Layout | None = None,
        first_component: int = 0,
        components: int = 1,
        parts: Parts | None = None,
        order: Literal["key", "layer"] = _KEY_ORDER,
        stop_at_miss: bool = False,
        priority: int = 0,
        progress: bool | None = None,
        wait: bool = False,
        stream: object = None,
        deadline_ms: float | None = None,
    ) -> Request[GetResult]:
        """Bytes of blocks, into `target`."""
        # Few functions and few objects: after a get that moved a megabyte each of them comes from memory again.
        terms = self._terms
        ranges = () if parts is None else ranges_of(parts)
        layer = order is not _KEY_ORDER and _choice("order", order, _ORDERS) == _ORDERS["layer"]
        handle = terms.layout_handle(terms.layout) if layout is None else self.handle(layout)
        placed = target if isinstance(target, (Rows, Addresses)) else None
        batch = _peer.Batch(OP_GET)
        # By identity: what is not the very default is looked at.
        if not (first_component is _ZERO and components is _ONE and priority is _ZERO):
            first_component = unsigned("first_component", first_component, 32)
            components = unsigned("components", components, 20)
            priority = unsigned("priority", priority, 8)
        count = batch.set_get(
            handle,
            keys,
            first_component,
            components,
            stop_at_miss,
            ranges,
            target,
            placed is not None,
            terms.deadline_us if deadline_ms is None else deadline_us_of(deadline_ms),
            int(layer),
            priority,
            layer if progress is None else progress,
        )
        regions = () if placed is None else place(batch, placed, count * components, is_source=False)
        if wait:
            batch.set_wait()
        if stream is not None:
            batch.set_streams(streams_of(stream))
        if count and not ranges and terms.mode == "on":
            return _WholeGet(batch, count, components, regions)
        return self._request(batch, self._reader(batch, ranges, count, components), regions)

    def _reader(
        self, batch: _peer.Batch, ranges: Sequence[tuple[int, int, int]], keys: int, components: int
    ) -> Callable[[Answers | None], GetResult]:
        def read(told: Answers | None) -> GetResult:
            answers = _answers(batch, told)
            shaped = answers.reshape(keys * components, sum(n for _, n, _ in ranges)) if ranges else answers
            found = GetResult(shaped, keys, components, batch.lengths, None, batch.error_bounds, batch.unchecked)
            if self._terms.mode != "shadow":
                return found
            seen = GetResult(all_skipped(shaped), keys, components, bytes(len(batch.lengths)))
            seen.shadow = found
            return seen

        return read

    def put(
        self,
        keys: Keys,
        source: object,
        *,
        layout: Layout | None = None,
        first_component: int = 0,
        components: int = 1,
        block_bytes: int | Sequence[int] | npt.NDArray[np.integer[Any]] | None = None,
        ttl_s: int = 0,
        parents: Sequence[int] | npt.NDArray[np.integer[Any]] | None = None,
        depths: Sequence[int] | npt.NDArray[np.integer[Any]] | None = None,
        hint: int = 0,
        durability: Literal["cache", "persist"] = "cache",
        priority: int = 0,
        stream: object = None,
        deadline_ms: float | None = None,
    ) -> Request[PutResult]:
        """Blocks, from `source`."""
        batch, count = self._batch(OP_PUT, keys, layout, first_component, components)
        sizes, ordinals, levels = offered(block_bytes, parents, depths, count, count * components)
        regions = place_source(batch, source, count * components, sizes)
        if stream is not None:
            batch.set_streams(streams_of(stream))
        batch.set_offer(ordinals, levels, unsigned("ttl_s", ttl_s, 32), unsigned("hint", hint, 8))
        batch.set_outputs(lengths=False)
        batch.set_options(
            self.deadline_us(deadline_ms),
            0,
            choice_of_durability(durability),
            unsigned("priority", priority, 8),
            wants_progress=False,
        )
        return self._request(batch, lambda told: PutResult(told, count, components, _asked(batch, told)), regions)

    def delete(
        self,
        keys: Keys,
        *,
        layout: Layout | None = None,
        first_component: int = 0,
        components: int = 1,
        deadline_ms: float | None = None,
    ) -> Request[DeleteResult]:
        """Remove blocks, for good."""
        batch, count = self._batch(OP_DELETE, keys, layout, first_component, components)
        return self._of_keys(batch, count, components, DeleteResult, deadline_ms)

    def release(
        self,
        owner: int,
        keys: Keys | None = None,
        *,
        layout: Layout | None = None,
        first_component: int = 0,
        components: int = 1,
        deadline_ms: float | None = None,
    ) -> Request[ReleaseResult]:
        """End holds of `owner`: on `keys`, or all of them."""
        if keys is None:
            return self._of_owner(_peer.Batch(OP_RELEASE), owner, ReleaseResult, deadline_ms)
        batch, count = self._batch(OP_RELEASE, keys, layout, first_component, components)
        batch.set_hold(_owner(owner), 0)
        return self._of_keys(batch, count, components, ReleaseResult, deadline_ms)

    def prefetch(
        self,
        keys: Keys,
        *,
        seconds: float = 5,
        follow: bool = False,
        priority: int = 0,
        kind: Kind | None = None,
        layout: Layout | None = None,
        first_component: int = 0,
        components: int = 1,
        deadline_ms: float | None = None,
    ) -> Request[PrefetchResult]:
        """Bring blocks into the daemon's memory."""
        batch, count = self._batch(OP_PREFETCH, keys, layout, first_component, components)
        batch.set_prefetch(_hold_ms(seconds), bool(follow), _kind(kind))
        urgency = unsigned("priority", priority, 8)
        return self._of_keys(batch, count, components, PrefetchResult, deadline_ms, urgency)

    def touch(
        self,
        keys: Keys,
        *,
        layout: Layout | None = None,
        first_component: int = 0,
        components: int = 1,
        deadline_ms: float | None = None,
    ) -> Request[ChangeResult]:
        """Say that blocks are in use."""
        batch, count = self._batch(OP_TOUCH, keys, layout, first_component, components)
        return self._of_keys(batch, count, components, ChangeResult, deadline_ms)

    def hold(
        self,
        keys: Keys,
        *,
        owner: int,
        seconds: float | None = None,
        persistent: bool = False,
        layout: Layout | None = None,
        first_component: int = 0,
        components: int = 1,
        deadline_ms: float | None = None,
    ) -> Request[ChangeResult]:
        """Keep blocks for an owner."""
        if seconds is None and not persistent:
            raise ConfigError("seconds=None: only a persistent hold has no end; pass a time, or persistent=True")
        batch, count = self._batch(OP_HOLD, keys, layout, first_component, components)
        batch.set_hold(_owner(owner), 0)
        batch.set_life(0 if seconds is None else _hold_ms(seconds), bool(persistent))
        return self._of_keys(batch, count, components, ChangeResult, deadline_ms)

    def renew(self, owner: int, seconds: float, *, deadline_ms: float | None = None) -> Request[ChangeResult]:
        """Move the end of an owner's leases."""
        batch = _peer.Batch(OP_RENEW)
        batch.set_life(_hold_ms(seconds), persistent=False)
        return self._of_owner(batch, owner, ChangeResult, deadline_ms)

    def expire(
        self,
        keys: Keys,
        ttl_s: int,
        *,
        layout: Layout | None = None,
        first_component: int = 0,
        components: int = 1,
        deadline_ms: float | None = None,
    ) -> Request[ChangeResult]:
        """Say anew when blocks end."""
        batch, count = self._batch(OP_EXPIRE, keys, layout, first_component, components)
        batch.set_life(unsigned("ttl_s", ttl_s, 32), persistent=False)
        return self._of_keys(batch, count, components, ChangeResult, deadline_ms)

    def _of_keys(
        self,
        batch: _peer.Batch,
        keys: int,
        components: int,
        make: Callable[[Answers | None, int, int, _peer.Batch | None], R],
        deadline_ms: float | None,
        priority: int = 0,
    ) -> Request[R]:
        """A batch with one answer per item and nothing else."""
        batch.set_outputs(lengths=False)
        batch.set_options(self.deadline_us(deadline_ms), 0, 0, priority, wants_progress=False)
        return self._request(batch, lambda told: make(told, keys, components, _asked(batch, told)))

    def _of_owner(
        self, batch: _peer.Batch, owner: int, make: Callable[[Answers, int, int], R], deadline_ms: float | None
    ) -> Request[R]:
        """A batch without keys: one answer, about all that an owner has."""
        batch.set_hold(_owner(owner), 0)
        batch.set_options(self.deadline_us(deadline_ms), 0, 0, 0, wants_progress=False)

        def read(told: Answers | None) -> R:
            answers = _answers(batch, told)
            return make(answers if len(answers) else new_answers(1, *batch.outcome), 1, 1)

        return self._request(batch, read, itemless=True)

    def of_sections(self, operation: int, request: Request[list[R]]) -> Request[list[R]]:  # noqa: ARG002 -- for who counts
        """A request of several sections, before it is submitted: as it is."""
        return request

    @property
    def mode(self) -> Mode:
        """The client's."""
        return self._terms.mode

    def match_deadline_us(self, given_ms: float | None) -> int:
        """Of a match: as given, or the client's. Errors: ConfigError."""
        return self._terms.match_deadline_us if given_ms is None else deadline_us_of(given_ms)

    def deadline_us(self, given_ms: float | None) -> int:
        """As given, or the client's. Errors: ConfigError."""
        return self._terms.deadline_us if given_ms is None else deadline_us_of(given_ms)

    def _batch(
        self,
        operation: int,
        keys: Keys,
        layout: Layout | None,
        first_component: int,
        components: int,
        *,
        stop_at_miss: bool = False,
    ) -> tuple[_peer.Batch, int]:
        handle = self.handle(layout)
        batch = _peer.Batch(operation)
        first, cells = unsigned("first_component", first_component, 32), unsigned("components", components, 20)
        return batch, batch.set_keys(handle, keys, first, cells, stop_at_miss)

    def handle(self, layout: Layout | None) -> int:
        """The core's handle of a layout; None: the client's own. Errors: ConfigError."""
        if layout is None:
            return self._terms.layout_handle(self._terms.layout)
        if not isinstance(layout, Layout):
            raise ConfigError(f"layout ({type(layout).__name__}): must be a halfstep.Layout")
        return self._terms.layout_handle(layout)

    def _request(
        self,
        batch: _peer.Batch,
        read: Callable[[Answers | None], R_co],
        regions: Sequence[Region] = (),
        *,
        itemless: bool = False,
    ) -> Request[R_co]:
        # Nothing to ask, or nobody: answered here.
        online = self._terms.mode != "off" and (itemless or batch.item_count > 0)
        if online:
            return Request(batch, read, regions)
        count = 1 if itemless else _answer_count(batch)
        return Request(batch, read, regions, online=False, instead=new_answers(count, Answer.MISS, REASON_SKIPPED))


def request_of(batch: _peer.Batch, deadline_us: int) -> Request[None]:
    """A request without items (list, stat, namespaces): its outcome is in the batch."""
    batch.set_options(deadline_us, 0, 0, 0, wants_progress=False)
    return Request(batch, lambda _answers: None)


def _owner(owner: int) -> int:
    if whole_number("owner", owner) == 0:
        raise ConfigError("owner=0: is nobody; pass the number that the hold was taken with")
    return unsigned("owner", owner, 64)


def checked_seconds(seconds: object) -> float:
    """For how long something is kept. Errors: ConfigError."""
    number = real_number("seconds", seconds)
    if not (number > 0 and number * 1000 < 1 << 63):
        raise ConfigError(f"seconds={seconds}: must be over 0 and at most {(1 << 63) // 1000 - 1}")
    return number


def _hold_ms(seconds: float) -> int:
    return max(1, math.ceil(checked_seconds(seconds) * 1000))


def _kind(kind: str | None) -> int:
    if kind is None:
        return 0
    if kind not in KINDS:
        raise ConfigError(f"kind={kind!r}: must be one of {', '.join(KINDS)}, or None")
    return 1 + KINDS.index(kind)


def _answers(batch: _peer.Batch, told: Answers | None) -> Answers:
    return np.frombuffer(batch.answers, ANSWER_DTYPE) if told is None else told


def _asked(batch: _peer.Batch, told: Answers | None) -> _peer.Batch | None:
    return batch if told is None else None


def _answer_count(batch: _peer.Batch) -> int:
    return len(batch.answers) // ANSWER_DTYPE.itemsize


def all_skipped(answers: Answers) -> Answers:
    """As many misses: what an engine hears in shadow mode."""
    skipped = np.empty_like(answers)
    skipped[...] = (Answer.MISS, 0, REASON_SKIPPED)
    return skipped


def ranges_of(parts: Parts) -> list[tuple[int, int, int]]:
    """As (start, count, stride). Errors: ConfigError."""
    if isinstance(parts, (str, bytes)) or not isinstance(parts, Iterable):
        raise ConfigError(f"parts={parts!r}: must be a list of ranges and numbers, such as [range(0, 8), 12]")
    ranges = []
    for part in parts:
        if isinstance(part, range):
            numbers: tuple[object, ...] = part.start, len(part), part.step
        else:
            numbers = part if isinstance(part, tuple) else (part, 1, 1)
        if len(numbers) != 3:
            raise ConfigError(f"parts: {part!r} has {len(numbers)} numbers; a tuple is (first, count, step)")
        start, count, stride = (whole_number("parts", number) for number in numbers)
        if start < 0 or count < 1 or stride < 1:
            raise ConfigError(f"parts: {part!r} names no part; write range(first, end, step), upwards from 0")
        if start + (count - 1) * stride >= PARTS_MAX:
            raise ConfigError(f"parts: {part!r} ends past the last part that a block can have, {PARTS_MAX - 1}")
        ranges.append((start, count, stride))
    if not 1 <= len(ranges) <= RANGES_MAX:
        raise ConfigError(f"parts: {len(ranges)} ranges; must be 1 to {RANGES_MAX}, or None for whole blocks")
    return ranges


def choice_of_order(order: str) -> int:
    """As the core has it. Errors: ConfigError."""
    return _choice("order", order, _ORDERS)


def choice_of_durability(durability: str) -> int:
    """As the core has it. Errors: ConfigError."""
    return _choice("durability", durability, _DURABILITIES)


def offered(
    block_bytes: object, parents: object, depths: object, keys: int, items: int
) -> tuple[npt.NDArray[Any] | None, npt.NDArray[np.uint64] | None, npt.NDArray[Any] | None]:
    """What a put says of its blocks, one an item: bytes, ordinals of parents, depths. Errors: ConfigError."""
    sizes = None if block_bytes is None else per_item("block_bytes", block_bytes, items, np.uint32, items)
    ordinals = None if parents is None else ordinals_of(parents, keys, items)
    levels = None if depths is None else per_item("depths", depths, keys, np.uint16, items)
    return sizes, ordinals, levels


def _choice(name: str, value: object, choices: dict[str, int]) -> int:
    if not isinstance(value, str) or value not in choices:
        raise ConfigError(f"{name}={value!r}: must be {' or '.join(map(repr, choices))}")
    return choices[value]


def deadline_us_of(ms: float) -> int:
    """As the core wants it. Errors: ConfigError."""
    return max(1, round(checked_ms("deadline_ms", ms) * 1000))


def checked_ms(name: str, value: object) -> float:
    """A deadline in milliseconds. Errors: ConfigError."""
    number = real_number(name, value)
    if not (number > 0 and math.isfinite(number) and number * 1000 < 1 << 32):
        raise ConfigError(f"{name}={value}: must be over 0 and at most {((1 << 32) - 1) // 1000} (71 minutes)")
    return number
