"""Threads, fork, spawn, signals, and the end of a process."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import halfstep

pytestmark = pytest.mark.integration

Blocks = Callable[..., Any]
KEYS = [b"a", b"b", b"c"]


@pytest.fixture
def stored(client: halfstep.Client, blocks: Blocks) -> Any:
    source = blocks(3, 100_000)
    assert client.put(KEYS, source).ok.all()
    return source


def test_eight_threads_share_a_client(client: halfstep.Client) -> None:
    wrong: list[str] = []
    start = threading.Barrier(8)

    def work(number: int) -> None:
        source = np.random.default_rng(number).integers(0, 256, (4, 50_000), np.uint8)
        keys = [f"{number}-{at}".encode() for at in range(4)]
        start.wait()
        for turn in range(10):
            target = np.zeros_like(source)
            stored = client.put(keys, source)
            result = client.get(keys, target)
            if not (stored.ok.all() and result.ok.all() and (target == source).all()):
                wrong.append(f"thread {number}, turn {turn}: {stored}, {result}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def in_child(work: Callable[[], None]) -> int:
    """Run `work` in a forked child; its exit status, 0 when it did not raise."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_with_a_get_in_flight_ends_the_ticket_in_the_child_alone(
    client: halfstep.Client, stored: Any, daemon: Any
) -> None:
    queue = client.queue()
    before = queue.fileno()
    called: list[Any] = []
    daemon.pause()
    target = np.zeros_like(stored)
    ticket = queue.get(KEYS, target)
    ticket.add_done_callback(called.append)
    resumed, resume = os.pipe()

    def child() -> None:
        assert ticket.done
        assert called == []
        assert [event.ticket for event in queue.poll()] == [ticket]
        assert called == [ticket]
        assert [ticket.result().reason(item) for item in range(3)] == ["cancelled (forked)"] * 3
        # The same client and queue work here, with a core of their own.
        os.write(resume, b"x")
        mine = np.zeros_like(stored)
        assert client.get(KEYS, mine).ok.all()
        assert (mine == stored).all()
        again = queue.get(KEYS, mine)
        assert again.result(60).ok.all()
        assert not target.any()

    os.set_inheritable(before, True)
    helper = threading.Thread(target=lambda: (os.read(resumed, 1), daemon.resume()))
    helper.start()
    assert in_child(child) == 0
    helper.join()
    assert ticket.result(60).ok.all()
    assert called == [ticket]
    assert (target == stored).all()


FORKS_IN_A_HANDLER = """
import os, signal, sys
import halfstep

children = []
signal.signal(signal.SIGALRM, lambda *_: children.append(os.fork()))
client = halfstep.connect(sys.argv[1], mode="on")
signal.setitimer(signal.ITIMER_REAL, 0.2)
reason = client.get([b"a"], bytearray(1000), deadline_ms=1000).reason(0)
if children[0] == 0:
    assert reason == "cancelled (forked)", reason
    client.close()
    os._exit(7)
assert reason.startswith(("late", "unavailable")), reason
client.close()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]))
"""


def test_a_fork_in_a_handler_of_a_synchronous_call_ends_it_in_the_child() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"halfstep://127.0.0.1:{mute.getsockname()[1]}"
        command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKS_IN_A_HANDLER, url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (7, "")


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_session_is_closed_in_a_forked_child_and_goes_on_in_the_parent(client: halfstep.Client, stored: Any) -> None:
    def leases() -> float:
        return client.stat()['halfstep_store_holds{kind="lease"}']

    before = leases()
    with client.session(seconds=30) as session:
        assert session.hold(KEYS).ok.all()

        def child() -> None:
            assert session.closed
            with pytest.raises(halfstep.ConfigError, match="session is closed"):
                session.hold(KEYS)
            session.close()
            with client.session(seconds=30) as own:
                assert own.hold(KEYS[:1]).ok.all()

        assert in_child(child) == 0
        assert not session.closed
        assert leases() == before + len(KEYS)
        assert client.renew(session.owner, 30).ok.all()
    assert leases() == before


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_children_of_a_busy_client_work_at_once(client: halfstep.Client, stored: Any) -> None:
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            client.get(KEYS, np.zeros_like(stored))

    threads = [threading.Thread(target=busy) for _ in range(3)]
    for thread in threads:
        thread.start()
    future = client.submit("match", KEYS)

    def child() -> None:
        assert client.match(KEYS).prefix == 3
        assert client.submit("match", KEYS).result(60).prefix == 3

    try:
        for _ in range(5):
            assert in_child(child) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert future.result(60).prefix == 3


FORK_AND_EXIT = """
import os, sys
import halfstep

client = halfstep.connect(sys.argv[1], layout=halfstep.Layout.opaque("fork and exit"), required=True, deadline_ms=30_000)
client.submit("match", [b"key"]).result(60)
if child := os.fork():
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    client.submit("match", [b"key"]).result(60)
    print("parent")
sys.exit(0)
"""


def test_the_exit_of_a_forked_child_leaves_the_parents_futures_alone(daemon: Any, run_script: Any) -> None:
    done = run_script(FORK_AND_EXIT, daemon.url)
    assert (done.returncode, done.stdout) == (0, "parent\n"), done.stderr


def spawned_work(client: halfstep.Client) -> tuple[int, str]:
    """In a spawned process."""
    with client:
        target = bytearray(3 * 100_000)
        return client.get(KEYS, target).hits, halfstep.__version__


def test_a_client_travels_into_a_spawned_process(client: halfstep.Client, stored: Any) -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(spawned_work, (client,)) == (3, halfstep.__version__)


def test_a_client_pickles_as_its_url_and_options(client: halfstep.Client, stored: Any) -> None:
    with pickle.loads(pickle.dumps(client)) as again:
        assert (again.url, again.layout, again.mode) == (client.url, client.layout, client.mode)
        assert again.match(KEYS).prefix == 3


SETUP = """
import sys
import numpy as np
import halfstep
url = sys.argv[1]
client = halfstep.connect(url, layout=halfstep.Layout.opaque(sys.argv[2]), required=True, deadline_ms=30_000)
keys = [bytes([n]) for n in range(64)]
source = np.ones((64, 100_000), np.uint8)
"""

EXIT_WITHOUT_CLOSE = {
    "idle": "client.put(keys, source)",
    "with a batch in flight": "queue = client.queue(); client.put(keys, source); queue.get(keys, np.zeros_like(source))",
    "with everything open": """
import asyncio
client.put(keys, source)
queue = client.queue()
tickets = [queue.get(keys, np.zeros_like(source)) for _ in range(10)]
future = client.submit("get", keys, np.zeros_like(source))
region = client.register(np.zeros_like(source))
asyncio.run(client.aio.match(keys))
""",
    "with threads in calls": """
import threading
client.put(keys, source)
def work():
    while True:
        client.get(keys, np.zeros_like(source))
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
client.get(keys, np.zeros_like(source))
""",
    "by an exception": "client.queue().put(keys, source); raise SystemExit(0)",
    "in a cycle": "client.queue().put(keys, source); holder = [client]; holder.append(holder); del client, holder",
}


@pytest.mark.parametrize("how", EXIT_WITHOUT_CLOSE)
def test_a_process_may_end_without_closing(daemon: Any, run_script: Any, how: str) -> None:
    done = run_script(SETUP + EXIT_WITHOUT_CLOSE[how], daemon.url, how)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


INTERRUPTED = (
    SETUP
    + """
import os, pathlib, signal, threading
daemon = int(sys.argv[3])
client.put(keys, source)
os.kill(daemon, signal.SIGSTOP)
tasks = list(pathlib.Path(f"/proc/{daemon}/task").glob("*/stat"))
while not all(task.read_text().rpartition(")")[2].split()[0] == "T" for task in tasks):
    pass
target = np.zeros_like(source)
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    client.get(keys, target)
except KeyboardInterrupt:
    print("interrupted")
os.kill(daemon, signal.SIGCONT)
again = np.zeros_like(source)
assert client.get(keys, again).ok.all()
assert (again == source).all()
assert not target.any(), "bytes landed after the exception"
"""
)


def test_ctrl_c_in_a_call_leaves_after_the_fence(daemon: Any, run_script: Any) -> None:
    done = run_script(INTERRUPTED, daemon.url, "interrupted", str(daemon.pid))
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")


def test_a_signal_handler_that_does_not_raise_does_not_disturb_a_call(
    client: halfstep.Client, stored: Any, daemon: Any
) -> None:
    heard: list[int] = []
    previous = signal.signal(signal.SIGUSR1, lambda number, _: (heard.append(number), daemon.resume()))
    try:
        daemon.pause()
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1))
        timer.start()
        target = np.zeros_like(stored)
        assert client.get(KEYS, target).ok.all()
        timer.join()
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert heard == [signal.SIGUSR1]
    assert (target == stored).all()
