"""The plan of a replay: one frozen struct, validated once."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from halfstep.daemon.units import format_bytes, parse_bytes
from halfstep.errors import ConfigError
from halfstep.tools.replay.dram import DRAM_POLICY
from halfstep.tools.replay.flash import STORE_POLICIES
from halfstep.tools.replay.hints import HINTS, HintName
from halfstep.tools.replay.reference import REFERENCES
from halfstep.tools.replay.stored import StoredBlock

SEGMENTS_MIN, SEGMENTS_MAX = 8, 1 << 20
BLOCK_BYTES_MIN, BLOCK_BYTES_MAX = 512, 256 << 20
# More than any trace has, and as much as the native core counts.
BLOCKS_MAX = (1 << 31) - 1
# Beyond this a block is hardly one any more.
CODEC_RATIO_MAX = 64.0
SEED_MAX = (1 << 63) - 1
CAPACITY_FORMS = "5%, 2000blocks or 64GiB"


@dataclass(frozen=True)
class Capacity:
    """As it was asked for: a share of the trace's unique blocks, or blocks, or bytes of blocks. One of them is not 0."""

    text: str
    share: float = 0.0
    block_count: int = 0
    bytes: int = 0

    @classmethod
    def parse(cls, text: str) -> Capacity:
        """Errors: ConfigError that names the three forms."""
        text = text.strip()
        if share := re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", text):
            if not 0 < float(share[1]) <= 100:
                raise ConfigError(f"capacity={text}: a share is above 0% and at most 100%")
            return cls(text, share=float(share[1]) / 100)
        if blocks := re.fullmatch(r"([1-9]\d*)\s*blocks?", text):
            if len(blocks[1]) > len(str(BLOCKS_MAX)) or int(blocks[1]) > BLOCKS_MAX:
                raise ConfigError(f"capacity={text[:40]}: must be at most {BLOCKS_MAX} blocks")
            return cls(text, block_count=int(blocks[1]))
        if not re.search(r"[a-zA-Z]", text):
            raise ConfigError(f"capacity={text!r}: write {CAPACITY_FORMS}")
        size = parse_bytes(text, "capacity")
        if size <= 0:
            raise ConfigError(f"capacity={text}: must be above 0")
        return cls(text, bytes=size)

    def blocks(self, unique_blocks: int, block_bytes: int) -> int:
        """How many blocks that is, at least one."""
        if self.share:
            # 10 % of 1,000 are 100, whatever 0.1 is in binary.
            return max(1, int(unique_blocks * self.share + 1e-6))
        return max(1, self.block_count or self.bytes // block_bytes)


@dataclass(frozen=True)
class Plan:
    """Everything a replay is told.

    block_bytes: true size of every block of the trace. dram_bytes: of true blocks, before each store's flash. segments: at
    least so many in each store. store: path of the stores' file, one after the other; None for memory. rewrite_share: of what
    requests write, what the store may write again. speed: how many times faster than the trace `real_clock` goes. codec_ratio:
    raw to stored bytes of a block, for a second result beside each one; 1: none. hints: those that the stores are told.
    """

    trace: Path
    policies: tuple[str, ...]
    capacities: tuple[Capacity, ...]
    block_bytes: int = 64 << 20
    dram_bytes: int = 0
    segments: int = 128
    store: Path | None = None
    real_clock: bool = False
    speed: float = 1.0
    tell_parents: bool = True
    limit: int = 0
    seed: int = 1
    rewrite_share: float = 0.1
    codec_ratio: float = 1.0
    hints: tuple[HintName, ...] = ()

    @property
    def stored(self) -> tuple[StoredBlock, ...]:
        """What blocks take on flash: plain, and coded where a ratio was given."""
        plain = StoredBlock(self.block_bytes)
        return (plain,) if self.codec_ratio == 1 else (plain, StoredBlock(self.block_bytes, self.codec_ratio))

    @property
    def results(self) -> int:
        """How many there will be."""
        return len(self.policies) * len(self.capacities) * len(self.stored)

    def _check_hints(self) -> None:
        for hint in self.hints:
            if hint not in HINTS:
                raise ConfigError(f"hints={hint!r}: unknown; a trace tells {' and '.join(HINTS)}")
        if self.hints and not any(name in STORE_POLICIES for name in self.policies):
            raise ConfigError(f"hints={','.join(self.hints)}: are told to stores; name one of {', '.join(STORE_POLICIES)}")

    def validated(self) -> Plan:
        """Itself. Errors: ConfigError with value, bound and remedy."""
        known = (*STORE_POLICIES, DRAM_POLICY, *REFERENCES)
        for name in self.policies:
            if name not in known:
                raise ConfigError(
                    f"policy={name!r}: unknown; the store knows {', '.join(STORE_POLICIES)}, and {DRAM_POLICY} for its memory "
                    f"alone; yardsticks are {', '.join(REFERENCES)}"
                )
        self._check_hints()
        if not self.policies:
            raise ConfigError(f"policy: none given; choose from {', '.join(known)}")
        if not self.capacities:
            raise ConfigError(f"capacity: none given; write {CAPACITY_FORMS}")
        if not BLOCK_BYTES_MIN <= self.block_bytes <= BLOCK_BYTES_MAX:
            raise ConfigError(
                f"block_bytes={self.block_bytes}: must be {BLOCK_BYTES_MIN} to {format_bytes(BLOCK_BYTES_MAX)}, as a block is"
            )
        if self.dram_bytes and not any(name in STORE_POLICIES for name in self.policies):
            raise ConfigError(
                f"dram={format_bytes(self.dram_bytes)}: stands before flash, and none of these policies has any; name one of "
                f"{', '.join(STORE_POLICIES)}, or give {DRAM_POLICY} a capacity"
            )
        if 0 < self.dram_bytes < self.block_bytes:
            raise ConfigError(f"dram={format_bytes(self.dram_bytes)}: less than one block, {format_bytes(self.block_bytes)}")
        if not SEGMENTS_MIN <= self.segments <= SEGMENTS_MAX:
            raise ConfigError(f"segments={self.segments}: must be {SEGMENTS_MIN} to {SEGMENTS_MAX}")
        if not 0 <= self.rewrite_share <= 1:
            raise ConfigError(f"rewrite_share={self.rewrite_share}: must be 0 to 1")
        if not 1 <= self.codec_ratio <= CODEC_RATIO_MAX:
            raise ConfigError(f"codec={self.codec_ratio}: must be 1, for none, to {CODEC_RATIO_MAX:g}")
        if any(block.coded and block.flash_ratio <= 1 for block in self.stored):
            raise ConfigError(
                f"codec={self.codec_ratio}: a block of {format_bytes(self.block_bytes)} takes as many pages coded as plain, "
                "so it would be stored plain; give a higher ratio, or larger blocks"
            )
        if self.limit < 0:
            raise ConfigError(f"limit={self.limit}: must be 0, for all requests, or more")
        if not 0 < self.speed <= 1e9:
            raise ConfigError(f"speed={self.speed}: must be above 0 and at most 1e9")
        if not 0 <= self.seed <= SEED_MAX:
            raise ConfigError(f"seed={self.seed}: must be 0 to {SEED_MAX}")
        return self
