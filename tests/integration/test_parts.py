"""Some parts of large blocks, from a daemon that has them on flash alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pytest
from tests.integration.conftest import SMALL_STORE, Daemon

import halfstep
from halfstep.layout import Group

pytestmark = pytest.mark.integration

PARTS, PART_BYTES = 32, 16 << 10
BLOCK_BYTES = PARTS * PART_BYTES
Blocks = Callable[..., npt.NDArray[np.uint8]]
KEYS = [f"block {number}".encode() for number in range(12)]


@pytest.fixture
def cold(tmp_path: Path, blocks: Blocks) -> Iterator[halfstep.Client]:
    """A client of a daemon that has the blocks on flash and none of them in memory, and reads for nobody else."""
    layout = halfstep.Layout({"name": "layers"}, [Group(PARTS, (PART_BYTES,))])
    terms: dict[str, Any] = {"layout": layout, "required": True, "deadline_ms": 30_000, "match_deadline_ms": 30_000}
    with closing(Daemon(tmp_path, SMALL_STORE, "--scrub", "off")) as daemon:
        daemon.start()
        with halfstep.connect(daemon.url, **terms) as writer:
            for number, key in enumerate(KEYS):
                assert writer.put([key], blocks(1, BLOCK_BYTES, seed=number), durability="persist").ok.all()
        daemon.kill()
        daemon.start()
        with halfstep.connect(daemon.url, **terms) as client:
            yield client


def read_by_device(client: halfstep.Client) -> int:
    return int(client.stat()['halfstep_device_bytes_total{op="read"}'])


def read_in_parts(client: halfstep.Client) -> tuple[int, int]:
    stat = client.stat()
    alone, whole = (int(stat[f'halfstep_store_part_reads_total{{outcome="{of}"}}']) for of in ("alone", "whole_block"))
    return alone, whole


@pytest.mark.parametrize("order", ["key", "layer"])
def test_a_layer_at_a_time_costs_the_device_a_layer(
    cold: halfstep.Client, blocks: Blocks, order: Literal["key", "layer"]
) -> None:
    whole = np.concatenate([blocks(1, BLOCK_BYTES, seed=number) for number in range(len(KEYS))])
    layers = whole.reshape(len(KEYS), PARTS, PART_BYTES)
    before = read_by_device(cold)
    for layer in range(0, PARTS, 4):
        target = np.zeros((len(KEYS), 4, PART_BYTES), np.uint8)
        result = cold.get([*KEYS], target, parts=[range(layer, layer + 4)], order=order)
        assert result.items_ok.all()
        assert result.lengths.tolist() == [BLOCK_BYTES] * len(KEYS)
        assert np.array_equal(target, layers[:, layer : layer + 4])
    assert read_in_parts(cold) == (PARTS // 4 * len(KEYS), 0)
    read = read_by_device(cold) - before
    assert whole.nbytes <= read <= whole.nbytes * 1.2, "each layer once, and headers of frames"


def test_layers_of_whole_blocks_come_as_they_land_and_the_blocks_are_kept(cold: halfstep.Client, blocks: Blocks) -> None:
    whole = np.concatenate([blocks(1, BLOCK_BYTES, seed=number) for number in range(len(KEYS))])
    before = read_by_device(cold)
    for _ in range(2):
        target = np.zeros_like(whole)
        result = cold.get([*KEYS], target, order="layer")
        assert result.ok.all()
        assert np.array_equal(target, whole)
    read = read_by_device(cold) - before
    verified, again = (
        int(cold.stat()[f'halfstep_store_early_reads_total{{outcome="{of}"}}']) for of in ("verified", "read_again")
    )
    assert 1 <= verified <= len(KEYS)
    assert again == 0
    assert read <= whole.nbytes * 1.2, "each block once, and headers of frames"


def test_parts_of_blocks_in_memory_come_from_there(cold: halfstep.Client, blocks: Blocks) -> None:
    target = np.zeros((1, BLOCK_BYTES), np.uint8)
    assert cold.get(KEYS[:1], target).ok.all()
    before = read_by_device(cold)
    part = np.zeros((1, PART_BYTES), np.uint8)
    assert cold.get(KEYS[:1], part, parts=[7]).items_ok.all()
    assert np.array_equal(part[0], blocks(1, BLOCK_BYTES)[0, 7 * PART_BYTES : 8 * PART_BYTES])
    assert read_by_device(cold) == before
    assert read_in_parts(cold) == (0, 0)
