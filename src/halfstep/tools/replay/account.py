"""Bytes written to the device, by cause, scaled to the true block size.

The replayed store keeps small blocks, but as many of them: what was written of them is counted in blocks and multiplied by
their true size. What a block takes beside its bytes does not shrink with it, so it is computed from the format for the true
size (docs/on-flash-format.md): on the scaled device, headers and footers weigh far more than they should.
"""

from __future__ import annotations

from halfstep.tools.replay.cache import Tally
from halfstep.tools.replay.stored import PAGE_BYTES, StoredBlock

CAUSES = ("user", "rewrite", "metadata", "padding")

_BODY_BYTES = 3968  # of a metadata page
_ENTRY_BYTES = 128
_ENTRIES_PER_PAGE = _BODY_BYTES // _ENTRY_BYTES
_FRAME_PAYLOAD_BYTES = 4 << 20


def true_bytes(tally: Tally, block: StoredBlock) -> dict[str, int]:
    """By cause, in the order of CAUSES. A coded block's bytes are those that are stored."""
    written = tally.blocks_written + tally.blocks_rewritten
    # A frame takes what one request writes, up to 4 MiB, but always one block.
    batch = max(1.0, tally.blocks_written / max(1, tally.batches))
    per_frame = int(min(batch, max(1, _FRAME_PAYLOAD_BYTES // block.extent_bytes)))
    sums_bytes = 0 if block.has_trailer else 8 * _up(4 * block.parts, 8)
    header_pages = _up(per_frame, _ENTRIES_PER_PAGE) + _up(per_frame * sums_bytes, _BODY_BYTES)
    frames = _up(written, per_frame)
    footers = tally.segments_sealed * PAGE_BYTES + written * _ENTRY_BYTES
    return {
        "user": tally.blocks_written * block.stored_bytes,
        "rewrite": tally.blocks_rewritten * block.stored_bytes,
        "metadata": frames * header_pages * PAGE_BYTES + footers + tally.side_bytes,
        "padding": written * (block.extent_bytes - block.stored_bytes),
    }


def amplification(by_cause: dict[str, int], causes: tuple[str, ...] = CAUSES) -> float:
    """What these causes wrote, against what the user wrote. 1 where nothing was."""
    return sum(by_cause[cause] for cause in causes) / by_cause["user"] if by_cause.get("user") else 1.0


def _up(value: int, unit: int) -> int:
    return -(-value // unit)
