"""What reached the device, by cause, in the bytes of the true blocks.

The replayed store keeps small blocks, but as many of them: what was written of them is counted in blocks and multiplied by
their true size. What a block takes beside its bytes does not shrink with it, so it is computed from the format for the true
size (docs/on-flash-format.md): on the scaled device, headers and footers weigh far more than they should.
"""

from __future__ import annotations

from halfstep.tools.replay.cache import Tally

CAUSES = ("user", "rewrite", "metadata", "padding")

PAGE_BYTES = 4096
_BODY_BYTES = 3968  # of a metadata page
_ENTRY_BYTES = 128
_ENTRIES_PER_PAGE = _BODY_BYTES // _ENTRY_BYTES
_FRAME_PAYLOAD_BYTES = 4 << 20
_PART_BYTES = 256 << 10
_TRAILER_BYTES, _TRAILER_PART_BYTES = 32, 24


def true_bytes(tally: Tally, block_bytes: int) -> dict[str, int]:
    """By cause, in the order of CAUSES."""
    written = tally.blocks_written + tally.blocks_rewritten
    parts = _up(block_bytes, _PART_BYTES)
    whole_pages = block_bytes % PAGE_BYTES == 0
    extent_bytes = block_bytes
    if not whole_pages:
        extent_bytes = _up(block_bytes + _TRAILER_BYTES + _TRAILER_PART_BYTES * parts, PAGE_BYTES) * PAGE_BYTES
    # A frame takes what one request writes, up to 4 MiB, but always one block.
    batch = max(1.0, tally.blocks_written / max(1, tally.batches))
    per_frame = int(min(batch, max(1, _FRAME_PAYLOAD_BYTES // extent_bytes)))
    sums_bytes = 8 * _up(4 * parts, 8) if whole_pages else 0
    header_pages = _up(per_frame, _ENTRIES_PER_PAGE) + _up(per_frame * sums_bytes, _BODY_BYTES)
    frames = _up(written, per_frame)
    footers = tally.segments_sealed * PAGE_BYTES + written * _ENTRY_BYTES
    return {
        "user": tally.blocks_written * block_bytes,
        "rewrite": tally.blocks_rewritten * block_bytes,
        "metadata": frames * header_pages * PAGE_BYTES + footers + tally.side_bytes,
        "padding": written * (extent_bytes - block_bytes),
    }


def amplification(by_cause: dict[str, int], causes: tuple[str, ...] = CAUSES) -> float:
    """What these causes wrote, against what the user wrote. 1 where nothing was."""
    return sum(by_cause[cause] for cause in causes) / by_cause["user"] if by_cause.get("user") else 1.0


def _up(value: int, unit: int) -> int:
    return -(-value // unit)
