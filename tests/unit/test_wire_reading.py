"""The client in plain Python (tests/wire) notices a server that breaks a rule of docs/wire-protocol.md."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from tests.torture.content import noise_of
from tests.wire import chunks
from tests.wire.answers import Status, Tally, lengths, match_bits, whole
from tests.wire.checksums import crc32c, name_number, part_check, shard_of
from tests.wire.frames import Aborted, Closed, Frame, Kind, Op, WireFault, frame, read_frame, tlv
from tests.wire.layouts import Group, Layout
from tests.wire.puts import plain
from tests.wire.requests import PartRange, PartRecord, Section, part_table_tlv

LOAD = tlv(Kind.LOAD, bytes(16))
LAYOUT = Layout({"name": "reading"}, [Group(4, (8, 4))])
KEYS = [b"a", b"b"]
BLOCK = bytes(range(24))


class Bytes:
    """A stream that ends."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def receive(self, count: int, timeout_s: float) -> bytes:
        if len(self.data) < count:
            raise Closed
        taken, self.data = self.data[:count], self.data[count:]
        return taken


def read(data: bytes) -> Frame:
    return read_frame(Bytes(data), 0)


def crc_by_bits(data: bytes) -> int:
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (0x82F63B78 if state & 1 else 0)
    return state ^ 0xFFFFFFFF


@pytest.mark.parametrize("size", [0, 1, 9, 255, 256, 767, 768, 769, 1023, 1024, 1025, 5000])
def test_crc32c_is_that_of_its_definition_at_every_length(size: int) -> None:
    data = noise_of(b"crc", size).tobytes()
    assert crc32c(data) == crc_by_bits(data)
    assert crc32c(b"123456789") == 0xE3069283


def test_routes_are_below_the_number_of_shards() -> None:
    assert {shard_of(b"%d" % key, 16) for key in range(1000)} == set(range(16))


def test_no_changed_bit_of_a_frame_is_read() -> None:
    good = frame(Op.FINAL, 5, LOAD + tlv(Kind.REASON, b"why"))
    assert read(good).reason == "why"
    for bit in range(len(good) * 8):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        with pytest.raises((WireFault, Closed)):
            read(bytes(bad))


@pytest.mark.parametrize(
    "lie",
    [
        frame(Op.FINAL, 5),  # no Load
        frame(Op.FINAL, 5, LOAD * 2),
        frame(Op.FINAL, 5, LOAD, flags=1),
        frame(Op.FINAL, 5, LOAD, reserved=1),
        frame(Op.FINAL, 0, LOAD),
        frame(Op.FINAL, 5, LOAD, b"payload!"),
        frame(Op.FINAL, 5, LOAD + b"\0\0\0\0\1\0\0\0"),  # a TLV without its value
        frame(Op.FINAL, 5, LOAD + b"\1\0\1\0\0\0\0\0"),  # a reserved field
        frame(Op.FINAL, 5, LOAD + tlv(Kind.REASON, b"why")[:-1] + b"x"),  # padding
        frame(Op.FINAL, 5, LOAD[:-4]),
        frame(Op.STAT, 5, LOAD),
        frame(Op.ABORT, 5),
        frame(Op.CHUNK, 5, body_bytes=(64 << 10) + 8),
        frame(Op.CHUNK, 5, payload_bytes=(256 << 10) + 1),
        frame(Op.FINAL, 5, body_bytes=(2 << 20) + 8),
    ],
)
def test_a_frame_that_lies_is_a_fault(lie: bytes) -> None:
    with pytest.raises(WireFault):
        read(lie)


def test_an_abort_says_why() -> None:
    with pytest.raises(Aborted, match="because"):
        read(frame(Op.ABORT, 0, tlv(Kind.REASON, b"because")))


def statuses(section: int, *runs: tuple[int, ...], flags: int = 0) -> Frame:
    value = struct.pack("<HHI", section, flags, len(runs)) + b"".join(struct.pack("<IIBBH", *run) for run in runs)
    return Frame(Op.FINAL, 1, [(Kind.STATUSES, value)])


def test_items_take_the_answer_of_the_whole_request_unless_they_have_their_own() -> None:
    tally = Tally([3], [False])
    tally.add(statuses(0, (1, 1, 1, 0, 2)))
    tally.add(statuses(0xFFFF, (0, 1, 3, 0, 0)))
    assert tally.settled() == [[Status(3), Status(1, 2), Status(3)]]


@pytest.mark.parametrize(
    "lie",
    [
        statuses(0, (0, 4, 1, 0, 0)),  # past the items
        statuses(1, (0, 1, 1, 0, 0)),  # of no section
        statuses(0, (0, 0, 1, 0, 0)),  # of nothing
        statuses(0, (0, 1, 0, 0, 0)),  # pending
        statuses(0, (0, 1, 1, 1, 0)),  # a zero field
        statuses(0, (0, 1, 1, 0, 0), flags=1),  # by part
        statuses(0, (0, 2, 1, 0, 0), (1, 1, 1, 0, 0)),  # twice
        statuses(0xFFFF, (0, 2, 1, 0, 0)),
    ],
)
def test_answers_that_lie_are_a_fault(lie: Frame) -> None:
    with pytest.raises(WireFault):
        Tally([3], [False]).add(lie)


def test_an_item_without_an_answer_is_a_fault() -> None:
    tally = Tally([2], [False])
    tally.add(statuses(0, (0, 1, 1, 0, 0)))
    with pytest.raises(WireFault):
        tally.settled()
    with pytest.raises(WireFault):
        whole(Frame(Op.FINAL, 1, []))


def test_bits_and_lengths_have_their_size() -> None:
    def of(kind: Kind, value: bytes) -> Frame:
        return Frame(Op.FINAL, 1, [(kind, value)])

    assert match_bits(of(Kind.MATCH_BITS, struct.pack("<HHIBB", 2, 0, 9, 0x81, 1))) == {2: [True, *[False] * 6, True, True]}
    for lie in (struct.pack("<HHIBB", 0, 0, 9, 0, 2), struct.pack("<HHIB", 0, 0, 9, 0), struct.pack("<HHIB", 0, 1, 8, 0)):
        with pytest.raises(WireFault):
            match_bits(of(Kind.MATCH_BITS, lie))
    assert lengths(of(Kind.LENGTHS, struct.pack("<HHIII2I", 0, 0, 5, 2, 0, 7, 8))) == {0: {5: 7, 6: 8}}
    with pytest.raises(WireFault):
        lengths(of(Kind.LENGTHS, struct.pack("<HHIII", 0, 0, 5, 2, 0)))


def section(**changed: Any) -> Section:
    return Section(LAYOUT, KEYS, **changed)


def chunk(payload: bytes, checks: list[int], tables: bytes = b"", **changed: int) -> Frame:
    """A chunk of one run: item 0, part 0, unless changed."""
    fields = {"section": 0, "flags": 0, "item": 0, "part": 0, "part_count": 1, "offset": 0}
    fields |= {"bytes": len(payload), "block_bytes": 24, "check_count": len(checks)} | changed
    body = chunks.runs_tlv([chunks.Run(**fields)], checks)
    return Frame(Op.CHUNK, 1, read(frame(Op.CHUNK, 1, tables + body, payload)).tlvs, payload)


def check(part: int, data: bytes, item: int = 0) -> int:
    return part_check(name_number(LAYOUT.id, 0, KEYS[item]), part, data)


def test_what_is_cut_is_put_together_again() -> None:
    block = noise_of(b"cut", 700_000).tobytes()
    layout = Layout({}, [Group(0, (300_000, 1000))])
    whole_section = Section(layout, [b"k"])
    blocks = [plain(whole_section, each) for each in (block, *[block[item:][:700] for item in range(600)])]
    arrivals = chunks.Arrivals([Section(layout, [b"%d" % item for item in range(601)])])
    runs = [run for item, each in enumerate(blocks) for run in chunks.runs_of(arrivals.sections[0], 0, item, each)]
    sent = list(chunks.packed(runs))
    assert len(sent) < 10, "small blocks share a chunk"
    for body, payload in sent:
        arrivals.add(read(frame(Op.CHUNK, 1, body, payload)))
    assert b"".join(arrivals.parts[0, 0, part] for part in range(5)) == block
    assert [arrivals.parts[0, item, 0] for item in range(1, 601)] == [block[item:][:700] for item in range(600)]
    assert arrivals.bad_checks == []


def test_a_part_under_another_name_does_not_pass() -> None:
    arrivals = chunks.Arrivals([section()])
    arrivals.add(chunk(BLOCK[:8], [check(0, BLOCK[:8], item=1)]))
    arrivals.add(chunk(BLOCK[:4], [check(3, BLOCK[:4])], part=1))
    assert arrivals.parts == {}
    assert arrivals.bad_checks == [(0, 0, 0), (0, 0, 1)]


FIRST = [check(0, BLOCK[:8])]


@pytest.mark.parametrize(
    "lie",
    [
        chunk(BLOCK[:8], FIRST, section=1),
        chunk(BLOCK[:8], FIRST, item=2),
        chunk(BLOCK[:8], FIRST, part=4),
        chunk(BLOCK[:8], FIRST, part=1, part_count=4),
        chunk(BLOCK[:8], FIRST, part=3),  # not asked for
        chunk(BLOCK[:8], FIRST, block_bytes=25),
        chunk(BLOCK[:8], FIRST, flags=4),
        chunk(BLOCK[:8], FIRST, flags=2),  # coded, without its table
        chunk(BLOCK[:8], FIRST, bytes=7),  # payload of no run
        chunk(BLOCK[:8], FIRST, bytes=9),
        chunk(BLOCK[:8], FIRST, check_count=0),
        chunk(BLOCK[:8], FIRST, check_count=2),
        chunk(BLOCK[:4], FIRST, offset=0),  # a check of a piece that is not the last
        chunk(BLOCK[:4], [], offset=4),  # a piece before the first
        chunk(BLOCK[:8], FIRST, flags=1),  # aborted, and not zeros
    ],
)
def test_a_chunk_that_lies_is_a_fault(lie: Frame) -> None:
    with pytest.raises(WireFault):
        chunks.Arrivals([section(ranges=[PartRange(0, 3)])]).add(lie)


def test_a_part_that_comes_twice_is_a_fault() -> None:
    arrivals = chunks.Arrivals([section()])
    arrivals.add(chunk(BLOCK[:8], FIRST))
    with pytest.raises(WireFault):
        arrivals.add(chunk(BLOCK[:8], FIRST))


def test_an_aborted_run_voids_the_pieces_before_it() -> None:
    arrivals = chunks.Arrivals([section()])
    arrivals.add(chunk(BLOCK[:4], []))
    arrivals.add(chunk(bytes(2), [0], flags=1))
    arrivals.add(chunk(BLOCK[:4], []))
    arrivals.add(chunk(BLOCK[4:8], FIRST, offset=4))
    assert arrivals.parts == {(0, 0, 0): BLOCK[:8]}


def test_coded_parts_have_the_lengths_of_their_table() -> None:
    table = [PartRecord(3, 2, 8, 0), PartRecord(0, 4, 4, 0), PartRecord(3, 1, 8, 0), PartRecord(0, 4, 4, 0)]
    arrivals = chunks.Arrivals([section()])
    arrivals.add(chunk(b"xy", [check(0, b"xy")], part_table_tlv(0, 0, table), flags=2))
    assert arrivals.parts == {(0, 0, 0): b"xy"}
    with pytest.raises(WireFault):
        arrivals.add(chunk(b"xyz", [check(2, b"xyz")], flags=2, part=2))
