"""A client at the end of its process, of its descriptors and of its memory.

A hang is a failure: whoever may hang is a process of its own.
"""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.integration

# ---- memory --------------------------------------------------------------------------------------------------------------

TOO_LARGE = """
import resource
import halfstep
client = halfstep.connect("halfstep://127.0.0.1:1", mode="on", layout=halfstep.Layout.opaque("memory"))
queue = client.queue()
assert queue.match([b"a"], deadline_ms=1).result(60).prefix == 0
request = client._requests.match([b"%d" % n for n in range(1024)], components=16384)
pages = int(open("/proc/self/statm").read().split()[0])
room = pages * resource.getpagesize() + (64 << 20)      # less than the core needs for 2^24 items
resource.setrlimit(resource.RLIMIT_AS, (room, room))
try:
    queue.submit(request)
except halfstep.ConfigError as error:
    print(error)
assert queue.match([b"a"], deadline_ms=1).result(60).prefix == 0
queue.close()
client.close()
"""


def test_a_batch_beyond_the_memory_is_refused_and_its_queue_goes_on(run_script: Any) -> None:
    done = run_script(TOO_LARGE)
    assert (done.returncode, done.stdout) == (0, "out of memory for the batch; split it\n"), done.stderr


LITTLE_SPACE = """
import os, resource, sys
pages = int(open("/proc/self/statm").read().split()[0])
room = pages * resource.getpagesize() + (int(sys.argv[1]) << 20)
resource.setrlimit(resource.RLIMIT_AS, (room, room))
import halfstep
with halfstep.connect(sys.argv[2], required=True, deadline_ms=30_000) as client:
    print(client.put([b"k"], b"v").ok.all(), "OPENBLAS_NUM_THREADS" in os.environ)
"""


@pytest.mark.parametrize("room_mib", [32, 64, 90, 100])
def test_an_import_without_address_space_names_the_limit(run_script: Any, daemon: Any, room_mib: int) -> None:
    done = run_script(LITTLE_SPACE, str(room_mib), daemon.url)
    last = done.stderr.splitlines()[-1]
    assert (done.returncode, done.stdout) == (1, ""), done.stderr
    assert last.startswith("ImportError: halfstep: address space is limited to "), done.stderr
    assert "ulimit -v" in last


def test_little_address_space_is_enough_whatever_the_number_of_cores(run_script: Any, daemon: Any) -> None:
    done = run_script(LITTLE_SPACE, "112", daemon.url)
    assert (done.returncode, done.stdout) == (0, "True False\n"), done.stderr


# ---- exit ----------------------------------------------------------------------------------------------------------------

EXITS = """
import sys, threading
import numpy as np
import halfstep
url, keys = sys.argv[1], [b"%d" % n for n in range(16)]
begun = threading.Event()
class Tensor:
    def __init__(self, array): self.array = array
    def __dlpack_device__(self): return self.array.__dlpack_device__()
    def __dlpack__(self, **more): return self.array.__dlpack__(**more)
tensors = [Tensor(np.zeros(1000, np.uint8)) for _ in keys]
def work(client):
    {body}
for _ in range(4):
    client = halfstep.connect(url, mode="on")
    def run(client=client):
        try:
            while True:
                begun.set()
                work(client)
        except halfstep.HalfstepError: pass
    threading.Thread(target=run, daemon=True).start()
begun.wait()
threading.Event().wait({delay})
"""

AT_EXIT = {
    "wait_ready of nobody": ("halfstep.connect('halfstep://127.0.0.1:1').wait_ready(60_000)", 0.05),
    "wait_ready": ("client.wait_ready(60_000)", 0.02),
    "connect": ("halfstep.connect(url, required=True)", 0.02),
    "close": ("halfstep.connect(url, required=True).close()", 0.02),
    "wait": ("queue = client.queue(); queue.match(keys); queue.wait()", 0.02),
    "wait for nothing": ("client.queue().wait()", 0.02),
    "poll": ("client.queue().poll()", 0.02),
    "futures": ("client.submit('match', keys).result()", 0.02),
    "stat": ("client.stat()", 0.02),
    "tensors": ("client.get(keys, tensors)", 0.02),
}


@pytest.mark.parametrize("how", AT_EXIT)
def test_an_exit_beside_threads_in_the_core_has_status_0(daemon: Any, run_script: Any, how: str) -> None:
    body, delay = AT_EXIT[how]
    text = EXITS.replace("{body}", body).replace("{delay}", str(delay))
    for _ in range(3):
        done = run_script(text, daemon.url)
        assert done.returncode == 0, done.stderr


# ---- out of descriptors --------------------------------------------------------------------------------------------------

OUT_OF_DESCRIPTORS = """
import asyncio, os, resource, sys
import halfstep
from halfstep.client import aio, futures  # while there are descriptors
url = sys.argv[1]
connected = halfstep.connect(url, layout=halfstep.Layout.opaque("descriptors"), required=True, deadline_ms=30_000)
fresh = halfstep.connect(url, layout=halfstep.Layout.opaque("descriptors"), mode="on", deadline_ms=30_000)
assert connected.put([b"k"], b"v").ok.all()
resource.setrlimit(resource.RLIMIT_NOFILE, (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
loop = asyncio.new_event_loop()
queues = [connected.queue(), fresh.queue()]
held = []

def ask(client):
    target = bytearray(1)
    yield "get", client.get([b"k"], target)
    yield "queue", client.queue().get([b"k"], target).result(60)
    yield "future", client.submit("get", [b"k"], target).result(60)
    yield "aio", loop.run_until_complete(client.aio.get([b"k"], target))

try:
    while True: held.append(os.open("/dev/null", os.O_RDONLY))
except OSError: pass
without = {(name, which): (result.reason(0), repr(result))[0] for name, client in (("connected", connected), ("fresh", fresh))
           for which, result in ask(client)}
for queue in queues:
    try: assert queue.fileno() >= 0, "none is left"; raise SystemExit("fileno")
    except halfstep.Unavailable as error: assert "EMFILE" in str(error), error
try: fresh.stat(); raise SystemExit("stat")
except halfstep.Unavailable as error: assert "emfile" in str(error), error
try: fresh.wait_ready(100); raise SystemExit("ready")
except halfstep.Unavailable as error: assert "EMFILE" in str(error), error
for descriptor in held: os.close(descriptor)
for which, said in without.items():
    fine = which[0] == "connected" and which[1] != "aio"
    assert said.startswith("ok") if fine else said == "unavailable (emfile)", (which, said)
fresh.wait_ready(30_000)
for client in (connected, fresh):
    for which, result in ask(client):
        assert result.ok.all(), (which, result)
assert all(queue.fileno() >= 0 for queue in queues)
print("ended")
"""


def test_without_descriptors_calls_are_unavailable_and_later_ones_complete(daemon: Any, run_script: Any) -> None:
    done = run_script(OUT_OF_DESCRIPTORS, daemon.url)
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr
