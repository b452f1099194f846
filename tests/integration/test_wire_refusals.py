"""What a server refuses, and how: section 11 of docs/wire-protocol.md, row by row, over every transport."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.wire import gets, puts
from tests.wire.answers import whole
from tests.wire.checksums import name_number, part_check
from tests.wire.chunks import Run, runs_tlv
from tests.wire.frames import MAGIC, Aborted, Closed, Kind, Op, frame, read_frame, tlv
from tests.wire.layouts import Group, Layout, component
from tests.wire.requests import Batch, PartRange, Section
from tests.wire.session import Refused, Session, hello_body

pytestmark = pytest.mark.integration

Connect = Callable[..., Session]
STAT_AGAIN = 77


@pytest.fixture
def values(request: pytest.FixtureRequest) -> Layout:
    """A layout of values of unknown make that no other test has."""
    return Layout({"name": request.node.nodeid[-200:], "process": os.getpid()})


def ends(session: Session) -> bool:
    """Whether the server aborts or closes, and sends nothing else: an Abort is a courtesy."""
    try:
        session.frame_of(STAT_AGAIN)
    except (Aborted, Closed):
        return True
    return False


BREACHES = {
    "magic": b"HSW2" + frame(Op.STAT, 9)[4:],
    "flags": frame(Op.STAT, 9, flags=1),
    "reserved field": frame(Op.STAT, 9, reserved=1),
    "header checksum": frame(Op.STAT, 9, header_crc=1),
    "body checksum": frame(Op.STAT, 9, tlv(0x1000, b"x"), body_crc=1),
    "body over its limit": frame(Op.STAT, 9, body_bytes=(2 << 20) + 8),
    "body of a chunk over its limit": frame(Op.CHUNK, 9, body_bytes=(64 << 10) + 8),
    "payload over its limit": frame(Op.CHUNK, 9, payload_bytes=(256 << 10) + 1),
    "payload of what is no chunk": frame(Op.STAT, 9, payload=b"payload!"),
    "request id 0 of a chunk": frame(Op.CHUNK, 0, runs_tlv([], [])),
    "chunk with a TLV that must be understood": frame(Op.CHUNK, 9, tlv(0x9000, b"")),
    "second Hello": frame(Op.HELLO, 9, hello_body(None, 1, (1, 1), 1)),
    "opcode of servers": frame(Op.FINAL, 9),
    "request id 0": frame(Op.STAT, 0),
    "no frame": b"GET / HTTP/1.1\r\nHost: halfstep\r\n\r\n",
}


@pytest.mark.parametrize("breach", BREACHES)
def test_a_breach_of_framing_ends_the_connection_alone(wire: Connect, breach: str) -> None:
    session, beside = wire(), wire()
    session.stream.send(BREACHES[breach])
    assert ends(session)
    assert beside.ask(Op.STAT).all(Kind.COUNTERS)


def test_a_request_id_that_is_in_flight_ends_the_connection(wire: Connect, values: Layout) -> None:
    session = wire()
    section = Section(values, [b"a"])
    one = puts.begin(session, [section], [[puts.plain(section, b"x" * 100_000)]])
    assert session.frame_of(one.request_id).op == Op.WANT
    session.send(Op.STAT, request_id=one.request_id)
    assert ends(session)


def test_every_request_is_answered_and_other_frames_are_skipped(wire: Connect) -> None:
    session = wire()
    for skipped in (0, 38, 64, 127):
        session.stream.send(frame(skipped, 9, tlv(0x1000, b"whatever"), body_crc=1))
    for unknown in (18, 31, 131, 200, 255):
        assert str(whole(session.ask(unknown, b"not looked at..."))) == "rejected(unsupported)"


def test_a_hello_that_cannot_be_served_is_told_why(daemon: Any) -> None:
    client = tlv(Kind.HELLO_CLIENT, struct.pack("<HHIQQ", 1, 1, 0, 1, 7))
    for sent, answer in (
        (b"", "rejected(malformed)"),
        (client + tlv(Kind.NAMESPACE_NAME, b"a\nb"), "rejected(malformed)"),
        (client + tlv(Kind.NAMESPACE_NAME, b"\xff"), "rejected(malformed)"),
        (client + tlv(Kind.NAMESPACE_NAME, b""), "rejected(malformed)"),
        (client * 2, "rejected(malformed)"),
        (client + tlv(0x9000, b""), "rejected(unsupported)"),
    ):
        stream = daemon.stream("tcp")
        stream.send(frame(Op.HELLO, 5, sent))
        assert str(whole(read_frame(stream, 30))) == answer, sent
        with pytest.raises(Closed):
            stream.receive(1, 30)
        stream.close()


@pytest.mark.parametrize("first", [frame(Op.STAT, 1), frame(Op.CHUNK, 1, payload=b"x"), b"\0" * 64, MAGIC * 16])
def test_the_first_frame_is_hello(daemon: Any, first: bytes) -> None:
    stream = daemon.stream("tcp")
    stream.send(first)
    with pytest.raises((Aborted, Closed)):
        Session(stream)
    stream.close()


def test_versions_that_are_not_known_are_refused_with_those_that_are(wire: Connect) -> None:
    with pytest.raises(Refused, match=r"version.*1"):
        wire(versions=(2, 9))
    assert wire(versions=(1, 9)).server.version == 1


def test_a_namespace_that_is_not_there_is_refused(wire: Connect) -> None:
    with pytest.raises(Refused) as refused:
        wire(namespace="nobody made this")
    assert str(refused.value.status) == "rejected(unknown_namespace)"


def chunk_of(one: puts.Put, changed: dict[str, int]) -> bytes:
    """The chunk of the first item, `x` times 1,000, with fields of its run changed."""
    section = one.sections[0]
    data = b"x" * 1000
    fields = {"section": 0, "flags": 0, "item": 0, "part": 0, "part_count": 1, "offset": 0}
    fields |= {"bytes": 1000, "block_bytes": 1000, "check_count": 1} | changed
    check = part_check(name_number(section.layout.id, 0, section.keys[0]), 0, data)
    return frame(Op.CHUNK, one.request_id, runs_tlv([Run(**fields)], [check]), data)


@pytest.mark.parametrize(
    "changed",
    [{"section": 1}, {"item": 1}, {"bytes": 999}, {"check_count": 2}, {"flags": 4}],
    ids=lambda each: next(iter(each)),
)
def test_a_chunk_that_lies_about_itself_ends_the_connection(wire: Connect, values: Layout, changed: dict[str, int]) -> None:
    session = wire()
    section = Section(values, [b"a"])
    one = puts.begin(session, [section], [[puts.plain(section, b"x" * 1000)]])
    session.stream.send(chunk_of(one, changed))
    assert ends(session)


def test_a_chunk_behind_the_end_of_its_request_is_dropped(wire: Connect, values: Layout) -> None:
    session = wire()
    section = Section(values, [b"a"])
    one = puts.begin(session, [section], [[puts.plain(section, b"x" * 1000)]])
    one.send_item(0, 0)
    assert str(one.finish()[0][0]) == "ok(stored)"
    session.stream.send(chunk_of(one, {}))
    assert session.ask(Op.STAT).all(Kind.COUNTERS)


def test_more_than_the_credit_ends_the_connection(wire: Connect, values: Layout) -> None:
    session = wire()
    # More than a shard's memory takes at a time: what comes last is not wanted yet.
    section = Section(values, [b"%d" % number for number in range(64)])
    block = puts.plain(section, bytes(session.server.block_bytes_max))
    one = puts.begin(session, [section], [[block] * 64])
    wanted = one.take(session.frame_of(one.request_id))
    assert wanted
    assert (0, 63) not in wanted
    with pytest.raises((Aborted, Closed)):
        send_and_finish(one, 63)


def send_and_finish(one: puts.Put, item: int) -> None:
    one.send_item(0, item)
    one.finish()


def body(values: Layout, session: Session, **changed: Any) -> bytes:
    fields: dict[str, Any] = {"layout": values, "keys": [b"a"]} | changed
    return Batch().tlv() + session.sections([Section(**fields)])


def refused_bodies(session: Session, values: Layout) -> Iterator[tuple[str, int, bytes, str]]:
    """What, opcode, body, answer."""
    good = body(values, session)
    section = Section(values, [b"a"])
    handle = session.register(values)
    malformed, limit = "rejected(malformed)", "rejected(limit)"
    yield "no batch", Op.MATCH, session.sections([section]), malformed
    yield "two batches", Op.MATCH, Batch().tlv() + good, malformed
    yield "no section", Op.MATCH, Batch().tlv(), malformed
    yield "a TLV that does not belong", Op.MATCH, good + tlv(Kind.OWNER, struct.pack("<QII", 1, 0, 0)), malformed
    yield "a TLV that must be understood", Op.MATCH, good + tlv(0x9000, b""), "rejected(unsupported)"
    yield "a batch of another size", Op.MATCH, tlv(Kind.BATCH, bytes(32)) + good[32:], malformed
    yield "no keys", Op.MATCH, body(values, session, keys=[]), malformed
    yield "no components", Op.MATCH, body(values, session, component_count=0), malformed
    yield "a key of no bytes", Op.MATCH, body(values, session, keys=[b""]), malformed
    yield "a hold without an owner", Op.MATCH, Batch(hold_ms=5).tlv() + session.sections([section]), malformed
    yield "ranges of a match", Op.MATCH, body(values, session, ranges=[PartRange(0, 1)]), malformed
    yield "no such handle", Op.MATCH, Batch().tlv() + section.tlv(handle + 1000), "rejected(unknown_layout)"
    yield "no such group", Op.MATCH, body(values, session, first_component=component(1)), malformed
    yield "cells of two variants", Op.MATCH, body(values, session, first_component=0xFFFFF, component_count=2), malformed
    yield "17 sections", Op.MATCH, Batch().tlv() + session.sections([section] * 17), limit
    yield "4,097 keys", Op.MATCH, body(values, session, keys=[b"%d" % number for number in range(4097)]), limit
    yield "16,385 items", Op.MATCH, body(values, session, component_count=16_385), limit
    yield "9 ranges", Op.GET, body(values, session, ranges=[PartRange(number, 1) for number in range(9)]), limit
    yield "2,561 parts", Op.GET, body(values, session, ranges=[PartRange(0, 2561)]), malformed
    many = body(values, session, component_count=1000, ranges=[PartRange(0, 2560)])
    yield "too many statuses", Op.GET, many, limit
    yield "offers missing", Op.PUT, good, malformed


def test_a_body_that_breaks_a_rule_costs_its_request_alone(wire: Connect, values: Layout) -> None:
    session = wire()
    seen = {what: (str(whole(session.ask(op, sent))), answer) for what, op, sent, answer in refused_bodies(session, values)}
    assert {what: got for what, (got, answer) in seen.items() if got != answer} == {}
    assert gets.match(session, [Section(values, [b"a"])]).present == [[False]]


def test_layouts_are_refused_by_their_form(wire: Connect, values: Layout) -> None:
    session = wire()
    good = Layout({"a": 1, "b": 2}, [Group(1, (5,))]).canonical
    for wrong in (
        good[:-1],
        good + b"\0",
        good.replace(b"a", b"c"),  # names out of order
        b"\2" + good[1:],
        good[:-4] + bytes(4),  # a part of no bytes
        good.replace(b"a", b"\xff"),
        b"",
    ):
        refused = session.ask(Op.REGISTER_LAYOUT, tlv(Kind.LAYOUT_CANONICAL, wrong))
        assert str(whole(refused)) == "rejected(malformed)", wrong
        assert refused.reason, "a text for people says what is wrong"
