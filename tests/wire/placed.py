"""A client's placed gets and puts: the server writes into its memory, and reads from there. Section 16 of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tests.wire.answers import Status, whole
from tests.wire.chunks import ABORTED_RUN, CODED_RUN, Run, packed, runs_in, runs_of
from tests.wire.frames import CHUNK_BYTES_MAX, Frame, Op, need
from tests.wire.gets import Get
from tests.wire.places import PlacePart, Placing, Region, cut, keys_tlv, template_tlv
from tests.wire.puts import Put
from tests.wire.requests import Batch, Block, Section, offers_tlv
from tests.wire.serving_gets import lies_at
from tests.wire.session import Session
from tests.wire.verbs import Memory

# Of a server: it places gets, and takes keys that a request brings.
FEATURE_PLACE, FEATURE_KEYS = 2, 8


def register_region(session: Session, number: int, memory: Memory, count: int | None = None) -> Status:
    """Tells the server of memory. count: how much of it, 0 forgets the number."""
    size = len(memory.view) if count is None else count
    return whole(session.ask(Op.REGISTER_REGION, Region(number, memory.key, memory.address, size).tlv()))


def register_template(session: Session, number: int, parts: Sequence[PlacePart]) -> Status:
    """Tells the server of a template; of no parts: forgets it."""
    return whole(session.ask(Op.REGISTER_TEMPLATE, template_tlv(number, parts)))


class Targets:
    """Where the items of a get lie, by the number of their section, and the memory of the regions by theirs."""

    def __init__(self, sections: Sequence[Section], placings: Mapping[int, Placing], regions: Mapping[int, Memory]) -> None:
        self.sections, self.placings, self.regions = sections, placings, regions
        self.placed_bytes = self.frames = 0

    def landed(self, frame: Frame) -> Frame:
        """A Placed as the Chunk that it stands for, its payload read where it lies. Errors: WireFault."""
        runs, _ = runs_in(frame)
        payload = b"".join(self._bytes_of(run) for run in runs)
        need(0 < len(payload) <= CHUNK_BYTES_MAX, f"a Placed of {len(payload)} bytes")
        self.placed_bytes += len(payload)
        self.frames += 1
        return replace(frame, op=Op.CHUNK, payload=payload)

    def _bytes_of(self, run: Run) -> bytes:
        need(run.flags & (ABORTED_RUN | CODED_RUN) == 0, f"a Placed with flags {run.flags}")
        need(run.section in self.placings, f"a Placed of section {run.section}, which has no places")
        section, found = self.sections[run.section], b""
        table = section.group.parts_of(run.block_bytes)
        need(table is not None and run.item < section.items, f"item {run.item} of {run.block_bytes} bytes")
        assert table is not None
        order = section.selected() or list(range(len(table)))
        need(set(range(run.part, run.part + run.part_count)) <= set(order), f"parts {run.part} + {run.part_count}")
        for part in range(run.part, run.part + run.part_count):
            count = run.bytes if run.part_count == 1 else table[part][1]
            need(self.placings[run.section].has(part), f"a Placed of part {part}, which its template lacks")
            before = sum(table[each][1] for each in order[: order.index(part)])
            pieces, at = self.placings[run.section].pieces(run.item, part, before)
            lies = cut(pieces, at + run.offset, count)
            need(lies is not None, f"a Placed of part {part} of item {run.item}, which has no room")
            found += b"".join(self.regions[p.region].view[p.offset : p.offset + p.size] for p in lies or [])
        return found


def begin(
    session: Session,
    sections: Sequence[Section],
    placings: Mapping[int, Placing],
    regions: Mapping[int, Memory],
    batch: Batch | None = None,
    keys: Sequence[Region] = (),
) -> Get:
    """Sends the request. placings: by the number of their section; a section without one is not placed. keys: for it alone."""
    body = (batch or Batch()).tlv() + (keys_tlv(keys) if keys else b"")
    for number, section in enumerate(sections):
        body += section.tlv(session.register(section.layout))
        if number in placings:
            body += placings[number].tlv(number)
    targets = Targets(sections, placings, regions)
    return Get(session, sections, session.send(Op.GET, body), targets=targets)


def get(
    session: Session,
    sections: Sequence[Section],
    placings: Mapping[int, Placing],
    regions: Mapping[int, Memory],
    batch: Batch | None = None,
    keys: Sequence[Region] = (),
) -> Get:
    """A whole one."""
    return begin(session, sections, placings, regions, batch, keys).finish()


@dataclass
class PlacedPut(Put):
    """One in flight, whose bytes the server reads from where they lie; what has no place, or too many, goes in Chunks.

    read_bytes: that were told of by Placed.
    """

    placings: Mapping[int, Placing] = field(default_factory=dict)
    read_bytes: int = 0

    def send_items(self, items: Sequence[tuple[int, int]]) -> None:
        """All parts of them: each item one way or the other."""
        self._sent.update(items)
        for number, item in items:
            section, placing = self.sections[number], self.placings.get(number)
            runs = list(runs_of(section, number, item, self.blocks[number][item]))
            placed = placing is not None and all(lies_at(run, section, placing) is not None for run in runs)
            for body, payload in (frame for run in runs for frame in packed([run])):
                self.session.send(Op.PLACED if placed else Op.CHUNK, body, b"" if placed else payload, self.request_id)
                self.read_bytes += len(payload) if placed else 0


def begin_put(
    session: Session, sections: Sequence[Section], blocks: Sequence[Sequence[Block]], placings: Mapping[int, Placing]
) -> PlacedPut:
    """Sends the request, and tells of none of the bytes."""
    body = Batch().tlv()
    for number, (section, row) in enumerate(zip(sections, blocks, strict=True)):
        body += section.tlv(session.register(section.layout))
        if number in placings:
            body += placings[number].tlv(number)
        body += offers_tlv(number, [block.offer for block in row])
    return PlacedPut(session, sections, blocks, session.send(Op.PUT, body), placings=placings)
