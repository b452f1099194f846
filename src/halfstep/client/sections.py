"""Batches of several sections: the groups of a hybrid model, or the cells of a rank, in one call.

Each section has its own layout, group, keys, parts and memory; what is asked, by when and in which order is the batch's. With
order="layer" the first parts of all sections come first. A section has a result of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from halfstep import _peer
from halfstep.arguments import unsigned, whole_number
from halfstep.client.numbers import OP_GET, OP_MATCH, OP_PUT, REASON_SKIPPED
from halfstep.client.options import Keys, Parts
from halfstep.client.placing import place, place_source, streams_of
from halfstep.client.region import Addresses, Region, Rows
from halfstep.client.request import Request, Requests, all_skipped, choice_of_durability, choice_of_order, offered, ranges_of
from halfstep.client.results import ANSWER_DTYPE, Answer, Answers, GetResult, MatchResult, PutResult, new_answers
from halfstep.errors import ConfigError
from halfstep.layout import Layout

# Of a batch, on the wire.
SECTIONS_MAX = 16


@dataclass(slots=True)
class Section:
    """A part of a batch: see Client.get and Client.put for what each field means.

    memory: the target of a get, the source of a put; none for a match. parts, stop_at_miss: not of a put. block_bytes, parents,
    depths, ttl_s, hint: of a put alone.
    """

    keys: Keys
    memory: object = None
    layout: Layout | None = None
    first_component: int = 0
    components: int = 1
    parts: Parts | None = None
    stop_at_miss: bool = False
    block_bytes: int | Sequence[int] | npt.NDArray[np.integer[Any]] | None = None
    parents: Sequence[int] | npt.NDArray[np.integer[Any]] | None = None
    depths: Sequence[int] | npt.NDArray[np.integer[Any]] | None = None
    ttl_s: int = 0
    hint: int = 0


def match_request(
    requests: Requests,
    sections: Sequence[Section],
    *,
    lengths: bool = False,
    hold_ms: int = 0,
    owner: int = 0,
    wait: bool = False,
    deadline_ms: float | None = None,
) -> Request[list[MatchResult]]:
    """Which keys are there. Errors: ConfigError."""
    if (whole_number("hold_ms", hold_ms) > 0) != (whole_number("owner", owner) != 0):
        raise ConfigError(f"hold_ms={hold_ms}, owner={owner}: a hold needs both, a time over 0 and an owner (not 0)")
    making = _Making(requests, OP_MATCH, sections)
    for section in making.each():
        making.begin(section)
        making.batch.set_outputs(lengths)
    making.batch.set_hold(unsigned("owner", owner, 64), unsigned("hold_ms", hold_ms, 32))
    making.batch.set_options(requests.match_deadline_us(deadline_ms), 0, 0, 0, wants_progress=False)
    if wait:
        making.batch.set_wait()

    def result(answers: Answers, part: _Part) -> MatchResult:
        return MatchResult(answers, part.components, making.lengths(part) if lengths else None)

    return requests.of_sections(OP_MATCH, making.request(result, lambda answers, part: result(all_skipped(answers), part)))


def get_request(
    requests: Requests,
    sections: Sequence[Section],
    *,
    order: Literal["key", "layer"] = "key",
    priority: int = 0,
    progress: bool | None = None,
    wait: bool = False,
    stream: object = None,
    deadline_ms: float | None = None,
) -> Request[list[GetResult]]:
    """Bytes of blocks, into the memory of each section. Errors: ConfigError."""
    layer = choice_of_order(order)
    making = _Making(requests, OP_GET, sections)
    for section in making.each():
        part = making.begin(section)
        ranges = () if section.parts is None else ranges_of(section.parts)
        part.selected = sum(count for _, count, _ in ranges)
        making.batch.set_ranges(ranges)
        if isinstance(section.memory, (Rows, Addresses)):
            making.regions += place(making.batch, section.memory, part.items, is_source=False)
        else:
            making.batch.set_target(section.memory)
        making.batch.set_outputs(lengths=True)
    asks = bool(layer) if progress is None else bool(progress)
    making.batch.set_options(requests.deadline_us(deadline_ms), layer, 0, unsigned("priority", priority, 8), asks)
    if wait:
        making.batch.set_wait()
    if stream is not None:
        making.batch.set_streams(streams_of(stream))

    def result(answers: Answers, part: _Part) -> GetResult:
        shaped = answers.reshape(part.items, part.selected) if part.selected else answers
        bounds, unchecked = making.error_bounds(part).tobytes(), making.unchecked(part)
        return GetResult(shaped, part.keys, part.components, making.lengths(part).tobytes(), None, bounds, unchecked)

    def unseen(answers: Answers, part: _Part) -> GetResult:
        shaped = answers.reshape(part.items, part.selected) if part.selected else answers
        return GetResult(all_skipped(shaped), part.keys, part.components, bytes(4 * part.items))

    return requests.of_sections(OP_GET, making.request(result, unseen))


def put_request(
    requests: Requests,
    sections: Sequence[Section],
    *,
    durability: Literal["cache", "persist"] = "cache",
    priority: int = 0,
    stream: object = None,
    deadline_ms: float | None = None,
) -> Request[list[PutResult]]:
    """Blocks, from the memory of each section. Errors: ConfigError."""
    making = _Making(requests, OP_PUT, sections)
    for section in making.each():
        part = making.begin(section)
        if section.parts is not None or section.stop_at_miss:
            raise ConfigError("parts, stop_at_miss: a put stores whole blocks; leave them out")
        sizes, ordinals, levels = offered(section.block_bytes, section.parents, section.depths, part.keys, part.items)
        making.regions += place_source(making.batch, section.memory, part.items, sizes)
        making.batch.set_offer(ordinals, levels, unsigned("ttl_s", section.ttl_s, 32), unsigned("hint", section.hint, 8))
        making.batch.set_outputs(lengths=False)
    lasts = choice_of_durability(durability)
    making.batch.set_options(
        requests.deadline_us(deadline_ms), 0, lasts, unsigned("priority", priority, 8), wants_progress=False
    )
    if stream is not None:
        making.batch.set_streams(streams_of(stream))
    return requests.of_sections(OP_PUT, making.request(lambda answers, part: PutResult(answers, part.keys, part.components)))


@dataclass(slots=True)
class _Part:
    """What a section has of the batch's answers: from `first` on, one an item, or one an item and selected part."""

    keys: int
    components: int
    first: int
    first_item: int
    selected: int = 0

    @property
    def items(self) -> int:
        return self.keys * self.components

    @property
    def answers(self) -> int:
        return self.items * (self.selected or 1)


class _Making:
    """A batch while its sections are set, and what its answers are cut into afterwards."""

    def __init__(self, requests: Requests, operation: int, sections: Sequence[Section]) -> None:
        if not isinstance(sections, Sequence):
            raise ConfigError(f"sections ({type(sections).__name__}): must be a list of halfstep.Section")
        if not 1 <= len(sections) <= SECTIONS_MAX:
            raise ConfigError(f"{len(sections)} sections: a batch has 1 to {SECTIONS_MAX}; make several batches of them")
        self.batch = _peer.Batch(operation)
        self.regions: list[Region] = []
        self._requests = requests
        self._sections = sections
        self._parts: list[_Part] = []

    def each(self) -> Sequence[Section]:
        for number, section in enumerate(self._sections):
            if not isinstance(section, Section):
                raise ConfigError(f"sections[{number}] ({type(section).__name__}): must be a halfstep.Section")
        return self._sections

    def begin(self, section: Section) -> _Part:
        if self._parts:
            self.batch.next_section()
        first, components = (
            unsigned("first_component", section.first_component, 32),
            unsigned("components", section.components, 20),
        )
        handle = self._requests.handle(section.layout)
        keys = self.batch.set_keys(handle, section.keys, first, components, bool(section.stop_at_miss))
        before = self._parts[-1] if self._parts else _Part(0, 0, 0, 0)
        part = _Part(keys, components, before.first + before.answers, before.first_item + before.items)
        self._parts.append(part)
        return part

    def lengths(self, part: _Part) -> npt.NDArray[np.uint32]:
        """Of the section's items."""
        return np.frombuffer(self.batch.lengths, np.uint32)[part.first_item : part.first_item + part.items]

    def error_bounds(self, part: _Part) -> npt.NDArray[np.float32]:
        """Of the section's items, in a get."""
        return np.frombuffer(self.batch.error_bounds, np.float32)[part.first_item : part.first_item + part.items]

    def unchecked(self, part: _Part) -> bytes:
        """Of uint32, for the section's items, in a get; none where no section is on a GPU."""
        return self.batch.unchecked[4 * part.first_item : 4 * (part.first_item + part.items)]

    def request(self, result: Any, unseen: Any = None) -> Request[list[Any]]:
        """unseen: what an engine is told in shadow mode, where that differs."""
        mode = self._requests.mode
        parts = self._parts

        def read(told: Answers | None) -> list[Any]:
            answers = np.frombuffer(self.batch.answers, ANSWER_DTYPE) if told is None else told
            out = []
            for part in parts:
                some = answers[part.first : part.first + part.answers]
                found = result(some, part)
                if mode == "shadow" and unseen is not None:
                    seen = unseen(some, part)
                    seen.shadow = found
                    found = seen
                out.append(found)
            return out

        if mode != "off" and self.batch.item_count > 0:
            return Request(self.batch, read, self.regions)
        count = sum(part.answers for part in parts)
        return Request(self.batch, read, self.regions, online=False, instead=new_answers(count, Answer.MISS, REASON_SKIPPED))
