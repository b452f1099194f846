"""The real store as a cache: `_store.Store`, small enough for memory, with as many blocks as the true one would hold."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from halfstep import _store
from halfstep.daemon.refusals import error_of
from halfstep.tools.replay.cache import Tally
from halfstep.tools.replay.hints import Hints
from halfstep.tools.replay.stored import PAGE_BYTES
from halfstep.tools.replay.trace import Trace

STORE_POLICIES = _store.policies()

# What a store is scaled to, about: more makes nothing more exact.
DEVICE_BYTES = 1 << 30
# How often a store that waits for the clock is looked after.
_IDLE_S = 0.05


class FlashCache:
    """One store under one policy. Errors: ConfigError (a capacity that does not fit, a file that exists), DeviceError."""

    def __init__(
        self,
        trace: Trace,
        capacity_blocks: int,
        *,
        policy: str = STORE_POLICIES[0],
        rewrite_share: float = 0.1,
        segments: int,
        dram_blocks: int = 0,
        path: str = "",
        tell_parents: bool = True,
        speed: float = 0.0,
        seed: int = 1,
        hints: Hints | None = None,
    ) -> None:
        """`speed`: of the machine's clock against the trace's; 0: simulated. `dram_blocks`: of the tier of memory; 0: none."""
        self._trace = trace
        self._tell_parents, self._hints = tell_parents, hints
        self._speed = speed
        self._started_s = time.monotonic()
        self._missed = self._wrong = self._refused = self._peak = self._batches = 0
        try:
            self._store = _store.Store(
                capacity_blocks=capacity_blocks,
                segments=segments,
                dram_blocks=dram_blocks,
                device_bytes=DEVICE_BYTES,
                path=path,
                manual_clock=not speed,
                seed=seed,
                policy=policy,
                rewrite_share=rewrite_share,
            )
        except _store.StoreError as error:
            raise error_of(error) from None

    def request(self, index: int) -> int:
        """Matches, reads what matches from the root on, and touches or writes everything, the leaf first."""
        trace = self._trace
        self._wait_until(int(trace.times_us[index]))
        keys = trace.keys[trace.request(index)]
        try:
            leading, _present = self._store.match(keys)
            hits, missed, wrong = self._store.read(keys[:leading])
            tell = self._tell_parents and bool(trace.chained[index])
            _there, written, refused = self._store.access(
                keys,
                tell_parents=tell,
                ttl_s=int(trace.ttl_s[index]),
                hints=None if self._hints is None else self._hints.of(index),
            )
        except _store.StoreError as error:
            raise error_of(error) from None
        self._missed += missed
        self._wrong += wrong
        self._refused += refused
        self._batches += written > 0
        self._peak = max(self._peak, self._store.blocks())
        return hits

    # ---- Block by block, for a caller who has a clock of its own ----

    def advance_to_s(self, at_s: float) -> None:
        """The store's clock, and what is due by then."""
        self._store.advance_to(int(at_s * 1e6))

    def leading(self, index: int) -> list[int]:
        """The blocks of the longest present prefix of a request."""
        blocks = self._trace.request(index)
        count, _present = self._store.match(self._trace.keys[blocks])
        return [int(block) for block in blocks[:count]]

    def read_one(self, block: int) -> tuple[bool, bool, bool]:
        """Whether it came, whether that took a staged block, and whether it came from memory."""
        before = self._store.counters()
        came, missed, wrong = self._store.read(self._trace.keys[block : block + 1])
        after = self._store.counters()
        self._missed += missed
        self._wrong += wrong
        staged, hot = (after[name] > before[name] for name in ("staged_used", "hits_memory"))
        return came == 1, staged, hot

    def stage(self, block: int, keep_s: float) -> int:
        """See _store.Store.stage."""
        return self._store.stage(self._trace.keys[block : block + 1], int(keep_s * 1e6))[0]

    def use(self, index: int) -> None:
        """Touches or writes all blocks of a request, the leaf first."""
        trace = self._trace
        tell = self._tell_parents and bool(trace.chained[index])
        self._store.access(trace.keys[trace.request(index)], tell_parents=tell, ttl_s=int(trace.ttl_s[index]))

    def present(self) -> NDArray[np.bool_]:
        """Of all blocks, in one call."""
        _leading, present = self._store.match(self._trace.keys)
        return np.frombuffer(present, np.bool_)

    def tally(self) -> Tally:
        """The store's own counters."""
        counters = self._store.counters()
        sizing = self._store.sizing()
        unreadable = counters["misses_corrupt"] + counters["misses_io"]
        return Tally(
            blocks_written=counters["writes_committed"],
            blocks_rewritten=counters["blocks_rewritten"],
            blocks_refused=self._refused,
            blocks_missed=unreadable,
            blocks_overtaken=self._missed - unreadable,
            # Memory for what is under way is no tier.
            blocks_hit_dram=counters["hits_memory"] if sizing["dram_blocks"] else 0,
            blocks_wrong=self._wrong,
            blocks_peak=self._peak,
            batches=self._batches,
            segments_sealed=counters["segments_sealed"],
            # The log stands in two copies.
            side_bytes=(2 * counters["record_pages"] + counters["touch_pages"]) * PAGE_BYTES,
            evicted={reason: counters[f"blocks_evicted_{reason}"] for reason in ("age", "expired", "unreadable")},
            device_bytes={
                "user": counters["bytes_user"],
                "rewrite": counters["bytes_rewritten"],
                "metadata": counters["bytes_metadata"],
                "padding": counters["bytes_padding"],
            },
            sizing=sizing,
        )

    def close(self) -> None:
        """The file, if there was one, is gone."""
        self._store.close()

    def _wait_until(self, trace_us: int) -> None:
        if not self._speed:
            self._store.advance_to(trace_us)
            return
        while (left_s := trace_us / 1e6 / self._speed - (time.monotonic() - self._started_s)) > 0:
            self._store.settle()
            time.sleep(min(left_s, _IDLE_S))
