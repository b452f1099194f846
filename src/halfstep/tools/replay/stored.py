"""What a block takes on flash, plain or coded: docs/on-flash-format.md, *Extent*."""

from __future__ import annotations

import math
from dataclasses import dataclass

PAGE_BYTES = 4096
_PART_BYTES = 256 << 10
_TRAILER_BYTES, _TRAILER_PART_BYTES = 32, 24


@dataclass(frozen=True)
class StoredBlock:
    """A block of `block_bytes`. ratio: its bytes to those that a codec makes of them; 1: it is plain."""

    block_bytes: int
    ratio: float = 1.0

    @property
    def coded(self) -> bool:
        """By a codec."""
        return self.ratio != 1.0

    @property
    def parts(self) -> int:
        """Of an opaque block."""
        return -(-self.block_bytes // _PART_BYTES)

    @property
    def stored_bytes(self) -> int:
        """Of its parts, without trailer and padding."""
        return math.ceil(self.block_bytes / self.ratio)

    @property
    def has_trailer(self) -> bool:
        """A plain block of whole pages has none."""
        return self.coded or self.block_bytes % PAGE_BYTES != 0

    @property
    def extent_bytes(self) -> int:
        """Whole pages."""
        trailer_bytes = _TRAILER_BYTES + _TRAILER_PART_BYTES * self.parts if self.has_trailer else 0
        return -(-(self.stored_bytes + trailer_bytes) // PAGE_BYTES) * PAGE_BYTES

    @property
    def flash_ratio(self) -> float:
        """Pages of a plain block to those of this one."""
        return StoredBlock(self.block_bytes).extent_bytes / self.extent_bytes

    def room(self, plain_blocks: int) -> int:
        """How many of these stand where so many plain ones do."""
        return plain_blocks * StoredBlock(self.block_bytes).extent_bytes // self.extent_bytes
