"""The oracle: for every block, which of its puts a get may answer now, and whether there must be an answer.

Each block has its puts in order; each has bytes of its own. What was deleted with an answer is dead for good; what is left is
what a restart may find. While a process serves, one of them is current, or none; after a restart that is unknown until somebody
looks. The rules, their names and what excuses the store are those of the simulator (tests/sim/rules.h, model.h), without media
faults: here nothing but a delete, an expiry or an eviction excuses a loss, and an eviction does so only when the block was old.
Invariants: judges by answers alone. One thread asks for a block at a time; different blocks may have different threads.
"""

from __future__ import annotations

import enum
import hashlib
import math
import threading
import time
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

# A block may leave by eviction only after this share of the store was written since: the victim is among the oldest quarter of
# the segments, and never among the youngest one; copies and half-empty segments take the rest.
EVICTION_AGE_MIN = 0.2
# What a crash costs: the segments that were open are closed as they are, four (native/store/write/streams.h); one was ready.
SEGMENTS_PER_CRASH = 5
NEVER = math.inf


class Rule(enum.StrEnum):
    """Names as in tests/sim/rules.h."""

    WRONG_BYTES = "wrong-bytes"
    DELETED_RETURNED = "deleted-returned"
    EXPIRED_RETURNED = "expired-returned"
    RETURNED_UNASKED = "returned-unasked"
    PERSIST_LOST = "persist-lost"
    RESTART_FORGOT = "restart-forgot"
    LOST_IN_SERVICE = "lost-in-service"
    HELD_EVICTED = "held-evicted"
    FOUND_BUT_MISSED = "found-but-missed"
    MISSED_BUT_READ = "missed-but-read"
    WRONG_ANSWER = "wrong-answer"
    OPEN_REFUSED = "open-refused"
    NAMES_LOST = "names-lost"
    DEAD_SCOPE = "dead-scope"
    ACCOUNTING = "accounting"


class Broken(AssertionError):
    """A rule was broken: .rule, and .what was seen."""

    def __init__(self, rule: Rule, what: str) -> None:
        super().__init__(f"{rule}: {what}")
        self.rule = rule
        self.what = what


class View(enum.Enum):
    """What the process that serves now has: nothing; `current`; or what a restart left, at which nobody has looked yet."""

    NONE = "none"
    KNOWN = "known"
    UNSURE = "unsure"


def digest_of(content: npt.NDArray[np.uint8]) -> bytes:
    """Names bytes."""
    return hashlib.blake2b(content.data, digest_size=16).digest()


@dataclass(slots=True)
class Put:
    """One put of a block. expiry: the seconds of the wall clock between which it ends; written: the log's position then."""

    digest: bytes
    block_bytes: int
    written: float
    expiry_low_s: float = NEVER
    expiry_high_s: float = NEVER


@dataclass(slots=True)
class Hold:
    """Until when, by the monotonic clock; leases end with the process.

    puts: how many puts had begun when it was taken. put: on which of them; None: nobody had looked.
    """

    until_s: float
    persistent: bool
    puts: int
    put: int | None


@dataclass(slots=True)
class Block:
    """What is known of one name. `must_from`: there has to be an answer, that put or a later one."""

    name: str
    puts: list[Put] = field(default_factory=list)
    dead_below: int = 0
    view: View = View.NONE
    current: int = 0
    must_from: int | None = None
    clean_must: bool = False  # `must_from` stems from a clean stop alone
    seen: bool = False  # UNSURE: it was found in this process
    retired: bool = False  # its namespace or layout was deleted or cleared since its last put
    quota: bool = False  # its namespace has one: it may have to make room for others of it
    holds: dict[int, Hold] = field(default_factory=dict)

    def hold(self, owner: int, until_s: float, *, persistent: bool) -> None:
        """It was answered that this owner holds what is there."""
        put = self.current if self.view is View.KNOWN else None
        self.holds[owner] = Hold(until_s, persistent, len(self.puts), put)

    @property
    def candidates(self) -> range:
        """Puts that may be there, by number."""
        if self.view is View.KNOWN:
            return range(self.current, self.current + 1)
        return range(self.dead_below if self.view is View.UNSURE else len(self.puts), len(self.puts))

    @property
    def bytes_last(self) -> int:
        """Of its last put; 1 if there was none."""
        return self.puts[-1].block_bytes if self.puts else 1

    @property
    def must(self) -> bool:
        """There has to be an answer, save for expiry and eviction."""
        return self.view is View.KNOWN or (self.view is View.UNSURE and (self.seen or self.must_from is not None))


class Log:
    """How much was written, in capacities of the store: the age of blocks. An upper bound, so it never accuses wrongly."""

    def __init__(self, segments: int, segment_bytes: int) -> None:
        self._capacity_bytes = segments * segment_bytes
        self.segment_bytes = segment_bytes
        self._bytes = 0
        self._lock = threading.Lock()

    def offered(self, block_bytes: int) -> None:
        """A put begins: its bytes, in whole pages, and what describes it."""
        with self._lock:
            self._bytes += (block_bytes + 4095) // 4096 * 4096 + 4096

    def crashed(self) -> None:
        """The segments that were open stay part empty."""
        self._bytes += SEGMENTS_PER_CRASH * self.segment_bytes

    @property
    def position(self) -> float:
        """In capacities."""
        return self._bytes / self._capacity_bytes


class Oracle:
    """Judges answers about blocks; every method that does raises Broken."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.evicted = 0  # losses that an eviction had to excuse

    # ---- put ----

    def put_begins(self, block: Block, content: npt.NDArray[np.uint8], ttl_s: int = 0) -> int:
        """Before it is sent: from now on a crash may leave it there. Returns its number, for put_ended()."""
        put = Put(digest_of(content), len(content), self.log.position)
        if ttl_s:
            put.expiry_low_s = math.floor(time.time()) + ttl_s
        self.log.offered(len(content))
        block.puts.append(put)
        return len(block.puts) - 1

    def put_stored(self, block: Block, number: int, *, persist: bool, ttl_s: int = 0, after_cut: bool = False) -> None:
        """It was answered ok, and was not there before; after a cut that may be the cut's doing."""
        if block.must and not after_cut:
            self._gone(block)
        _unpin(block)
        put = block.puts[number]
        if ttl_s:
            put.expiry_high_s = math.ceil(time.time()) + ttl_s
        put.written = self.log.position
        block.view, block.current, block.retired = View.KNOWN, number, False
        block.must_from, block.clean_must = (number if persist else None), False

    def put_present(self, block: Block, number: int, *, persist: bool) -> None:
        """It was answered ok, because another was there."""
        self.put_refused(block, number)
        if not block.candidates:
            raise Broken(self._unasked(block), f"{block.name}: a put says present")
        if block.view is View.UNSURE:
            block.seen = True
        if persist:
            block.must_from, block.clean_must = block.candidates.start, False

    def put_refused(self, block: Block, number: int) -> None:
        """Throttled or rejected: nothing of it was kept."""
        assert number == len(block.puts) - 1
        block.puts.pop()

    def put_unanswered(self, block: Block) -> None:
        """Late, cancelled or unavailable: it may be there, or come to be."""
        block.view = View.UNSURE
        block.seen = False

    # ---- delete, expire ----

    def delete_begins(self, block: Block) -> None:
        """Before it is sent: nothing has to be there any more."""
        if block.view is View.KNOWN:
            block.view = View.UNSURE
        block.must_from, block.seen = None, False

    def delete_ended(self, block: Block) -> None:
        """Answered: ok or absent. What was put before stays away for good."""
        block.dead_below = len(block.puts)
        block.view = View.NONE
        _unpin(block)

    def expire_begins(self, block: Block, ttl_s: int) -> None:
        """Before it is sent: it may end then already."""
        low_s = math.floor(time.time()) + ttl_s if ttl_s else NEVER
        for number in block.candidates:
            put = block.puts[number]
            put.expiry_low_s = min(put.expiry_low_s, low_s)
            put.expiry_high_s = NEVER  # unless it is answered, it may not have happened

    def expire_ended(self, block: Block, ttl_s: int) -> None:
        """Answered ok: from now on that is its expiry, whatever was said before."""
        now_s = time.time()
        for number in block.candidates:
            put = block.puts[number]
            put.expiry_high_s = math.ceil(now_s) + ttl_s if ttl_s else NEVER
            # A block whose put nobody knows for certain may also be one to which the new expiry does not apply.
            if block.view is View.KNOWN:
                put.expiry_low_s = math.floor(now_s) + ttl_s - 1 if ttl_s else NEVER

    # ---- looks ----

    def found(self, block: Block, *, present: bool, block_bytes: int | None = None) -> None:
        """What `match` said."""
        if not present:
            return self._absent(block)
        if not block.candidates:
            raise Broken(self._unasked(block), f"{block.name}: found")
        fitting = [block.puts[number] for number in block.candidates]
        if block_bytes is not None:
            fitting = [put for put in fitting if put.block_bytes == block_bytes]
            if not fitting:
                raise Broken(Rule.WRONG_BYTES, f"{block.name}: found with {block_bytes} bytes")
        if all(self._has_expired(put) for put in fitting):
            raise Broken(Rule.EXPIRED_RETURNED, f"{block.name}: found")
        block.seen = True
        return None

    def read(self, block: Block, content: npt.NDArray[np.uint8] | None) -> None:
        """What `get` brought; None: a miss."""
        if content is None:
            return self._absent(block)
        digest = digest_of(content)
        # Short blocks may have the same bytes as older ones: what may be there comes first.
        numbers = [*reversed(block.candidates), *reversed(range(len(block.puts)))]
        number = next((n for n in numbers if block.puts[n].digest == digest), None)
        if number is None:
            raise Broken(Rule.WRONG_BYTES, f"{block.name}: {len(content)} bytes of no put of that name")
        if number not in block.candidates:
            rule = Rule.WRONG_BYTES if block.view is View.KNOWN and number >= block.dead_below else self._unasked(block)
            raise Broken(rule, f"{block.name}: bytes of put {number}; may be there: {list(block.candidates)}")
        if self._has_expired(block.puts[number]):
            raise Broken(Rule.EXPIRED_RETURNED, f"{block.name}: put {number} expired at {block.puts[number].expiry_high_s}")
        if block.must_from is not None and number < block.must_from:
            raise Broken(Rule.PERSIST_LOST, f"{block.name}: put {number} instead of the persisted {block.must_from}")
        block.view, block.current = View.KNOWN, number
        self._replaced(block, number)
        return None

    # ---- processes and names ----

    def died(self, block: Block) -> None:
        """The process was killed, or the power was cut."""
        block.view = View.UNSURE if len(block.puts) > block.dead_below else View.NONE
        block.seen = False
        block.holds = {owner: hold for owner, hold in block.holds.items() if hold.persistent}

    def stopped_cleanly(self, block: Block) -> None:
        """A clean stop keeps what is there. Before died()."""
        if block.must and block.must_from is None:
            block.must_from, block.clean_must = block.candidates.start, True

    def retired(self, block: Block) -> None:
        """Its namespace was deleted or its layout was cleared, and that was answered."""
        block.dead_below = len(block.puts)
        block.view, block.must_from, block.retired = View.NONE, None, True
        block.holds.clear()

    # ---- within ----

    def _absent(self, block: Block) -> None:
        if block.must:
            self._gone(block)
        block.view, block.must_from = View.NONE, None
        _unpin(block)

    def _gone(self, block: Block) -> None:
        """It was there, or had to be, and is not."""
        first = block.candidates.start if block.must_from is None else block.must_from
        puts = block.puts[first : block.candidates.stop]
        if any(put.expiry_low_s <= time.time() + 1 for put in puts):
            return
        age = self.log.position - puts[0].written
        if any(hold.until_s > time.monotonic() for hold in block.holds.values()):
            raise Broken(Rule.HELD_EVICTED, f"{block.name}: held by {sorted(block.holds)}, {age:.2f} capacities old")
        if age >= EVICTION_AGE_MIN or block.quota:
            self.evicted += 1
            return
        if block.view is View.KNOWN or block.seen:
            rule = Rule.LOST_IN_SERVICE
        else:
            rule = Rule.RESTART_FORGOT if block.clean_must else Rule.PERSIST_LOST
        raise Broken(rule, f"{block.name}: put {first} is gone, {age:.2f} capacities old")

    def _replaced(self, block: Block, number: int) -> None:
        """A put whose answer a cut took was stored, so what was pinned before it had expired: the pin has gone with it."""
        for owner, hold in list(block.holds.items()):
            if not hold.persistent or hold.puts > number:
                continue
            if hold.put is not None and block.puts[hold.put].expiry_low_s > time.time() + 1:
                raise Broken(Rule.HELD_EVICTED, f"{block.name}: put {hold.put} is held by {owner}, and {number} is there")
            del block.holds[owner]

    @staticmethod
    def _has_expired(put: Put) -> bool:
        return time.time() > put.expiry_high_s + 1

    @staticmethod
    def _unasked(block: Block) -> Rule:
        if block.retired:
            return Rule.DEAD_SCOPE
        return Rule.DELETED_RETURNED if block.dead_below == len(block.puts) else Rule.RETURNED_UNASKED


def _unpin(block: Block) -> None:
    """A pin was taken on the bytes that are gone; a lease waits for others of that name."""
    block.holds = {owner: hold for owner, hold in block.holds.items() if not hold.persistent}
