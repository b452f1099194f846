"""What is put comes back, whatever the memory, the shape and the order."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import halfstep
from halfstep import ConfigError, Group, Layout, PartDescriptor, Rows, Template, Unavailable

pytestmark = pytest.mark.integration

Blocks = Callable[..., Any]


def keys_of(count: int, name: str = "key") -> list[bytes]:
    return [f"{name}-{number}".encode() for number in range(count)]


@pytest.mark.parametrize("block_bytes", [1, 4096, 5000, 262_144, 1 << 20])
def test_blocks_of_every_size_come_back(client: halfstep.Client, blocks: Blocks, block_bytes: int) -> None:
    keys, source = keys_of(5), blocks(5, block_bytes)
    stored = client.put(keys, source)
    assert (stored.stored, stored.present) == (5, 0), stored
    target = np.zeros_like(source)
    result = client.get(keys, target)
    assert result.ok.all(), result
    assert result.lengths.tolist() == [block_bytes] * 5
    assert (target == source).all()


def test_a_result_keeps_no_memory_of_its_caller(client: halfstep.Client) -> None:
    with halfstep.connect(client.url, mode="off") as off:
        for asked, keys in ((client, [b"a"]), (client, []), (off, [b"a"])):
            target, source = bytearray(64), bytearray(64)
            results = asked.get(keys, target), asked.put(keys, source), asked.get(keys, target, parts=[0])
            target.append(0)  # refused while somebody else has it
            source.append(0)
            assert len(results) == 3


@pytest.mark.parametrize("order", [np.array(["key", "layer"]), np.array(["key"]), ["key"], 1, None, "block"])
def test_an_order_that_is_none_is_named(client: halfstep.Client, order: Any) -> None:
    with pytest.raises(ConfigError, match="order="):
        client.get([b"a"], bytearray(64), order=order)


def test_absent_keys_are_misses_and_leave_a_prefix(client: halfstep.Client, blocks: Blocks) -> None:
    keys, source = keys_of(4), blocks(4, 1000)
    client.put([keys[0], keys[1], keys[3]], source[[0, 1, 3]])
    target = np.zeros_like(source)
    result = client.get(keys, target)
    assert result.ok.tolist() == [True, True, False, True]
    assert (result.prefix, result.hits) == (2, 3)
    assert result.reason(2) == "miss (absent)"
    assert result.lengths.tolist() == [1000, 1000, 0, 1000]
    assert (target[[0, 1, 3]] == source[[0, 1, 3]]).all()
    found = client.match(keys, lengths=True)
    assert found.answered
    assert found.present.tolist() == [True, True, False, True]
    assert found.prefix == 2
    assert found.lengths is not None
    assert found.lengths.tolist() == [1000, 1000, 0, 1000]


def test_stopping_at_the_first_miss_gives_the_prefix(client: halfstep.Client, blocks: Blocks) -> None:
    keys, source = keys_of(6), blocks(6, 1000)
    client.put(keys[:2] + keys[3:], source[[0, 1, 3, 4, 5]])
    target = np.zeros_like(source)
    result = client.get(keys, target, stop_at_miss=True)
    assert result.prefix == 2
    assert (target[:2] == source[:2]).all()
    assert client.match(keys, stop_at_miss=True).prefix == 2


def test_a_block_that_is_there_stays_as_it_is(client: halfstep.Client, blocks: Blocks) -> None:
    first, second = blocks(1, 5000, 1), blocks(1, 5000, 2)
    client.put([b"k"], first)
    again = client.put([b"k"], second)
    assert (again.stored, again.present) == (0, 1)
    target = np.zeros_like(first)
    assert client.get([b"k"], target).ok.all()
    assert (target == first).all()


def test_deleted_blocks_are_gone(client: halfstep.Client, blocks: Blocks) -> None:
    keys = keys_of(3)
    client.put(keys, blocks(3, 5000))
    assert client.delete(keys[:2]).ok.all()
    assert client.match(keys).present.tolist() == [False, False, True]


def test_persisted_blocks_are_acknowledged(client: halfstep.Client, blocks: Blocks) -> None:
    assert client.put(keys_of(3), blocks(3, 100_000), durability="persist").ok.all()


def test_layouts_do_not_meet(client: halfstep.Client, blocks: Blocks) -> None:
    other = Layout.opaque("another", seed=time.time_ns())
    client.put([b"k"], blocks(1, 1000, 1))
    client.put([b"k"], blocks(1, 1000, 2), layout=other)
    for layout, seed in ((None, 1), (other, 2)):
        target = bytearray(1000)
        assert client.get([b"k"], target, layout=layout).ok.all()
        assert target == blocks(1, 1000, seed).tobytes()


@pytest.mark.parametrize("key", [b"\0", b"x" * 255, bytes(range(36)), b"a" * 64 + b"-suffix"], ids=len)
def test_engine_keys_of_any_kind_work(client: halfstep.Client, key: bytes) -> None:
    assert client.put([key], b"block").ok.all()
    target = bytearray(5)
    assert client.get([bytearray(key)], target).ok.all()
    assert target == b"block"


def test_keys_may_be_an_array(client: halfstep.Client, blocks: Blocks) -> None:
    keys = np.random.default_rng(5).integers(0, 256, (40, 32), np.uint8)
    source = blocks(40, 100)
    assert client.put(keys, source).ok.all()
    target = np.zeros_like(source)
    assert client.get([key.tobytes() for key in keys[::-1]], target).ok.all()
    assert (target[::-1] == source).all()


def test_no_keys_have_an_answer_too(client: halfstep.Client) -> None:
    assert client.match([]).prefix == 0
    assert client.get([], bytearray()).hits == 0
    assert client.get([], bytearray(), parts=[range(2)]).hits == 0
    assert client.put([], b"").stored == 0


# ---- targets -------------------------------------------------------------------------------------------------------------


def test_a_list_of_buffers_is_a_target_and_a_source(client: halfstep.Client, blocks: Blocks) -> None:
    sizes = [5000, 1, 70_000]
    sources = [blocks(1, size, seed)[0] for seed, size in enumerate(sizes)]
    assert client.put(keys_of(3), [memoryview(source) for source in sources]).ok.all()
    targets = [bytearray(size + extra) for size, extra in zip(sizes, (0, 10, 0), strict=True)]
    result = client.get(keys_of(3), targets)
    assert result.ok.all()
    assert result.lengths.tolist() == sizes
    for target, source in zip(targets, sources, strict=True):
        assert target[: len(source)] == source.tobytes()


def test_pieces_may_ignore_the_borders_of_parts(client: halfstep.Client, blocks: Blocks) -> None:
    source = blocks(1, 600_000)[0]
    pieces = [source[:1], source[1:262_145], source[262_145:]]
    assert client.put([b"k"], [pieces]).ok.all()
    target = [np.zeros(n, np.uint8) for n in (300_000, 7, 299_993)]
    assert client.get([b"k"], [target]).ok.all()
    assert (np.concatenate(target) == source).all()


def test_a_target_that_is_too_small_is_a_miss_and_gets_nothing(client: halfstep.Client) -> None:
    client.put([b"k"], b"x" * 1000)
    target = bytearray(999)
    result = client.get([b"k"], target)
    assert result.reason(0) == "miss (length)"
    assert target == bytes(999)


def test_torch_tensors_come_back_in_their_own_memory(client: halfstep.Client) -> None:
    torch = pytest.importorskip("torch")
    source = torch.randn(4, 3, 100).to(torch.bfloat16)
    assert client.put(keys_of(4), source).ok.all()
    target = torch.zeros_like(source)
    assert client.get(keys_of(4), target).ok.all()
    assert torch.equal(target, source)
    pieces = [torch.zeros(300, dtype=torch.bfloat16) for _ in range(4)]
    assert client.get(keys_of(4), pieces).ok.all()
    assert torch.equal(torch.stack(pieces), source.reshape(4, 300))


def test_rows_land_in_the_engine_s_strides(client: halfstep.Client) -> None:
    # A pool per layer: [row, K or V, head, token x head size]; a block is layer by layer, K then V, all heads.
    layers, rows, heads, inner = 3, 10, 4, 64
    pools = [np.arange(rows * 2 * heads * inner, dtype=np.uint32).astype(np.uint8) + layer for layer in range(layers)]
    pools = [pool.reshape(rows, 2, heads, inner) for pool in pools]
    layout = Layout({"name": "rows", "seed": time.time_ns()}, [Group(layers * 2, (heads * inner,))])

    def template(owned: list[halfstep.Region]) -> Template:
        plane = heads * inner
        return Template(
            PartDescriptor(kv * plane, 2 * plane, heads, inner, inner, region=owned[layer])
            for layer in range(layers)
            for kv in range(2)
        )

    sources = [client.register(pool) for pool in pools]
    written = np.array([7, 0, 3])
    assert client.put(keys_of(3), Rows(template(sources), written), layout=layout).ok.all()

    landing = [np.zeros_like(pool) for pool in pools]
    targets = [client.register(pool) for pool in landing]
    read = np.array([1, 9, 5])
    result = client.get(keys_of(3), Rows(template(targets), read), layout=layout, order="layer")
    assert result.ok.all(), result
    for pool, landed in zip(pools, landing, strict=True):
        assert (landed[read] == pool[written]).all()
        untouched = np.setdiff1d(np.arange(rows), read)
        assert not landed[untouched].any()

    whole = np.zeros((3, layers * 2 * heads * inner), np.uint8)
    assert client.get(keys_of(3), whole, layout=layout).ok.all()
    expected = np.stack([np.concatenate([pool[row].reshape(-1) for pool in pools]) for row in written])
    assert (whole == expected).all()
    for region in sources + targets:
        region.close()


def test_a_row_outside_its_region_is_refused_before_anything_is_sent(client: halfstep.Client) -> None:
    with client.register(bytearray(400)) as region:
        template = region.template([PartDescriptor(0, 100, 1, 100)])
        client.put([b"k"], b"x" * 100)
        assert client.get([b"k"], Rows(template, [3])).ok.all()
        for row in (4, -1, 1 << 40):
            with pytest.raises(ConfigError):
                client.get([b"k"], Rows(template, [row]))


def test_a_direct_region_is_memory_like_any_other_where_there_is_no_rdma(client: halfstep.Client, blocks: Blocks) -> None:
    source, landing = blocks(4, 1000), np.zeros((8, 1000), np.uint8)
    client.put(keys_of(4), source)
    with client.register(landing, direct=True) as region:
        template = region.template([PartDescriptor(0, 1000, 1, 1000)])
        assert client.get(keys_of(4), Rows(template, [6, 1, 0, 3])).ok.all()
    assert (landing[[6, 1, 0, 3]] == source).all()
    assert not landing[[2, 4, 5, 7]].any()
    facts = client.facts()
    assert (facts.placed_bytes, facts.placement) == (0, "")
    with pytest.raises(ConfigError, match="read-only"):
        client.register(bytes(1000), direct=True)


def test_a_direct_region_too_many_is_one_like_any_other_and_the_facts_say_why(client: halfstep.Client, blocks: Blocks) -> None:
    source, landing = blocks(1, 1000), np.zeros((65, 1000), np.uint8)
    client.put([b"k"], source)
    regions = [client.register(row, direct=True) for row in landing]
    try:
        for region in regions:
            template = region.template([PartDescriptor(0, 1000, 1, 1000)])
            assert client.get([b"k"], Rows(template, [0])).ok.all()
    finally:
        for region in regions:
            region.close()
    assert (landing == source).all()
    assert "at most 64" in client.facts().placement


# ---- shapes --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def parted() -> Layout:
    """8 parts of 1,000 and 500 bytes in turn."""
    return Layout({"name": "parted", "seed": time.time_ns()}, [Group(8, (1000, 500))])


@pytest.mark.parametrize("order", ["key", "layer"])
def test_ranges_of_parts_land_back_to_back(client: halfstep.Client, blocks: Blocks, parted: Layout, order: Any) -> None:
    source = blocks(3, 6000)
    keys = keys_of(3)
    client.put(keys[:2], source[:2], layout=parted)
    target = np.zeros((3, 1000 + 500 + 500 + 1000), np.uint8)
    result = client.get(keys, target, layout=parted, parts=[range(6, 7), (1, 2, 2), 0], order=order)
    assert result.ok.shape == (3, 4)
    assert result.items_ok.tolist() == [True, True, False]
    assert result.reason(2) == "miss (absent)"
    landed = [slice(4500, 5500), slice(1000, 1500), slice(2500, 3000), slice(0, 1000)]
    expected = np.concatenate([source[:2, part] for part in landed], axis=1)
    assert (target[:2] == expected).all()


def test_a_block_that_does_not_fit_its_shape_is_refused(client: halfstep.Client, parted: Layout) -> None:
    try:
        result = client.put([b"k"], bytes(5999), layout=parted)
    except ConfigError:
        return
    assert not result.ok.any()


def test_components_are_stored_and_matched_together(client: halfstep.Client, blocks: Blocks) -> None:
    keys, cells = keys_of(3), 4
    first = halfstep.component(cell=2)
    source = blocks(3 * cells, 777).reshape(3, cells, 777)
    assert client.put(keys, source, first_component=first, components=cells).ok.all()
    target = np.zeros_like(source)
    result = client.get(keys, target, first_component=first, components=cells)
    assert result.keys_ok.all()
    assert (target == source).all()
    one = np.zeros((3, 777), np.uint8)
    assert client.get(keys, one, first_component=first + 3).ok.all()
    assert (one == source[:, 3]).all()
    assert client.delete([keys[1]], first_component=first + 1).ok.all()
    found = client.match(keys, first_component=first, components=cells, lengths=True)
    assert found.present.tolist() == [True, False, True]
    assert found.lengths is not None
    assert found.lengths[0].tolist() == [777] * cells


def test_several_groups_have_shapes_of_their_own(client: halfstep.Client, blocks: Blocks) -> None:
    layout = Layout({"name": "hybrid", "seed": time.time_ns()}, [Group(2, (100,)), Group(3, (10, 20)), Group(0, (50,))])
    for group, block_bytes in enumerate((200, 40, 123)):
        source, first = blocks(2, block_bytes, group), halfstep.component(group)
        assert client.put(keys_of(2), source, layout=layout, first_component=first).ok.all()
        target = np.zeros_like(source)
        assert client.get(keys_of(2), target, layout=layout, first_component=first).ok.all()
        assert (target == source).all()


def test_batches_over_the_limits_of_one_request_work(client: halfstep.Client) -> None:
    count = 10_000  # over 4,096 keys, and over 2 MiB of names
    keys = [number.to_bytes(4) * 60 for number in range(count)]
    source = np.arange(count, dtype=np.uint32).view(np.uint8).reshape(count, 4)
    # What waits in the daemon's memory is bounded: some may be throttled at first, which is no failure.
    stored = client.put(keys, source, parents=np.arange(-1, count - 1))
    end = time.monotonic() + 60
    while not stored.ok.all():
        assert stored.throttled, stored
        assert time.monotonic() < end, "what was taken in never leaves memory"
        time.sleep(0.02)
        stored = client.put(keys, source)
    assert client.match(keys).prefix == count
    target = np.zeros_like(source)
    result = client.get(keys, target)
    assert result.prefix == count
    assert (target == source).all()


# ---- modes, holds, operators ---------------------------------------------------------------------------------------------


def test_shadow_mode_does_the_work_and_answers_a_miss(daemon: Any, layout: Layout, blocks: Blocks) -> None:
    keys, source = keys_of(3), blocks(3, 5000)
    with halfstep.connect(
        daemon.url, layout=layout, required=True, mode="shadow", deadline_ms=30_000, match_deadline_ms=30_000
    ) as client:
        assert client.put(keys, source).stored == 3
        found = client.match(keys)
        assert found.prefix == 0
        assert found.shadow is not None
        assert found.shadow.prefix == 3
        result = client.get(keys, np.zeros_like(source))
        assert (result.hits, result.reason(0)) == (0, "miss (skipped)")
        assert result.shadow is not None
        assert result.shadow.hits == 3


def test_a_hold_is_taken_with_match_and_ended_by_its_owner(client: halfstep.Client, blocks: Blocks) -> None:
    keys, owner = keys_of(3), 0xFFFF_0000_0000_0001
    client.put(keys, blocks(3, 5000))
    assert client.match(keys, hold_ms=60_000, owner=owner).prefix == 3
    assert client.release(owner, keys[:1]).ok.all()
    assert client.release(owner).ok.all()


def test_list_has_every_block_once_over_pages(client: halfstep.Client) -> None:
    count = 2500  # more than two pages
    keys = keys_of(count, "listed")
    client.put(keys, np.zeros((count, 3), np.uint8))
    mine = [entry for entry in client.list() if entry.layout_id == client.layout.id]
    assert sorted(entry.key for entry in mine) == sorted(keys)
    assert {(entry.block_bytes, entry.parts, entry.component, entry.expiry_s) for entry in mine} == {(3, 1, 0, 0)}
    assert len(list(client.list(limit=7))) == 7


def test_a_time_to_live_is_in_the_listing(client: halfstep.Client) -> None:
    client.put([b"k"], b"x", ttl_s=3600)
    (entry,) = [entry for entry in client.list() if entry.layout_id == client.layout.id]
    # Rounded down by the index, to three digits or so.
    assert entry.created_s < entry.expiry_s <= entry.created_s + 3600


def test_stat_counts(client: halfstep.Client) -> None:
    before = client.stat()
    client.put([b"k"], b"x")
    client.get([b"k"], bytearray(1))
    after = client.stat()
    assert set(before) <= set(after)
    assert any(after[name] > before[name] for name in before)


def test_an_unknown_namespace_is_refused_in_words(daemon: Any) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        halfstep.connect(f"{daemon.url}/nowhere", required=True, deadline_ms=10_000)
    with halfstep.connect(f"{daemon.url}/nowhere", deadline_ms=10_000) as client:
        result = client.get([b"k"], bytearray(1))
        assert not result.ok.any()
        with pytest.raises((ConfigError, Unavailable)):
            client.stat()


def test_both_transports_say_their_path(daemon: Any, layout: Layout) -> None:
    with halfstep.connect(daemon.url, layout=layout, required=True, deadline_ms=30_000) as over_tcp:
        assert over_tcp.put([b"k"], b"over tcp").ok.all()
        assert over_tcp.path.startswith("tcp ")
        assert over_tcp.facts().connected >= 1
        assert len(over_tcp.facts().store_uuid) == 16
    with halfstep.connect(daemon.unix_url, layout=layout, required=True, deadline_ms=30_000, connections=3) as over_unix:
        target = bytearray(8)
        assert over_unix.get([b"k"], target).ok.all()
        assert target == b"over tcp"
        assert over_unix.path.startswith("shm ")


def test_a_closed_client_says_so(client: halfstep.Client) -> None:
    queue = client.queue()
    client.close()
    client.close()
    assert client.closed
    for call in (lambda: client.match([b"k"]), lambda: client.queue(), lambda: queue.match([b"k"]), lambda: client.stat()):
        with pytest.raises(ConfigError, match="closed"):
            call()
