"""A get as a server has it: runs of what is there, in the order asked for, as Chunks or as Placed. Sections 6, 7 and 16."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.wire.answers import Status
from tests.wire.checksums import name_number
from tests.wire.chunks import Payload, Run, packed, pieces_of, runs_of
from tests.wire.frames import Frame, Kind, Op, need
from tests.wire.places import Piece, PlacePart, PlaceRows, Placing, Region, cut, places_of, rows_of
from tests.wire.puts import plain
from tests.wire.requests import LAYER_MAJOR, Section
from tests.wire.serving import ABSENT, MALFORMED, OK, SKIPPED, TOO_SHORT, Refuse, statuses_tlv

WRITES_MAX = 32  # of a Placed


@dataclass
class Memories:
    """What a connection has told of its memory."""

    regions: dict[int, Region] = field(default_factory=dict)
    templates: dict[int, list[PlacePart]] = field(default_factory=dict)

    def placings(self, came: Frame, sections: Sequence[Section]) -> dict[int, Placing]:
        """Where a get's sections are to be placed; one whose region or template is not known is not. Errors: Refuse."""
        found: dict[int, Placing] = {}
        for kind, value in came.tlvs:
            if kind == Kind.PLACES:
                number, placing = places_of(value)
                known = {piece.region for item in placing.items for piece in item} <= self.regions.keys()
                rows = len(placing.items)
                placed: Placing = placing
            elif kind == Kind.PLACE_ROWS:
                number, template, row_numbers = rows_of(value)
                parts = self.templates.get(template, [])
                known = bool(parts) and {part.region for part in parts} <= self.regions.keys()
                rows = len(row_numbers)
                placed = PlaceRows(template, parts, row_numbers)
            else:
                continue
            if number >= len(sections) or rows != sections[number].items or number in found:
                raise Refuse(MALFORMED)
            if known:
                found[number] = placed
        for number, placing_of in found.items():
            self._check(placing_of, sections[number])
        return found

    def _check(self, placing: Placing, section: Section) -> None:
        if isinstance(placing, PlaceRows):
            selected = section.selected() or range(len(placing.parts))
            parts = [placing.parts[part] for part in selected if part < len(placing.parts)]
            pieces = [piece for row in placing.rows for part in parts for piece in part.pieces(row)]
        else:
            pieces = [piece for item in placing.items for piece in item]
        for piece in pieces:
            if piece.offset < 0 or piece.offset + piece.size > self.regions[piece.region].size:
                raise Refuse(MALFORMED)


class Getting:
    """One in flight. found: by section and item, its bytes or None."""

    def __init__(self, sections: Sequence[Section], found: Sequence[Sequence[bytes | None]], order: int) -> None:
        self.sections, self._order = sections, order
        self._found = [_until_miss(section, row) for section, row in zip(sections, found, strict=True)]

    def answers_tlvs(self) -> bytes:
        """Of all items, or of selected parts."""
        out = b""
        for number, (section, row) in enumerate(zip(self.sections, self._found, strict=True)):
            selected = section.selected()
            answers = [self._answer(section, data) for data in row for _ in selected or [0]]
            out += statuses_tlv(number, answers, of_parts=bool(selected))
        return out

    def payloads(self) -> list[Payload]:
        """What is sent, in its order."""
        found = [
            (ordinal, payload)
            for number, section in enumerate(self.sections)
            for item in range(section.items)
            for ordinal, payload in self._of_item(section, number, item)
        ]
        if self._order == LAYER_MAJOR:
            found.sort(key=lambda each: each[0])
        return [payload for _, payload in found]

    def _answer(self, section: Section, data: bytes | Status) -> Status:
        if isinstance(data, Status):
            return data
        parts = section.group.parts_of(len(data)) or []
        return OK if all(part < len(parts) for part in section.selected()) else TOO_SHORT

    def _of_item(self, section: Section, number: int, item: int) -> Iterator[tuple[int, Payload]]:
        """With the ordinal of each run's first part among the selected ones."""
        data = self._found[number][item]
        if isinstance(data, Status) or self._answer(section, data) != OK:
            return
        block = plain(section, data)
        if not section.ranges and self._order != LAYER_MAJOR:
            yield from ((payload.run.part, payload) for payload in runs_of(section, number, item, block))
            return
        key, component = section.name(item)
        name = name_number(section.layout.id, component, key)
        for ordinal, part in enumerate(section.selected() or range(len(block.parts))):
            like = Run(number, 0, item, part, 1, 0, 0, len(data), 0)
            yield from ((ordinal, payload) for payload in pieces_of(block.parts[part], like, name))


def _until_miss(section: Section, row: Sequence[bytes | None]) -> list[bytes | Status]:
    answered: list[bytes | Status] = [ABSENT if data is None else data for data in row]
    missing = [item // section.component_count for item, data in enumerate(row) if data is None]
    if section.stop_at_miss and missing:
        behind = (missing[0] + 1) * section.component_count
        answered[behind:] = [SKIPPED] * (len(answered) - behind)
    return answered


def lies_at(payload: Payload, section: Section, placing: Placing) -> list[Piece] | None:
    """The pieces of memory for a run; None: it does not fit, or takes too many writes."""
    run = payload.run
    table = section.group.parts_of(run.block_bytes) or []
    order = section.selected() or list(range(len(table)))
    found: list[Piece] = []
    for part in range(run.part, run.part + run.part_count):
        if not placing.has(part):
            return None
        count = run.bytes if run.part_count == 1 else table[part][1]
        before = sum(table[each][1] for each in order[: order.index(part)])
        pieces, at = placing.pieces(run.item, part, before)
        lies = cut(pieces, at + run.offset, count)
        if lies is None:
            return None
        found += lies
    return found if len(found) <= WRITES_MAX else None


def frames_of(
    payloads: Sequence[Payload], sections: Sequence[Section], placings: Mapping[int, Placing]
) -> Iterator[tuple[int, bytes, bytes, list[Piece]]]:
    """Opcode, body, payload and where it is to lie: each run that can be placed as a Placed of its own, others as Chunks."""
    for payload in payloads:
        placing = placings.get(payload.run.section)
        lies = None if placing is None else lies_at(payload, sections[payload.run.section], placing)
        for body, data in packed([payload]):
            need(len(data) > 0, "a run of no bytes")
            yield (Op.CHUNK, body, data, []) if lies is None else (Op.PLACED, body, data, lies)
