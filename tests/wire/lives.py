"""How long blocks stay: Delete, Touch, Hold, Renew, Release, Expire, Prefetch, Clear. Section 5 of the page."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from tests.wire.answers import Status, whole
from tests.wire.frames import Kind, Op, tlv
from tests.wire.layouts import Layout
from tests.wire.requests import FOLLOW, Batch, Section
from tests.wire.session import Session

PERSISTENT = 1


def owner_tlv(owner: int, hint: int = 0) -> bytes:
    """Whose holds."""
    return tlv(Kind.OWNER, struct.pack("<QII", owner, hint, 0))


def until_tlv(hold_ms: int, flags: int = 0) -> bytes:
    """For how long."""
    return tlv(Kind.UNTIL, struct.pack("<QII", hold_ms, flags, 0))


def delete(session: Session, sections: Sequence[Section]) -> list[list[Status]]:
    """By section and item, when it is on media."""
    return session.keyed(Op.DELETE, sections)


def touch(session: Session, sections: Sequence[Section]) -> list[list[Status]]:
    """Leaf first."""
    return session.keyed(Op.TOUCH, sections)


def hold(
    session: Session, sections: Sequence[Section], owner: int, hold_ms: int, persistent: bool = False
) -> list[list[Status]]:
    """hold_ms: 0 is without end, for persistent ones."""
    return session.keyed(Op.HOLD, sections, owner_tlv(owner) + until_tlv(hold_ms, PERSISTENT if persistent else 0))


def renew(session: Session, owner: int, hold_ms: int) -> Status:
    """All leases of an owner on this shard."""
    return whole(session.ask(Op.RENEW, Batch().tlv() + owner_tlv(owner) + until_tlv(hold_ms)))


def release(session: Session, owner: int) -> Status:
    """All holds of an owner on this shard."""
    return whole(session.ask(Op.RELEASE, Batch().tlv() + owner_tlv(owner)))


def release_keys(session: Session, owner: int, sections: Sequence[Section]) -> Status:
    """Those of an owner on some keys."""
    return whole(session.ask(Op.RELEASE, Batch().tlv() + owner_tlv(owner) + session.sections(sections)))


def expire(session: Session, sections: Sequence[Section], ttl_s: int) -> list[list[Status]]:
    """ttl_s: from now; 0 is never."""
    return session.keyed(Op.EXPIRE, sections, tlv(Kind.EXPIRY, struct.pack("<II", ttl_s, 0)))


def prefetch(session: Session, sections: Sequence[Section], hold_ms: int, follow: bool = False) -> list[list[Status]]:
    """hold_ms: for how long a block waits for its first get."""
    return session.keyed(Op.PREFETCH, sections, until_tlv(hold_ms), Batch(flags=FOLLOW if follow else 0))


def clear(session: Session, layout: Layout) -> Status:
    """All blocks of a layout in the session's namespace."""
    return whole(session.ask(Op.CLEAR, tlv(Kind.LAYOUT_ID, layout.id)))
