"""What comes to a waiting client from the side: a close, a signal, a fork, arguments that change.

A hang is a failure: whoever may hang is a thread that is joined for a minute, or a process of its own.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import numpy as np
import pytest

import halfstep
from halfstep import ConfigError

pytestmark = pytest.mark.integration

Blocks = Callable[..., Any]
KEYS = [b"a", b"b", b"c"]


@pytest.fixture
def stored(client: halfstep.Client, blocks: Blocks) -> Any:
    source = blocks(3, 100_000)
    assert client.put(KEYS, source, deadline_ms=30_000).ok.all()
    return source


def ends(work: Callable[[], object]) -> None:
    """`work` in a thread that returns within a minute."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), f"{work} does not return"


# ---- close ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("closes", ["queue", "client", "core"])
@pytest.mark.parametrize("watched", [False, True])
def test_a_close_returns_beside_threads_that_wait_for_nothing(client: halfstep.Client, closes: str, watched: bool) -> None:
    queue = client.queue()
    assert queue.match(KEYS).result(60).prefix == 0
    if watched:
        queue.fileno()
    said: list[Any] = []

    def wait() -> None:
        try:
            said.append(queue.wait())
        except ConfigError as error:
            said.append(str(error))

    waiters = [threading.Thread(target=wait, daemon=True) for _ in range(4)]
    for waiter in waiters:
        waiter.start()
    while queue._native.inside < 4:
        assert not said
    ends({"queue": queue.close, "client": client.close, "core": client._links.core().close}[closes])
    for waiter in waiters:
        waiter.join(60)
    assert ["queue is closed" in one for one in said] == [True] * 4


def test_a_queue_that_was_never_used_is_waited_on_and_closed(client: halfstep.Client) -> None:
    queue = client.queue()
    said: list[Any] = []

    def wait() -> None:
        try:
            said.extend(queue.wait())
            said.extend(queue.wait())
        except ConfigError as error:
            said.append(str(error))

    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()
    while not queue._native.inside:
        assert waiter.is_alive()
    ticket = queue.match(KEYS)  # makes the core's queue, where the thread is not yet
    while len(said) < 1:
        assert waiter.is_alive()
    ends(queue.close)
    waiter.join(60)
    assert said[0].ticket is ticket
    assert "closed" in said[1]


class OfAnotherThread(asyncio.SelectorEventLoop):
    """Found running in a thread that may close it at any moment: whoever calls it from here may write to a pipe of others."""

    found = False

    def __init__(self) -> None:
        super().__init__()
        self.touched: list[str] = []

    def is_running(self) -> bool:
        return self.found or super().is_running()

    def call_soon_threadsafe(self, callback: Any, *arguments: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        self.touched += ["call_soon_threadsafe"] if self.found else []
        return super().call_soon_threadsafe(callback, *arguments, context=context)

    def remove_reader(self, fd: Any) -> bool:
        self.touched += ["remove_reader"] if self.found else []
        return super().remove_reader(fd)


def test_a_close_does_not_touch_a_loop_that_runs_in_another_thread(client: halfstep.Client) -> None:
    loop = OfAnotherThread()
    assert loop.run_until_complete(client.aio.match(KEYS)).prefix == 0
    loop.found = True
    client.close()
    assert client.closed
    assert loop.touched == []
    loop.found = False
    loop.run_until_complete(asyncio.sleep(0.01))  # it hears of it, and lets go
    loop.close()


def test_a_call_that_comes_in_the_midst_of_a_close_ends(client: halfstep.Client, daemon: Any) -> None:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def begin(call: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(call, loop)

    try:
        aio = client.aio
        assert begin(aio.match(KEYS)).result(60).prefix == 0
        daemon.pause()
        (home,) = aio._homes.values()
        home.close(loop)  # the first step of a close, by this thread, which may wait here for the interpreter
        begin(asyncio.sleep(0.01)).result(60)  # the loop has heard of it, and let go
        late = begin(aio.match(KEYS, deadline_ms=60_000))
        begin(asyncio.sleep(0.01)).result(60)
        client.close()
        assert late.result(60).prefix == 0
    finally:
        daemon.resume()
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


def test_a_loop_that_closes_waits_without_work(client: halfstep.Client, daemon: Any) -> None:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        daemon.pause()
        call = asyncio.run_coroutine_threadsafe(client.aio.match(KEYS, deadline_ms=60_000), loop)
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0.05), loop).result(60)
        client.aio.close()  # and the call is not over
        (home,) = [one for one in gc.get_objects() if type(one).__name__ == "_Home" and one._closing and not one._gone]
        heard: list[int] = []
        hush = home.bell.hush
        home.bell.hush = lambda: (heard.append(1), hush())
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0.2), loop).result(60)
        assert len(heard) <= 2
        client.close()
        assert call.result(60).prefix == 0
    finally:
        daemon.resume()
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


def test_a_call_ends_though_its_loop_pauses_while_another_thread_closes_the_client(
    client: halfstep.Client, daemon: Any
) -> None:
    loop = asyncio.new_event_loop()
    daemon.pause()
    try:
        call = loop.create_task(client.aio.match(KEYS, deadline_ms=60_000))
        loop.run_until_complete(asyncio.sleep(0.05))
        closing = threading.Thread(target=client.close)
        closing.start()
        closing.join(60)
        assert not call.done()
        assert loop.run_until_complete(asyncio.wait_for(call, 60)).prefix == 0
    finally:
        daemon.resume()
        loop.close()


CLOSES_IN_A_POLL = """
import sys
import numpy as np
import halfstep
class Closing(np.ndarray):
    def __del__(self):
        queue.close()
client = halfstep.connect("halfstep://127.0.0.1:1", mode="on", layout=halfstep.Layout.opaque("polls"))
queue = client.queue()
queue.get([b"a"], np.zeros(8, np.uint8).view(Closing), deadline_ms=1)
for _ in range(299):                    # more than a poll takes from the core at once
    queue.get([b"a"], np.zeros(8, np.uint8), deadline_ms=1)
client.queue().get([b"a"], np.zeros(8, np.uint8), deadline_ms=400).result(60)   # by then all those are over
print(len(queue.poll()), queue._native.closed)
"""


def test_a_poll_whose_events_let_go_of_memory_that_closes_the_queue_returns(run_script: Any) -> None:
    done = run_script(CLOSES_IN_A_POLL)
    assert (done.returncode, done.stdout) == (0, "300 True\n"), done.stderr


def test_closes_beside_gets_return(daemon: Any, layout: halfstep.Layout) -> None:
    for _ in range(30):
        client = halfstep.connect(daemon.url, layout=layout, required=True, deadline_ms=30_000)

        def work(client: halfstep.Client = client) -> None:
            try:
                while True:
                    client.get(KEYS, bytearray(3))
            except ConfigError:
                pass

        threads = [threading.Thread(target=work, daemon=True) for _ in range(8)]
        for thread in threads:
            thread.start()
        closers = [threading.Thread(target=client.close, daemon=True) for _ in range(2)]
        for closer in closers:
            closer.start()
        for thread in closers + threads:
            thread.join(60)
            assert not thread.is_alive()


CLOSES_IN_A_HANDLER = """
import os, signal, sys, threading
import numpy as np
import halfstep
what, how = sys.argv[2:]
client = halfstep.connect(sys.argv[1], mode="on", deadline_ms=600_000)
queue = client.queue()
region = client.register(np.zeros(4096, np.uint8))
rows = halfstep.Rows(region.template([halfstep.PartDescriptor(0, 4096, 1, 4096)]), np.array([0]))
pending = queue.get([b"a"], rows)
order = []
def handler(*_):
    {"client": client, "queue": queue, "region": region}[what].close()
    order.append("closed")
signal.signal(signal.SIGALRM, handler)
calls = {
    "wait": queue.wait,
    "result": pending.result,
    "get": lambda: client.get([b"a"], rows),
    "future": client.submit("get", [b"a"], bytearray(3)).result,
    "ready": lambda: client.wait_ready(600_000),
    "stat": client.stat,
}
signal.setitimer(signal.ITIMER_REAL, 0.2)
try:
    said = calls[how]()
    order.append(said.reason(0) if hasattr(said, "reason") and callable(said.reason) else str(said))
except halfstep.HalfstepError as error:
    order.append(str(error))
print(order[0], order[1].split()[0], pending.done, sep="|")
"""


@pytest.mark.parametrize(
    ("what", "how", "ending"),
    [
        ("client", "wait", "queue"),
        ("client", "result", "cancelled"),
        ("client", "get", "cancelled"),
        ("client", "future", "cancelled"),
        ("client", "ready", "client"),
        ("client", "stat", "stat"),
        ("queue", "wait", "queue"),
        ("queue", "result", "cancelled"),
        ("region", "get", "cancelled"),
        ("region", "result", "cancelled"),
    ],
)
def test_a_close_in_a_handler_returns_and_ends_the_call(run_script: Any, what: str, how: str, ending: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"halfstep://127.0.0.1:{mute.getsockname()[1]}"
        done = run_script(CLOSES_IN_A_HANDLER, url, what, how)
    assert (done.returncode, done.stdout) == (0, f"closed|{ending}|True\n"), done.stderr


# ---- interruption --------------------------------------------------------------------------------------------------------


class Interrupted(BaseException):
    """As KeyboardInterrupt: of no handler that a library has."""


def interrupted_at(number: int, work: Callable[[], object]) -> bool:
    """Whether an exception came before instruction `number` of queue, ticket and link, as a signal's handler raises it."""
    left = number

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith(("client/queue.py", "client/ticket.py", "client/link.py")):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            left -= 1
            if left == 0:
                raise Interrupted
        return trace

    sys.settrace(trace)
    try:
        work()
    except Interrupted:
        return True
    finally:
        sys.settrace(None)
    return False


@pytest.mark.parametrize("call", ["submit", "poll", "wait", "result", "run", "rows", "close"])
def test_an_exception_at_any_instruction_leaves_nothing_behind(client: halfstep.Client, stored: Any, call: str) -> None:
    region = client.register(np.zeros(300_000, np.uint8))
    rows = halfstep.Rows(region.template([halfstep.PartDescriptor(0, 100_000, 1, 100_000)]), [0, 1, 2])
    number, interrupted = 0, True
    while interrupted:
        number += 1
        queue = client.queue()
        ticket = queue.get(KEYS, rows)
        ticket.add_done_callback(lambda _: None)
        match, get = client._requests.match(KEYS), client._requests.get(KEYS, rows)
        work: dict[str, Callable[[], object]] = {
            "submit": partial(queue.match, KEYS),
            "poll": queue.poll,
            "wait": queue.wait,
            "result": ticket.result,
            "run": partial(queue.run, match),
            "rows": partial(queue.run, get),
            "close": queue.close,
        }
        interrupted = interrupted_at(number, work[call])
        assert ticket.result(60).ok.all() or call == "close"
        if not queue._native.closed:
            assert queue.match(KEYS).result(60).prefix == 3
        ends(queue.close)
        assert queue._native.in_flight == 0
    assert number > 3
    ends(region.close)
    assert region.closed


INTERRUPTS_AT_RANDOM = """
import random, signal, sys
import halfstep
client = halfstep.connect(sys.argv[1], layout=halfstep.Layout.opaque("at random"), required=True, deadline_ms=30_000)
keys, target = [b"%d" % n for n in range(4)], bytearray(16384)
client.put(keys, bytearray(16384))
# Futures are imported here: Python loses a KeyboardInterrupt that meets an import, or keeps it for its exit status.
assert client.submit("get", keys, target).result().ok.all()
queue, sent, random = client.queue(), 0, random.Random(1)

def interrupt(*_):
    # Counted here: Python also loses what is raised in the call-back of a weak reference.
    global sent
    sent += 1
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
faces = [
    lambda: queue.get(keys, target).result(),
    lambda: (queue.get(keys, target), queue.wait()),
    lambda: client.submit("get", keys, bytearray(16384)).result(),
    lambda: client.get(keys, target),
]
while sent < 400:
    before = sent
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-6 + random.random() * 2e-3)  # one of 0 would never come
        while sent == before:
            faces[sent % 4]()
    except KeyboardInterrupt:
        pass
    except RuntimeError:  # a lock of the standard library that was given back twice
        pass
signal.setitimer(signal.ITIMER_REAL, 0)
while queue._native.in_flight:
    queue.wait(60)
assert client.get(keys, target).ok.all()
queue.close()
client.close()
print("ended")
"""


def test_four_hundred_interrupts_leave_a_client_that_works(daemon: Any, run_script: Any) -> None:
    done = run_script(INTERRUPTS_AT_RANDOM, daemon.url, timeout_s=120)
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr


# ---- fork ----------------------------------------------------------------------------------------------------------------

FORKS = """
import os, sys, threading
import halfstep
client = halfstep.connect(sys.argv[1], mode="on", required=True, deadline_ms=600_000)
queue = client.queue()
lock = threading.Lock()
called = []
ticket = queue.get([b"nobody stores it"], bytearray(3), wait=True)
ticket.add_done_callback(lambda t: (lock.acquire(), called.append(os.getpid())))
future = client.submit("get", [b"nobody stores it"], bytearray(3), wait=True)
future.add_done_callback(lambda f: called.append("future"))
lock.acquire()                          # held by somebody else, for ever
if child := os.fork():
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), ticket.done, future.done())
    lock.release()
    client.close()
    assert called.count(os.getpid()) == 1, called
else:
    assert ticket.done and ticket.request.result().reason(0) == "cancelled (forked)"
    assert future.result(60).reason(0) == "cancelled (forked)"
    assert called == [], called
    if sys.argv[2] == "polls":
        lock.release()
        assert [event.ticket for event in queue.poll()] == [ticket]
        assert called == [os.getpid()], called
    sys.exit(7)
"""


CLOSES_IN_A_FORK = """
import os, sys, threading
import halfstep
client = halfstep.connect(sys.argv[1], mode="on", required=True, deadline_ms=600_000)
future = client.submit("get", [b"nobody stores it"], bytearray(3), wait=True)
begins, later = threading.Thread.start, []
threading.Thread.start = lambda thread: later.append(thread)        # the thread comes too late
if child := os.fork():
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    client.close()
else:
    client.close()
    assert len(later) == 1 and not future.done()
    begins(later[0])
    assert future.result(60).reason(0) == "cancelled (forked)"
    os._exit(7)
"""


def test_the_parents_futures_end_in_a_fork_that_closes_at_once(daemon: Any, run_script: Any) -> None:
    done = run_script("import warnings; warnings.simplefilter('ignore')\n" + CLOSES_IN_A_FORK, daemon.url)
    assert (done.returncode, done.stdout) == (0, "7\n"), done.stderr


@pytest.mark.parametrize("child", ["polls", "ends"])
def test_call_backs_of_the_parents_tickets_do_not_run_in_a_fork(daemon: Any, run_script: Any, child: str) -> None:
    done = run_script("import warnings; warnings.simplefilter('ignore')\n" + FORKS, daemon.url, child)
    assert (done.returncode, done.stdout) == (0, "7 False False\n"), done.stderr


FORKED_BY_A_THREAD = """
import os, signal, sys, threading
import halfstep
client = halfstep.connect(sys.argv[1], mode="on")
assert client.queue().wait(0) == []     # the main thread of the parent hears signals here
class Heard(Exception): pass
def hear(*_): raise Heard
def fork():
    if child := os.fork():
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        return
    signal.signal(signal.SIGALRM, hear)  # this thread is the child's main thread now
    try:
        queue = client.queue()
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        queue.wait()
    except Heard:
        os._exit(7)
statuses = []
thread = threading.Thread(target=fork)
thread.start()
thread.join()
print(statuses, flush=True)
os._exit(0)
"""


def test_a_child_that_a_thread_forked_hears_signals_while_it_waits(run_script: Any) -> None:
    done = run_script("import warnings; warnings.simplefilter('ignore')\n" + FORKED_BY_A_THREAD, "halfstep://127.0.0.1:1")
    assert (done.returncode, done.stdout) == (0, "[7]\n"), done.stderr


# ---- arguments that change -----------------------------------------------------------------------------------------------


class Tensor:
    """As torch.Tensor, whose __dlpack__ is Python code; it runs `hook`."""

    def __init__(self, array: Any, hook: Callable[[], object] = lambda: None) -> None:
        self.array = array
        self.hook = hook

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        self.hook()
        return self.array.__dlpack__(**options)


CHANGES = {
    "shorter": lambda entries: entries.__delitem__(slice(2, None)),
    "empty": list.clear,
    "longer": lambda entries: entries.append(entries[0]),
    "another": lambda entries: entries.__setitem__(2, bytearray(100_000)),
    "another order": list.reverse,
}


@pytest.mark.parametrize("how", CHANGES)
@pytest.mark.parametrize("operation", ["get", "put"])
@pytest.mark.parametrize("depth", ["blocks", "pieces"])
def test_a_list_that_changes_during_the_call_is_refused(
    client: halfstep.Client, stored: Any, how: str, operation: str, depth: str
) -> None:
    before = np.zeros_like(stored)
    assert client.get(KEYS, list(before)).ok.all()
    before[:] = 1
    arrays = [np.zeros(100_000, np.uint8) for _ in KEYS]
    entries: list[Any] = [Tensor(array) for array in arrays]
    entries[1].hook = lambda: CHANGES[how](entries)
    sent = client.facts().bytes_sent
    blocks: Any = entries if depth == "blocks" else [entries, arrays[0], arrays[1]]
    with pytest.raises(ConfigError, match="the list was changed during the call"):
        client.get(KEYS, blocks) if operation == "get" else client.put(KEYS, blocks)
    assert client.facts().bytes_sent == sent
    assert (before == 1).all()
    assert not any(array.any() for array in arrays)
    assert client.get(KEYS, np.zeros_like(stored)).ok.all()


def test_keys_and_targets_may_change_once_a_call_has_begun(client: halfstep.Client, stored: Any, daemon: Any) -> None:
    with client.queue() as queue:
        daemon.pause()
        keys, target = list(KEYS), list(np.zeros_like(stored))
        kept = list(target)
        ticket = queue.get(keys, target)
        keys.clear()
        target.clear()
        daemon.resume()
        assert ticket.result(60).ok.all()
        assert all((got == want).all() for got, want in zip(kept, stored, strict=True))


# ---- the interpreter's lock ----------------------------------------------------------------------------------------------


def test_a_poll_gives_the_interpreters_lock_away(client: halfstep.Client) -> None:
    queue = client.queue()
    assert queue.match(KEYS).result(60).prefix == 0
    ready, go, ran = threading.Event(), threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: (ready.set(), go.wait(), ran.set()), daemon=True)
    thread.start()
    ready.wait()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # nobody gets it who is not given it
    try:
        go.set()
        until = time.monotonic() + 60  # the thread needs a core, too
        while not ran.is_set() and time.monotonic() < until:
            queue.poll()
        assert ran.is_set()
    finally:
        sys.setswitchinterval(interval)


def test_a_signal_is_heard_in_every_wait(client: halfstep.Client) -> None:
    heard: list[int] = []
    previous = signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))
    try:
        with client.queue() as queue:
            for number, wait in enumerate((lambda: queue.wait(0.3), lambda: client.queue().wait(0.3))):
                threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
                while len(heard) == number:  # on a busy machine the signal may come after a wait
                    assert wait() == []
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert heard == [signal.SIGUSR1] * 2
