"""Transfers that an engine numbers and nobody waits for: between rows of its host memory and the daemon.

Invariants: with nothing in flight no call here reaches the client. Each transfer ends by its deadline, and is said once.
Thread: one at a time, the engine's scheduler.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from halfstep.tier import BACKGROUND, Counts, Moved, Pending, RowMemory, Values, Wait, Waits

log = logging.getLogger("halfstep.connectors")


@dataclass(slots=True)
class Transfer:
    """One job of an engine's, once it is over.

    number: the engine's. load: into its memory. good: of its keys, those that were moved (or were there already). bytes: moved.
    seconds: since it was handed over.
    """

    number: int
    keys: Sequence[bytes]
    load: bool
    good: list[bytes]
    bytes: int
    seconds: float

    @property
    def whole(self) -> bool:
        """Nothing of it failed."""
        return len(self.good) == len(self.keys)


@dataclass(slots=True)
class _Flying:
    number: int
    keys: list[bytes]
    load: bool
    pending: Pending[Moved]
    wait: Wait


class Jobs:
    """Loads and stores of one engine process. counts: where they go."""

    def __init__(self, values: Values, memory: RowMemory, counts: Counts | None = None) -> None:
        self.counts = Counts() if counts is None else counts
        self._values, self._memory = values, memory
        self._waits = Waits(self.counts)
        self._flying: list[_Flying] = []
        self._over: list[Transfer] = []

    def load(self, number: int, keys: Iterable[bytes], rows: npt.NDArray[np.integer[Any]]) -> None:
        """Values into rows of the engine's memory. `number` comes back from `finished`."""
        self._begin(number, keys, rows, load=True)

    def store(self, number: int, keys: Iterable[bytes], rows: npt.NDArray[np.integer[Any]]) -> None:
        """Values from rows of the engine's memory, which must not change until `number` comes back from `finished`."""
        self._begin(number, keys, rows, load=False)

    def finished(self) -> list[Transfer]:
        """What is over and was not said before. Never waits."""
        if self._flying:
            self._values.poll()
            self._settle()
        over, self._over = self._over, []
        return over

    @property
    def busy(self) -> bool:
        """A transfer is under way, or over and not said yet."""
        return bool(self._flying or self._over)

    def drain(self) -> None:
        """Waits until every transfer is over: by its deadline."""
        # First: what has ended already, such as a transfer of nothing, may never be told to a wait again.
        self._settle()
        while self._flying:
            self._values.wait()
            self._settle()

    def close(self) -> None:
        """Ends what is in flight; no byte lands afterwards. What was a transfer is over, as failed, for `finished`."""
        self._values.close()
        self._settle()

    def _begin(self, number: int, keys: Iterable[bytes], rows: npt.NDArray[np.integer[Any]], *, load: bool) -> None:
        names, places = [bytes(key) for key in keys], np.asarray(rows, dtype=np.int64)
        wait = self._waits.begin(self._values.client.deadline_ms)
        if load:
            pending = self._values.begin_get(names, self._memory, rows=places)
        else:
            pending = self._values.begin_put(names, self._memory, rows=places, priority=BACKGROUND)
        self._flying.append(_Flying(number, names, load, pending, wait))

    def _settle(self) -> None:
        flying, self._flying = self._flying, []
        for job in flying:
            if job.pending.done:
                self._end(job)
            else:
                if job.load:
                    self._waits.look(job.wait)
                self._flying.append(job)

    def _end(self, job: _Flying) -> None:
        good: list[bytes] = []
        moved = 0
        try:
            result = job.pending.result()
        except Exception:
            # A mistake of ours, and no reason that the engine waits for ever.
            log.exception("transfer %d", job.number)
        else:
            good = [key for key, ok in zip(job.keys, result.ok.tolist(), strict=True) if ok]
            moved = result.bytes
        failed = len(job.keys) - len(good)
        if job.load:
            self._waits.end(job.wait)
            self.counts.loads += len(good)
            self.counts.loads_failed += failed
        else:
            self.counts.stores += len(good)
            self.counts.stores_failed += failed
        self._over.append(Transfer(job.number, job.keys, job.load, good, moved, time.monotonic() - job.wait.began_s))
