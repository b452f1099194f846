"""Bytes of block number n: a wrong block, a wrong page or a shifted one is seen without keeping copies.

A block is 64-bit words. Word w is pool[w] + (n mod BODIES) * ODD, where the pool is random from the seed; the first word of
each page is a hash of seed, n and the page instead. So two blocks differ in every page, two pages of a block differ, and a
source buffer that is used for n again and again (n mod BODIES stays) needs only its page heads written anew: a put that
derives its bytes from its number costs a few microseconds a mebibyte, not a copy of it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numpy.random import SFC64, Generator

Words = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.uint64]

PAGE_WORDS = 512
BODIES = 64

_ODD = np.uint64(0x9E3779B97F4A7C15)
_KEY_DTYPE = np.dtype([("seed", "<u8"), ("number", ">u8")])
KEY_BYTES = _KEY_DTYPE.itemsize


class Content:
    """Keys and bytes of numbered blocks of one size, from one seed."""

    def __init__(self, block_bytes: int, seed: int) -> None:
        assert block_bytes % 8 == 0, "blocks are whole words"
        self.block_bytes = block_bytes
        self.words = block_bytes // 8
        self.pages = -(-self.words // PAGE_WORDS)
        self._seed = np.uint64(seed)
        self._pool = Generator(SFC64(seed)).integers(0, 1 << 64, self.words, dtype=np.uint64)
        self._expected = np.empty(self.words, np.uint64)

    def numbers(self, first: int, count: int) -> Numbers:
        """`count` numbers from `first` on."""
        return np.arange(first, first + count, dtype=np.uint64)

    def keys(self, numbers: Numbers) -> npt.NDArray[np.uint8]:
        """Engine keys, one row per number."""
        keys = np.empty(len(numbers), _KEY_DTYPE)
        keys["seed"] = self._seed
        keys["number"] = numbers
        return keys.view(np.uint8).reshape(len(numbers), KEY_BYTES)

    def heads(self, numbers: Numbers, page: int | npt.NDArray[np.uint64]) -> Words:
        """The first word of a page of each block; `page` broadcasts against `numbers`."""
        with np.errstate(over="ignore"):
            mixed = (numbers + np.uint64(1)) * _ODD ^ (np.asarray(page, np.uint64) + self._seed) * np.uint64(0xC2B2AE3D27D4EB4F)
            mixed ^= mixed >> np.uint64(29)
            mixed = mixed * np.uint64(0xBF58476D1CE4E5B9)
            heads: Words = mixed ^ mixed >> np.uint64(32)
        return heads

    def fill(self, numbers: Numbers, out: Words) -> None:
        """Writes the blocks' bytes into the rows of `out` [numbers, words]."""
        for number, row in zip(numbers, out, strict=True):
            self._body(number, row)
        self.stamp(numbers, out)

    def stamp(self, numbers: Numbers, out: Words) -> None:
        """Writes only the page heads: `out` holds blocks whose numbers are the same mod BODIES."""
        pages = np.arange(self.pages, dtype=np.uint64)
        out[:, ::PAGE_WORDS] = self.heads(numbers[:, None], pages[None, :])

    def wrong_blocks(self, numbers: Numbers, seen: Words) -> int:
        """How many rows of `seen` are not their blocks, compared word by word."""
        wrong = 0
        for number, row in zip(numbers, seen, strict=True):
            one = np.array([number], np.uint64)
            self.fill(one, self._expected[None, :])
            wrong += not np.array_equal(self._expected, row)
        return wrong

    def forget_heads(self, seen: Words, page: int) -> None:
        """Makes all rows of `seen` wrong at `page`: what is not written again is not taken for what came."""
        seen[:, page * PAGE_WORDS] = 0

    def wrong_heads(self, numbers: Numbers, seen: Words, page: int) -> npt.NDArray[np.bool_]:
        """Which rows of `seen` have not their own head at `page`: a look at every block that takes microseconds."""
        wrong: npt.NDArray[np.bool_] = seen[:, page * PAGE_WORDS] != self.heads(numbers, page)
        return wrong

    def _body(self, number: np.uint64, row: Words) -> None:
        with np.errstate(over="ignore"):
            np.add(self._pool, (number % np.uint64(BODIES)) * _ODD, out=row)
