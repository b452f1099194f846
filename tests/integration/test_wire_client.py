"""A client written from docs/wire-protocol.md alone, against a running daemon: each operation over every transport."""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Callable
from typing import Any

import pytest
from tests.torture.content import noise_of
from tests.wire import catalog, gets, lives, puts
from tests.wire.answers import match_bits, whole
from tests.wire.checksums import name_number, part_check
from tests.wire.chunks import ABORTED_RUN, Run, runs_tlv
from tests.wire.frames import Kind, Op, tlv
from tests.wire.layouts import VALUE_PART_BYTES, Group, Layout, component
from tests.wire.requests import DECODABLE, KEY_MAJOR, LAYER_MAJOR, PERSIST, Batch, Offer, PartRange, Section
from tests.wire.rings import SharedMemoryStream, ShmRefused
from tests.wire.session import Refused, Session, namespace_coding

pytestmark = pytest.mark.integration

Connect = Callable[..., Session]
SIZES = (1, 64, 4095, 65_536, 65_537, 262_143, 262_144, 262_145, 786_432, 1_500_001)


@pytest.fixture
def values(request: pytest.FixtureRequest) -> Layout:
    """A layout of values of unknown make that no other test has."""
    return Layout({"name": request.node.nodeid[-200:], "process": os.getpid()})


def texts(statuses: Any) -> list[str]:
    return [str(status) for status in statuses]


def data_of(keys: list[bytes], sizes: Any) -> list[bytes]:
    return [noise_of(key, size).tobytes() for key, size in zip(keys, sizes, strict=True)]


@pytest.mark.parametrize("early", [True, False])
def test_blocks_of_every_size_are_put_matched_and_got(wire: Connect, values: Layout, early: bool) -> None:
    keys = [b"size %d" % size for size in SIZES]
    data = data_of(keys, SIZES)
    section = Section(values, keys)
    session = wire()
    assert gets.match(session, [section]).present == [[False] * len(keys)]
    rows = [[puts.plain(section, each) for each in data]]
    assert texts(puts.put(session, [section], rows, Batch(durability=PERSIST), early)[0]) == ["ok(stored)"] * len(keys)
    other = wire()
    matched = gets.match(other, [section], with_lengths=True)
    assert matched.present == [[True] * len(keys)]
    assert matched.lengths == {0: dict(enumerate(SIZES))}
    assert gets.get(other, [section]).blocks() == data
    assert session.early_bytes == session.server.early_credit_bytes


def test_hello_tells_the_store_and_its_limits(wire: Connect) -> None:
    first, second = wire().server, wire(client_id=7).server
    assert (first.version, first.shards, first.shard) == (1, 1, 0)
    assert (first.store_uuid, first.boot_id) == (second.store_uuid, second.boot_id)
    assert first.block_bytes_max <= (256 << 20) - (256 << 10)
    assert first.parts_max <= 2560
    assert first.keys_max <= 4096
    assert first.requests_in_flight_max <= 256
    assert first.chunk_bytes_max <= 256 << 10
    assert first.early_credit_bytes == 65_536
    assert first.codecs & 1, "every server knows raw"


def test_a_tlv_that_need_not_be_understood_is_skipped(wire: Connect, values: Layout) -> None:
    session = wire(more=tlv(64, b"an offer of memory") + tlv(0x7FFF, b"from a later version"))
    body = Batch().tlv() + tlv(0x1234, b"") + session.sections([Section(values, [b"a"])])
    assert match_bits(session.ask(Op.MATCH, body)) == {0: [False]}


def test_parts_are_got_alone_in_the_order_that_was_asked_for(wire: Connect, values: Layout) -> None:
    layout = Layout({"name": values.id.hex()}, [Group(0, (4096,)), Group(12, (1000, 24))])
    session = wire()
    whole = Section(layout, [b"a", b"b"], component(1), component_count=3)
    data = [noise_of(b"%d" % item, 6 * 1024).tobytes() for item in range(whole.items)]
    assert texts(puts.put_bytes(session, whole, data)) == ["ok(stored)"] * 6
    asked = [PartRange(0, 3, 4), PartRange(11, 1)]
    some = Section(layout, whole.keys, component(1), component_count=3, ranges=asked)
    by_key = [(0, item, part) for item in range(6) for part in (0, 4, 8, 11)]
    by_layer = [(0, item, part) for part in (0, 4, 8, 11) for item in range(6)]
    for order, names in ((KEY_MAJOR, by_key), (LAYER_MAJOR, by_layer)):
        got = gets.get(session, [some], Batch(order=order))
        assert texts(got.statuses[0]) == ["ok"] * 24
        assert got.arrivals.order == names
        assert got.arrivals.parts == {(0, item, part): part_of(data[item], part) for _, item, part in names}
    beyond = Section(layout, [b"a"], component(1), ranges=[PartRange(11, 2)])
    assert texts(gets.get(session, [beyond]).statuses[0]) == ["miss(length)"] * 2


def part_of(data: bytes, part: int) -> bytes:
    """Of a block whose parts have 1,000 and 24 bytes in turn."""
    at = part // 2 * 1024 + part % 2 * 1000
    return data[at : at + (24 if part % 2 else 1000)]


def test_what_is_absent_is_a_miss_and_a_section_may_stop_there(wire: Connect, values: Layout) -> None:
    session = wire()
    puts.put_bytes(session, Section(values, [b"0", b"1", b"3"]), [b"zero", b"one", b"three"])
    keys = [b"%d" % number for number in range(5)]
    stopping, whole = Section(values, keys, stop_at_miss=True), Section(values, keys)
    got = gets.get(session, [stopping, whole])
    assert texts(got.statuses[0]) == ["ok", "ok", "miss(absent)", "miss(skipped)", "miss(skipped)"]
    assert texts(got.statuses[1]) == ["ok", "ok", "miss(absent)", "ok", "miss(absent)"]
    assert got.blocks(1) == [b"zero", b"one", None, b"three", None]
    assert gets.match(session, [whole]).present == [[True, True, False, True, False]]


def test_several_sections_of_several_layouts_share_a_request(wire: Connect, values: Layout) -> None:
    other = Layout({"name": values.id.hex()}, [Group(4, (16, 8))])
    sections = [Section(values, [b"a", b"b"]), Section(other, [b"a"], component_count=2), Section(other, [b"c"])]
    data = [[b"first", b"second" * 50_000], [b"x" * 48, b"y" * 48], [b"z" * 48]]
    session = wire()
    rows = [[puts.plain(section, each) for each in row] for section, row in zip(sections, data, strict=True)]
    assert [texts(row) for row in puts.put(session, sections, rows)] == [["ok(stored)"] * len(row) for row in data]
    got = gets.get(session, sections)
    assert [got.blocks(number) for number in range(3)] == data
    assert gets.match(session, sections).present == [[True, True], [True], [True]]


def test_a_block_that_is_there_needs_no_bytes(wire: Connect, values: Layout) -> None:
    session = wire()
    section = Section(values, [b"a"])
    assert texts(puts.put_bytes(session, section, [b"bytes"])) == ["ok(stored)"]
    second = puts.begin(session, [section], [[puts.plain(section, b"bytes")]])
    assert texts(second.finish()[0]) == ["ok(present)"]
    assert second.wants == []


def test_a_block_that_somebody_else_is_writing_is_pending(wire: Connect, values: Layout) -> None:
    session, other = wire(), wire()
    section = Section(values, [b"a"])
    rows = [[puts.plain(section, b"x" * 100_000)]]
    first = puts.begin(session, [section], rows)
    want = session.frame_of(first.request_id)
    assert want.op == Op.WANT
    assert texts(puts.put(other, [section], rows, early=False)[0]) == ["throttled(pending)"]
    first.send_items(first.take(want))
    assert texts(first.finish()[0]) == ["ok(stored)"]
    assert texts(puts.put(other, [section], rows, early=False)[0]) == ["ok(present)"]


def test_cancel_ends_a_put_and_keeps_what_was_whole(wire: Connect, values: Layout) -> None:
    session = wire()
    section = Section(values, [b"whole", b"missing"])
    rows = [[puts.plain(section, b"w" * 1000), puts.plain(section, b"m" * 100_000)]]
    one = puts.begin(session, [section], rows)
    one.send_early()  # the first of them
    while not one.wants or not one.answered(0, 0):
        one.take(session.frame_of(one.request_id))
    assert str(session.cancel(one.request_id)) == "ok"
    assert texts(one.finish()[0]) == ["ok(stored)", "cancelled"]
    assert str(session.cancel(one.request_id)) == "miss(absent)"
    assert gets.match(session, [section]).present == [[True, False]]


def test_an_aborted_run_ends_its_item_alone(wire: Connect, values: Layout) -> None:
    session = wire()
    section = Section(values, [b"a", b"b"])
    rows = [[puts.plain(section, b"a" * 1000), puts.plain(section, b"b" * 1000)]]
    one = puts.begin(session, [section], rows)
    aborted = Run(0, ABORTED_RUN, 0, 0, 1, 0, 0, 1000, 1)
    session.send(Op.CHUNK, runs_tlv([aborted], [0]), b"", one.request_id)
    one.sent(0, 0)
    one.send_item(0, 1)
    assert texts(one.finish()[0]) == ["cancelled", "ok(stored)"]
    assert gets.get(session, [section]).blocks() == [None, b"b" * 1000]


def test_a_wrong_check_and_a_run_that_does_not_fit_cost_their_item_alone(wire: Connect, values: Layout) -> None:
    session = wire()
    keys = [b"good", b"wrong check", b"wrong length", b"no such part"]
    section = Section(values, keys)
    rows = [[puts.plain(section, key * 10) for key in keys]]
    one = puts.begin(session, [section], rows)
    one.send_item(0, 0)
    for item, (part, extra, check) in enumerate([(0, 0, 1), (0, 1, None), (1, 0, None)], start=1):
        data = keys[item] * 10
        number = name_number(values.id, 0, keys[item])
        run = Run(0, 0, item, part, 1, 0, len(data), len(data) + extra, 1)
        body = runs_tlv([run], [part_check(number, part, data) if check is None else check])
        session.send(Op.CHUNK, body, data, one.request_id)
        one.sent(0, item)
    answers = ["ok(stored)", "rejected(checksum)", "rejected(malformed)", "rejected(malformed)"]
    assert texts(one.finish()[0]) == answers
    assert gets.match(session, [section]).present == [[True, False, False, False]]


def test_offers_that_cannot_be_are_refused_one_by_one(wire: Connect, values: Layout) -> None:
    layout = Layout({"name": values.id.hex()}, [Group(2, (10, 20)), Group(0, (1 << 20,))])
    session = wire()
    counted, free = Section(layout, [b"a", b"b"]), Section(layout, [b"c"], component(1))
    size = session.server.block_bytes_max + 1
    rows = [
        [puts.Block([b"x" * 29], Offer(29, 29)), puts.plain(counted, b"y" * 30)],
        [puts.Block([], Offer(size, size))],
    ]
    one = puts.begin(session, [counted, free], rows)
    one.send_item(0, 1)
    assert [texts(row) for row in one.finish()] == [["rejected(malformed)", "ok(stored)"], ["rejected(too_large)"]]


def test_a_deletion_is_told_apart_from_nothing(wire: Connect, values: Layout) -> None:
    session = wire()
    section = Section(values, [b"a", b"b"])
    puts.put_bytes(session, Section(values, [b"b"]), [b"bytes"])
    assert texts(lives.delete(session, [section])[0]) == ["miss(absent)", "ok"]
    assert texts(gets.get(session, [section]).statuses[0]) == ["miss(absent)"] * 2


def test_touch_says_what_is_there(wire: Connect, values: Layout) -> None:
    session = wire()
    puts.put_bytes(session, Section(values, [b"a"]), [b"bytes"])
    assert texts(lives.touch(session, [Section(values, [b"b", b"a"])])[0]) == ["miss(absent)", "ok(present)"]


def test_leases_are_taken_renewed_and_released(wire: Connect, values: Layout) -> None:
    session = wire()
    section = Section(values, [b"a", b"b"])
    puts.put_bytes(session, section, [b"bytes"] * 2)
    owner = random.getrandbits(63) + 1

    def held(key: bytes) -> int:
        return len(block_told(session, values, key)["holds"])

    assert str(lives.renew(session, owner, 1000)) == "miss(absent)"
    assert texts(lives.hold(session, [Section(values, [b"a", b"none"])], owner, 30_000)[0]) == ["ok", "miss(absent)"]
    assert gets.match(session, [section], Batch(hold_owner=owner, hold_ms=30_000)).unheld == {}
    assert (held(b"a"), held(b"b")) == (1, 1)
    assert str(lives.renew(session, owner, 40_000)) == "ok"
    assert str(lives.release_keys(session, owner, [Section(values, [b"a"])])) == "ok"
    assert (held(b"a"), held(b"b")) == (0, 1)
    assert str(lives.release(session, owner)) == "ok"
    assert held(b"b") == 0


def block_told(session: Session, layout: Layout, key: bytes, group: int = 0) -> dict[str, Any]:
    """What Explain says of one block."""
    told = catalog.explain(session, key, [(component(group), 1)])
    assert told["whole"]
    return next(each for each in told["blocks"] if each["layout"] == layout.id.hex())


def test_pins_need_a_budget(wire: Connect, values: Layout) -> None:
    admin = wire()
    name = f"pins {values.id.hex()}"
    assert str(catalog.namespace(admin, catalog.CREATE, name)) == "ok"
    session = wire(namespace=name)
    section = Section(values, [b"a"])
    puts.put_bytes(session, section, [b"bytes"])
    assert texts(lives.hold(session, [section], 5, 0, persistent=True)[0]) == ["throttled(budget)"]
    assert str(catalog.namespace(admin, catalog.LIMIT, name, pin_bytes=1 << 20)) == "ok"
    assert texts(lives.hold(session, [section], 5, 0, persistent=True)[0]) == ["ok"]
    assert block_told(session, values, b"a")["holds"] == [{"persistent": True, "ends_in_ms": None}]
    assert str(lives.release(session, 5)) == "ok"
    assert str(catalog.namespace(admin, catalog.DELETE, name)) == "ok"


def test_ends_are_set_by_put_and_by_expire(wire: Connect, values: Layout) -> None:
    session = wire()
    section = Section(values, [b"a", b"b"])
    puts.put_bytes(session, section, [b"bytes"] * 2, ttl_s=1000)

    def ends() -> list[int]:
        entries = {entry.key: entry for entry in catalog.list_all(session) if entry.layout_id == values.id}
        return [entries[key].expiry_s - entries[key].created_s if entries[key].expiry_s else 0 for key in section.keys]

    assert ends() == [1000, 1000]
    assert texts(lives.expire(session, [Section(values, [b"a", b"none"])], 0)[0]) == ["ok", "miss(absent)"]
    assert ends() == [0, 1000]


def test_what_is_fetched_ahead_is_present(wire: Connect, values: Layout) -> None:
    session = wire()
    puts.put_bytes(session, Section(values, [b"a"]), [b"bytes"])
    statuses = lives.prefetch(session, [Section(values, [b"a", b"none"])], 1000)
    assert texts(statuses[0]) == ["ok(present)", "miss(absent)"]


def test_a_cleared_layout_is_empty_and_its_handle_stays(wire: Connect, values: Layout) -> None:
    session = wire()
    section = Section(values, [b"a"])
    puts.put_bytes(session, section, [b"bytes"])
    assert str(lives.clear(session, values)) == "ok"
    assert gets.match(session, [section]).present == [[False]]
    assert texts(puts.put_bytes(session, section, [b"new"])) == ["ok(stored)"]
    assert gets.get(session, [section]).blocks() == [b"new"]
    assert str(lives.clear(session, Layout({"name": "never registered here"}))) == "miss(absent)"


def test_namespaces_are_made_limited_and_deleted(wire: Connect, values: Layout) -> None:
    admin = wire()
    name = f"tenant {values.id.hex()}"
    assert str(catalog.namespace(admin, catalog.CREATE, name, quota_bytes=64 << 20, default_ttl_s=500)) == "ok"
    section = Section(values, [b"a"])
    with wire(namespace=name) as tenant:
        puts.put_bytes(tenant, section, [b"of the tenant"])
        (entry,) = catalog.list_all(tenant)
        assert (entry.key, entry.expiry_s - entry.created_s) == (b"a", 500)
    assert gets.match(admin, [section]).present == [[False]]
    assert str(catalog.namespace(admin, catalog.CREATE, name)) == "ok(present)"
    assert str(catalog.namespace(admin, catalog.LIMIT, name)) == "ok"
    assert str(catalog.namespace(admin, catalog.DELETE, name)) == "ok"
    assert str(catalog.namespace(admin, catalog.DELETE, "default")) == "rejected(policy)"
    with pytest.raises(Refused, match="unknown_namespace"):
        wire(namespace=name)


def test_a_hello_tells_the_default_policy_and_the_floor_of_its_namespace(wire: Connect, values: Layout) -> None:
    admin = wire()
    name = f"coding {values.id.hex()}"
    high, unknown = 2, 6
    assert str(catalog.namespace(admin, catalog.CREATE, name)) == "ok"
    assert namespace_coding(wire(namespace=name).hello) == (0, 0)
    assert str(catalog.namespace(admin, catalog.LIMIT, name, coding=(high, 800))) == "ok"
    assert namespace_coding(wire(namespace=name).hello) == (high, 800)
    assert str(catalog.namespace(admin, catalog.LIMIT, name, coding=(unknown, 0))) == "rejected(malformed)"
    assert str(catalog.namespace(admin, catalog.LIMIT, name)) == "ok"
    assert namespace_coding(wire(namespace=name).hello) == (high, 800), "a limit that says nothing of it leaves it"
    assert namespace_coding(wire().hello) == (0, 0), "another namespace has another"
    assert str(catalog.namespace(admin, catalog.LIMIT, name, coding=(0, 0))) == "ok"
    assert namespace_coding(wire(namespace=name).hello) == (0, 0)
    assert str(catalog.namespace(admin, catalog.DELETE, name)) == "ok"


def test_a_list_comes_in_pages_and_names_each_block_once(wire: Connect, values: Layout) -> None:
    session = wire()
    section = Section(values, [b"key %d" % number for number in range(100)], component_count=2)
    # On media: a list may miss what goes from memory to flash under it.
    puts.put_bytes(session, section, [b"b" * (item + 1) for item in range(200)], Batch(durability=PERSIST))
    wanted = {(*section.name(item)[::-1], item + 1, 1) for item in range(200)}
    for limit in (0, 7):
        entries = [each for each in catalog.list_all(session, limit) if each.layout_id == values.id]
        assert len(entries) == 200
        assert {(each.component, each.key, each.block_bytes, each.parts) for each in entries} == wanted


def test_counters_count(wire: Connect, values: Layout) -> None:
    session = wire()
    before = catalog.stat(session)
    puts.put_bytes(session, Section(values, [b"a", b"b"]), [b"bytes"] * 2)
    after = catalog.stat(session)
    assert set(before) <= set(after), "a counter that was there stays"
    assert after['halfstep_requests_total{command="put"}'] == before['halfstep_requests_total{command="put"}'] + 1
    stored = 'halfstep_answers_total{command="put",answer="ok",reason="stored"}'
    assert after[stored] == before.get(stored, 0) + 2


def test_explain_tells_where_a_block_is_and_what_became_of_it(wire: Connect, values: Layout) -> None:
    session = wire()
    section = Section(values, [b"a"])
    puts.put_bytes(session, section, [b"x" * 5000], Batch(durability=PERSIST), ttl_s=77)
    told = block_told(session, values, b"a")
    assert (told["component"], told["there"], told["block_bytes"]) == (0, True, 5000)
    assert 75 <= told["expiry_s"] - told["created_s"] <= 77, "it is kept in steps"
    lives.delete(session, [section])
    told = block_told(session, values, b"a")
    assert not told["there"]
    assert [event["kind"] for event in told["events"]] == ["stored", "removed"]
    assert told["events"][-1]["reason"] == "deleted"


def test_requests_interleave_up_to_the_limit(wire: Connect, values: Layout) -> None:
    session = wire()
    section = Section(values, [b"a", b"b"])
    data = [b"a" * 300_000, b"b" * 10]
    puts.put_bytes(session, section, data)
    flight = [gets.begin(session, [section]) for _ in range(64)]
    for one in reversed(flight):
        assert one.finish().blocks() == data


def test_a_request_beyond_those_in_flight_is_refused(wire: Connect, values: Layout) -> None:
    session = wire()
    section = Section(values, [b"never sent"])
    rows = [[puts.plain(section, b"x" * 100_000)]]
    open_puts = [puts.begin(session, [section], rows) for _ in range(session.server.requests_in_flight_max)]
    assert session.frame_of(open_puts[0].request_id).op == Op.WANT
    for other in open_puts[1:]:
        assert texts(other.finish()[0]) == ["throttled(pending)"]
    waiting = [puts.begin(session, [s], rows) for s in named(values, session.server.requests_in_flight_max)]
    refused = session.final(waiting[-1].request_id)
    assert str(whole(refused)) == "rejected(limit)"
    assert str(session.cancel(open_puts[0].request_id)) == "ok", "a Cancel is heard even at the limit"


def named(layout: Layout, count: int) -> list[Section]:
    """So many sections of a key each."""
    return [Section(layout, [b"key %d" % number]) for number in range(count)]


def test_coded_blocks_travel_as_they_are_stored(wire: Connect, values: Layout) -> None:
    codec = 3
    knows, raw_only = wire(codecs=1 | 1 << codec), wire()
    section = Section(values, [b"a"])
    raw = [b"r" * VALUE_PART_BYTES, b"s" * 1000]
    stored = [b"short form", b"s" * 1000]
    block = puts.coded(raw, stored, [codec, 0])
    assert texts(puts.put(knows, [section], [[block]])[0]) == ["ok(stored)"]
    got = gets.get(knows, [section])
    assert texts(got.statuses[0]) == ["ok"]
    assert got.arrivals.tables == {(0, 0): block.table}
    assert got.block(0, 0) == b"".join(stored)
    assert texts(gets.get(raw_only, [section]).statuses[0]) == ["rejected(unsupported)"]


def test_what_cannot_be_decoded_may_be_asked_to_count_as_absent(wire: Connect, values: Layout) -> None:
    knows, raw_only = wire(codecs=1 | 1 << 3), wire()
    section = Section(values, [b"a"])
    raw, decodable = [b"r" * 1000], Batch(flags=DECODABLE)
    # On media: a block that is still on its way there is not replaced yet, which is told as pending.
    puts.put(knows, [section], [[puts.coded(raw, [b"short form"], [3])]], Batch(durability=PERSIST))
    assert gets.match(raw_only, [section]).present == [[True]]
    assert gets.match(raw_only, [section], decodable, with_lengths=True).lengths == {0: {0: 0}}
    assert gets.match(knows, [section], decodable).present == [[True]]
    assert texts(gets.get(raw_only, [section], decodable).statuses[0]) == ["miss(absent)"]
    assert texts(puts.put_bytes(raw_only, section, raw)) == ["ok(present)"]
    assert texts(puts.put_bytes(raw_only, section, raw, decodable)) == ["ok(stored)"]
    assert gets.get(raw_only, [section]).blocks() == raw


def test_a_layout_is_told_by_its_id(wire: Connect, values: Layout) -> None:
    session = wire()
    session.register(values)
    assert catalog.layout_of(session, values.id) == values.canonical
    with pytest.raises(Refused, match="absent"):
        catalog.layout_of(session, Layout({"name": "never registered here"}).id)


def test_authentication_is_echoed_where_it_was_sent(wire: Connect) -> None:
    sent = tlv(Kind.AUTHENTICATION, struct.pack("<HHI", 7, 0, 0) + b"a secret")
    assert wire(more=sent).hello.one(Kind.AUTHENTICATION) == bytes(8)
    assert wire().hello.all(Kind.AUTHENTICATION) == []


def test_a_server_knows_versions_of_shared_memory(daemon: Any) -> None:
    path = daemon.unix_url.removeprefix("halfstep+unix://")
    with pytest.raises(ShmRefused) as refused:
        SharedMemoryStream.connect(path, versions=(2, 9))
    assert refused.value.args == (1,)
