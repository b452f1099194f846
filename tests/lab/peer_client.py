"""The peer as a client of `halfstep serve`: rings that go round many times, placed gets, refusals, gets that are called off."""

from __future__ import annotations

import random
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tests.lab.blocks import Daemon
from tests.lab.steps import check, wait_for
from tests.wire import catalog, gets, placed, puts
from tests.wire.answers import Status, whole
from tests.wire.frames import Aborted, Closed, Kind, Op, tlv
from tests.wire.layouts import Group, Layout, component
from tests.wire.paths import ROOM, RdmaPath, Refusal, gid_of, offer_tlv
from tests.wire.places import Piece, PlacePart, PlaceRows, Places, Placing, Region
from tests.wire.rdma import RdmaEnd, RdmaRefused, RdmaSession
from tests.wire.requests import LAYER_MAJOR, Batch, PartRange, Section
from tests.wire.session import Refused, Session
from tests.wire.streams import SocketStream
from tests.wire.verbs import Device, Memory

PATIENCE_S = 240.0
RING_BYTES = 64 << 10  # the smallest that there is, so that it goes round often
LARGE_BYTES = 4 << 20
GUARD = 0xA5
VALUES = Layout({"name": "peer", "of": "values"})
# Two groups: values, and 8 parts of 6,000 and 2,000 bytes in turn.
PARTED = Layout({"name": "peer", "of": "parts"}, [Group(0, (262_144,)), Group(8, (6000, 2000))])
PARTED_BYTES = 4 * 8000


def run(device: Device, address: str) -> None:
    """All steps of the client. Errors: DoesNotHold."""
    with tempfile.TemporaryDirectory(prefix="halfstep-lab-") as directory:
        daemon = Daemon(Path(directory), address)
        try:
            daemon.start()
            rings(daemon, device)
            with RdmaSession.over(daemon.address, device) as session, pool(device, session) as memory:
                places(session, memory)
                rows(session, memory)
                not_placed(session, memory)
                own_keys(session, memory)
                refused(session, memory)
                called_off(session, memory)
            reads(daemon, device)
            offers(daemon, device)
            misbehaves(daemon, device)
        finally:
            print(daemon.log_end(), flush=True)
            daemon.close()


def content(seed: int, size: int) -> bytes:
    """Of a block."""
    return random.Random(seed).randbytes(size)


def put(session: Session, section: Section, data: Sequence[bytes]) -> None:
    """Until all of it is there: an emulated client may be slower than a put is waited for, and is throttled then."""
    until = time.monotonic() + PATIENCE_S
    said = [""]
    while set(said) - {"ok(stored)", "ok(present)"} and time.monotonic() < until:
        said = [str(status) for status in puts.put_bytes(session, section, data)]
        answers = {status.partition("(")[0] for status in said}
        check(answers <= {"ok", "throttled", "late"}, f"put of {[len(each) for each in data]} bytes: {said}")
    check(set(said) <= {"ok(stored)", "ok(present)"}, "all of them are stored")


# --- rings ---


def rings(daemon: Daemon, device: Device) -> None:
    """Sizes around those of parts and chunks, and rings of 64 KiB that go round dozens of times in both directions."""
    sizes = [1, 4095, 65_537, 262_143, 262_145, 1_500_001, LARGE_BYTES]
    keys = [b"ring %d" % size for size in sizes]
    data = [content(size, size) for size in sizes]
    section = Section(VALUES, keys)
    with RdmaSession.over(daemon.address, device, ring_bytes=RING_BYTES) as session:
        check(bool(session.server.features & placed.FEATURE_PLACE), "the daemon says that it places")
        check(gets.match(session, [section]).present == [[False] * len(keys)], "nothing is there")
        put(session, section, data)
        check(gets.match(session, [section]).present == [[True] * len(keys)], "all is there")
        check(gets.get(session, [section]).blocks() == data, "and is what was put")
        large = Section(VALUES, keys[-1:])
        waiting = gets.begin(session, [large])
        time.sleep(2)  # the daemon fills the ring, and may not write on: Positions.note() looks at each position
        check(waiting.finish(PATIENCE_S).blocks() == data[-1:], "after a pause the ring goes on")
        positions = session.rings.positions
        turns = positions.came // RING_BYTES, positions.written // positions.its_bytes
        check(turns[0] >= 100 and turns[1] >= 1, f"rings went round {turns} times")
        rooms = session.rings.rooms, session.rings.its_rooms
        check(rooms[0] >= turns[0] and rooms[1] >= turns[1], f"and room was told {rooms} times")
        check(catalog.stat(session)["halfstep_connections_rdma"] == 1, "the daemon counts one connection over RDMA")
    wait_for(lambda: connections(daemon) == 0, "the daemon lets go of the rings")


def connections(daemon: Daemon) -> int:
    """Of the daemon's over RDMA, asked over TCP."""
    with Session.connect(daemon.address) as session:
        return catalog.stat(session)["halfstep_connections_rdma"]


# --- placed gets ---


class Pool:
    """Memory that the daemon writes into, with guards wherever it was told to write nothing."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.clear()

    def clear(self) -> None:
        """All of it is guards."""
        self.memory.view[:] = bytes([GUARD]) * len(self.memory.view)

    def expect(self, what: str, found: Sequence[tuple[Sequence[Piece], bytes]]) -> None:
        """Each row of pieces holds these bytes, and everything else is as it was."""
        wanted = bytearray([GUARD]) * len(self.memory.view)
        for pieces, data in found:
            for piece in pieces:
                laid, data = data[: piece.size], data[piece.size :]
                wanted[piece.offset : piece.offset + len(laid)] = laid
            if data:
                check(False, f"{what}: the pieces have room")
        check(self.memory.view[:] == bytes(wanted), f"{what}: every byte is where it was to be, and no other was written")


@contextmanager
def pool(device: Device, session: Session) -> Iterator[Pool]:
    """Region 5, of 5 MiB and a bit."""
    memory = Memory(device, (5 << 20) + 4096, remote="write")
    check(placed.register_region(session, 5, memory).ok, "a region is registered")
    try:
        yield Pool(memory)
    finally:
        session.close()  # the daemon has no way to it any more
        memory.close()


def got(session: Session, memory: Pool, section: Section, placing: Placing, order: int = 0) -> placed.Targets:
    """A get of one section, whose statuses are all ok."""
    memory.clear()
    one = placed.get(session, [section], {0: placing}, {5: memory.memory}, Batch(order=order))
    texts = {str(status) for status in one.statuses[0]}
    check(texts == {"ok"} and not one.arrivals.bad_checks, f"a placed get: {texts}, wrong checks {one.arrivals.bad_checks}")
    assert isinstance(one.targets, placed.Targets)
    return one.targets


def places(session: Session, memory: Pool) -> None:
    """Whole blocks over pieces: one each, several of odd lengths, more room than bytes, several items in one request."""
    sizes = [1, 5000, 262_144, 700_001]
    section = Section(VALUES, [b"placed %d" % size for size in sizes])
    data = [content(size + 1, size) for size in sizes]
    put(session, section, data)
    whole_pieces = [[Piece(at, size, 5)] for at, size in zip((64, 200, 8192, 300_001), sizes, strict=True)]
    targets = got(session, memory, section, Places(whole_pieces))
    memory.expect("a piece for each block", list(zip(whole_pieces, data, strict=True)))
    check(targets.placed_bytes == sum(sizes), f"{targets.placed_bytes} bytes were placed, in {targets.frames} frames")
    odd = [
        [Piece(10, 1, 5)],
        [Piece(6001, 999, 5), Piece(100, 4001, 5)],
        [Piece(1_000_000 + 3 * at * 16_384, 16_384, 5) for at in range(16)],
        [Piece(2_000_000, 300_000, 5), Piece(4_000_000, 500_000, 5)],
    ]
    targets = got(session, memory, section, Places(odd))
    memory.expect("pieces of odd lengths", list(zip(odd, data, strict=True)))
    check(targets.placed_bytes == sum(sizes), "and all of it was placed")


def rows(session: Session, memory: Pool) -> None:
    """Rows of a template: parts apart from each other, inner pieces, strides below zero, chosen parts, layers first."""
    section = Section(PARTED, [b"row %d" % n for n in range(3)], component(1))
    data = [content(n + 77, PARTED_BYTES) for n in range(3)]
    put(session, section, data)
    # Part 2k: 6,000 bytes in one piece; part 2k + 1: 2,000 in four pieces of 500, backwards.
    template = [
        PlacePart(200_000 * (part + 1), -10_000, 6000, region=5)
        if part % 2 == 0
        else PlacePart(200_000 * (part + 1), 3000, 500, inner_count=4, inner_stride=-600, region=5)
        for part in range(8)
    ]
    check(placed.register_template(session, 3, template).ok, "a template is registered")
    placing = PlaceRows(3, template, [2, 0, 7])

    def part_of(item: int, part: int) -> bytes:
        begins = part // 2 * 8000 + part % 2 * 6000
        return data[item][begins : begins + (2000 if part % 2 else 6000)]

    def wanted(parts: Sequence[int]) -> list[tuple[Sequence[Piece], bytes]]:
        return [(template[part].pieces(row), part_of(item, part)) for item, row in enumerate(placing.rows) for part in parts]

    targets = got(session, memory, section, placing)
    memory.expect("rows of a template", wanted(range(8)))
    check(targets.placed_bytes == 3 * PARTED_BYTES, f"{targets.placed_bytes} bytes were placed, in {targets.frames} frames")
    some = replace(section, ranges=[PartRange(1, 2, 4), PartRange(6, 1)])
    targets = got(session, memory, some, placing, LAYER_MAJOR)
    memory.expect("chosen parts of rows, layers first", wanted([1, 5, 6]))
    check(targets.placed_bytes == 3 * 10_000, "and all of them were placed")
    apart = Places([[Piece(50_000 * item + 7, 10_000, 5)] for item in range(3)])
    got(session, memory, some, apart)
    chosen = [b"".join(part_of(item, part) for part in (1, 5, 6)) for item in range(3)]
    memory.expect("chosen parts back to back", [(apart.items[item], chosen[item]) for item in range(3)])
    check(placed.register_template(session, 3, template[:2]).ok, "a template is registered again, with two parts")
    targets = got(session, memory, replace(section, ranges=[PartRange(1, 1)]), replace(placing, parts=template[:2]))
    memory.expect("a part that it has", wanted([1]))
    memory.clear()
    one = placed.get(session, [section], {0: replace(placing, parts=template[:2])}, {5: memory.memory})
    assert isinstance(one.targets, placed.Targets)
    check(one.blocks() == data, "of a template with fewer parts than the blocks the rest comes in Chunks")
    check(one.targets.placed_bytes in (0, 3 * 8000), f"and {one.targets.placed_bytes} bytes are placed")
    roomy = [PlacePart(64, 0, 3000, inner_count=2, inner_stride=4000, region=5)]
    check(placed.register_template(session, 4, roomy).ok, "a template with more room than bytes")
    got(session, memory, Section(VALUES, [b"placed 5000"]), PlaceRows(4, roomy, [9]))
    memory.expect("more room than bytes", [(roomy[0].pieces(9), content(5001, 5000))])


def not_placed(session: Session, memory: Pool) -> None:
    """What the page says comes in Chunks instead: an unknown region, an unknown template, a block that does not fit."""
    section = Section(VALUES, [b"placed 5000"])
    data = content(5001, 5000)
    for what, placing in (
        ("a region never registered", Places([[Piece(0, 5000, 6)]])),
        ("a template never registered", PlaceRows(9, [PlacePart(0, 0, 5000, region=5)], [0])),
        ("pieces that are too short", Places([[Piece(0, 4999, 5)]])),
        ("no pieces", Places([[]])),
        ("33 pieces", Places([[Piece(at * 300, 152, 5) for at in range(33)]])),
    ):
        memory.clear()
        one = placed.get(session, [section], {0: placing}, {5: memory.memory})
        assert isinstance(one.targets, placed.Targets)
        check(one.blocks() == [data] and one.targets.frames == 0, f"{what}: the bytes come in a Chunk")
        memory.expect(what, [])
    small = Memory(session.rings.end.device, 4096, remote="write") if isinstance(session, RdmaSession) else None
    assert small is not None
    check(placed.register_region(session, 7, small).ok, "another region")
    check(placed.register_region(session, 7, small, 0).ok, "is forgotten")
    one = placed.get(session, [section], {0: Places([[Piece(0, 4096, 7), Piece(0, 4096, 5)]])}, {5: memory.memory, 7: small})
    check(one.blocks() == [data] and not any(small.view[:]), "and nothing is placed there any more")
    small.close()


def own_keys(session: Session, memory: Pool) -> None:
    """Regions that a request brings: no other knows them, and they come before those of the connection."""
    check(bool(session.server.features & placed.FEATURE_KEYS), "the daemon takes keys of a request's own")
    section, data = Section(VALUES, [b"placed 5000"]), content(5001, 5000)
    assert isinstance(session, RdmaSession)
    other = Memory(session.rings.end.device, 8192, remote="write")
    for number in (8, 5):
        other.view[:] = bytes(8192)
        memory.clear()
        own = Region(number, other.key, other.address, 8192)
        one = placed.get(session, [section], {0: Places([[Piece(100, 5000, number)]])}, {number: other}, keys=[own])
        assert isinstance(one.targets, placed.Targets)
        check(one.blocks() == [data] and one.targets.placed_bytes == 5000, f"a region {number} that the request brings")
        check(other.view[100:5100] == data and not any(other.view[5100:]), "the bytes lie there")
        memory.expect("and nowhere else", [])
    other.view[:] = bytes(8192)
    one = placed.get(session, [section], {0: Places([[Piece(100, 5000, 8)]])}, {8: other})
    check(one.blocks() == [data] and not any(other.view[:]), "the next request does not have it")
    other.close()


def refused(session: Session, memory: Pool) -> None:
    """Places that leave their region, and structures that do not parse, are `rejected(malformed)`: the connection goes on."""
    section = Section(VALUES, [b"placed 5000"])
    size = len(memory.memory.view)
    row = PlacePart(0, 4096, 5000, region=5)
    check(placed.register_template(session, 1, [row]).ok, "a template")
    placings: dict[str, bytes] = {
        "a byte past the region": Places([[Piece(size - 4999, 5000, 5)]]).tlv(0),
        "an offset that wraps": Places([[Piece((1 << 64) - 8, 5000, 5)]]).tlv(0),
        "a row before the region": PlaceRows(1, [row], [-1]).tlv(0),
        "a row behind the region": PlaceRows(1, [row], [1 << 40]).tlv(0),
        "a row beyond 64 bits": PlaceRows(1, [row], [(1 << 63) - 1]).tlv(0),
        "a section that is not there": Places([[Piece(0, 5000, 5)]]).tlv(1),
        "places of two items": Places([[Piece(0, 5000, 5)], []]).tlv(0),
        "two Places": Places([[Piece(0, 5000, 5)]]).tlv(0) * 2,
        "a piece of no bytes": Places([[Piece(0, 0, 5)]]).tlv(0),
        "pieces of nobody": tlv(Kind.PLACES, struct.pack("<HHIII", 0, 0, 1, 1, 0) + Piece(0, 9, 5).encoded() + bytes(4)),
    }
    memory.clear()
    for what, places_tlv in placings.items():
        body = Batch().tlv() + session.sections([section]) + places_tlv
        answer = whole(session.final(session.send(Op.GET, body)))
        check(str(answer) == "rejected(malformed)", f"{what}: {answer}")
    before = Places([[Piece(0, 5000, 5)]]).tlv(0) + session.sections([section])
    answer = whole(session.final(session.send(Op.GET, Batch().tlv() + before)))
    check(str(answer) == "rejected(malformed)", f"Places before their section: {answer}")
    memory.expect("requests that were refused", [])
    for what, answer in {
        "region 64": placed.register_region(session, 64, memory.memory),
        "template 16": placed.register_template(session, 16, [row]),
        "a template of 2,561 parts": placed.register_template(session, 2, [row] * 2561),
        "a template with an inner count of 0": placed.register_template(session, 2, [replace(row, inner_count=0)]),
    }.items():
        check(str(answer) == "rejected(malformed)", f"{what}: {answer}")
    answers = [str(placed.register_template(session, number, [row] * 2560)) for number in (10, 11, 12, 13)]
    check(answers == ["ok"] * 3 + ["rejected(limit)"], f"templates of 2,560 parts, one after the other: {answers}")
    check([str(placed.register_template(session, n, [])) for n in (10, 11, 12)] == ["ok"] * 3, "they are forgotten")


def called_off(session: Session, memory: Pool) -> None:
    """A Cancel while the daemon waits for room in the ring, between two sections that it places."""
    keys = [b"called off %d" % n for n in range(4)]
    first, between, last = (Section(VALUES, keys[start:end]) for start, end in ((0, 1), (1, 3), (3, 4)))
    data = [content(n + 1000, 1 << 20) for n in range(4)]
    put(session, Section(VALUES, keys), data)
    placings = {0: Places([[Piece(0, 1 << 20, 5)]]), 2: Places([[Piece(2 << 20, 1 << 20, 5)]])}
    targets = {(0, 0): (0, data[0]), (2, 0): (2 << 20, data[3])}
    said = set()
    for round_number in range(5):
        memory.clear()
        one = placed.begin(session, [first, between, last], placings, {5: memory.memory})
        time.sleep(0.1 * round_number)
        cancel = session.send(Op.CANCEL, tlv(Kind.CANCEL_TARGET, struct.pack("<Q", one.request_id)))
        time.sleep(0.5)  # nothing is taken out of the ring meanwhile, which has room for an eighth of what is between
        one.finish(PATIENCE_S)
        then = memory.memory.view[:]
        said |= {str(status) for row in one.statuses for status in row}
        for (number, item), (at, block) in targets.items():
            right = not one.statuses[number][item].ok or then[at : at + len(block)] == block
            check(right, f"round {round_number}: section {number} is {one.statuses[number][item]}")
            then_beside = then[at + len(block) : at + len(block) + (1 << 20)]
            check(then_beside == bytes([GUARD]) * (1 << 20), "nothing beside its target was written")
        answer = whole(session.final(cancel))
        check(str(answer) in ("ok", "miss(absent)"), f"the Cancel: {answer}")
        check(gets.match(session, [last]).present == [[True]], "the daemon answers")
        time.sleep(0.05)
        check(memory.memory.view[:] == then, "nothing was written after the Final")
    check("cancelled" in said, f"gets were cancelled before their end: {said}")


# --- puts that the daemon reads ---


def reads(daemon: Daemon, device: Device) -> None:
    """Blocks read from a region and from rows of a template; a byte that changes meanwhile, and memory that nobody may read."""
    memory = Memory(device, 2 << 20, remote="read write")
    sizes = [1, 5000, 262_144, 700_001]
    section = Section(VALUES, [b"read %d" % size for size in sizes])
    data = [content(size + 2, size) for size in sizes]
    pieces = [
        [Piece(11, 1, 5)],
        [Piece(7001, 999, 5), Piece(100, 4001, 5)],
        [Piece(1_000_000 + at * 16_500, 16_384, 5) for at in range(16)],
        [Piece(200_000, 700_001, 5)],
    ]
    parted = Section(PARTED, [b"read row"], component(1))
    template = [PlacePart(1_400_000 + 10_000 * part, 100, 2000 if part % 2 else 6000, region=5) for part in range(8)]
    row = content(99, PARTED_BYTES)
    with RdmaSession.over(daemon.address, device, reads=4) as session:
        check(1 <= session.reads <= 4, f"the daemon has {session.reads} reads out at once")
        check(placed.register_region(session, 5, memory).ok, "a region to read from")
        check(placed.register_template(session, 1, template).ok, "a template to read by")
        for found, block in zip(pieces, data, strict=True):
            lay(memory, found, block)
        lay(memory, [part.pieces(3)[0] for part in template], row)
        before, then = catalog.stat(session)["halfstep_rdma_pulled_bytes_total"], memory.view[:]
        rows_of_blocks = [[puts.plain(section, each) for each in data], [puts.plain(parted, row)]]
        one = placed.begin_put(session, [section, parted], rows_of_blocks, {0: Places(pieces), 1: PlaceRows(1, template, [3])})
        said = {str(status) for answers in one.finish(PATIENCE_S) for status in answers}
        check(said == {"ok(stored)"}, f"a put whose bytes are read: {said}")
        total = sum(sizes) + PARTED_BYTES
        pulled = catalog.stat(session)["halfstep_rdma_pulled_bytes_total"] - before
        check(one.read_bytes == pulled == total, f"{pulled} bytes were read, {one.read_bytes} of {total} were told of")
        check(memory.view[:] == then, "the memory is as it was")
        check(gets.get(session, [section]).blocks() == data, "blocks are what lay there")
        check(gets.get(session, [parted]).blocks() == [row], "and so are parts of rows")
        changed = Section(VALUES, [b"changed"])
        one = placed.begin_put(session, [changed], [[puts.plain(changed, data[1])]], {0: Places(pieces[1:2])})
        memory.view[100] ^= 1
        answer = str(one.finish(PATIENCE_S)[0][0])
        check(answer == "rejected(checksum)", f"a byte that changed: {answer}")
        check(gets.match(session, [changed]).present == [[False]], "is not there")
    refused_reads(daemon, device)
    memory.close()


def lay(memory: Memory, pieces: Sequence[Piece], data: bytes) -> None:
    """The bytes over the pieces."""
    for piece in pieces:
        memory.view[piece.offset : piece.offset + piece.size] = data[: piece.size]
        data = data[piece.size :]


def refused_reads(daemon: Daemon, device: Device) -> None:
    """Memory that allows writes alone, and a Placed without places: the connection ends, and nothing is stored."""
    memory = Memory(device, 8192, remote="write")
    section, data = Section(VALUES, [b"never read"]), content(5, 5000)
    for what, placings in (
        ("memory that nobody may read", {0: Places([[Piece(0, 5000)]])}),
        ("a Placed of a section without places", {}),
    ):
        session = RdmaSession.over(daemon.address, device, reads=1)
        check(placed.register_region(session, 0, memory).ok, "a region")
        one = placed.begin_put(session, [section], [[puts.plain(section, data)]], placings)
        one.placings = {0: Places([[Piece(0, 5000)]])}
        how = "a Final"
        try:
            one.finish(PATIENCE_S)
        except (Closed, Aborted) as error:
            how = f"{type(error).__name__}: {error}"
        check(how != "a Final", f"{what}: the connection ends ({how})")
        session.close()
    memory.close()
    with Session.connect(daemon.address) as other:
        check(gets.match(other, [section]).present == [[False]], "nothing of it is there")


# --- offers, and a client that breaks the rules ---


def offers(daemon: Daemon, device: Device) -> None:
    """Those that the page refuses: the stream stays on its socket; one that does not parse ends the connection."""
    other = gid_of("10.9.0.77")
    for what, gid, versions, refusal in (
        ("a gid that is not the client's address", other, (1, 1), Refusal.NO_PATH),
        ("versions 2 and 3", device.gid, (2, 3), Refusal.VERSION),
    ):
        end = RdmaEnd(device, RING_BYTES)
        stream = SocketStream.connect(daemon.address)
        session = RdmaSession(stream, more=offer_tlv([replace(end.path, gid=gid)], versions))
        refused_with = None
        try:
            session.switch(stream, end)
        except RdmaRefused as error:
            refused_with = error.args[0]
        check(refused_with == refusal, f"{what}: refusal {refused_with}")
        there = gets.match(session, [Section(VALUES, [b"placed 5000"])]).present
        check(there == [[True]], "and the stream goes on over its socket")
        answer = placed.register_region(session, 0, end.ring)
        check(str(answer) == "rejected(unsupported)", f"a region without rings: {answer}")
        session.close()
        end.close()
    end = RdmaEnd(device, RING_BYTES)
    two = offer_tlv([replace(end.path, gid=other), end.path])
    stream = SocketStream.connect(daemon.address)
    session = RdmaSession(stream, more=two)
    check(struct.unpack_from("<H", session.hello.one(Kind.RDMA_ANSWER), 4)[0] == 1, "of two paths the one that is right")
    session.close()
    malformed(daemon, end.path)
    end.close()


def malformed(daemon: Daemon, path: RdmaPath) -> None:
    """Offers that do not parse."""
    head = struct.pack("<HHHH", 1, 1, 1, 0)
    for what, more in {
        "no path": tlv(Kind.RDMA_OFFER, struct.pack("<HHHH", 1, 1, 0, 0)),
        "five paths": offer_tlv([path] * 5),
        "a path too few": tlv(Kind.RDMA_OFFER, struct.pack("<HHHH", 1, 1, 2, 0) + path.encoded()),
        "a head that is short": tlv(Kind.RDMA_OFFER, head[:4]),
        "a ring of 96 KiB": offer_tlv([replace(path, ring_bytes=96 << 10)]),
        "a ring of 128 MiB": offer_tlv([replace(path, ring_bytes=128 << 20)]),
        "an MTU of 1500": offer_tlv([replace(path, mtu_bytes=1500)]),
        "a queue pair of 25 bits": offer_tlv([replace(path, queue_pair=1 << 24)]),
        "a psn of 25 bits": offer_tlv([replace(path, psn=1 << 24)]),
        "two offers": offer_tlv([path]) * 2,
    }.items():
        try:
            Session(SocketStream.connect(daemon.address), more=more).close()
            answer: Status | str = "ok"
        except Refused as error:
            answer = error.status
        check(str(answer) == "rejected(malformed)", f"{what}: {answer}")


def misbehaves(daemon: Daemon, device: Device) -> None:
    """Positions that cannot be: the daemon closes this connection, and others go on."""
    with RdmaSession.over(daemon.address, device) as good:
        lies: dict[str, Callable[[RdmaSession], None]] = {
            "a position past its ring": lambda s: lie(s, s.rings.its.ring_bytes + 8),
            "a position that has gone back": lambda s: lie(s, -8),
            "more room than came": lambda s: s.rings.say(ROOM | s.rings.positions.taken + 8),
            "room that has gone back": lambda s: s.rings.say(ROOM | (s.rings.positions.told - 8) % ROOM),
        }
        for what, tell in lies.items():
            session = RdmaSession.over(daemon.address, device)
            gets.match(session, [Section(VALUES, [b"a"])])
            tell(session)
            how = ended(session)
            check(how != "", f"{what}: the daemon ends the connection ({how})")
            session.close()
        wrong_key(daemon, device)
        check(gets.match(good, [Section(VALUES, [b"placed 5000"])]).present == [[True]], "another connection goes on")
    wait_for(lambda: connections(daemon) == 0, "the daemon lets go of their rings")


def wrong_key(daemon: Daemon, device: Device) -> None:
    """A region whose key is nobody's: the daemon's write fails at our device, and the connection ends without a status."""
    memory = Memory(device, 8192, remote="write")
    session = RdmaSession.over(daemon.address, device)
    region = Region(0, memory.key ^ 0x55, memory.address, 8192)
    check(whole(session.ask(Op.REGISTER_REGION, region.tlv())).ok, "a region with a wrong key")
    section = Section(VALUES, [b"placed 5000"])
    one = placed.begin(session, [section], {0: Places([[Piece(0, 5000)]])}, {0: memory})
    how = "a Final"
    try:
        one.finish(PATIENCE_S)
    except Closed as error:
        how = str(error)
    check(how != "a Final", f"a wrong key: the connection ends ({how})")
    check(not any(memory.view[:]), "and nothing was written")
    session.close()
    memory.close()


def lie(session: RdmaSession, ahead: int) -> None:
    """Eight bytes, said to move the position by `ahead`."""
    positions = session.rings.positions
    session.rings.write(positions.written % positions.its_bytes, 8, positions.written + ahead)


def ended(session: Session) -> str:
    """How the connection ends; empty where it does not."""
    try:
        session.next_frame(PATIENCE_S)
    except Closed as error:
        return str(error)
    return ""
