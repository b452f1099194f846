"""Attacks that ask for more than their share: pipelined requests, leases, layouts, namespaces.

Each is a scenario of its own, see scenarios.py.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from tests.torture.attack import CRUMBS, VALUES, Attack
from tests.wire import catalog, lives, puts
from tests.wire.catalog import question_tlv
from tests.wire.checksums import crc32c
from tests.wire.frames import Kind, Op, frame, tlv
from tests.wire.layouts import Layout, component
from tests.wire.requests import LAYER_MAJOR, Batch, PartRange, Section
from tests.wire.session import Session


def explains(attack: Attack) -> None:
    """Explains of 4,096 components in four layouts, 128 of them in flight."""
    body = question_tlv(b"somebody's key", [(number * 512, 512) for number in range(8)])
    with attack.session() as session:
        for number in range(4):
            session.register(Layout({"explained": number}))
    attack.pipelined(1, lambda _, number: frame(Op.STAT, number, body))


def stats(attack: Attack) -> None:
    """16 connections, each with 128 Stats in flight."""
    attack.pipelined(16, lambda _, number: frame(Op.STAT, number))


def matches(attack: Attack) -> None:
    """4 connections, each with 128 Matches of 16,384 items in flight."""
    bodies = _Bodies(_everything(), {Op.MATCH: b""})
    attack.pipelined(4, lambda session, number: bodies.frame(session, number, Op.MATCH))


def _everything() -> Section:
    """As many items as a request may have, none of them there."""
    return Section(VALUES, [b"absent %d" % number for number in range(4096)], component_count=4)


class _Bodies(dict[tuple[int, int], tuple[bytes, int]]):
    """A request's body and its checksum, by opcode and by the handle that its layout has. more: TLVs besides, by opcode."""

    def __init__(self, section: Section, more: Mapping[int, bytes]) -> None:
        super().__init__()
        self._section = section
        self._more = more

    def __missing__(self, key: tuple[int, int]) -> tuple[bytes, int]:
        op, handle = key
        body = Batch().tlv() + self._more[op] + self._section.tlv(handle)
        self[key] = body, crc32c(body)
        return self[key]

    def frame(self, session: Session, number: int, op: int) -> bytes:
        """Of a request."""
        body, body_crc = self[op, session.register(self._section.layout)]
        return frame(op, number, body, body_crc=body_crc)


def changes(attack: Attack) -> None:
    """4 connections, each with 64 deletes, touches, expiries, holds and gets of 16,384 absent items in flight."""
    more = {
        Op.DELETE: b"",
        Op.TOUCH: b"",
        Op.GET: b"",
        Op.EXPIRE: tlv(Kind.EXPIRY, struct.pack("<II", 5, 0)),
        Op.HOLD: lives.owner_tlv(9) + lives.until_tlv(1000),
    }
    bodies, ops = _Bodies(_everything(), more), list(more)
    attack.pipelined(4, lambda session, number: bodies.frame(session, number, ops[number % len(ops)]), 64)


def lists(attack: Attack) -> None:
    """8 connections with 128 Lists of whole pages in flight."""
    cursor = tlv(Kind.CURSOR, struct.pack("<QII", 0, 0, 0))
    attack.pipelined(8, lambda _, number: frame(Op.LIST, number, cursor))


def layers(attack: Attack) -> None:
    """Layer-major gets of 100 blocks in 2,560 parts of 24 bytes: of ten, each of them ten times."""
    keys = [b"crumbs %d" % number for number in range(10)]
    with attack.session() as session:
        puts.put_bytes(session, Section(CRUMBS, keys, component(1)), [bytes(61_440)] * 10)
    ranged = Section(CRUMBS, keys * 10, component(1), ranges=[PartRange(0, 2560)])
    body = Batch(order=LAYER_MAJOR).tlv()
    attack.pipelined(4, lambda session, number: frame(Op.GET, number, body + ranged.tlv(session.register(CRUMBS))), 4)


def leases(attack: Attack) -> None:
    """Leases all that it puts, as much as it gets, by the page of a byte each, and holds of other owners on the same."""
    with attack.session() as session:
        owner = attack.rng.getrandbits(32)
        while attack.going():
            section = Section(VALUES, [attack.name() for _ in range(4096)])
            puts.put_bytes(session, section, [b"x"] * 4096)
            held = lives.hold(session, [section], owner, 60_000)[0]
            attack.tally["acts"] += len(held)
            attack.tally["held"] += sum(status.ok for status in held)
            for _ in range(4):
                attack.tally["held"] += sum(
                    status.ok for status in lives.hold(session, [section], attack.rng.getrandbits(48) + 1, 60_000)[0]
                )
            lives.renew(session, owner, 60_000)


def layouts(attack: Attack) -> None:
    """Registers layouts without end, empty ones and such with a block, in its own namespace and in `default`."""
    number = 0
    while attack.going():
        for namespace in (attack.target.namespace, None):
            with attack.session(namespace) as session:
                for _ in range(100):
                    number += 1
                    layout = Layout({"flood": number, "seed": attack.rng.getrandbits(32)})
                    final = session.ask(Op.REGISTER_LAYOUT, tlv(Kind.LAYOUT_CANONICAL, layout.canonical))
                    attack.tally["acts"] += 1
                    attack.tally["registered"] += bool(final.all(Kind.LAYOUT_HANDLE))
                    if namespace and number % 3 == 0 and final.all(Kind.LAYOUT_HANDLE):
                        puts.put_bytes(session, Section(layout, [b"k"]), [b"x"])


def namespaces(attack: Attack) -> None:
    """Makes, limits and deletes namespaces of its own, with long names, and asks for the counters of all of them."""
    made: list[str] = []
    with attack.session() as session:
        while attack.going():
            name = f"flood {attack.rng.getrandbits(64):x}".ljust(255, "x")
            attack.tally["made"] += catalog.namespace(session, catalog.CREATE, name, quota_bytes=1 << 20).ok
            made.append(name)
            attack.tally["acts"] += 1
            if len(made) % 50 == 0:
                session.ask(Op.STAT)
        for name in made:
            catalog.namespace(session, catalog.DELETE, name)
