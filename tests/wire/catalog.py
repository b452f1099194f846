"""What the store tells and keeps: List, Stat, Explain, Namespace. Section 5 of the page."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.wire.answers import Status, whole
from tests.wire.frames import Kind, Op, need, tlv
from tests.wire.session import Refused, Session

CREATE, LIMIT, DELETE = 1, 2, 3
TTL_SLIDES = 1
EVERY_GROUP = 1
PAGE_BYTES_MAX = 64 << 10
# In every page of a Stat of a store with several shards.
SHARD_COUNTER = "halfstep_shard"


@dataclass(frozen=True)
class Entry:
    """A block, as List tells of it."""

    layout_id: bytes
    component: int
    block_bytes: int
    parts: int
    created_s: int
    expiry_s: int
    key: bytes


def list_page(session: Session, position: int = 0, limit: int = 0) -> tuple[list[Entry], int]:
    """Some entries, and the next position; 0 at the end."""
    final = session.ask(Op.LIST, _cursor_tlv(position, limit))
    if not final.all(Kind.ENTRIES):
        raise Refused(final)
    value = final.one(Kind.ENTRIES)
    need(len(value) <= PAGE_BYTES_MAX, f"a page of {len(value)} bytes")
    count, zero = struct.unpack_from("<II", value)
    need(zero == 0, "the zero field of Entries")
    need(not limit or count <= limit, f"{count} entries where at most {limit} were wanted")
    entries = []
    at = 8
    for _ in range(count):
        *fields, key_bytes, zero_8, zero_16 = struct.unpack_from("<16sIIIIIBBH", value, at)
        need(zero_8 == 0 and zero_16 == 0, "the zero fields of an entry")
        entries.append(Entry(*fields, value[at + 40 : at + 40 + key_bytes]))
        at += 40 + key_bytes + -key_bytes % 8
    need(at == len(value), f"Entries of {len(value)} bytes, {count} of them end at {at}")
    next_position, listed, _ = struct.unpack("<QII", final.one(Kind.CURSOR))
    need(listed == count, f"the Cursor says {listed} entries, there are {count}")
    return entries, next_position


def list_all(session: Session, limit: int = 0) -> list[Entry]:
    """All of this shard's entries in the session's namespace."""
    entries, position = list_page(session, 0, limit)
    while position:
        more, position = list_page(session, position, limit)
        entries += more
    return entries


def stat(session: Session) -> dict[str, int]:
    """The counters of this shard, all pages."""
    found, position = stat_page(session)
    while position:
        more, position = stat_page(session, position)
        need(not set(more) & set(found) - {SHARD_COUNTER}, f"told twice: {sorted(set(more) & set(found))[:3]}")
        found |= more
    return found


def stat_page(session: Session, position: int | None = None) -> tuple[dict[str, int], int]:
    """Some counters, and the next position; 0 at the end. position: None sends no Cursor, which is the first page."""
    final = session.ask(Op.STAT, b"" if position is None else _cursor_tlv(position, 0))
    value = final.one(Kind.COUNTERS)
    found = {}
    at = 0
    while at < len(value):
        name_bytes, zero_16, zero_32, number = struct.unpack_from("<HHIQ", value, at)
        need(zero_16 == 0 and zero_32 == 0, "the zero fields of a counter")
        found[value[at + 16 : at + 16 + name_bytes].decode()] = number
        at += 16 + name_bytes + -name_bytes % 8
    next_position, limit, zero = struct.unpack("<QII", final.one(Kind.CURSOR))
    need(limit == 0 and zero == 0, "the Cursor of a Stat has a limit")
    return found, next_position


def layout_of(session: Session, layout_id: bytes) -> bytes:
    """A layout's canonical form. Errors: Refused."""
    final = session.ask(Op.LAYOUT_OF, tlv(Kind.LAYOUT_ID, layout_id))
    if not final.all(Kind.LAYOUT_CANONICAL):
        raise Refused(final)
    return final.one(Kind.LAYOUT_CANONICAL)


def _cursor_tlv(position: int, limit: int) -> bytes:
    return tlv(Kind.CURSOR, struct.pack("<QII", position, limit, 0))


def question_tlv(key: bytes, ranges: Sequence[tuple[int, int]] = ((0, 1),), every_group: bool = False) -> bytes:
    """What is asked of a key. ranges: first component and count."""
    head = struct.pack("<IHBB", EVERY_GROUP if every_group else 0, len(ranges), len(key), 0)
    return tlv(Kind.KEY_QUESTION, head + b"".join(struct.pack("<II", *each) for each in ranges) + key)


def explain(
    session: Session, key: bytes, ranges: Sequence[tuple[int, int]] = ((0, 1),), every_group: bool = False
) -> dict[str, Any]:
    """What the server knows of a key. Errors: Refused."""
    final = session.ask(Op.STAT, question_tlv(key, ranges, every_group))
    if not final.all(Kind.EXPLANATION):
        raise Refused(final)
    told: dict[str, Any] = json.loads(final.one(Kind.EXPLANATION))
    return told


def namespace(
    session: Session,
    verb: int,
    name: str,
    *,
    quota_bytes: int = 0,
    default_ttl_s: int = 0,
    flags: int = 0,
    pin_bytes: int | None = None,
    coding: tuple[int, int] | None = None,
) -> Status:
    """Creates, limits or deletes one. coding: the default policy, and the coarsest step in 1/10,000."""
    body = tlv(Kind.NAMESPACE_NAME, name.encode())
    body += tlv(Kind.NAMESPACE_ACTION, struct.pack("<BBHIQ", verb, flags, 0, default_ttl_s, quota_bytes))
    if pin_bytes is not None:
        body += tlv(Kind.PIN_BUDGET, struct.pack("<Q", pin_bytes))
    if coding is not None:
        body += tlv(Kind.SET_CODING, struct.pack("<HHI", *coding, 0))
    return whole(session.ask(Op.NAMESPACE, body))
