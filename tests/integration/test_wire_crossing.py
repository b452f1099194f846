"""Blocks between the client of the library and one written from the page alone, byte for byte, in both directions."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.integration.conftest import Daemon
from tests.torture.content import noise_of
from tests.wire import catalog, gets, lives, puts
from tests.wire.answers import whole
from tests.wire.checksums import shard_of
from tests.wire.frames import Op
from tests.wire.layouts import Group, Layout, component
from tests.wire.requests import LAYER_MAJOR, PERSIST, Batch, PartRange, Section
from tests.wire.session import Session, shard_addresses

import halfstep

pytestmark = pytest.mark.integration

Connect = Callable[..., Session]
# By group: the lengths of its blocks.
GROUPS = {
    0: (Group(0, (262_144,)), (1, 100, 4096, 65_536, 65_537, 262_144, 300_001, 1_000_000)),
    1: (Group(64, (4096,)), (262_144,)),
    2: (Group(31, (1000, 24, 7)), (11_310,)),
    3: (Group(0, (512, 3, 1)), (1, 511, 512, 513, 515, 516, 517, 100_000)),
    4: (Group(2, (300_000, 270_000)), (570_000,)),
    5: (Group(2560, (24,)), (61_440,)),  # as many parts as there may be, as small as so many may be
}


class Pair:
    """One layout, described to each client by its own means, and a client of the library."""

    def __init__(self, official: halfstep.Client, layout: halfstep.Layout, mine: Layout) -> None:
        self.official, self.layout, self.mine = official, layout, mine


@pytest.fixture
def pair(request: pytest.FixtureRequest, daemon: Daemon) -> Iterator[Pair]:
    fields = {"name": request.node.nodeid[-200:], "number": random.getrandbits(30)}
    layout = halfstep.Layout(fields, [halfstep.Group(each.part_count, each.part_bytes) for each, _ in GROUPS.values()])
    mine = Layout(fields, [each for each, _ in GROUPS.values()])
    assert (mine.canonical, mine.id) == (layout.canonical, layout.id)
    # Over the other transport than the plain client, half of the time.
    url = daemon.unix_url if request.node.nodeid.count("shm") != 1 else daemon.url
    with halfstep.connect(url, layout=layout, required=True, deadline_ms=30_000, match_deadline_ms=30_000) as official:
        yield Pair(official, layout, mine)


@pytest.mark.parametrize("group", GROUPS)
def test_what_the_library_puts_the_page_gets(wire: Connect, pair: Pair, group: int) -> None:
    session = wire()
    for size in GROUPS[group][1]:
        keys = [b"%d of %d" % (number, size) for number in range(3)]
        sources = [[noise_of(key + bytes([cell]), size) for cell in range(2)] for key in keys]
        cells: Any = {"first_component": component(group), "components": 2}
        flat = [each for row in sources for each in row]
        assert pair.official.put(keys, flat, **cells, durability="persist").ok.all()
        section = Section(pair.mine, keys, component(group), component_count=2)
        assert gets.match(session, [section], with_lengths=True).lengths[0] == dict.fromkeys(range(6), size)
        assert gets.get(session, [section]).blocks() == [each.tobytes() for each in flat]
        assert gets.get(session, [section], Batch(order=LAYER_MAJOR)).blocks() == [each.tobytes() for each in flat]


@pytest.mark.parametrize("group", GROUPS)
def test_what_the_page_puts_the_library_gets(wire: Connect, pair: Pair, group: int) -> None:
    session = wire()
    for size in GROUPS[group][1]:
        keys = [b"%d of %d" % (number, size) for number in range(3)]
        section = Section(pair.mine, keys, component(group), component_count=2)
        data = [noise_of(b"%s %d" % section.name(item), size).tobytes() for item in range(section.items)]
        assert all(status.ok for status in puts.put_bytes(session, section, data, Batch(durability=PERSIST)))
        cells: Any = {"first_component": component(group), "components": 2}
        assert pair.official.match(keys, **cells).prefix == 3
        target = np.zeros((6, size), np.uint8)
        got = pair.official.get(keys, target, **cells)
        assert got.ok.all()
        assert [row.tobytes() for row in target] == data
        assert got.lengths.tolist() == [size] * 6
    assert pair.official.facts().checksum_failures == 0


def test_parts_are_the_same_on_both_ends(wire: Connect, pair: Pair) -> None:
    session = wire()
    section = Section(pair.mine, [b"a", b"b"], component(2), ranges=[PartRange(0, 10, 3), PartRange(30, 1)])
    data = [noise_of(key, 11_310) for key in section.keys]
    assert pair.official.put([b"a", b"b"], data, first_component=component(2)).ok.all()
    got = gets.get(session, [section])
    picked = [*range(0, 30, 3), 30]
    target = np.zeros((2, 11 * 1000), np.uint8)
    theirs = pair.official.get([b"a", b"b"], target, first_component=component(2), parts=[range(0, 30, 3), range(30, 31)])
    assert theirs.items_ok.all()
    for item in range(2):
        assert b"".join(got.arrivals.parts[0, item, part] for part in picked) == target[item].tobytes()


def test_ends_and_holds_of_one_are_seen_by_the_other(wire: Connect, pair: Pair) -> None:
    session = wire()
    assert pair.official.put([b"theirs"], noise_of(b"theirs", 1000), ttl_s=700).ok.all()
    section = Section(pair.mine, [b"mine"])
    assert puts.put_bytes(session, section, [b"x" * 1000], ttl_s=900)[0].ok
    listed = {each.key: each for each in catalog.list_all(session) if each.layout_id == pair.mine.id}
    entries = {each.key: each for each in pair.official.list() if each.layout_id == pair.mine.id}
    for key, ttl_s in ((b"theirs", 700), (b"mine", 900)):
        assert listed[key].expiry_s - listed[key].created_s == ttl_s
        assert entries[key].expiry_s == listed[key].expiry_s
        assert entries[key].created_s == listed[key].created_s
    owner = random.getrandbits(62) + 1
    assert pair.official.lease([b"mine"], owner=owner, seconds=30).ok.all()
    assert str(lives.renew(session, owner, 30_000)) == "ok"
    assert str(lives.release(session, owner)) == "ok"
    assert lives.hold(session, [Section(pair.mine, [b"theirs"])], owner, 30_000)[0][0].ok
    told = pair.official.explain(b"theirs")["blocks"]
    assert [len(each["holds"]) for each in told if each["layout"] == pair.mine.id.hex()] == [1]
    assert pair.official.release(owner).ok.all()
    assert pair.official.expire([b"mine"], ttl_s=0).ok.all()
    assert [each.expiry_s for each in catalog.list_all(session) if each.key == b"mine" and each.layout_id == pair.mine.id] == [
        0
    ]
    assert pair.official.delete([b"mine"]).ok.all()
    assert gets.match(session, [section]).present == [[False]]


def test_keys_go_to_the_shard_that_holds_them(tmp_path: Path) -> None:
    fields = {"name": "shards"}
    layout, mine = halfstep.Layout(fields, [halfstep.Group(0, (262_144,))]), Layout(fields)
    keys = [b"key %d" % number for number in range(40)]
    data = [noise_of(key, 5000) for key in keys]
    daemon = Daemon(tmp_path, "420MiB", "--shards", "3", arena="128MiB")
    daemon.start()
    sessions: list[Session] = []
    try:
        sessions += [Session(daemon.stream("tcp"))]
        ports = [each.port for each in sessions[0].server.addresses]
        host = daemon.address[0]
        sessions += [Session.connect((host, port)) for port in ports[1:]]
        sessions += [Session.connect(f"{daemon.unix_url.removeprefix('halfstep+unix://')}.{shard}") for shard in (1, 2)]
        assert [each.server.shard for each in sessions] == [0, 1, 2, 1, 2]
        by_shard = {shard: [key for key in keys if shard_of(key, 3) == shard] for shard in range(3)}
        assert all(by_shard.values())
        for shard, some in by_shard.items():
            section = Section(mine, some)
            stored = puts.put_bytes(sessions[shard], section, [data[keys.index(key)].tobytes() for key in some])
            assert all(each.ok for each in stored)
            wrong = sessions[(shard + 1) % 3]
            refused = wrong.ask(Op.MATCH, Batch().tlv() + wrong.sections([section]))
            assert str(whole(refused)) == "rejected(wrong_shard)"
            assert shard_addresses(refused) == (wrong.server.epoch, wrong.server.addresses)
        with halfstep.connect(daemon.url, layout=layout, required=True, deadline_ms=30_000) as official:
            target = np.zeros((len(keys), 5000), np.uint8)
            assert official.get(keys, target).ok.all()
            assert (target == np.stack(data)).all()
    finally:
        for session in sessions:
            session.close()
        daemon.close()
