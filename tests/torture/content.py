"""Blocks whose bytes follow from their name: a wrong block is seen without keeping a copy of the right one."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

# Below a page, one page, odd, whole parts, several parts: plain and trailered extents alike.
SIZES = (1, 777, 4096, 20_000, 65_536, 262_144, 300_001, 1 << 20)


def size_of(key: bytes) -> int:
    """The block's length, from its key."""
    return SIZES[hashlib.blake2b(key, digest_size=1, person=b"size").digest()[0] % len(SIZES)]


def bytes_of(key: bytes) -> npt.NDArray[np.uint8]:
    """The block's bytes, from its key."""
    seed = int.from_bytes(hashlib.blake2b(key, digest_size=8, person=b"bytes").digest(), "little")
    return np.random.Generator(np.random.SFC64(seed)).integers(0, 256, size_of(key), dtype=np.uint8)
