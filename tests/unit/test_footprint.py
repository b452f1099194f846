"""What blocks take on flash: sums by layout, and the line of `halfstep stat`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from halfstep.client import entries
from halfstep.client.entries import Choices, Entry, Stock, choices_of, stocks_of, totals_of
from halfstep.tools.footprint import Footprint, by_layout
from halfstep.tools.stat import stored


def entry(layout: int, block_bytes: int, group: int = 0) -> Entry:
    return Entry(bytes([layout] * 16), group << 24 | 7, b"key", block_bytes, 1, 0, 0)


def test_layouts_are_summed_apart_and_what_went_is_left_out() -> None:
    told = [
        Footprint(entry(1, 24576), "bfx", 20480),
        Footprint(entry(2, 5000), "", 8192),
        Footprint(entry(1, 24576), "bfx", 16384),
        Footprint(entry(1, 24576), "bfx", None),
        Footprint(entry(3, 100), "", None),
        Footprint(entry(1, 4096), "raw", 4096),
        Footprint(entry(1, 8192, 2), "bfx", 4096),
    ]
    sums = by_layout(told)
    assert [(one.layout_id[0], one.group, one.codec, one.blocks, one.logical_bytes, one.flash_bytes) for one in sums] == [
        (1, 0, "bfx", 2, 49152, 36864),
        (2, 0, "", 1, 5000, 8192),
        (1, 0, "raw", 1, 4096, 4096),
        (1, 2, "bfx", 1, 8192, 4096),
    ]
    assert sums[0].ratio == pytest.approx(4 / 3)
    assert sums[1].ratio < 1, "padding"
    assert by_layout([]) == []


def test_stat_tells_bytes_by_namespace_group_and_codec() -> None:
    of = 'halfstep_{}_by_codec{{namespace="{}",group="{}",codec="{}"{}}}'.format
    counters: dict[str, float] = {"halfstep_store_bytes_live": 9}
    for kind, sizes in {
        (r"b\"c", "1", "bfx+ubq"): (3, 30, 20, 24),
        ("a", "0", "raw"): (1, 8, 8, 8),
        ("a", "other", "other"): (2, 5, 4, 4),
    }.items():
        counters[of("blocks", *kind, "")] = sizes[0]
        for what, size in zip(("logical", "stored", "flash"), sizes[1:], strict=True):
            counters[of("bytes", *kind, f',of="{what}"')] = size
    assert stocks_of(counters) == [
        Stock("a", "0", "raw", 1, 8, 8, 8),
        Stock("a", "other", "other", 2, 5, 4, 4),
        Stock('b"c', "1", "bfx+ubq", 3, 30, 20, 24),
    ]
    assert stocks_of({"halfstep_store_bytes_live": 9}) == [], "a daemon of before"


def test_choices_of_clients_are_found_among_the_counters_and_added_up_over_shards() -> None:
    why = 'halfstep_coding_choices_total{{namespace="{}",reason="{}"}}'.format
    knew = 'halfstep_coding_known{{namespace="{}",of="{}"}}'.format
    name = r"b\"c"
    shards = [
        {why(name, "faster"): 7, why(name, "slow_decode"): 1, knew(name, "ratio_milli"): 1480, why("a", "other"): 2},
        {why(name, "faster"): 5, knew(name, "ratio_milli"): 1500, knew(name, "link_bytes_per_s"): 9},
    ]
    assert choices_of(totals_of(shards)) == [
        Choices("a", 0, 2, {"other": 2}),
        Choices('b"c', 12, 1, {"faster": 12, "slow_decode": 1}, link_bytes_per_s=9, ratio=1.5),
    ]
    assert choices_of({"halfstep_store_bytes_live": 9}) == [], "a daemon of before"


def test_every_reason_is_known_to_be_of_coded_blocks_or_of_raw_ones(repository: Path) -> None:
    """As the client's core has them: those before `never` are coded."""
    header = (repository / "native" / "wire" / "coding_choices.cc").read_text()
    names = re.findall(r'return "(\w+)";', header)
    assert len(names) == 11
    assert set(names[: names.index("never")]) == entries._CODED_BECAUSE
    document = (repository / "docs" / "wire-protocol.md").read_text()
    for number, name in enumerate(names):
        coded = "coded" if name in entries._CODED_BECAUSE else "raw"
        assert f"| {number} {name} | {coded} |" in document


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
