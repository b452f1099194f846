"""What a process's clients did in a namespace, counted: for `halfstep effect`, where $HALFSTEP_RECORD names a folder.

A call is counted when its result is taken, once. A rank that has a share of each block counts that share of its calls, so that
the ranks of an engine count each request once together.
Invariants: without the variable nothing here is made, and no call is counted. Counting never waits for a file.
Thread: any.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from halfstep.errors import ConfigError
from halfstep.record import COUNT_MAX

# Of every tally, from its first line on: what is not among its counters was not counted, which is another thing than 0.
# What tokens stand for is known to a Tier alone. Other names come with add() and are shown where they are known to a reader.
COUNTERS = (
    *("lookups", "lookups_hit", "lookups_unanswered", "lookup_wait_s"),
    *("lookup_blocks", "lookup_blocks_hit", "lookup_tokens", "lookup_tokens_hit"),
    *("loads", "loads_whole", "loads_of_parts", "load_wait_s", "load_bytes"),
    *("load_blocks", "load_blocks_ok", "load_tokens", "load_tokens_ok"),
    *("stores", "store_blocks", "store_blocks_written"),
    *("prefetches", "prefetch_blocks", "prefetch_blocks_ok"),
    *("prefill_tokens", "prefill_s"),
)


class Writer(Protocol):
    """Who writes what is counted: a Recorder."""

    def begin(self) -> None:
        """Something was counted."""
        ...

    def write(self, *, patience_s: float = 0) -> None:
        """Write it, if nobody else does within so long."""
        ...


class Tally:
    """Counters of one namespace and mode, which `recorder` writes. clock: monotonic, in seconds."""

    def __init__(self, namespace: str, mode: str, recorder: Writer, clock: Callable[[], float] = time.monotonic) -> None:
        self.namespace, self.mode, self.clock = namespace, mode, clock
        self._recorder = recorder
        self._begin()

    def _begin(self) -> None:
        # A signal's handler may count in the thread that holds it.
        self._lock = threading.RLock()
        self._counters: dict[str, float] = dict.fromkeys(COUNTERS, 0)

    def add(self, **more: float) -> None:
        """To counters by name; one that is new begins with 0.

        Errors: ConfigError (no number of 0 or more; nothing is counted then): it would make the whole record unreadable.
        """
        counted = {name: _count(name, value) for name, value in more.items()}
        with self._lock:
            for name, value in counted.items():
                self._counters[name] = self._counters.get(name, 0) + value
        self._recorder.begin()

    def snapshot(self) -> dict[str, float]:
        """All of them, as of one moment."""
        with self._lock:
            return dict(self._counters)

    def write(self) -> None:
        """Write what was counted, for a process that may end: it waits a second at most."""
        self._recorder.write(patience_s=1)

    def forked(self) -> None:
        """In a child, which has counted nothing."""
        self._begin()

    # ---- The calls ----

    def looked_up(
        self, began_s: float, blocks: int, found: int, *, answered: bool, block_tokens: int = 0, share: float = 1
    ) -> None:
        """A lookup of so many blocks is over. began_s: of the monotonic clock. answered: the daemon said all of it in time."""
        self.add(
            lookups=share,
            lookups_hit=share if found else 0,
            lookups_unanswered=0 if answered else share,
            lookup_wait_s=share * (self.clock() - began_s),
            lookup_blocks=share * blocks,
            lookup_blocks_hit=share * found,
            lookup_tokens=share * blocks * block_tokens,
            lookup_tokens_hit=share * found * block_tokens,
        )

    def loaded(
        self, began_s: float, blocks: int, whole: int, moved_bytes: int | None, *, block_tokens: int = 0, share: float = 1
    ) -> None:
        """A load of so many blocks is over, and so many are whole.

        moved_bytes: landed here, whatever the share is; None: of parts, whose bytes are not known.
        """
        self.add(
            loads=share,
            loads_whole=share if whole == blocks else 0,
            loads_of_parts=share if moved_bytes is None else 0,
            load_wait_s=share * (self.clock() - began_s),
            load_bytes=moved_bytes or 0,
            load_blocks=share * blocks,
            load_blocks_ok=share * whole,
            load_tokens=share * blocks * block_tokens,
            load_tokens_ok=share * whole * block_tokens,
        )

    def stored(self, blocks: float, written: float, *, share: float = 1) -> None:
        """A store of so many blocks is over, of which it wrote so many: the others were there, or were refused."""
        self.add(stores=share, store_blocks=blocks, store_blocks_written=written)

    def prefetched(self, blocks: int, there: int) -> None:
        """A prefetch of so many blocks is over, and so many are in the daemon's memory."""
        self.add(prefetches=1, prefetch_blocks=blocks, prefetch_blocks_ok=there)


def _count(name: str, value: float) -> float:
    """As a number of Python: one of numpy's has no JSON."""
    try:
        count = value if isinstance(value, (int, float)) else float(value)
    except (TypeError, ValueError):
        count = -1
    if not 0 <= count <= COUNT_MAX:
        raise ConfigError(f"{name}={value!r}: must be a number of 0 to {COUNT_MAX:g}; counters only rise")
    return count
