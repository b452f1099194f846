"""Kinds, grids and cells: what a block holds, and in which order."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from halfstep import ConfigError, component
from halfstep.tier import Grid, Kind, KVLayout

FULL = Kind("full", tuple(range(4)), heads=8, planes=(256, 256))
LATENT = Kind("latent", tuple(range(3)), heads=1, planes=(1152,))


def layout_of(*kinds: Kind, **fields: Any) -> KVLayout:
    named = {"model": "m", "weights_revision": "r", "dtype": "bfloat16", "block_tokens": 16} | fields
    return KVLayout(kinds=kinds, **named)


def test_a_block_without_a_grid_is_one_cell() -> None:
    layout = layout_of(FULL)
    (cell,) = layout.cells("full")
    assert (cell.component, cell.heads, cell.layers) == (0, range(8), range(4))
    assert cell.block_bytes == layout.block_bytes == 4 * 8 * 512 * 16 == layout.layout.groups[0].block_bytes
    assert layout.token_bytes == 4 * 8 * 512


def test_a_grid_numbers_its_cells_layer_by_layer_and_cuts_everything_once() -> None:
    layout = layout_of(FULL, LATENT, grid=Grid(heads=4), block_tokens=32)
    cells = layout.cells("full")
    assert [(cell.component, cell.heads) for cell in cells] == [(n, range(2 * n, 2 * n + 2)) for n in range(4)]
    assert [cell.component for cell in layout.cells("latent")] == [component(1)], "what every rank has is stored once"
    both = layout_of(FULL, grid=Grid(heads=2, layers=2)).cells("full")
    assert [(cell.component, cell.heads.start, cell.layers.start) for cell in both] == [
        (0, 0, 0),
        (1, 4, 0),
        (2, 0, 2),
        (3, 4, 2),
    ]
    seen = {(layer, head) for cell in both for layer in cell.layers for head in cell.heads}
    assert len(seen) == sum(len(cell.layers) * len(cell.heads) for cell in both) == 4 * 8


def test_more_ranks_than_heads_share_the_cells_of_the_heads() -> None:
    assert len(layout_of(FULL, grid=Grid(heads=16)).cells("full")) == 8


def test_the_canonical_order_is_layer_plane_head() -> None:
    (cell,) = layout_of(Kind("k", (0, 1), heads=2, planes=(64, 64))).cells("k")
    order = [(layer, plane, head) for layer in range(2) for plane in range(2) for head in range(2)]
    assert [cell.part(*at) for at in order] == list(range(8))


def test_planes_of_different_sizes_repeat_head_by_head() -> None:
    layout = layout_of(Kind("k", (0, 1), heads=3, planes=(192, 128)))
    (cell,) = layout.cells("k")
    order = [(layer, plane, head) for layer in range(2) for head in range(3) for plane in range(2)]
    assert [cell.part(*at) for at in order] == list(range(12))
    assert layout.layout.groups[0].part_bytes == (192 * 16, 128 * 16)
    assert layout.layout.groups[0].block_bytes == cell.block_bytes


def test_compressed_kinds_have_pages_of_their_own_size() -> None:
    layout = layout_of(
        FULL, Kind("c4", (4, 5), 1, (1152,), tokens_per_entry=4), Kind("c128", (6,), 1, (1152,), 128), block_tokens=256
    )
    assert [group.block_bytes for group in layout.layout.groups] == [4 * 8 * 512 * 256, 2 * 1152 * 64, 1152 * 2]
    assert layout.token_bytes == 4 * 8 * 512 + 2 * 1152 / 4 + 1152 / 128


def test_every_field_and_shape_tells_layouts_apart() -> None:
    plain = layout_of(FULL)
    others = [
        layout_of(FULL, model="n"),
        layout_of(FULL, weights_revision="s"),
        layout_of(FULL, dtype="float16"),
        layout_of(FULL, block_tokens=32),
        layout_of(FULL, grid=Grid(heads=2)),
        layout_of(FULL, grid=Grid(layers=2)),
        layout_of(FULL, more={"engine": "vllm"}),
        layout_of(Kind("full", tuple(range(1, 5)), 8, (256, 256))),
        layout_of(Kind("full", tuple(range(4)), 4, (512, 512))),
        layout_of(Kind("wide", tuple(range(4)), 8, (256, 256))),
        layout_of(Kind("full", tuple(range(4)), 8, (256, 256), window=64)),
        layout_of(Kind("full", tuple(range(4)), 8, (256, 256), tokens_per_entry=2)),
        layout_of(Kind("full", tuple(range(4)), 8, (128, 384))),
        layout_of(FULL, LATENT),
        layout_of(LATENT, FULL),
    ]
    assert len({layout.layout.id for layout in [plain, *others]}) == len(others) + 1
    assert layout_of(FULL) == plain == pickle.loads(pickle.dumps(plain))
    assert hash(layout_of(FULL)) == hash(plain)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Kind("", (0,), 1, (1,)), "name=''"),
        (lambda: Kind("k", (), 1, (1,)), "ascending"),
        (lambda: Kind(3, (0,), 1, (1,)), "name=3"),  # type: ignore[arg-type]
        (lambda: Kind("k", 3, 1, (1,)), "layers=3: must be a sequence"),  # type: ignore[arg-type]
        (lambda: Kind("k", (0,), 1, 2), "planes=2: must be a sequence"),  # type: ignore[arg-type]
        (lambda: layout_of(3), r"kinds \(int\)"),  # type: ignore[arg-type]
        (lambda: layout_of(FULL, grid=2), r"grid \(int\)"),
        (lambda: layout_of(FULL, more=3), r"more \(int\)"),
        (lambda: Kind("k", (1, 0), 1, (1,)), "ascending"),
        (lambda: Kind("k", (0,), 0, (1,)), "heads=0"),
        (lambda: Kind("k", (0,), 1, ()), "planes"),
        (lambda: Kind("k", (0,), 1, (1, 2, 3, 4, 5)), "planes"),
        (lambda: Grid(heads=0), "at least 1"),
        (lambda: Grid(heads=1 << 12, layers=1 << 12), "cells"),
        (lambda: layout_of(FULL, grid=Grid(heads=3)), "8 heads, which do not fall into 3 equal cells"),
        (lambda: layout_of(FULL, grid=Grid(layers=3)), r"4 layers, which \[1, 2, 4\] cut into equal cells"),
        (lambda: layout_of(FULL, weights_revision=""), "weights_revision=''"),
        (lambda: layout_of(FULL, FULL), "names of their own"),
        (lambda: layout_of(Kind("c", (0,), 1, (8,), 3)), "an entry for 3 tokens"),
        (lambda: layout_of(Kind("k", tuple(range(200)), 8, (1, 1))), "3200 parts in a block, at most 2560"),
        (lambda: layout_of(FULL, more={"dtype": "x"}), "dtype of the layout are said already"),
        (lambda: layout_of(FULL).kind("none"), "this layout has full"),
    ],
)
def test_what_cannot_be_is_refused_by_name(make: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make()
