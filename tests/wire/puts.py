"""Puts and their credit: section 8 of the page."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.wire.answers import Status, Tally
from tests.wire.checksums import crc32c
from tests.wire.chunks import packed, runs_of
from tests.wire.frames import Frame, Kind, Op, need
from tests.wire.requests import CODED, Batch, Block, Offer, PartRecord, Section, offers_tlv, part_table_tlv
from tests.wire.session import PATIENCE_S, Session


def plain(section: Section, data: bytes, **terms: int) -> Block:
    """A block as it is. terms: fields of its offer."""
    parts = section.group.parts_of(len(data))
    assert parts is not None, f"{len(data)} bytes: no block of this layout"
    return Block([data[at : at + size] for at, size in parts], Offer(len(data), len(data), **terms))


def coded(raw: Sequence[bytes], stored: Sequence[bytes], codecs: Sequence[int], **terms: int) -> Block:
    """A block whose parts travel in another form."""
    table = [PartRecord(c, len(s), len(r), crc32c(r)) for r, s, c in zip(raw, stored, codecs, strict=True)]
    sizes = sum(map(len, raw)), sum(map(len, stored))
    return Block(list(stored), Offer(*sizes, flags=CODED, **terms), table)


@dataclass
class Put:
    """One in flight. wants: the items of each Want, in the order in which they came."""

    session: Session
    sections: Sequence[Section]
    blocks: Sequence[Sequence[Block]]
    request_id: int
    wants: list[list[tuple[int, int]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._tally = Tally([section.items for section in self.sections], [False] * len(self.sections))
        self._sent: set[tuple[int, int]] = set()
        self._wanted: set[tuple[int, int]] = set()
        self._early_bytes = 0

    def send_early(self) -> None:
        """Items in order, as many as the connection's early credit takes whole."""
        items = []
        for number, item in self._all_items():
            size = self.blocks[number][item].offer.stored_bytes
            if size > self.session.early_bytes:
                break
            self.session.early_bytes -= size
            self._early_bytes += size
            items.append((number, item))
        self.send_items(items)

    def send_items(self, items: Sequence[tuple[int, int]]) -> None:
        """All parts of them, small ones together in a chunk."""
        self._sent.update(items)
        runs = (
            run for number, item in items for run in runs_of(self.sections[number], number, item, self.blocks[number][item])
        )
        for body, payload in packed(runs):
            self.session.send(Op.CHUNK, body, payload, self.request_id)

    def send_item(self, number: int, item: int) -> None:
        """All parts of one."""
        self.send_items([(number, item)])

    def _all_items(self) -> Iterator[tuple[int, int]]:
        return ((number, item) for number, section in enumerate(self.sections) for item in range(section.items))

    def sent(self, number: int, item: int) -> None:
        """Somebody else sent it, or something in its place: a Want of it is not followed."""
        self._sent.add((number, item))

    def take(self, came: Frame) -> list[tuple[int, int]]:
        """Notes a frame of this request; the items that it wants and that were not sent."""
        need(came.op in (Op.WANT, Op.ANSWERS, Op.FINAL), f"opcode {came.op} in a put")
        self._tally.add(came)
        if came.op == Op.ANSWERS:
            return []
        self._give_credit_back()
        wanted = self._take_want(came) if came.op == Op.WANT else []
        return [each for each in wanted if each not in self._sent]

    def answered(self, number: int, item: int) -> bool:
        """Whether it was, so far."""
        return self._tally.answered(number, item)

    def finish(self, timeout_s: float = PATIENCE_S) -> list[list[Status]]:
        """Sends what is wanted, to the Final; the answers by section and item."""
        while True:
            came = self.session.frame_of(self.request_id, timeout_s)
            self.send_items(self.take(came))
            if came.op == Op.FINAL:
                return self._tally.settled()

    def _give_credit_back(self) -> None:
        """With the first Want of a request, or with its Final where no Want came."""
        self.session.early_bytes += self._early_bytes
        self._early_bytes = 0

    def _take_want(self, want: Frame) -> list[tuple[int, int]]:
        value = want.one(Kind.GRANT)
        credit, ranges, zero = struct.unpack_from("<QII", value)
        need(zero == 0 and len(value) == 16 + 12 * ranges, f"Grant of {len(value)} bytes with {ranges} ranges")
        items = []
        for at in range(ranges):
            number, reserved, first, count = struct.unpack_from("<HHII", value, 16 + 12 * at)
            need(reserved == 0, "ItemRange's zero field")
            items += [(number, item) for item in range(first, first + count)]
        for number, item in items:
            need((number, item) not in self._wanted, f"item {item} of section {number} is wanted twice")
            need(not self._tally.answered(number, item), f"item {item} of section {number} is wanted after its answer")
        self._wanted.update(items)
        stored = sum(self.blocks[number][item].offer.stored_bytes for number, item in items)
        need(stored == credit, f"credit_bytes {credit}, the items have {stored}")
        self.wants.append(items)
        return items


def begin(session: Session, sections: Sequence[Section], blocks: Sequence[Sequence[Block]], batch: Batch | None = None) -> Put:
    """Sends the request, and none of the payload."""
    body = (batch or Batch()).tlv()
    for number, (section, row) in enumerate(zip(sections, blocks, strict=True)):
        assert len(row) == section.items, f"section {number} has {section.items} items and {len(row)} blocks"
        body += section.tlv(session.register(section.layout)) + offers_tlv(number, [block.offer for block in row])
        body += b"".join(part_table_tlv(number, item, block.table) for item, block in enumerate(row) if block.table)
    return Put(session, sections, blocks, session.send(Op.PUT, body))


def put(
    session: Session,
    sections: Sequence[Section],
    blocks: Sequence[Sequence[Block]],
    batch: Batch | None = None,
    early: bool = True,
) -> list[list[Status]]:
    """A whole put; early: payload goes out before the first Want, as far as credit reaches."""
    one = begin(session, sections, blocks, batch)
    if early:
        one.send_early()
    return one.finish()


def put_bytes(
    session: Session, section: Section, data: Sequence[bytes], batch: Batch | None = None, **terms: int
) -> list[Status]:
    """A put of one section of plain blocks. terms: fields of every offer, ttl_s among them."""
    return put(session, [section], [[plain(section, each, **terms) for each in data]], batch)[0]
