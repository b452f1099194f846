"""Full load on a store that is small enough to wrap, cut off at random moments, again and again.

This is what kills.py and power_cuts.py share; they differ in how the cut is made.

Each worker is a thread with a client and blocks of its own: it puts (`cache`, `persist`, with and without TTL, names that were
there before and new ones), deletes, touches, leases, pins, releases, changes expiries and reads back, until nobody answers.
After each start everything that it knows is asked for and judged by the oracle.
"""

from __future__ import annotations

import math
import random
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from tests.torture.content import bytes_of
from tests.torture.oracle import Block, Broken, Log, Oracle, Rule

import halfstep
from halfstep.client.results import Answer, Result

DEADLINE_MS = 30_000
WORKERS = 2
BATCH = 8
# Blocks that a worker goes on asking about. More make verification long, fewer make the load one of strangers.
BLOCKS_MAX, BLOCKS_KEPT = 700, 500
PIN_BUDGET_BYTES = 8 << 20
LAYOUT = halfstep.Layout.opaque("torture")
# Every so many starts is one after a clean stop.
CLEAN_STOP_EVERY = 8
# Misses that are honest without a fault of the device: absent, expired (docs/wire-protocol.md).
HONEST_MISSES = (16, 21)


class Rig(Protocol):
    """A daemon on a store, and a way to cut it off."""

    @property
    def url(self) -> str:
        """For connect()."""
        ...

    @property
    def facts(self) -> dict[str, Any]:
        """What the daemon said at its last start."""
        ...

    def start(self) -> None:
        """Errors: Unavailable, which no fault of ours may cause."""
        ...

    def cut(self) -> None:
        """Nothing that happens from now on counts."""
        ...

    def stop(self) -> None:
        """As an operator does."""
        ...


@dataclass
class Tally:
    """What was done and seen over all rounds."""

    rounds: int = 0
    clean_stops: int = 0
    verified: int = 0
    gone_by_eviction: int = 0
    segments_reclaimed: int = 0
    answers: Counter[str] = field(default_factory=Counter)  # "put ok", "delete ok", "hold throttled (budget)", ...
    broken: str = ""  # the rule that was broken, and how

    def __str__(self) -> str:
        done = ", ".join(f"{count} {what}" for what, count in sorted(self.answers.items()))
        return (
            f"{self.rounds} rounds, {self.clean_stops} clean stops, {self.verified} blocks verified, "
            f"{self.segments_reclaimed} segments reclaimed, {self.gone_by_eviction} looked-for blocks evicted; "
            f"{done}" + (f"; BROKEN {self.broken}" if self.broken else "")
        )


class Worker:
    """One thread's blocks, and what it does to them. `broken`: the rule that it saw broken."""

    def __init__(self, number: int, oracle: Oracle, rng: random.Random) -> None:
        self.blocks: dict[bytes, Block] = {}
        self.answers: Counter[str] = Counter()
        self.broken: Broken | None = None
        self._number = number
        self._owner = number + 1
        self._oracle = oracle
        self._rng = rng
        self._names = 0
        self._bytes_max = 0

    # ---- the load ----

    def work(self, url: str, cut: threading.Event) -> None:
        """Until nobody answers. What comes after `cut` proves nothing but what it acknowledges."""
        kinds = [self._put, self._delete, self._expire, self._touch, self._lease, self._pin, self._release, self._get]
        try:
            with halfstep.connect(url, layout=LAYOUT, required=True, deadline_ms=DEADLINE_MS) as client:
                self._bytes_max = client.facts().block_bytes_max
                while not cut.is_set():
                    act = self._rng.choices(kinds, (50, 10, 6, 8, 6, 4, 4, 12))[0]
                    if not act(client, cut):
                        return
        except halfstep.Unavailable:
            return  # it was cut off before it was connected
        except Broken as broken:
            self.broken = broken

    def _pick(self, count: int) -> list[tuple[bytes, Block]]:
        return self._rng.sample(sorted(self.blocks.items()), min(count, len(self.blocks)))

    def _new(self) -> tuple[bytes, Block]:
        self._names += 1
        name = b"w%d-%d" % (self._number, self._names)
        key = name + self._rng.choice((b"", b"-" * 40, b"-" * 200))
        block = self.blocks[key] = Block(name.decode())
        return key, block

    def _count(self, what: str, result: Result) -> None:
        for item in range(result.keys):
            self.answers[f"{what} {result.reason(item)}"] += 1

    def _put(self, client: halfstep.Client, cut: threading.Event) -> bool:
        again = self._pick(self._rng.randint(0, BATCH // 2))
        items = again + [self._new() for _ in range(BATCH - len(again))]
        persist = self._rng.random() < 0.6
        ttl_s = self._rng.choice((0, 0, 0, 0, 0, 1, 3600))
        contents = [content_of(key, len(block.puts), self._bytes_max) for key, block in items]
        numbers = [self._oracle.put_begins(block, content, ttl_s) for (_, block), content in zip(items, contents, strict=True)]
        keys = [key for key, _ in items]
        result = client.put(keys, contents, durability="persist" if persist else "cache", ttl_s=ttl_s)
        self._count("put", result)
        for item, ((_, block), number) in enumerate(zip(items, numbers, strict=True)):
            answer, reason = result.answers[item], result.reason(item)
            if reason == "ok (present)":
                self._oracle.put_present(block, number, persist=persist)
            elif answer == Answer.OK:
                self._oracle.put_stored(block, number, persist=persist, ttl_s=ttl_s, after_cut=cut.is_set())
            elif answer == Answer.THROTTLED:
                self._oracle.put_refused(block, number)
            elif answer == Answer.UNAVAILABLE or cut.is_set():
                self._oracle.put_unanswered(block)
            else:
                raise Broken(Rule.WRONG_ANSWER, f"{block.name}: put: {reason}")
        return bool((result.answers != Answer.UNAVAILABLE).all())

    def _delete(self, client: halfstep.Client, cut: threading.Event) -> bool:
        items = self._pick(3)
        for _, block in items:
            self._oracle.delete_begins(block)
        result = client.delete([key for key, _ in items])
        self._count("delete", result)
        for item, (_, block) in enumerate(items):
            if result.answers[item] in (Answer.OK, Answer.MISS):
                self._oracle.delete_ended(block)
        return self._answered("delete", result, cut)

    def _expire(self, client: halfstep.Client, cut: threading.Event) -> bool:
        items = self._pick(3)
        ttl_s = self._rng.choice((0, 1, 2, 3600))
        for _, block in items:
            self._oracle.expire_begins(block, ttl_s)
        result = client.expire([key for key, _ in items], ttl_s)
        self._count("expire", result)
        for item, (_, block) in enumerate(items):
            if result.answers[item] == Answer.OK:
                self._oracle.expire_ended(block, ttl_s)
            elif result.answers[item] == Answer.MISS and not cut.is_set():
                self._oracle.found(block, present=False)
        return self._answered("expire", result, cut)

    def _touch(self, client: halfstep.Client, cut: threading.Event) -> bool:
        items = self._pick(BATCH)
        return self._says_what_is_there("touch", items, client.touch([key for key, _ in items]), cut)

    def _lease(self, client: halfstep.Client, cut: threading.Event) -> bool:
        items = self._pick(4)
        until_s = time.monotonic() + 20
        result = client.lease([key for key, _ in items], self._owner, 20)
        return self._says_what_is_there("lease", items, result, cut, until_s)

    def _pin(self, client: halfstep.Client, cut: threading.Event) -> bool:
        items = self._pick(2)
        result = client.pin([key for key, _ in items], self._owner + WORKERS)
        return self._says_what_is_there("pin", items, result, cut, math.inf)

    def _release(self, client: halfstep.Client, cut: threading.Event) -> bool:
        items = self._pick(20)
        for owner in (self._owner, self._owner + WORKERS):
            for _, block in items:
                block.holds.pop(owner, None)
            result = client.release(owner, [key for key, _ in items])
            self._count("release", result)
            if not self._answered("release", result, cut):
                return False
        return True

    def _get(self, client: halfstep.Client, cut: threading.Event) -> bool:
        items = [(key, block) for key, block in self._pick(BATCH) if block.puts]
        self._read(client, items, [block.puts[max(block.candidates, default=-1)].block_bytes for _, block in items], cut)
        return True

    def _says_what_is_there(
        self, what: str, items: list[tuple[bytes, Block]], result: Result, cut: threading.Event, held_until_s: float = 0
    ) -> bool:
        self._count(what, result)
        for item, (_, block) in enumerate(items):
            answer = result.answers[item]
            if answer == Answer.OK:
                self._oracle.found(block, present=True)
                if held_until_s:
                    persistent = held_until_s == math.inf
                    block.hold(self._owner + WORKERS * persistent, held_until_s, persistent=persistent)
            elif answer == Answer.MISS and not cut.is_set():
                self._oracle.found(block, present=False)
        return self._answered(what, result, cut)

    def _answered(self, what: str, result: Result, cut: threading.Event) -> bool:
        """Whether the daemon is still there. Anything but ok, a miss or a throttle needs the cut as its cause."""
        fine = np.isin(result.answers, (Answer.OK, Answer.MISS, Answer.THROTTLED))
        if not fine.all() and not cut.is_set() and not (result.answers == Answer.UNAVAILABLE).any():
            raise Broken(Rule.WRONG_ANSWER, f"{what}: {result}")
        return bool(fine.all())

    # ---- after a start ----

    def began(self) -> None:
        """There is a new process."""
        for block in self.blocks.values():
            self._oracle.died(block)

    def verify(self, client: halfstep.Client) -> int:
        """Asks for everything; returns how many blocks came back, whole."""
        verified = 0
        still = threading.Event()
        items = sorted(self.blocks.items())
        for at in range(0, len(items), 64):
            some = items[at : at + 64]
            match = client.match([key for key, _ in some], lengths=True, deadline_ms=DEADLINE_MS)
            if not match.answered or match.lengths is None:
                raise Broken(Rule.WRONG_ANSWER, f"match: {match}")
            lengths = [int(length) for length in match.lengths]
            for (_, block), length in zip(some, lengths, strict=True):
                self._oracle.found(block, present=length > 0, block_bytes=length or None)
            # What match denies is asked for as well: it must not come.
            sizes = [length or block.bytes_last for length, (_, block) in zip(lengths, some, strict=True)]
            verified += self._read(client, some, sizes, still)
        return verified

    def _read(self, client: halfstep.Client, items: list[tuple[bytes, Block]], sizes: list[int], cut: threading.Event) -> int:
        targets = [np.zeros(size, np.uint8) for size in sizes]
        result = client.get([key for key, _ in items], targets)
        self._count("get", result)
        for item, ((_, block), target) in enumerate(zip(items, targets, strict=True)):
            answer = result.answers[item]
            if answer == Answer.OK:
                self._oracle.read(block, target)
            elif not cut.is_set() and answer == Answer.MISS:
                if result.reasons[item] not in HONEST_MISSES:
                    raise Broken(Rule.FOUND_BUT_MISSED, f"{block.name}: {result.reason(item)}")
                self._oracle.read(block, None)
        self._answered("get", result, cut)
        return result.hits

    def forget(self) -> None:
        """Some blocks of many, by chance: what is held stays known."""
        if len(self.blocks) <= BLOCKS_MAX:
            return
        free = sorted(key for key, block in self.blocks.items() if not block.holds)
        for key in self._rng.sample(free, min(len(free), len(self.blocks) - BLOCKS_KEPT)):
            del self.blocks[key]


def content_of(key: bytes, number: int, bytes_max: int) -> npt.NDArray[np.uint8]:
    """The bytes of a block's put `number`: they and their length follow from the name."""
    return bytes_of(b"%d of " % number + key, bytes_max)


def run_rounds(rig: Rig, rounds: int, seed: int, *, load_s: tuple[float, float], verbose: bool = False) -> Tally:
    """Load, cut, start, look at everything; `rounds` times, or until a rule is broken."""
    rng, tally = random.Random(seed), Tally()
    oracle: Oracle | None = None
    workers: list[Worker] = []
    try:
        rig.start()
        geometry = rig.facts["geometry"]
        oracle = Oracle(Log(geometry["segments"], geometry["segment_bytes"]))
        workers = [Worker(number, oracle, random.Random(rng.random())) for number in range(WORKERS)]
        with halfstep.connect(rig.url, layout=LAYOUT, required=True, deadline_ms=DEADLINE_MS) as client:
            client.limit_namespace("default", pin_budget_bytes=PIN_BUDGET_BYTES)
        for number in range(1, rounds + 1):
            _load_and_cut(rig, workers, rng.uniform(*load_s), tally)
            oracle.log.crashed()
            _start(rig, workers, tally)
            if number % CLEAN_STOP_EVERY == 0:
                for worker in workers:
                    for block in worker.blocks.values():
                        oracle.stopped_cleanly(block)
                rig.stop()
                oracle.log.crashed()  # what was open is sealed as it is
                tally.clean_stops += 1
                _start(rig, workers, tally)
            for worker in workers:
                worker.forget()
            tally.rounds = number
            tally.gone_by_eviction = oracle.evicted
            if verbose:
                print(
                    f"{number} of {rounds}: {tally.verified} verified, {tally.segments_reclaimed} segments reclaimed",
                    flush=True,
                )
    except Broken as broken:
        tally.broken = str(broken)
    tally.answers = sum((worker.answers for worker in workers), Counter())
    return tally


def _load_and_cut(rig: Rig, workers: list[Worker], load_s: float, tally: Tally) -> None:
    cut = threading.Event()
    threads = [threading.Thread(target=worker.work, args=(rig.url, cut)) for worker in workers]
    with halfstep.connect(rig.url, layout=LAYOUT, required=True, deadline_ms=DEADLINE_MS) as watcher:
        for thread in threads:
            thread.start()
        time.sleep(load_s)
        counters = watcher.stat()
        tally.segments_reclaimed += int(counters["halfstep_store_segments_reclaimed_total"])
        cut.set()
        rig.cut()
    for thread in threads:
        thread.join()
    for worker in workers:
        if worker.broken is not None:
            raise worker.broken


def _start(rig: Rig, workers: list[Worker], tally: Tally) -> None:
    """And looks at everything."""
    try:
        rig.start()
    except halfstep.Unavailable as error:
        raise Broken(Rule.OPEN_REFUSED, str(error)) from None
    for worker in workers:
        worker.began()
    with halfstep.connect(rig.url, layout=LAYOUT, required=True, deadline_ms=DEADLINE_MS) as client:
        tally.verified += sum(worker.verify(client) for worker in workers)


def report(tally: Tally, seed: int) -> int:
    """Says what was seen; 0 when no rule was broken."""
    print(tally, flush=True)
    if tally.broken:
        print(f"again: --seed {seed}; the moments of the cuts are the machine's, so it may take more rounds", file=sys.stderr)
    return 1 if tally.broken else 0
