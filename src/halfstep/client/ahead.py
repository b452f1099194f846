"""What to bring into memory before it is asked for: a pure policy, which knows no daemon and no clock of its own.

A reader is somebody who goes through items in order: the blocks of a chain, the layers of a prefix, a next turn that is
expected, blocks that a sparse-attention engine has named. The items that lie next before it, its window, are asked for ahead.
Invariants: what is on its way or waits to be read never exceeds `budget_bytes`; an item that several readers want is asked for
once; those who read go before those who are expected; each item asked for ends once: used, late, unused or absent. A kind of
which more than UNUSED_SHARE_MAX of the bytes end unused rests, and tries every PROBE_EVERY-th reader alone.
Thread: one at a time; who calls has a lock.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from halfstep.errors import ConfigError

Kind = Literal["window", "layers", "turn", "named"]
KINDS: tuple[Kind, ...] = get_args(Kind)
# How what was asked for ends.
End = Literal["used", "late", "unused", "absent"]
ENDS: tuple[End, ...] = get_args(End)

# Of the bytes of a kind that ended of late, those that nobody read.
UNUSED_SHARE_MAX = 0.5
# Of a kind that rests.
PROBE_EVERY = 8
# A kind is judged after so many of its items, and what ended 1,024 items ago counts half.
JUDGED_ITEMS_MIN = 1024
# More items than there are.
ALL = 1 << 62
FADE = 0.5 ** (1 / 1024)


@dataclass(frozen=True, slots=True)
class Item:
    """What is staged as one. key: who has the same wants the same."""

    key: Hashable
    bytes: int


@dataclass(frozen=True, slots=True)
class Ask:
    """To be asked for now, in this order. keep_s: for how long it is to be kept for its reader."""

    kind: Kind
    item: Item
    keep_s: float


@dataclass
class Counts:
    """Of one kind. asked = used + late + unused + absent + what has not ended.

    used: read when it was there. late: read while it was on its way. unused: nobody read it. absent: the tier had it no more,
    or had no room for it. unasked: read, by a reader whose window did not reach it, or before its turn. rested: readers that
    got nothing because their kind rests.
    """

    asked: int = 0
    used: int = 0
    late: int = 0
    unused: int = 0
    absent: int = 0
    unasked: int = 0
    asked_bytes: int = 0
    used_bytes: int = 0
    late_bytes: int = 0
    unused_bytes: int = 0
    absent_bytes: int = 0
    unasked_bytes: int = 0
    rested: int = 0


@dataclass
class _Reader:
    number: int
    kind: Kind
    items: Sequence[Item]
    places: dict[Hashable, int]
    window: int
    keep_s: float
    until_s: float  # nobody has read by then: it is given up
    position: int = 0  # everything before was read
    asked: int = 0  # everything before was asked for, or passed over
    reads: bool = False

    def end(self) -> int:
        """Of its window."""
        return min(self.position + self.window, len(self.items))


@dataclass
class _Staged:
    item: Item
    kind: Kind
    readers: set[int] = field(default_factory=set)
    there: bool = False
    late: bool = False


@dataclass
class _Trust:
    unused_share_max: float
    used: float = 0
    unused: float = 0
    items: int = 0
    readers: int = 0

    def note(self, used_bytes: int, unused_bytes: int) -> None:
        self.used = self.used * FADE + used_bytes
        self.unused = self.unused * FADE + unused_bytes
        self.items += 1

    @property
    def rests(self) -> bool:
        return self.items >= JUDGED_ITEMS_MIN and self.unused > self.unused_share_max * (self.used + self.unused)


class Ahead:
    """Of one process, or of one staging area that several share. on_end: told of each item that has ended, once."""

    def __init__(
        self,
        budget_bytes: int,
        on_end: Callable[[Kind, End, int], object] = lambda _kind, _how, _bytes: None,
        *,
        unused_share_max: float = UNUSED_SHARE_MAX,
    ) -> None:
        if budget_bytes <= 0:
            raise ConfigError(f"budget_bytes={budget_bytes}: must be above 0; without a prefetch make none")
        self.budget_bytes = budget_bytes
        self._on_end = on_end
        self.counts: dict[Kind, Counts] = {kind: Counts() for kind in KINDS}
        self._trust: dict[Kind, _Trust] = {kind: _Trust(unused_share_max) for kind in KINDS}
        self._readers: dict[int, _Reader] = {}
        self._staged: dict[Hashable, _Staged] = {}
        self._bytes = 0
        self._next = 0

    @property
    def bytes(self) -> int:
        """On their way, or waiting to be read."""
        return self._bytes

    @property
    def there(self) -> int:
        """Items that have come and wait to be read."""
        return sum(staged.there for staged in self._staged.values())

    @property
    def idle(self) -> bool:
        """Nobody reads or is expected, and nothing is on its way."""
        return not self._readers and not self._staged

    def follow(self, items: Sequence[Item], *, kind: Kind, window: int, keep_s: float, now_s: float) -> int:
        """A reader of these items, in this order: its number. window: items ahead of it. keep_s: without a read."""
        if window < 1:
            raise ConfigError(f"window={window}: must be 1 item or more")
        if not 0 < keep_s < math.inf:
            raise ConfigError(f"seconds={keep_s}: must be above 0")
        self._next += 1
        number = self._next
        trust = self._trust[kind]
        trust.readers += 1
        if trust.rests and trust.readers % PROBE_EVERY:
            self.counts[kind].rested += 1
            return number
        places = {item.key: place for place, item in enumerate(items)}
        self._readers[number] = _Reader(number, kind, items, places, window, keep_s, now_s + keep_s)
        return number

    def due(self, now_s: float, most: int = ALL) -> list[Ask]:
        """What is to be asked for now: nearest to its reader first, those who read before those who are expected.

        most: of them in this call; the others are due in the next one.
        """
        for number in [reader.number for reader in self._readers.values() if reader.until_s <= now_s]:
            self.end(number)
        waiting = [self._turn(reader) for reader in self._readers.values() if reader.asked < reader.end()]
        heapq.heapify(waiting)
        asks: list[Ask] = []
        while waiting and len(asks) < most:
            *_, reader = waiting[0]
            item = reader.items[reader.asked]
            staged = self._staged.get(item.key)
            if staged is None:
                if self._bytes + item.bytes > self.budget_bytes:
                    break  # what lies farther waits, too, or it would take the room of what is needed sooner
                staged = self._ask(reader, item)
                # Who is expected is waited for until its time is over; who reads says so again with each read.
                asks.append(Ask(staged.kind, item, reader.keep_s if reader.reads else reader.until_s - now_s))
            staged.readers.add(reader.number)
            reader.asked += 1
            if reader.asked < reader.end():
                heapq.heapreplace(waiting, self._turn(reader))
            else:
                heapq.heappop(waiting)
        return asks

    def read(self, keys: Iterable[Hashable], now_s: float) -> None:
        """Somebody asks for these now."""
        for key in keys:
            staged = self._staged.get(key)
            readers = (
                [self._readers[number] for number in staged.readers if number in self._readers]
                if staged is not None and staged.readers
                else [reader for reader in self._readers.values() if key in reader.places]
            )
            if staged is None:
                for reader in readers[:1]:
                    item = reader.items[reader.places[key]]
                    if reader.places[key] >= reader.asked:
                        self._count(reader.kind, "unasked", item)
            elif staged.there:
                self._leave(staged, "used")
            elif not staged.late:
                staged.late = True  # it stays in the budget until it has come
                self._count(staged.kind, "late", staged.item)
                self._on_end(staged.kind, "late", staged.item.bytes)
                self._trust[staged.kind].note(staged.item.bytes, 0)
            for reader in readers:
                reader.position = max(reader.position, reader.places[key] + 1)
                reader.asked = max(reader.asked, reader.position)
                reader.reads = True
                reader.until_s = now_s + reader.keep_s
                if reader.position == len(reader.items) and not self._is_awaited_by(reader):
                    self.end(reader.number)  # it would be looked through at each read until its time is over

    def landed(self, key: Hashable, there: bool) -> None:
        """What was asked for has come, or will not."""
        staged = self._staged.get(key)
        if staged is None or staged.there:
            return
        if staged.late:
            self._forget(staged)
        elif not there:
            self._leave(staged, "absent")
        elif not staged.readers:
            self._leave(staged, "unused")
        else:
            staged.there = True

    def end(self, number: int) -> list[Hashable]:
        """A reader reads no more. What is on its way for nobody: it may be called off, and counts as asked until then."""
        reader = self._readers.pop(number, None)
        if reader is None:
            return []
        idle = []
        for item in reader.items[: reader.asked]:  # what it has passed over, too
            staged = self._staged.get(item.key)
            if staged is None:
                continue
            staged.readers.discard(number)
            if staged.readers:
                continue
            if staged.there:
                self._leave(staged, "unused")
            elif not staged.late:
                idle.append(item.key)
        return idle

    def withdrawn(self, key: Hashable) -> None:
        """What was on its way was called off before anything of it was read: it cost nothing."""
        staged = self._staged.get(key)
        if staged is None or staged.there or staged.late:
            return
        counts = self.counts[staged.kind]
        counts.asked -= 1
        counts.asked_bytes -= staged.item.bytes
        self._forget(staged)

    def close(self) -> None:
        """Nobody reads any more."""
        for number in list(self._readers):
            self.end(number)
        for staged in list(self._staged.values()):
            if not staged.late:
                self._leave(staged, "unused")

    def _is_awaited_by(self, reader: _Reader) -> bool:
        every = (self._staged.get(item.key) for item in reader.items[: reader.asked])
        return any(staged is not None and not staged.late and reader.number in staged.readers for staged in every)

    @staticmethod
    def _turn(reader: _Reader) -> tuple[bool, int, int, _Reader]:
        return (not reader.reads, reader.asked - reader.position, reader.number, reader)

    def _ask(self, reader: _Reader, item: Item) -> _Staged:
        # What follows a turn that has begun is the window of its reader.
        kind: Kind = "window" if reader.kind == "turn" and reader.reads else reader.kind
        staged = self._staged[item.key] = _Staged(item, kind)
        self._bytes += item.bytes
        self._count(kind, "asked", item)
        return staged

    def _count(self, kind: Kind, what: str, item: Item) -> None:
        counts = self.counts[kind]
        setattr(counts, what, getattr(counts, what) + 1)
        setattr(counts, f"{what}_bytes", getattr(counts, f"{what}_bytes") + item.bytes)

    def _leave(self, staged: _Staged, how: Literal["used", "unused", "absent"]) -> None:
        self._count(staged.kind, how, staged.item)
        self._on_end(staged.kind, how, staged.item.bytes)
        if how != "absent":
            self._trust[staged.kind].note(*((staged.item.bytes, 0) if how == "used" else (0, staged.item.bytes)))
        self._forget(staged)

    def _forget(self, staged: _Staged) -> None:
        del self._staged[staged.item.key]
        self._bytes -= staged.item.bytes
