"""Threads that use one face of a client each, until they are told to stop or the client is closed.

Whatever a call answers is right; what it raises is not, but that queue, region or client are closed. Thread: each its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
from tests.torture.client.ledger import Buffer, Ledger
from tests.torture.content import noise_of

import halfstep

BLOCK_BYTES, KEYS = 16_384, [b"kept-%d" % number for number in range(32)]
DEADLINE_MS = 400.0
# What a call raises when what it needs was closed, by whichever face.
CLOSED = halfstep.ConfigError


class Shared:
    """What the threads of a process have in common."""

    def __init__(self, client: halfstep.Client, seed: int, daemon_pid: int, patience: float) -> None:
        self.client = client
        self.seed = seed
        self.daemon_pid = daemon_pid
        self.patience = patience
        self.threads: list[threading.Thread] = []
        self.ledger = Ledger()
        self.stop = threading.Event()
        self.calls: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()
        self.queues: list[Any] = []
        self.regions: list[halfstep.Region] = []
        self.tickets: list[Any] = []
        self.contents = {key: noise_of(key, BLOCK_BYTES) for key in KEYS}

    def draw(self, rng: random.Random) -> list[bytes]:
        """Some of the keys that were stored before."""
        return rng.sample(KEYS, rng.randint(1, 8))

    def judge(self, keys: list[bytes], result: Any, target: Buffer, what: str) -> None:
        """Verify what is ok, then take the memory back."""
        self.calls[what] += 1
        for at, key in enumerate(keys):
            if result.ok[at]:
                self.ledger.verify(target[at], self.contents[key], f"{what} {key!r}")
        self.answers["ok" if result.ok.all() else result.reason(int(np.flatnonzero(~result.ok)[0]))] += 1
        self.ledger.hand_back(target)

    def remember(self, ticket: Any) -> None:
        """For whoever cancels at random."""
        self.tickets.append(ticket)
        if len(self.tickets) > 64:
            del self.tickets[:32]


def sync(shared: Shared, rng: random.Random) -> None:
    """`get`, now and then `put`, `match`, `touch`."""
    keys = shared.draw(rng)
    kind = rng.randrange(8)
    if kind == 0:
        fresh = [b"new-%d-%d" % (shared.seed, rng.randrange(1 << 30))]
        result = shared.client.put(fresh, noise_of(fresh[0], BLOCK_BYTES), deadline_ms=DEADLINE_MS)
        shared.answers["ok" if result.ok.all() else result.reason(0)] += 1
        shared.calls["put"] += 1
    elif kind == 1:
        shared.client.match(keys, deadline_ms=DEADLINE_MS)
        shared.client.touch(keys, deadline_ms=DEADLINE_MS)
        shared.calls["match"] += 1
    else:
        target = shared.ledger.lend(len(keys), BLOCK_BYTES)
        shared.judge(keys, shared.client.get(keys, target, deadline_ms=DEADLINE_MS), target, "sync")


def tickets(shared: Shared, rng: random.Random) -> None:
    """Several tickets on a queue that other threads use too; results in any order."""
    queue = rng.choice(shared.queues)
    under_way = []
    for _ in range(rng.randint(1, 4)):
        keys = shared.draw(rng)
        target = shared.ledger.lend(len(keys), BLOCK_BYTES)
        try:
            ticket = queue.get(keys, target, deadline_ms=DEADLINE_MS)
        except CLOSED:
            shared.ledger.hand_back(target)
            break
        shared.remember(ticket)
        under_way.append((keys, target, ticket))
    closed = len(under_way) == 0
    rng.shuffle(under_way)
    for keys, target, ticket in under_way:
        while not ticket.wait(5.0):
            if shared.stop.is_set():
                return
        shared.judge(keys, ticket.result(), target, "ticket")
    if closed:
        raise halfstep.ConfigError("queue is closed")


def events(shared: Shared, rng: random.Random) -> None:
    """Waits for whatever ends on a shared queue; several threads do at once, with nothing of their own under way."""
    queue = rng.choice(shared.queues)
    for event in queue.wait(rng.choice([None, 0.0, 0.01, 0.2])) if rng.randrange(3) else queue.poll():
        shared.calls["event"] += 1
        if event.done and not event.ticket.done:
            shared.ledger.fault("an event says done of a ticket that is not")


def futures(shared: Shared, rng: random.Random) -> None:
    """concurrent.futures."""
    keys = shared.draw(rng)
    target = shared.ledger.lend(len(keys), BLOCK_BYTES)
    future: Future[Any] = shared.client.submit("get", keys, target, deadline_ms=DEADLINE_MS)
    shared.judge(keys, future.result(30), target, "future")


def rows(shared: Shared, rng: random.Random) -> None:
    """Rows of registered memory. A region that was closed gives its memory back."""
    queue = rng.choice(shared.queues)
    keys = shared.draw(rng)
    target = shared.ledger.lend(len(keys), BLOCK_BYTES)
    region = shared.client.register(target)
    shared.regions.append(region)
    template = region.template([halfstep.PartDescriptor(0, BLOCK_BYTES, 1, BLOCK_BYTES)])
    try:
        ticket = queue.get(keys, halfstep.Rows(template, np.arange(len(keys))), deadline_ms=DEADLINE_MS)
    except CLOSED:
        region.close()
        raise
    region.close()
    # After close() the memory is ours, whatever the ticket says.
    if not ticket.done:
        shared.ledger.fault("a region was closed while its ticket was under way")
    shared.judge(keys, ticket.result(), target, "rows")
    with contextlib.suppress(ValueError):
        shared.regions.remove(region)


def hooked(shared: Shared, rng: random.Random) -> None:
    """A list of targets that changes while the call reads it: refused, or as it was when the call began."""
    keys = shared.draw(rng)
    memory = [shared.ledger.lend(1, BLOCK_BYTES) for _ in keys]
    targets: list[Any] = [_Tensor(m[0]) for m in memory]
    targets[rng.randrange(len(keys))].hook = rng.choice(
        [targets.clear, targets.pop, lambda: targets.append(None), lambda: targets.__setitem__(-1, b"")]
    )
    try:
        result = shared.client.get(keys, targets, deadline_ms=DEADLINE_MS)
    except CLOSED:
        result = None
    for at, key in enumerate(keys):
        if result is not None and result.ok[at]:
            shared.ledger.verify(memory[at][0], shared.contents[key], f"hooked {key!r}")
        shared.ledger.hand_back(memory[at])
    shared.calls["hooked"] += 1
    if shared.client.closed:
        raise halfstep.ConfigError("client is closed")


class _Tensor:
    """Stands for a tensor, whose __dlpack__ is Python and may run anything."""

    def __init__(self, array: Buffer) -> None:
        self.array = array
        self.hook: Callable[[], object] | None = None

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        if self.hook is not None:
            with contextlib.suppress(IndexError):
                self.hook()
        return self.array.__dlpack__()


def loops(shared: Shared, rng: random.Random) -> None:
    """An asyncio loop of its own with calls side by side, some cancelled."""

    async def one(number: int) -> None:
        keys = shared.draw(rng)
        target = shared.ledger.lend(len(keys), BLOCK_BYTES)
        call = asyncio.ensure_future(shared.client.aio.get(keys, target, deadline_ms=DEADLINE_MS))
        if number % 3 == 0:
            await asyncio.sleep(rng.random() * 0.002)
            call.cancel()
        try:
            shared.judge(keys, await call, target, "asyncio")
        except asyncio.CancelledError:
            shared.ledger.hand_back(target)  # over when it leaves
            shared.calls["asyncio cancelled"] += 1

    async def several() -> None:
        for result in await asyncio.gather(*(one(number) for number in range(4)), return_exceptions=True):
            if isinstance(result, BaseException):
                raise result

    asyncio.run(several())


def session(shared: Shared, rng: random.Random) -> None:
    """Holds and lets go."""
    with shared.client.session() as held:
        held.hold(shared.draw(rng), deadline_ms=DEADLINE_MS)
    shared.calls["session"] += 1


FACES: dict[str, Callable[[Shared, random.Random], None]] = {
    "sync": sync,
    "tickets": tickets,
    "events": events,
    "futures": futures,
    "rows": rows,
    "hooked": hooked,
    "loops": loops,
    "session": session,
}


def work(shared: Shared, face: str, seed: int) -> None:
    """A thread's life: one face until the end. What it did not expect is a fault of the run."""
    rng = random.Random(seed)
    while not shared.stop.is_set():
        try:
            FACES[face](shared, rng)
        except CLOSED as error:
            if "closed" not in str(error):
                shared.ledger.fault(f"{face}: {type(error).__name__}: {error}")
            if shared.client.closed:
                return
            # A queue that somebody closed: there is another in its place already.
        except Exception as error:
            shared.ledger.fault(f"{face}: {type(error).__name__}: {error}")
            return
