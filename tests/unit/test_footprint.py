"""What blocks take on flash: sums by layout, and the line of `halfstep stat`."""

from __future__ import annotations

import pytest

from halfstep.client.entries import Entry
from halfstep.tools.footprint import Footprint, by_layout
from halfstep.tools.stat import stored


def entry(layout: int, block_bytes: int) -> Entry:
    return Entry(bytes([layout] * 16), 0, b"key", block_bytes, 1, 0, 0)


def test_layouts_are_summed_apart_and_what_went_is_left_out() -> None:
    told = [
        Footprint(entry(1, 24576), "bfx", 20480),
        Footprint(entry(2, 5000), "", 8192),
        Footprint(entry(1, 24576), "bfx", 16384),
        Footprint(entry(1, 24576), "bfx", None),
        Footprint(entry(3, 100), "", None),
    ]
    sums = by_layout(told)
    assert [(one.layout_id[0], one.codec, one.blocks, one.logical_bytes, one.flash_bytes) for one in sums] == [
        (1, "bfx", 2, 49152, 36864),
        (2, "", 1, 5000, 8192),
    ]
    assert sums[0].ratio == pytest.approx(4 / 3)
    assert sums[1].ratio < 1, "padding"
    assert by_layout([]) == []


def test_stat_tells_flash_from_what_was_written() -> None:
    of = 'halfstep_store_bytes_written_total{{of="{}"}}'.format
    counters = {
        "halfstep_store_bytes_live": 3 << 20,
        of("user"): 2 << 20,
        of("padding"): 1 << 20,
        of("metadata"): 4096,
        of("rewritten"): 0,
    }
    assert stored(counters) == (
        "3 MiB of blocks, trailers and padding included; written 2 MiB of puts as they are stored, 1 MiB trailers and padding, "
        "4 KiB metadata"
    )
    assert stored(counters | {of("rewritten"): 8192}).endswith("4 KiB metadata, 8 KiB again by reclaim")
    assert stored({}) == "0 B of blocks, trailers and padding included"
