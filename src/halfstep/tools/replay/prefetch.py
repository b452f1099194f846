"""The real prefetch policy over the real store, in virtual time: what of a trace's hits is in memory when it is asked for.

An application announces each request `lead_s` before its engine begins to read: it is in a queue, or its user types. From then
on the policy (halfstep.client.ahead) may bring its blocks ahead; a share of the announcements are wrong, and nobody comes. The
store decides what is there, what has room in memory and what a read finds there. A device that reads one block after the other,
those that somebody waits for first, decides when a block has come. A reader goes on as fast as its link, and waits for what is
late.

Invariants: no time passes but the virtual one; the same trace, terms and seed give the same figures. Whether a block was there
in time is the store's word: that its read took a staged block. Writes take no time of the device.
"""

from __future__ import annotations

import heapq
import random
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Protocol

from halfstep.client.ahead import KINDS, Ahead, Ask, Counts, Item, Kind
from halfstep.errors import ConfigError
from halfstep.tools.replay.flash import FlashCache
from halfstep.tools.replay.trace import Trace

# What an announced request that does not come is waited for, and when it is announced after the one that came.
KEEP_S = 5.0
RETURN_S = 60.0
# EmbeddedStore::Staged.
_THERE, _WAS_THERE = 1, 2
# Memory for each byte of the budget: the store keeps a quarter for what was prefetched, less what a block is rounded up by.
DRAM_PER_BUDGET = 6


@dataclass(frozen=True)
class Terms:
    """Of a run.

    window: blocks ahead of a reader. lead_s: from announcement to first read. wrong: announcements that nobody
    follows, by requests. device_bytes_per_s, reader_bytes_per_s: of the store's device, and of each reader.
    """

    block_bytes: int
    budget_bytes: int
    window: int = 64
    lead_s: float = 1.0
    wrong: float = 0.05
    device_bytes_per_s: float = 12e9
    reader_bytes_per_s: float = 6e9
    seed: int = 1

    def validated(self) -> Terms:
        """Itself. Errors: ConfigError."""
        if self.budget_bytes < self.block_bytes:
            raise ConfigError(f"prefetch={self.budget_bytes}: less than one block of {self.block_bytes} bytes; give more")
        for name in ("device_bytes_per_s", "reader_bytes_per_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name}={getattr(self, name)}: must be above 0")
        if not 0 <= self.lead_s <= 3600:
            raise ConfigError(f"lead={self.lead_s}: must be 0 to 3600 seconds")
        if not 0 <= self.wrong <= 10:
            raise ConfigError(f"wrong={self.wrong}: must be 0 to 10 announcements by request")
        return self


class Policy(Protocol):
    """What is asked for a decision: Ahead, or what a test puts in its place."""

    counts: dict[Kind, Counts]

    def follow(self, items: list[Item], *, kind: Kind, window: int, keep_s: float, now_s: float) -> int:
        """See Ahead.follow."""
        ...

    def due(self, now_s: float) -> list[Ask]:
        """See Ahead.due."""
        ...

    def read(self, keys: list[int], now_s: float) -> None:
        """See Ahead.read."""
        ...

    def landed(self, key: int, there: bool) -> None:
        """See Ahead.landed."""
        ...

    def end(self, number: int) -> list[Any]:
        """See Ahead.end."""
        ...

    def withdrawn(self, key: int) -> None:
        """See Ahead.withdrawn."""
        ...


@dataclass
class Outcome:
    """Blocks that readers asked for, by where they were then. gone: announced as there, and evicted before.

    memory: in the store's memory without a prefetch. stall_s: what readers waited for blocks, in sum.
    """

    requests: int = 0
    requests_hit: int = 0
    demanded: int = 0
    memory: int = 0
    in_time: int = 0
    late: int = 0
    gone: int = 0
    wrong: int = 0
    stall_s: float = 0.0
    kinds: dict[Kind, Counts] = field(default_factory=dict)

    @property
    def in_time_share(self) -> float:
        """Of the demanded blocks that memory did not have by itself."""
        return self.in_time / max(1, self.demanded - self.memory)

    @property
    def unused_share(self) -> float:
        """Of the bytes that were brought ahead."""
        unused = sum(counts.unused_bytes for counts in self.kinds.values())
        brought = sum(counts.used_bytes + counts.late_bytes + counts.unused_bytes for counts in self.kinds.values())
        return unused / max(1, brought)

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return {**asdict(self), "in_time_share": self.in_time_share, "unused_share": self.unused_share}


@dataclass
class _Reading:
    """A request on its way through its hits."""

    index: int
    blocks: list[int]
    number: int
    position: int = 0


class Run:
    """One trace over one store. `policy`: None = nothing is brought ahead."""

    def __init__(self, trace: Trace, store: FlashCache, terms: Terms, policy: Policy | None = None) -> None:
        self._trace, self._store, self._terms, self._policy = trace, store, terms, policy
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._now_s = 0.0
        # The device: what waits, block by block, and what it reads.
        self._demands: deque[tuple[int, Callable[[], None]]] = deque()
        self._ahead: OrderedDict[int, Ask] = OrderedDict()
        self._busy = False
        self._was_there: set[int] = set()
        self.outcome = Outcome()

    def run(self, tell: Callable[[int], None] = lambda _requests: None) -> Outcome:
        """All of the trace. `tell` hears of requests that are done."""
        dice = random.Random(self._terms.seed)  # noqa: S311
        for index in range(self._trace.requests):
            at_s = int(self._trace.times_us[index]) / 1e6
            self._at(at_s, partial(self._announce, index))
            for _ in range(int(self._terms.wrong) + (dice.random() < self._terms.wrong % 1)):
                self._at(at_s + self._terms.lead_s + dice.expovariate(1 / RETURN_S), partial(self._mislead, index))
        while self._events:
            self._now_s, _, act = heapq.heappop(self._events)
            self._store.advance_to_s(self._now_s)
            done = self.outcome.requests
            act()
            self._pump()
            if self.outcome.requests != done:
                tell(self.outcome.requests - done)
        if self._policy is not None:
            self.outcome.kinds = {kind: self._policy.counts[kind] for kind in KINDS}
        return self.outcome

    def _at(self, at_s: float, act: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._events, (at_s, self._order, act))

    # ---- Requests ----

    def _expect(self, index: int) -> _Reading:
        blocks = self._store.leading(index)
        number = 0
        if self._policy is not None and blocks:
            keep_s = self._terms.lead_s + KEEP_S
            items = [Item(block, self._terms.block_bytes) for block in blocks]
            number = self._policy.follow(items, kind="turn", window=self._terms.window, keep_s=keep_s, now_s=self._now_s)
        return _Reading(index, blocks, number)

    def _announce(self, index: int) -> None:
        reading = self._expect(index)
        self._at(self._now_s + self._terms.lead_s, lambda: self._read(reading))

    def _mislead(self, index: int) -> None:
        self.outcome.wrong += 1
        reading = self._expect(index)
        self._at(self._now_s + self._terms.lead_s + KEEP_S, lambda: self._end(reading))

    def _read(self, reading: _Reading) -> None:
        """The next block of a reader is asked for."""
        if reading.position == len(reading.blocks):
            self._finish(reading)
            return
        block = reading.blocks[reading.position]
        there, staged, hot = self._store.read_one(block)
        if self._policy is not None:
            self._policy.read([block], self._now_s)
        if not there:
            self.outcome.gone += len(reading.blocks) - reading.position
            self._finish(reading)
            return
        reading.position += 1
        self.outcome.demanded += 1
        pace_s = self._terms.block_bytes / self._terms.reader_bytes_per_s
        on = lambda: self._read(reading)  # noqa: E731
        if staged and block not in self._was_there:
            self.outcome.in_time += 1
        elif staged or hot:
            self.outcome.memory += 1
        else:
            self.outcome.late += 1
            self._ahead.pop(block, None)
            asked_s = self._now_s

            def landed() -> None:
                self.outcome.stall_s += self._now_s - asked_s
                if self._policy is not None:
                    self._policy.landed(block, True)
                self._at(self._now_s + pace_s, on)

            self._demands.append((block, landed))
            return
        self._was_there.discard(block)
        self._at(self._now_s + pace_s, on)

    def _finish(self, reading: _Reading) -> None:
        self._end(reading)
        self._store.use(reading.index)
        self.outcome.requests += 1
        self.outcome.requests_hit += bool(reading.blocks)

    def _end(self, reading: _Reading) -> None:
        if self._policy is None:
            return
        for key in self._policy.end(reading.number):
            if self._ahead.pop(key, None) is not None:
                self._policy.withdrawn(key)

    # ---- The device ----

    def _pump(self) -> None:
        if self._policy is not None:
            self._ahead.update((ask.item.key, ask) for ask in self._policy.due(self._now_s))  # type: ignore[misc]
        if self._busy or not (self._demands or self._ahead):
            return
        self._busy = True
        done = self._bring() if not self._demands else self._demands.popleft()[1]
        self._at(self._now_s + self._terms.block_bytes / self._terms.device_bytes_per_s, lambda: self._served(done))

    def _served(self, done: Callable[[], None]) -> None:
        self._busy = False
        done()

    def _bring(self) -> Callable[[], None]:
        block, ask = next(iter(self._ahead.items()))

        def landed() -> None:
            if self._ahead.pop(block, None) is None or self._policy is None:
                return  # its reader was sooner, and it is late; or nobody wants it any more
            answer = self._store.stage(block, ask.keep_s)
            (self._was_there.add if answer == _WAS_THERE else self._was_there.discard)(block)
            self._policy.landed(block, answer in (_THERE, _WAS_THERE))

        return landed


def prefetch(trace: Trace, store: FlashCache, terms: Terms, tell: Callable[[int], None] = lambda _requests: None) -> Outcome:
    """With the policy that clients have."""
    return Run(trace, store, terms, Ahead(terms.budget_bytes)).run(tell)
