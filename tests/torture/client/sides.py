"""What enters from the side: each of these happens to a process under load at a random moment.

A `Passing` one leaves the process at work; an `End` is how its main thread comes to its end. Thread: the main thread's, but
where it says otherwise.
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import os
import random
import resource
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from tests.torture.client.workers import KEYS, Shared

import halfstep

CHILD_S = 20.0

Passing = Callable[[Shared, random.Random], None]


# ---- passing ----


def cancel(shared: Shared, rng: random.Random) -> None:
    """Whatever is under way, some of it twice."""
    for ticket in [*shared.tickets, *shared.tickets[:3]]:
        ticket.cancel()


def close_queue(shared: Shared, rng: random.Random) -> None:
    """A queue that others wait on; there is another in its place."""
    at = rng.randrange(len(shared.queues))
    old, shared.queues[at] = shared.queues[at], shared.client.queue()
    old.close()
    shared.calls["queue closed"] += 1


def close_regions(shared: Shared, rng: random.Random) -> None:
    """Memory that batches read into."""
    for region in list(shared.regions):
        region.close()


def fork(shared: Shared, rng: random.Random) -> None:
    """A child that uses the client, closes it and ends in one of three ways; it has to end, with status 0."""
    way = rng.randrange(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that a process with threads forks is the point
        child = os.fork()
    if child == 0:
        _in_child(shared, way)
    until = time.monotonic() + CHILD_S * shared.patience
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid != 0:
            break
        if time.monotonic() > until:
            os.kill(child, signal.SIGABRT)  # faulthandler says where it was
            os.waitpid(child, 0)
            shared.ledger.fault(f"a forked child (way {way}) does not end")
            return
        time.sleep(0.01)
    if (code := os.waitstatus_to_exitcode(status)) != 0:
        shared.ledger.fault(f"a forked child (way {way}) ended with {code}")
    shared.calls["forked"] += 1


def _in_child(shared: Shared, way: int) -> NoReturn:
    status = 1
    try:
        signal.setitimer(signal.ITIMER_REAL, 0)
        if way != 0:
            target = bytearray(len(shared.contents[KEYS[0]]))
            result = shared.client.get(KEYS[:1], target, deadline_ms=2000)
            if not result.ok.all() or bytes(target) == shared.contents[KEYS[0]].tobytes():
                status = 0
            if way == 2:
                shared.client.close()
        else:
            status = 0
    except halfstep.ConfigError as error:
        status = 0 if "closed" in str(error) else 2  # the parent's threads may have closed it before
    finally:
        os._exit(status)


def signals(shared: Shared, rng: random.Random) -> None:
    """A timer whose handler does nothing, a thousand times a second: every system call is interrupted."""
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    time.sleep(rng.random() * 0.3)
    signal.setitimer(signal.ITIMER_REAL, 0)


def call_in_handler(shared: Shared, rng: random.Random) -> None:
    """A handler that uses the client itself, whatever the main thread was doing."""

    def handler(*_: object) -> None:
        with contextlib.suppress(halfstep.ConfigError):
            shared.client.match(KEYS[:2], deadline_ms=100)
            for ticket in list(shared.tickets)[:2]:
                ticket.cancel()
        shared.calls["call in a handler"] += 1

    _handle_soon(shared, rng, handler)


def fork_in_handler(shared: Shared, rng: random.Random) -> None:
    """A handler that forks."""
    _handle_soon(shared, rng, lambda *_: fork(shared, rng))


def raise_in_handler(shared: Shared, rng: random.Random) -> None:
    """A handler that raises, which the caller catches and goes on: what Ctrl-C is in a notebook."""

    class _Interrupt(BaseException):
        pass

    def handler(*_: object) -> None:
        raise _Interrupt

    for _ in range(rng.randint(1, 4)):
        try:
            _handle_soon(shared, rng, handler)
        except _Interrupt:
            shared.calls["interrupted"] += 1


def no_descriptors(shared: Shared, rng: random.Random) -> None:
    """None is left for a while, as calls of new queues, loops and clients begin."""
    held: list[int] = []
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(entry.name) for entry in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(highest + 2, hard), hard))
    try:
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        if rng.randrange(2) and held:
            os.close(held.pop())
        for _ in range(3):
            with contextlib.suppress(halfstep.HalfstepError):
                shared.client.submit("match", KEYS[:1], deadline_ms=50).result(30)
                with halfstep.connect(shared.client.url) as other:
                    other.match(KEYS[:1], deadline_ms=50)
        time.sleep(rng.random() * 0.2)
    except OSError as error:
        if error.errno == errno.EMFILE:
            shared.ledger.fault(f"a call raised {error!r} when descriptors were out; it answers `unavailable`")
        else:
            raise
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if not shared.client.closed:
        shared.client.submit("match", KEYS[:1], deadline_ms=1000).result(30)
    shared.calls["descriptors out"] += 1


def stop_daemon(shared: Shared, rng: random.Random) -> None:
    """It stands still for a while, and calls end by their deadlines."""
    os.kill(shared.daemon_pid, signal.SIGSTOP)
    try:
        time.sleep(0.1 + rng.random() * 0.6)
        if rng.randrange(2):
            close_queue(shared, rng)
    finally:
        os.kill(shared.daemon_pid, signal.SIGCONT)


PASSING: dict[str, Passing] = {
    f.__name__: f
    for f in (
        cancel,
        close_queue,
        close_regions,
        fork,
        signals,
        call_in_handler,
        fork_in_handler,
        raise_in_handler,
        no_descriptors,
        stop_daemon,
    )
}

# What cannot be where a loop reads descriptors that the process has closed on purpose: the interpreter's own loops raise then.
NOT_BESIDE: dict[str, frozenset[str]] = {"no_descriptors": frozenset({"loops"})}


def _handle_soon(shared: Shared, rng: random.Random, handler: Callable[..., object]) -> None:
    """Have a signal come while the main thread is in a call of its own."""
    came = threading.Event()

    def once(*arguments: object) -> None:
        came.set()
        handler(*arguments)

    signal.signal(signal.SIGALRM, once)
    signal.setitimer(signal.ITIMER_REAL, 0.0005 + rng.random() * 0.01)
    until = time.monotonic() + 10
    while not came.is_set() and time.monotonic() < until:
        main_call(shared, rng)
    signal.setitimer(signal.ITIMER_REAL, 0)


def main_call(shared: Shared, rng: random.Random) -> None:
    """One call of the main thread, of a face that is drawn; closed is an answer here."""
    keys = shared.draw(rng)
    target = bytearray(len(keys) * 16_384)
    with contextlib.suppress(halfstep.ConfigError):
        kind = rng.randrange(4)
        if kind == 0:
            shared.client.get(keys, target, deadline_ms=200)
        elif kind == 1:
            rng.choice(shared.queues).get(keys, target, deadline_ms=200).result(5)
        elif kind == 2:
            rng.choice(shared.queues).wait(0.02)
        else:
            shared.client.submit("get", keys, target, deadline_ms=200).result(30)


# ---- ends ----


def close_client(shared: Shared, rng: random.Random) -> None:
    """By the main thread, beside all others."""
    shared.client.close()
    _join(shared)


def close_in_thread(shared: Shared, rng: random.Random) -> None:
    """By another thread, while the main thread is in calls."""
    closer = threading.Thread(target=shared.client.close)
    closer.start()
    while closer.is_alive():
        main_call(shared, rng)
        time.sleep(0.001)
    _join(shared)


def close_in_handler(shared: Shared, rng: random.Random) -> None:
    """In a signal's handler, the main thread in a call."""
    _handle_soon(shared, rng, lambda *_: shared.client.close())
    shared.client.close()
    _join(shared)


def close_twice(shared: Shared, rng: random.Random) -> None:
    """By several threads and a handler at once."""
    closers = [threading.Thread(target=shared.client.close) for _ in range(3)]
    for closer in closers:
        closer.start()
    _handle_soon(shared, rng, lambda *_: shared.client.close())
    for closer in closers:
        closer.join()
    _join(shared)


def leave(shared: Shared, rng: random.Random) -> None:
    """The main thread ends, daemon threads are in calls: the interpreter closes what is open."""


def leave_by_exit(shared: Shared, rng: random.Random) -> None:
    """sys.exit() in a signal's handler, the main thread in a call."""
    _handle_soon(shared, rng, lambda *_: sys.exit(0))
    sys.exit(0)


def interrupt(shared: Shared, rng: random.Random) -> None:
    """Ctrl-C that nobody catches: the process ends by it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.001 + rng.random() * 0.02, os.kill, (os.getpid(), signal.SIGINT))
    timer.daemon = True
    timer.start()
    while True:
        main_call(shared, rng)


def hang(shared: Shared, rng: random.Random) -> None:
    """For the test of the driver: never ends.

    Alone: faulthandler reads the frames of running threads as they change, and may come to its own end in them.
    """
    close_client(shared, rng)
    while True:
        time.sleep(1)


def spill(shared: Shared, rng: random.Random) -> None:
    """For the test of the ledger: a byte lands late."""
    late = shared.ledger.lend(1, 4096)
    shared.ledger.hand_back(late)
    late[0, 7] ^= 1
    close_client(shared, rng)


End = Callable[[Shared, random.Random], Any]
ENDS: dict[str, End] = {
    f.__name__: f
    for f in (close_client, close_in_thread, close_in_handler, close_twice, leave, leave_by_exit, interrupt, hang, spill)
}
# Drawn by rounds; the others are there to show that the checks can fail.
DRAWN = ("close_client", "close_in_thread", "close_in_handler", "close_twice", "leave", "leave_by_exit", "interrupt")
# The process's status, where it is not 0.
STATUS = {"interrupt": -int(signal.SIGINT)}


def _join(shared: Shared) -> None:
    """All threads end of themselves once the client is closed."""
    for thread in shared.threads:
        thread.join(30 * shared.patience)
        if thread.is_alive():
            shared.ledger.fault(f"thread {thread.name} does not end though the client is closed")
            faulthandler.dump_traceback()
