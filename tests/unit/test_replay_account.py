"""Capacities as people write them, and bytes by cause at the true size of blocks."""

from __future__ import annotations

import pytest

from halfstep import ConfigError
from halfstep.tools.replay.account import amplification, true_bytes
from halfstep.tools.replay.cache import Tally
from halfstep.tools.replay.plan import Capacity
from halfstep.tools.replay.stored import StoredBlock

MIB = 1 << 20


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("5%", 50),
        ("0.25 %", 2),
        ("100%", 1000),
        ("2000blocks", 2000),
        ("1 block", 1),
        ("64GiB", 1024),
        ("64MiB", 1),
        ("1KiB", 1),
    ],
)
def test_a_capacity_is_a_share_or_blocks_or_bytes(text: str, blocks: int) -> None:
    assert Capacity.parse(text).blocks(1000, 64 * MIB) == blocks


@pytest.mark.parametrize("text", ["", "5", "0%", "101%", "-5%", "x", "0blocks", "0MiB", "5%%"])
def test_anything_else_is_refused_with_the_value(text: str) -> None:
    with pytest.raises(ConfigError, match="capacity="):
        Capacity.parse(text)


def test_large_blocks_have_a_frame_each() -> None:
    tally = Tally(blocks_written=100, blocks_rewritten=10, batches=10, segments_sealed=3, side_bytes=8192)
    by_cause = true_bytes(tally, StoredBlock(64 * MIB))
    assert by_cause["user"] == 100 * 64 * MIB
    assert by_cause["rewrite"] == 10 * 64 * MIB
    assert by_cause["padding"] == 0
    # A page of entries and one of part sums a frame; 128 bytes a block and a page a segment for footers; log and touch maps.
    assert by_cause["metadata"] == 110 * 2 * 4096 + 110 * 128 + 3 * 4096 + 8192
    assert amplification(by_cause, ("user", "rewrite")) == pytest.approx(1.1)
    assert amplification(by_cause) == pytest.approx(1.1, abs=0.001)


def test_small_blocks_share_a_frame_as_far_as_their_request_goes() -> None:
    tally = Tally(blocks_written=1000, batches=100)
    by_cause = true_bytes(tally, StoredBlock(16 << 10))
    assert by_cause["metadata"] == 100 * 2 * 4096 + 1000 * 128


def test_blocks_that_are_no_whole_pages_are_padded() -> None:
    by_cause = true_bytes(Tally(blocks_written=10, batches=10), StoredBlock(5000))
    # 5,000 bytes, one part and the trailer's tail take two pages.
    assert by_cause["padding"] == 10 * (8192 - 5000)
    assert by_cause["metadata"] == 10 * 4096 + 10 * 128


def test_nothing_written_is_no_amplification() -> None:
    assert amplification(true_bytes(Tally(), StoredBlock(MIB))) == 1.0


def test_a_coded_block_has_a_trailer_and_whole_pages() -> None:
    coded = StoredBlock(64 * MIB, 2.0)
    assert coded.stored_bytes == 32 * MIB
    # 256 parts of 24 bytes and the tail of 32 take two pages beyond the half.
    assert coded.extent_bytes == 32 * MIB + 2 * 4096
    assert coded.flash_ratio == pytest.approx(1.9995, abs=1e-4)
    by_cause = true_bytes(Tally(blocks_written=10, batches=10), coded)
    assert by_cause["user"] == 10 * 32 * MIB
    assert by_cause["padding"] == 10 * 2 * 4096
    assert by_cause["metadata"] == 10 * 4096 + 10 * 128, "part sums stand in the trailer"
    assert StoredBlock(3 * 4096, 1.5).extent_bytes == 3 * 4096, "two whole pages, and one for the trailer"


def test_room_is_counted_in_pages() -> None:
    coded = StoredBlock(12 * 4096, 1.45)
    assert coded.extent_bytes == 9 * 4096
    assert [coded.room(blocks) for blocks in (0, 1, 3, 300)] == [0, 1, 4, 400]
    assert StoredBlock(12 * 4096).room(300) == 300
