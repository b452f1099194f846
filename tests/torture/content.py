"""Blocks whose bytes follow from their name: a wrong block is seen without keeping a copy of the right one."""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

# Below a page, one page, odd, whole parts, several parts: plain and trailered extents alike.
SIZES = (1, 777, 4096, 20_000, 65_536, 262_144, 300_001, 1 << 20)


def size_of(key: bytes, bytes_max: int = SIZES[-1]) -> int:
    """The block's length, from its key. bytes_max: the largest block that the store takes."""
    sizes = [size for size in SIZES if size <= bytes_max]
    return sizes[hashlib.blake2b(key, digest_size=1, person=b"size").digest()[0] % len(sizes)]


def bytes_of(key: bytes, bytes_max: int = SIZES[-1]) -> npt.NDArray[np.uint8]:
    """The block's bytes, from its key. bytes_max: as for `size_of`."""
    return noise_of(key, size_of(key, bytes_max))


def noise_of(key: bytes, count: int) -> npt.NDArray[np.uint8]:
    """So many bytes, from a key."""
    seed = int.from_bytes(hashlib.blake2b(key, digest_size=8, person=b"bytes").digest(), "little")
    return np.random.Generator(np.random.SFC64(seed)).integers(0, 256, count, dtype=np.uint8)
