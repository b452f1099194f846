"""Several sections in one batch: each has its own layout, group, parts and memory, and a result of its own."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from tests.integration.commands import PATIENT

import halfstep
from halfstep import ConfigError, Group, Layout, PartDescriptor, Rows, Section, component

pytestmark = pytest.mark.integration

# A hybrid model's: four layers of full attention, two of windows with smaller pages.
FULL, WINDOW = Group(8, (512,)), Group(4, (256,))


@pytest.fixture
def hybrid(request: pytest.FixtureRequest) -> Layout:
    return Layout({"test": request.node.name}, [FULL, WINDOW])


def keys_of(count: int) -> list[bytes]:
    return [b"key %d" % number for number in range(count)]


def noise(shape: tuple[int, ...], seed: int) -> Any:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def requests_of(client: halfstep.Client, op: str) -> float:
    return client.stat().get(f'halfstep_requests_total{{command="{op}"}}', 0)


def test_the_groups_of_a_hybrid_model_go_in_one_request(client: halfstep.Client, hybrid: Layout) -> None:
    keys = keys_of(6)
    full, window = noise((6, FULL.block_bytes), 1), noise((2, WINDOW.block_bytes), 2)
    sections = [
        Section(keys, full, layout=hybrid, parents=[-1, 0, 1, 2, 3, 4], depths=list(range(6)), ttl_s=60),
        Section(keys[4:], window, layout=hybrid, first_component=component(1)),
    ]
    before = {op: requests_of(client, op) for op in ("put", "match", "get")}
    stored = client.put_sections(sections)
    assert [result.stored for result in stored] == [6, 2]
    found = client.match_sections(
        [Section(keys, layout=hybrid), Section(keys, layout=hybrid, first_component=component(1))], lengths=True
    )
    assert [result.present.tolist() for result in found] == [[True] * 6, [False] * 4 + [True] * 2]
    assert found[1].lengths is not None
    assert found[1].lengths.tolist() == [0] * 4 + [WINDOW.block_bytes] * 2
    into_full, into_window = np.zeros_like(full), np.zeros((3, WINDOW.block_bytes), np.uint8)
    got = client.get_sections(
        [
            Section(keys, into_full, layout=hybrid),
            Section(keys[3:], into_window, layout=hybrid, first_component=component(1)),
        ],
        order="layer",
    )
    assert got[0].ok.all()
    assert got[1].ok.tolist() == [False, True, True]
    assert got[1].reason(0) == "miss (absent)"
    assert got[1].lengths.tolist() == [0, WINDOW.block_bytes, WINDOW.block_bytes]
    assert (into_full == full).all()
    assert (into_window[1:] == window).all()
    assert {op: requests_of(client, op) - count for op, count in before.items()} == {"put": 1, "match": 1, "get": 1}


def test_each_section_selects_its_own_parts_into_its_own_rows(client: halfstep.Client, hybrid: Layout) -> None:
    keys = keys_of(3)
    full = noise((3, 8, 512), 3)
    assert client.put(keys, full, layout=hybrid).ok.all()
    flat, pool = np.zeros((2, 3, 512), np.uint8), np.zeros((5, 8, 512), np.uint8)
    region = client.register(pool)
    template = region.template([PartDescriptor(part * 512, 8 * 512, 1, 512) for part in range(8)])
    whole, some, none = client.get_sections(
        [
            Section(keys, Rows(template, np.array([4, 0, 2])), layout=hybrid),
            Section(keys[:2], flat, layout=hybrid, parts=[range(0, 6, 2)]),
            Section([b"absent"], np.zeros((2, 512), np.uint8), layout=hybrid, parts=[1, 7], stop_at_miss=True),
        ]
    )
    assert (whole.ok.shape, some.ok.shape, none.ok.shape) == ((3,), (2, 3), (1, 2))
    assert whole.ok.all()
    assert some.ok.all()
    assert not none.ok.any()
    assert (pool[[4, 0, 2]] == full).all()
    assert (flat == full[:2, 0:6:2]).all()
    region.close()
    assert region.closed


def test_other_faces_and_modes(client: halfstep.Client, hybrid: Layout) -> None:
    keys, blocks = keys_of(2), noise((2, WINDOW.block_bytes), 4)
    one = Section(keys, blocks, layout=hybrid, first_component=component(1))

    async def store() -> list[halfstep.PutResult]:
        return await client.aio.put_sections([one], durability="persist")

    assert asyncio.run(store())[0].stored == 2
    with client.queue() as queue:
        ticket = queue.get_sections([Section(keys, np.zeros_like(blocks), layout=hybrid, first_component=component(1))])
        assert ticket.result()[0].ok.all()
    for mode, seen in (("off", 0), ("shadow", 2)):
        with halfstep.connect(client.url, mode=mode, required=mode == "shadow", **PATIENT) as other:
            got = other.get_sections([Section(keys, np.zeros_like(blocks), layout=hybrid, first_component=component(1))])[0]
            assert not got.ok.any()
            assert got.lengths.tolist() == [0, 0]
            assert got.reason(0) == "miss (skipped)"
            assert (0 if got.shadow is None else got.shadow.hits) == seen
            found = other.match_sections([Section(keys, layout=hybrid, first_component=component(1))])[0]
            assert found.prefix == 0


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ([], "0 sections"),
        ([Section([b"a"], bytearray(1))] * 17, "17 sections"),
        ([Section([b"a"], bytearray(1)), b"a"], r"sections\[1\] \(bytes\)"),
        ([Section([b"a"], bytearray(1)), Section([b"a", b""], bytearray(2))], r"keys\[1\]: 0 bytes"),
        ([Section([b"a"], bytearray(1)), Section([b"a"], None)], "target"),
        ([Section([b"a"], bytearray(1)), Section([b"a"], [bytearray(1)] * 2)], "a list of 2 for 1"),
    ],
)
def test_what_is_no_batch_is_refused_by_name(client: halfstep.Client, sections: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        client.get_sections(sections)


def test_a_section_of_an_unknown_shape_is_refused_whole(client: halfstep.Client, hybrid: Layout) -> None:
    """A wrong section costs nobody's bytes: nothing of the batch is sent."""
    target = np.zeros((1, FULL.block_bytes), np.uint8)
    with pytest.raises(ConfigError, match="bytes"):
        client.get_sections([Section([b"a"], target, layout=hybrid), Section([b"a"], bytearray(3), layout=hybrid)])
    assert not target.any()
