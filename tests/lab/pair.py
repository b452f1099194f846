"""In two guests on one wire: a daemon in one, a client in the other, over their RDMA devices.

    python -m tests.lab.pair daemon|client ADDRESS

ADDRESS: of the daemon's guest. That does what the client's asks for over a connection of their own (Control). The network
loses packets, then all packets of RDMA alone, at either end. Then the device itself is taken away, at either end, which the
kernel lets happen only when no process has it open. What is got is right or a miss, TCP takes over with a reason, and RDMA
comes back by itself. Prints a line for each step; the exit status is 0 when all of them held.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from tests.lab.blocks import DEADLINE_MS, PATIENCE_S, PORT, check, content, wait_for
from tests.lab.placed import Pool

import halfstep
from halfstep.tools.daemon_process import DaemonProcess

CONTROL_PORT = 7351
DEVICE = "eth0"
BLOCKS = 200
BYTES_MIN, BYTES_MAX = 4 << 10, 4 << 20
TOGETHER = 5  # of the largest, with their guards, fit into the pool
LOSS = "1%"
# The port of RoCE v2.
_ROCE = "protocol ip u32 match ip protocol 17 0xff match ip dport 4791 0xffff action drop"

# What either guest does to its own end, by name.
ACTS = {
    "lose": f"tc qdisc replace dev {DEVICE} root netem loss {LOSS}",
    "lose-none": f"tc qdisc del dev {DEVICE} root",
    # Where they arrive: of a packet that is dropped on its way out the device is told, and tries again for ever (kernel 6.1).
    "cut": f"tc qdisc add dev {DEVICE} clsact && tc filter add dev {DEVICE} ingress {_ROCE}",
    "join": f"tc qdisc del dev {DEVICE} clsact",
    "delete": "rdma link del rxe0",
    "add": f"for i in $(seq 100); do rdma link add rxe0 type rxe netdev {DEVICE} && exit; sleep 0.1; done; exit 1",
}
Act = Callable[[str], None]
Sizes = dict[bytes, int]


def act(name: str) -> None:
    """At this end."""
    done = subprocess.run(["bash", "-c", ACTS[name]], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    check(done.returncode == 0, f"{name}: {done.stderr}")


# ---- The daemon's guest ------------------------------------------------------------------------------------------------------


def daemon(address: str) -> int:
    """Serves, and does what it is told, until it is told to end. Returns the exit status."""
    with tempfile.TemporaryDirectory(prefix="halfstep-lab-") as directory:
        flags = ["--size", "1300MiB", "--segment", "18MiB", "--arena", "96MiB", "--rdma", "auto", "--insecure-listen"]
        served = DaemonProcess(Path(directory), *flags, listen=f"{address}:{PORT}")
        served.start()
        try:
            with socket.create_server((address, CONTROL_PORT)) as listener:
                client, _ = listener.accept()
            with client, client.makefile("r") as lines:
                for line in lines:
                    act(line.strip())
                    client.sendall(b"done\n")
        finally:
            print(served.log_end(), flush=True)
            served.end()
    print("pair: the client has ended", flush=True)
    return 0


class Control:
    """The other guest's acts."""

    def __init__(self, address: str) -> None:
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                self._socket = socket.create_connection((address, CONTROL_PORT), timeout=PATIENCE_S)
                break
            except OSError as error:
                check(time.monotonic() < until, f"the daemon's guest is there: {error}")
                time.sleep(0.5)

    def __call__(self, name: str) -> None:
        self._socket.sendall(f"{name}\n".encode())
        check(self._socket.recv(16) == b"done\n", f"the daemon's guest: {name}")


# ---- The client's guest ------------------------------------------------------------------------------------------------------


def client(address: str) -> int:
    """All steps. Returns the exit status."""
    there = Control(address)
    pool = Pool()
    sizes = {b"block-%03d" % n: size_of(n) for n in range(BLOCKS)}
    url = f"halfstep://{address}:{PORT}?transport=auto"
    with halfstep.connect(url, required=True, deadline_ms=DEADLINE_MS) as connected:
        check(connected.facts().transport == "rdma", f"over RDMA: {connected.facts()}")
        for one in (act, there):
            one("lose")
        stored(connected, pool, sizes)
        through_rings(connected, sizes, f"with {LOSS} of packets lost")
        placed(connected, pool, sizes)
        for one in (act, there):
            one("lose-none")
        few = dict(list(sizes.items())[::10])
        for end, name in ((act, "the client's end"), (there, "the daemon's end")):
            falls_back(connected, few, end, ("cut", "join"), f"packets of RDMA are lost at {name}")
        # With the region registered, which lets go of a device that is not there any more.
        for end, name in ((act, "the client's end"), (there, "the daemon's end")):
            falls_back(connected, few, end, ("delete", "add"), f"the device is taken away at {name}")
        placed(connected, pool, few)
        pool.region.close()
    print("pair: all steps held", flush=True)
    return 0


def size_of(number: int) -> int:
    """Evenly spaced in their logarithm, ends included, none of them round in between."""
    if number in (0, BLOCKS - 1):
        return BYTES_MAX if number else BYTES_MIN
    return int(BYTES_MIN * (BYTES_MAX / BYTES_MIN) ** (number / (BLOCKS - 1))) | 1


def stored(connected: halfstep.Client, pool: Pool, sizes: Sizes) -> None:
    """Half of the blocks are sent, and half read by the daemon out of a direct region."""
    pulled = 0
    for number, (key, size) in enumerate(sizes.items()):
        block = content(number, size)
        if number % 2:
            source = pool.lay_out([size])
            at, _ = pool.places[0]
            pool.memory[at : at + size] = np.frombuffer(block, dtype=np.uint8)
            result = connected.put([key], source)
            pulled += size
        else:
            result = connected.put(key, block)
        check(bool(result.ok.all()), f"put {key!r}: {result}")
        if number % 50 == 0:
            print(f"pair: {key!r} is stored", flush=True)
    told = connected.stat()["halfstep_rdma_pulled_bytes_total"]
    check(told == pulled, f"the daemon read {told} of {pulled} bytes out of the region")
    print(f"pair: {len(sizes)} blocks stored", flush=True)


def through_rings(connected: halfstep.Client, sizes: Sizes, when: str) -> None:
    """Every block, bit for bit."""
    for key, size in sizes.items():
        target = bytearray(size)
        result = connected.get([key], target)
        check(bool(result.ok.all()), f"{when}: get {key!r}: {result}")
        check(target == content(number_of(key), size), f"{when}: {key!r} is what was put")
    print(f"pair: {when}: {len(sizes)} blocks compared", flush=True)


def placed(connected: halfstep.Client, pool: Pool, sizes: Sizes) -> None:
    """The same, written straight into a direct region, several by each get, with guards between them."""
    before = connected.facts().placed_bytes
    keys = list(sizes)
    for batch in (keys[n : n + TOGETHER] for n in range(0, len(keys), TOGETHER)):
        result = connected.get(batch, pool.lay_out([sizes[key] for key in batch]))
        check(bool(result.ok.all()), f"get of {batch} into a region: {result}")
        for key, (at, size) in zip(batch, pool.places, strict=True):
            check(pool.memory[at : at + size].tobytes() == content(number_of(key), size), f"{key!r} is what was put")
        check(pool.guards_stand(), f"nothing beside {batch} was written")
    written = connected.facts().placed_bytes - before
    check(written == sum(sizes.values()), f"{written} bytes were placed")
    print(f"pair: {len(sizes)} blocks compared, placed", flush=True)


def number_of(key: bytes) -> int:
    """Of a block."""
    return int(key.rpartition(b"-")[2])


def falls_back(connected: halfstep.Client, sizes: Sizes, end: Act, acts: tuple[str, str], what: str) -> None:
    """Under load: TCP takes over and says why, and RDMA comes back without anybody's doing. Nothing wrong is ever got."""
    failures = connected.facts().rdma_failures
    over = threading.Event()
    wrong: list[bytes] = []

    def load() -> None:
        while not over.is_set():
            for key, size in sizes.items():
                target = bytearray(size)
                if connected.get([key], target, deadline_ms=10_000).ok.all() and target != content(number_of(key), size):
                    wrong.append(key)

    loaded = threading.Thread(target=load)
    loaded.start()
    try:
        end(acts[0])
        wait_for(lambda: connected.facts().transport == "tcp", f"{what}: TCP takes over")
        facts = connected.facts()
        check(facts.rdma != "" and facts.rdma_failures > failures, f"{what}: and says why: {facts}")
        print(f"pair: {what}: TCP, {facts.rdma}", flush=True)
        through_rings(connected, sizes, f"{what}, over TCP")
        end(acts[1])
        wait_for(lambda: connected.facts().transport == "rdma", f"{what}: RDMA comes back: {connected.facts()}")
    finally:
        over.set()
        loaded.join()
    check(not wrong, f"{what}: {wrong} are not what was put")
    through_rings(connected, sizes, f"{what}, and is there again")


if __name__ == "__main__":
    sys.exit({"daemon": daemon, "client": client}[sys.argv[1]](sys.argv[2]))
