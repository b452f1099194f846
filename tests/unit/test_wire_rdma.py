"""The peer over RDMA (tests/wire): what it writes it reads, and it notices an end that breaks a rule of sections 15 and 16."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.wire import gets, puts
from tests.wire.daemon import Daemon
from tests.wire.frames import Frame, Kind, Op, WireFault, parse_tlvs
from tests.wire.layouts import Group, Layout, component, layout_of
from tests.wire.paths import ROOM, Positions, RdmaPath, answer_of, answer_tlv, gid_of, offer_of, offer_tlv, reads_of, reads_tlv
from tests.wire.places import Piece, PlacePart, PlaceRows, Places, Region, cut, places_of, region_of, rows_of, template_of
from tests.wire.places import template_tlv as template
from tests.wire.requests import LAYER_MAJOR, Batch, PartRange, Section
from tests.wire.serving_gets import Getting, Memories, frames_of
from tests.wire.session import Session

RING = 64 << 10
PATH = RdmaPath(gid_of("10.9.0.1"), 0x123456, 0xABCDEF, 0x7F00_1234_5000, 0x99, RING, 4096)


def value_of(body: bytes) -> bytes:
    ((_, value),) = parse_tlvs(body)
    return value


def test_a_gid_is_the_address_of_a_device() -> None:
    assert gid_of("10.9.0.1").hex() == "00000000000000000000ffff0a090001"
    assert gid_of("fe80::1")[:2] == b"\xfe\x80"


def test_an_offer_and_its_answer_say_what_was_written() -> None:
    second = replace(PATH, ring_bytes=1 << 20)
    assert len(PATH.encoded()) == 48
    assert offer_of(value_of(offer_tlv([PATH, second]))) == ((1, 1), [PATH, second])
    assert offer_of(value_of(offer_tlv([PATH], (2, 3)))) == ((2, 3), []), "of other versions only the head is looked at"
    assert answer_of(value_of(answer_tlv(second, number=1)), 2).path == second
    assert answer_of(value_of(answer_tlv(None, 3)), 2).refusal == 3
    with pytest.raises(WireFault, match="path 2 of 2"):
        answer_of(value_of(answer_tlv(second, number=2)), 2)
    assert reads_of(value_of(reads_tlv(4)), 4) == 4
    for reads in (0, 5):
        with pytest.raises(WireFault, match=f"RdmaReads {reads} of 4"):
            reads_of(value_of(reads_tlv(reads)), 4)
    for wrong in ({"ring_bytes": 96 << 10}, {"mtu_bytes": 1500}, {"psn": 1 << 24}, {"queue_pair": 1 << 24}):
        with pytest.raises(WireFault):
            answer_of(value_of(answer_tlv(replace(PATH, **wrong))), 1)


def test_positions_go_round_and_past_two_gigabytes() -> None:
    positions = Positions(RING, RING)
    positions.came = positions.taken = positions.told = positions.written = positions.its_taken = ROOM - 4096
    at = positions.came % RING
    assert positions.note((positions.came + 4096) % ROOM, 4096) == (at, 4096)
    assert positions.came == ROOM
    assert positions.next_write(1 << 20) == (at, 4096), "never across the ring's end"
    positions.written += 4096
    assert positions.note(ROOM | 0, 0) == (0, 0)
    assert positions.its_taken == positions.written == ROOM
    assert positions.next_write(1 << 20) == (0, RING)


@pytest.mark.parametrize(
    ("immediate", "count"),
    [
        pytest.param(16, 8, id="more than came with it"),
        pytest.param(0, 0, id="nothing"),
        pytest.param(ROOM - 8, 8, id="gone back"),
        pytest.param(RING + 8, RING + 8, id="past its ring"),
        pytest.param(ROOM | 1, 0, id="room that nobody filled"),
        pytest.param(ROOM | (ROOM - 1), 0, id="room gone back"),
        pytest.param(ROOM | 0, 8, id="room with bytes"),
    ],
)
def test_a_position_that_cannot_be_is_a_fault(immediate: int, count: int) -> None:
    with pytest.raises(WireFault):
        Positions(RING, RING).note(immediate, count)


def test_a_ring_holds_no_more_than_was_told() -> None:
    positions = Positions(RING, RING)
    positions.note(RING // 2, RING // 2)
    positions.note(RING, RING // 2)
    positions.taken = positions.came
    assert positions.room_due()
    with pytest.raises(WireFault, match="free as far as was told"):
        positions.note(RING + 8, 8)


def test_places_say_what_was_written() -> None:
    region = Region(63, 7, 1 << 40, 4096)
    assert region_of(value_of(region.tlv())) == region
    parts = [PlacePart(1 << 33, -4096, 512, 3, -600, 5), PlacePart(0, 1 << 40, 1)]
    assert template_of(value_of(template(15, parts))) == (15, parts)
    assert parts[0].pieces(2) == [Piece((1 << 33) - 8192 - 600 * at, 512, 5) for at in range(3)]
    places = Places([[Piece(1, 2, 3), Piece(1 << 40, 5, 6)], [], [Piece(7, 8, 9)]])
    assert places_of(value_of(places.tlv(2))) == (2, places)
    assert rows_of(value_of(PlaceRows(3, parts, [-1, 1 << 40]).tlv(1))) == (1, 3, [-1, 1 << 40])
    pieces = [Piece(100, 10), Piece(50, 10), Piece(0, 5)]
    assert cut(pieces, 8, 10) == [Piece(108, 2), Piece(50, 8)]
    assert cut(pieces, 20, 5) == [Piece(0, 5)]
    assert cut(pieces, 20, 6) is None


def test_a_get_is_placed_where_it_was_to_be() -> None:
    layout = Layout({"name": "peer"}, [Group(4, (6, 2))])
    section = Section(layout, [b"a", b"b"], component(0), ranges=[PartRange(3, 1), PartRange(0, 1)])
    data = [bytes(range(16)), bytes(range(100, 116))]
    memories = Memories({5: Region(5, 1, 0, 1000)}, {1: [PlacePart(100 * part, 10, 6, region=5) for part in range(4)]})
    getting = Getting([section], [data], LAYER_MAJOR)

    def written(placing: bytes) -> dict[int, int]:
        came = Frame(Op.GET, 1, parse_tlvs(placing))
        memory: dict[int, int] = {}
        for op, _, payload, pieces in frames_of(getting.payloads(), [section], memories.placings(came, [section])):
            assert op == Op.PLACED
            names = [piece.offset + at for piece in pieces for at in range(piece.size)]
            memory |= dict(zip(names, payload, strict=True))
        return memory

    by_rows = written(PlaceRows(1, memories.templates[1], [0, 2]).tlv(0))
    assert by_rows == {300: 14, 301: 15, 320: 114, 321: 115} | {at: at for at in range(6)} | {
        20 + at: 100 + at for at in range(6)
    }
    whole = written(Places([[Piece(0, 3, 5), Piece(50, 9, 5)], [Piece(60, 8, 5)]]).tlv(0))
    assert [whole[at] for at in (0, 1, 2, 50, 51, 52, 53, 54)] == [14, 15, 0, 1, 2, 3, 4, 5]
    assert [whole[60 + at] for at in range(8)] == [114, 115, *range(100, 106)]


@pytest.fixture
def session() -> Iterator[Session]:
    daemon = Daemon("127.0.0.1")
    with Session.connect(daemon.address) as connected:
        yield connected
    daemon.close()


def test_its_daemon_and_its_client_agree(session: Session) -> None:
    layout = Layout({"name": "peer"}, [Group(0, (262_144,)), Group(4, (6000, 2000))])
    assert layout_of(layout.canonical).id == layout.id
    values = Section(layout, [b"a", b"none", b"b"], stop_at_miss=True)
    parted = Section(layout, [b"a"], component(1), ranges=[PartRange(1, 2, 2)])
    data = [b"a" * 600_000, b"b"]
    kept = replace(values, keys=[b"a", b"b"])
    assert {str(each) for each in puts.put_bytes(session, kept, data)} == {"ok(stored)"}
    assert {str(each) for each in puts.put_bytes(session, kept, data)} == {"ok(present)"}
    assert puts.put_bytes(session, replace(parted, ranges=()), [b"p" * 16_000])[0].ok
    assert gets.match(session, [values], with_lengths=True).lengths[0] == {0: 600_000, 1: 0, 2: 1}
    assert gets.get(session, [kept]).blocks() == data
    assert [str(each) for each in gets.get(session, [values]).statuses[0]] == ["ok", "miss(absent)", "miss(skipped)"]
    got = gets.get(session, [parted, kept], Batch(order=LAYER_MAJOR))
    assert got.arrivals.order[:3] == [(0, 0, 1), (1, 0, 0), (1, 1, 0)]
    assert got.arrivals.parts[0, 0, 3] == b"p" * 2000
    refused = session.ask(Op.REGISTER_REGION, Region(0, 0, 0, 4096).tlv())
    assert struct.unpack_from("<BBH", refused.one(Kind.STATUSES), 16) == (6, 0, 51), "no rings, no regions"
