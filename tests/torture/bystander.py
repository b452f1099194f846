"""The good client of a hostile run: a process of its own with the library's client, which does what an engine does and counts.

It matches 32 pinned keys within a deadline (20 ms), over and over, gets blocks and compares every byte, and puts new ones.
Nothing of it is ever excused: what it put and pinned has to be there. Threads: one matches and gets, one puts; each holds its
turn over what it counts, so that counts are taken between turns and a call that is slow counts where it began.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from tests.torture.content import noise_of

import halfstep

NAMESPACE = "good"
PINNED_KEYS, PINNED_BYTES = 32, 20_000
PIN_BUDGET_BYTES = 16 << 20
MATCH_DEADLINE_MS, GET_DEADLINE_MS, PUT_DEADLINE_MS, SETUP_DEADLINE_MS = 20, 10_000, 10_000, 60_000
MATCH_PAUSE_S, PUT_PAUSE_S = 0.004, 0.1
GET_EACH = 5
PUT_SIZES = (1_000, 65_536, 400_000)
PATIENCE_S = 60.0
OWNER = 20_262_026


class Bystander:
    """The process, seen from outside. Errors: RuntimeError when it ended or says nothing."""

    def __init__(self, url: str, match_ms: int = MATCH_DEADLINE_MS) -> None:
        context = multiprocessing.get_context("spawn")
        self._here, there = context.Pipe()
        self._process = context.Process(target=_main, args=(url, match_ms, there), daemon=True)
        self._process.start()
        there.close()
        self._ask("ready")

    def take(self) -> tuple[Counter[str], dict[str, float]]:
        """What it counted since the last time, and its longest waits in milliseconds."""
        counts, worst = self._ask("take")
        return Counter(counts), worst

    def close(self) -> None:
        """Ends it."""
        with contextlib.suppress(OSError, RuntimeError, EOFError):
            self._ask("end")
        self._process.join(PATIENCE_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _ask(self, what: str) -> Any:
        self._here.send(what)
        if not self._here.poll(PATIENCE_S):
            raise RuntimeError(f"the good client says nothing to {what!r} for {PATIENCE_S:.0f} s")
        return self._here.recv()


class _Client:
    def __init__(self, url: str, match_ms: int) -> None:
        self._match_ms = match_ms
        layout = halfstep.Layout.opaque("good")
        with halfstep.connect(url, required=True, deadline_ms=SETUP_DEADLINE_MS) as admin:
            admin.create_namespace(NAMESPACE, pin_budget_bytes=PIN_BUDGET_BYTES)
        self._client = halfstep.connect(f"{url}/{NAMESPACE}", layout=layout, required=True, deadline_ms=GET_DEADLINE_MS)
        self._keys = [b"pinned %d" % number for number in range(PINNED_KEYS)]
        self._blocks = np.stack([noise_of(key, PINNED_BYTES) for key in self._keys])
        put = self._client.put(self._keys, self._blocks, durability="persist", deadline_ms=SETUP_DEADLINE_MS)
        pinned = self._client.hold(self._keys, owner=OWNER, persistent=True, seconds=None, deadline_ms=SETUP_DEADLINE_MS)
        assert put.ok.all(), put
        assert pinned.ok.all(), pinned
        self._lock = threading.Lock()
        self._turns = threading.Lock(), threading.Lock()
        self._counts: Counter[str] = Counter()
        self._worst: dict[str, float] = {}
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._match_and_get), threading.Thread(target=self._put)]
        for thread in self._threads:
            thread.start()

    def take(self) -> tuple[dict[str, int], dict[str, float]]:
        with self._turns[0], self._turns[1], self._lock:
            taken = dict(self._counts), self._worst
            self._counts, self._worst = Counter(), {}
        return taken

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._client.close()

    @contextlib.contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        started = time.monotonic()
        yield
        took_ms = (time.monotonic() - started) * 1000
        with self._lock:
            self._worst[what] = max(self._worst.get(what, 0.0), took_ms)

    def _count(self, what: str) -> None:
        with self._lock:
            self._counts[what] += 1

    def _match_and_get(self) -> None:
        target = np.zeros_like(self._blocks)
        turn = 0
        while not self._stop.wait(MATCH_PAUSE_S):
            turn += 1
            with self._turns[0]:
                self._match_once()
                if turn % GET_EACH == 0:
                    self._get_once(target)

    def _match_once(self) -> None:
        with self._timed("match"):
            matched = self._client.match(self._keys, deadline_ms=self._match_ms)
        whole = matched.answered and matched.present.all()
        self._count("matches_whole" if whole else "matches_partial" if matched.answered else "matches_late")

    def _get_once(self, target: Any) -> None:
        target[:] = 0
        with self._timed("get"):
            got = self._client.get(self._keys, target)
        self._judge_get(got, (target == self._blocks).all(axis=1))

    def _judge_get(self, got: halfstep.GetResult, right: Any) -> None:
        if (got.ok & ~right).any():
            self._count("bytes_wrong")
        elif got.ok.all():
            self._count("gets_ok")
        else:
            self._count("gets_missed" if (got.answers == halfstep.Answer.MISS).any() else "gets_late")

    def _put(self) -> None:
        number = 0
        while not self._stop.wait(PUT_PAUSE_S):
            with self._turns[1]:
                self._put_once(b"new %d" % number, PUT_SIZES[number % len(PUT_SIZES)])
            number += 1

    def _put_once(self, key: bytes, size: int) -> None:
        source, target = noise_of(key, size), np.zeros(size, np.uint8)
        end = time.monotonic() + PUT_DEADLINE_MS / 1000
        with self._timed("put"):
            put = self._client.put([key], source, deadline_ms=PUT_DEADLINE_MS)
            # What goes before its memory was asked for may meet none, and is told so at once (docs/wire-protocol.md, Credit).
            while (put.answers == halfstep.Answer.THROTTLED).any() and time.monotonic() < end:
                self._count("puts_again")
                time.sleep(PUT_PAUSE_S)
                put = self._client.put([key], source, deadline_ms=PUT_DEADLINE_MS)
        if not put.ok.all():
            late = (put.answers == halfstep.Answer.LATE).any()
            self._count("puts_late" if late else "puts_refused")
            self._count(f"put {put.reason(0)}")
            return
        self._count("puts_ok")
        if self._client.get([key], target).ok.all() and not np.array_equal(target, source):
            self._count("bytes_wrong")


def _main(url: str, match_ms: int, there: Connection) -> None:
    client = _Client(url, match_ms)
    try:
        while True:
            asked = there.recv()
            there.send(client.take() if asked == "take" else True)
            if asked == "end":
                return
    finally:
        client.close()
