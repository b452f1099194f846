"""Exact siblings of some lossy blocks, so that their error can be measured where they are: `halfstep compress canary`.

A sibling is variant 1 of a block's component: the same key and layout, coded exactly. Which blocks have one follows from
their keys, so that every process chooses the same.

Invariants: a sibling is put beside its block, behind it, and never instead; what becomes of it changes no result of the block's
put. Nothing reads siblings but who measures. Exact layouts have none.
Thread: any.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from halfstep.client.facts import CanaryFacts
from halfstep.compress import LOSSY
from halfstep.errors import ConfigError
from halfstep.layout import component

if TYPE_CHECKING:
    from halfstep.client.results import PutResult
    from halfstep.layout import Layout

# What tells a sibling's component from its block's.
SIBLING = component(variant=1)
ONE_IN_MAX = 1_000_000


class Canary:
    """one_in: of so many lossy blocks one has a sibling; 0: none. Errors: ConfigError."""

    def __init__(self, one_in: int) -> None:
        if isinstance(one_in, bool) or not isinstance(one_in, int) or not 0 <= one_in <= ONE_IN_MAX:
            raise ConfigError(f"canary={one_in!r}: must be 0 (none) to {ONE_IN_MAX}: one in so many lossy blocks has a sibling")
        self.one_in = one_in
        self._lock = threading.Lock()
        self._stored = self._present = self._refused = 0

    def chosen(self, layout: Layout, keys: Sequence[bytes], depth: int) -> list[int]:
        """Which of these blocks have a sibling. depth: of the first of them, in its sequence."""
        if self.one_in == 0 or layout.fields.get("codec") not in LOSSY:
            return []
        exact = layout.fields.get("codec.exact_blocks", "0")
        first = max(0, int(exact) - depth) if exact.isdecimal() else 0
        return [at for at in range(first, len(keys)) if zlib.crc32(keys[at]) % self.one_in == 0]

    def count(self, put: PutResult) -> None:
        """What became of some siblings."""
        with self._lock:
            self._stored += put.stored
            self._present += put.present + put.pending
            self._refused += len(put.ok) - put.hits - put.pending

    def facts(self) -> CanaryFacts:
        """So far."""
        with self._lock:
            return CanaryFacts(self.one_in, self._stored, self._present, self._refused)
