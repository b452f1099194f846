"""What a server reads of requests, and how it answers: sections 6 and 9 of the page, from its side."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import groupby

from tests.wire.answers import OF_PARTS, WHOLE, Status
from tests.wire.frames import Frame, Kind, need, tlv
from tests.wire.layouts import Layout
from tests.wire.requests import STOP_AT_MISS, Batch, PartRange, Section

ANSWER_OK, ANSWER_MISS, ANSWER_CANCELLED, ANSWER_REJECTED = 1, 2, 4, 6
OK, STORED, PRESENT = Status(ANSWER_OK), Status(ANSWER_OK, 1), Status(ANSWER_OK, 2)
ABSENT, TOO_SHORT, SKIPPED = Status(ANSWER_MISS, 16), Status(ANSWER_MISS, 19), Status(ANSWER_MISS, 20)
CANCELLED = Status(ANSWER_CANCELLED)
BAD_CHECK, TOO_LARGE, UNSUPPORTED = Status(ANSWER_REJECTED, 48), Status(ANSWER_REJECTED, 49), Status(ANSWER_REJECTED, 51)
MALFORMED, UNKNOWN_LAYOUT = Status(ANSWER_REJECTED, 53), Status(ANSWER_REJECTED, 54)


class Refuse(Exception):
    """A request as a whole is answered so."""

    def __init__(self, status: Status) -> None:
        super().__init__(str(status))
        self.status = status


def statuses_tlv(section: int, answers: Sequence[Status], *, of_parts: bool = False) -> bytes:
    """Of a section's items, or selected parts; equal ones together."""
    runs: list[bytes] = []
    at = 0
    for status, equal in groupby(answers):
        count = len(list(equal))
        runs.append(struct.pack("<IIBBH", at, count, status.answer, 0, status.reason))
        at += count
    return tlv(Kind.STATUSES, struct.pack("<HHI", section, OF_PARTS if of_parts else 0, len(runs)) + b"".join(runs))


def whole_tlv(status: Status) -> bytes:
    """Of the request as a whole."""
    return statuses_tlv(WHOLE, [status])


def batch_of(came: Frame) -> Batch:
    """The Batch of a request. Errors: WireFault."""
    value = came.one(Kind.BATCH)
    need(len(value) == 24, f"a Batch of {len(value)} bytes")
    *fields, zero = struct.unpack("<IBBBBQII", value)
    need(zero == 0, f"a Batch with zero {zero}")
    return Batch(*fields)


def sections_of(came: Frame, handles: Sequence[Layout]) -> list[Section]:
    """Those of a request. Errors: Refuse, WireFault."""
    return [_section(value, handles) for value in came.all(Kind.SECTION)]


def _section(value: bytes, handles: Sequence[Layout]) -> Section:
    handle, flags, first, cells, range_count, key_count, keys_bytes, zero = struct.unpack_from("<HHIHHIII", value)
    need(zero == 0 and flags & ~STOP_AT_MISS == 0, f"a Section with flags {flags}, zero {zero}")
    if handle >= len(handles):
        raise Refuse(UNKNOWN_LAYOUT)
    at = 24 + 12 * range_count
    ranges = [PartRange(*struct.unpack_from("<III", value, start)) for start in range(24, at, 12)]
    need(len(value) == at + keys_bytes, f"a Section of {len(value)} bytes, {keys_bytes} of keys")
    keys = list(_keys(value[at:]))
    need(len(keys) == key_count, f"{len(keys)} keys, said {key_count}")
    return Section(handles[handle], keys, first, cells, ranges, bool(flags & STOP_AT_MISS))


def _keys(value: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(value):
        end = at + 1 + value[at]
        need(value[at] > 0 and end <= len(value), f"a key of {value[at]} bytes at {at} of {len(value)}")
        yield value[at + 1 : end]
        at = end
