"""A put as a server has it: offers, what it wants, and bytes that come. Section 8 of the page."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from tests.wire.answers import Status
from tests.wire.chunks import ABORTED_RUN, Arrivals, runs_in
from tests.wire.frames import Frame, Kind, need, tlv
from tests.wire.requests import Section
from tests.wire.serving import BAD_CHECK, CANCELLED, MALFORMED, PRESENT, STORED, TOO_LARGE, UNSUPPORTED, statuses_tlv


class Putting:
    """One in flight. there: by section and item, whether a block of that name is."""

    def __init__(self, came: Frame, sections: Sequence[Section], there: Sequence[Sequence[bool]], bytes_max: int) -> None:
        self.sections = sections
        self.answers: list[list[Status | None]] = []
        self._arrivals = Arrivals(sections)
        self._block_bytes: list[list[int]] = []
        offers = came.all(Kind.OFFERS)
        need(len(offers) == len(sections), f"{len(offers)} Offers of {len(sections)} sections")
        for number, (section, value, row) in enumerate(zip(sections, offers, there, strict=True)):
            of, zero, count = struct.unpack_from("<HHI", value)
            need((of, zero, count) == (number, 0, section.items), f"Offers of section {of}, {count} items, zero {zero}")
            need(len(value) == 8 + 32 * count, f"Offers of {len(value)} bytes")
            said = [struct.unpack_from("<II16xI", value, at) for at in range(8, len(value), 32)]
            self._block_bytes.append([block_bytes for block_bytes, _, _ in said])
            self.answers.append([_first(section, *each, is_there, bytes_max) for each, is_there in zip(said, row, strict=True)])

    def want_tlv(self) -> bytes | None:
        """What is wanted: all that was not answered, at once. None: nothing."""
        wanted = list(self._open())
        credit = sum(self._block_bytes[number][item] for number, item in wanted)
        ranges = b"".join(struct.pack("<HHII", number, 0, item, 1) for number, item in wanted)
        return tlv(Kind.GRANT, struct.pack("<QII", credit, len(wanted), 0) + ranges) if wanted else None

    def take(self, chunk: Frame) -> list[tuple[int, int, bytes]]:
        """Section, item and bytes of those that are whole now. Errors: WireFault."""
        self._arrivals.add(chunk)
        bad = {name[:2] for name in self._arrivals.bad_checks}
        stored = []
        for run in runs_in(chunk)[0]:
            number, item = run.section, run.item
            if self.answers[number][item] is not None:
                continue
            if run.flags & ABORTED_RUN or (number, item) in bad:
                self.answers[number][item] = CANCELLED if run.flags & ABORTED_RUN else BAD_CHECK
                continue
            if run.block_bytes != self._block_bytes[number][item]:
                self.answers[number][item] = MALFORMED
                continue
            table = self.sections[number].group.parts_of(run.block_bytes) or []
            parts = [self._arrivals.parts.get((number, item, part)) for part in range(len(table))]
            if None not in parts:
                stored.append((number, item, b"".join(part or b"" for part in parts)))
                self.answers[number][item] = STORED
        return stored

    def cancel(self) -> None:
        """Ends what is open."""
        for number, item in list(self._open()):
            self.answers[number][item] = CANCELLED

    def final_tlvs(self) -> bytes | None:
        """The answers, when there are all of them."""
        rows = [[answer for answer in row if answer is not None] for row in self.answers]
        if any(len(row) < len(answers) for row, answers in zip(rows, self.answers, strict=True)):
            return None
        return b"".join(statuses_tlv(number, row) for number, row in enumerate(rows))

    def _open(self) -> list[tuple[int, int]]:
        rows = enumerate(self.answers)
        return [(number, item) for number, row in rows for item, answer in enumerate(row) if answer is None]


def _first(section: Section, block_bytes: int, stored_bytes: int, flags: int, there: bool, bytes_max: int) -> Status | None:
    """What needs no bytes; None: it is wanted."""
    if there:
        return PRESENT
    if flags:
        return UNSUPPORTED
    if block_bytes > bytes_max:
        return TOO_LARGE
    return None if stored_bytes == block_bytes and section.group.parts_of(block_bytes) is not None else MALFORMED
