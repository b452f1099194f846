"""Match and Get: sections 5 to 7 and 9 of the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from tests.wire.answers import Status, Tally, lengths, match_bits, status_runs
from tests.wire.chunks import Arrivals
from tests.wire.frames import Frame, Op, need
from tests.wire.requests import LENGTHS_WANTED, Batch, Section
from tests.wire.session import PATIENCE_S, Refused, Session


@dataclass
class Matched:
    """present: by section and key. lengths: by section and item, if asked for. unheld: items that could not be held."""

    present: list[list[bool]]
    lengths: dict[int, dict[int, int]]
    unheld: dict[tuple[int, int], Status]


def match(session: Session, sections: Sequence[Section], batch: Batch | None = None, with_lengths: bool = False) -> Matched:
    """What is there. Errors: Refused, when nothing was matched."""
    batch = batch or Batch()
    if with_lengths:
        batch = replace(batch, flags=batch.flags | LENGTHS_WANTED)
    final = session.final(session.send(Op.MATCH, batch.tlv() + session.sections(sections)))
    bits = match_bits(final)
    if not bits:
        raise Refused(final)
    need(sorted(bits) == list(range(len(sections))), f"MatchBits of sections {sorted(bits)}")
    for number, section in enumerate(sections):
        need(len(bits[number]) == len(section.keys), f"MatchBits of {len(bits[number])} keys")
    unheld = {(run.section, item): run.status for run in status_runs(final) for item in range(run.first, run.first + run.count)}
    return Matched([bits[number] for number in range(len(sections))], lengths(final), unheld)


class Landing(Protocol):
    """Where the bytes of a placed get lie."""

    def landed(self, frame: Frame) -> Frame:
        """A Placed as the Chunk that it stands for. Errors: WireFault."""


@dataclass
class Get:
    """One in flight. statuses: by section and item, or selected part where the section has ranges; after finish().

    targets: None, nothing of it may be placed.
    """

    session: Session
    sections: Sequence[Section]
    request_id: int
    targets: Landing | None = None
    statuses: list[list[Status]] = field(default_factory=list)

    def __post_init__(self) -> None:
        counts = [section.items * (len(section.selected()) or 1) for section in self.sections]
        self._tally = Tally(counts, [bool(section.ranges) for section in self.sections])
        self.arrivals = Arrivals(self.sections)

    def finish(self, timeout_s: float = PATIENCE_S) -> Get:
        """Reads to the Final."""
        while True:
            came = self.session.frame_of(self.request_id, timeout_s)
            if came.op == Op.PLACED and self.targets is not None:
                came = self.targets.landed(came)
            need(came.op in (Op.CHUNK, Op.ANSWERS, Op.FINAL), f"opcode {came.op} in a get")
            if came.op == Op.CHUNK:
                self.arrivals.add(came)
                continue
            self._tally.add(came)
            if came.op == Op.FINAL:
                self.statuses = self._tally.settled()
                return self

    def block(self, number: int, item: int) -> bytes | None:
        """Its bytes as they travelled, all parts; None unless it was ok."""
        if not self.statuses[number][item].ok:
            return None
        table = self.sections[number].group.parts_of(self.arrivals.block_bytes[number, item])
        assert table is not None
        parts = [self.arrivals.parts.get((number, item, part)) for part in range(len(table))]
        need(
            None not in parts,
            f"item {item} of section {number} is ok and lacks part {parts.index(None) if None in parts else 0}",
        )
        return b"".join(part for part in parts if part is not None)

    def blocks(self, number: int = 0) -> list[bytes | None]:
        """Of every item of a section."""
        return [self.block(number, item) for item in range(self.sections[number].items)]


def begin(session: Session, sections: Sequence[Section], batch: Batch | None = None) -> Get:
    """Sends the request."""
    return Get(session, sections, session.send(Op.GET, (batch or Batch()).tlv() + session.sections(sections)))


def get(session: Session, sections: Sequence[Section], batch: Batch | None = None) -> Get:
    """A whole get."""
    return begin(session, sections, batch).finish()
