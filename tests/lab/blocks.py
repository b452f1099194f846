"""In the guest: a daemon and a client of this checkout over an RDMA device, every byte compared, either end killed.

    python -m tests.lab.blocks ADDRESS

ADDRESS: of the device. Prints a line for each step; the exit status is 0 when all of them held.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import halfstep
from halfstep.errors import Unavailable
from halfstep.tools.daemon_process import DaemonProcess

BLOCKS = 100
BYTES_MIN, BYTES_MAX = 4 << 10, 4 << 20
# Emulated, and beside others: what takes a moment on a machine may take a minute here.
PATIENCE_S = 240.0
DEADLINE_MS = PATIENCE_S * 1000
PORT = 7350


def main(address: str) -> int:
    """Runs all steps. Returns the exit status."""
    with tempfile.TemporaryDirectory(prefix="halfstep-lab-") as directory:
        daemon = Daemon(Path(directory), address)
        try:
            daemon.start()
            blocks = {b"block-%03d" % n: content(n, size) for n, size in enumerate(sizes())}
            round_trip(daemon, blocks)
            daemon_killed(daemon, blocks)
            client_killed(daemon, blocks)
            falls_back(daemon)
        finally:
            print(daemon.log_end(), flush=True)
            daemon.close()
    print("blocks: all steps held", flush=True)
    return 0


def sizes() -> list[int]:
    """Evenly spaced in their logarithm, ends included, none of them round in between."""
    step = (BYTES_MAX / BYTES_MIN) ** (1 / (BLOCKS - 1))
    return [BYTES_MIN, *(int(BYTES_MIN * step**n) | 1 for n in range(1, BLOCKS - 1)), BYTES_MAX]


def content(number: int, size: int) -> bytes:
    """Of a block, from its number alone."""
    return random.Random(number).randbytes(size)


def round_trip(daemon: Daemon, blocks: dict[bytes, bytes]) -> None:
    """Put, got and compared, through rings; and what both ends say of it."""
    with daemon.connect() as client:
        for key, block in blocks.items():
            result = client.put(key, block, durability="persist")
            check(bool(result.ok.all()), f"put {key!r} ({len(block)} bytes): {result}")
        compare(client, blocks, "round trip")
        facts = client.facts()
        check((facts.transport, facts.rdma, facts.rdma_failures) == ("rdma", "", 0), f"the client's facts: {facts}")
        told = client.stat()
        check(told["halfstep_connections_rdma"] >= 1, "the daemon counts its connections over RDMA")
        sent = told['halfstep_rdma_bytes_total{outcome="sent"}']
        check(sent > sum(map(len, blocks.values())) / 2, f"payload leaves without a copy: {sent} bytes")
        check(told["halfstep_rdma_refused_total"] == 0, "no offer was refused")


def daemon_killed(daemon: Daemon, blocks: dict[bytes, bytes]) -> None:
    """While it sends: what was got is right, the rest are misses, and the client comes back by itself, over RDMA."""
    with daemon.connect() as client:
        keys = list(blocks)
        killer = after(0.3, daemon.kill)
        right = missed = 0
        for key in keys * 3:
            target = bytearray(len(blocks[key]))
            result = client.get([key], target)
            if bool(result.ok.all()):
                check(target == blocks[key], f"{key!r} is right beside a daemon that dies")
                right += 1
            else:
                missed += 1
                break
        killer()
        check(missed > 0, f"the daemon was killed while it sent; {right} gets before")
        daemon.start()
        wait_for(lambda: client.facts().connected > 0, "the client's connection after the daemon's end")
        check(client.facts().transport == "rdma", f"and it is over RDMA: {client.facts()}")
        compare(client, blocks, "after the daemon was killed")


def client_killed(daemon: Daemon, blocks: dict[bytes, bytes]) -> None:
    """While it receives and sends: the daemon lets go of it, and serves others."""
    for what in ("get", "put"):
        other = subprocess.Popen(
            [sys.executable, "-m", "tests.lab.busy_client", daemon.over("rdma"), what], stdout=subprocess.PIPE
        )
        assert other.stdout is not None
        check(other.stdout.readline() == b"busy\n", f"a client is busy with {what}")
        time.sleep(0.2)
        other.send_signal(signal.SIGKILL)
        other.wait()
    with daemon.connect() as client:
        compare(client, blocks, "after clients were killed")
        wait_for(lambda: client.stat()["halfstep_connections_rdma"] == 1, "the daemon lets go of their rings")
        check(client.stat()["halfstep_credit_held_bytes"] == 0, "and of their memory")


def falls_back(daemon: Daemon) -> None:
    """Who asks for TCP gets it; without a device, too, and says why; who insists is refused with the reason."""
    with halfstep.connect(daemon.over("tcp"), required=True, deadline_ms=DEADLINE_MS) as client:
        check(client.facts().transport == "tcp" and client.facts().rdma == "", "transport=tcp is TCP")
    with halfstep.connect(daemon.loopback("auto"), required=True, deadline_ms=DEADLINE_MS) as client:
        facts = client.facts()
        check(facts.transport == "tcp" and "127.0.0.1" in facts.rdma, f"no device has this address: {facts.rdma}")
    try:
        with halfstep.connect(daemon.loopback("rdma"), required=True, deadline_ms=5000):
            check(False, "transport=rdma does without")
    except Unavailable as error:
        check("transport=rdma" in str(error), f"transport=rdma is refused: {error}")


class Daemon(DaemonProcess):
    """`halfstep serve` on the device's address, and on loopback."""

    def __init__(self, directory: Path, address: str, *more: str) -> None:
        # Segments of which a quarter holds the largest block.
        flags = ["--size", "1300MiB", "--segment", "18MiB", "--arena", "96MiB"]
        flags += ["--rdma", "auto", "--insecure-listen", "--listen", f"127.0.0.1:{PORT}", *more]
        super().__init__(directory, *flags)
        self._listen = self._device = f"{address}:{PORT}"

    def over(self, transport: str) -> str:
        """A URL of the device's address."""
        return f"halfstep://{self._device}?transport={transport}"

    def loopback(self, transport: str) -> str:
        """A URL of an address that no device has."""
        return f"halfstep://127.0.0.1:{PORT}?transport={transport}"

    def connect(self) -> halfstep.Client:
        """Over RDMA or not at all."""
        return halfstep.connect(self.over("rdma"), required=True, deadline_ms=DEADLINE_MS)

    def kill(self) -> None:
        """As the power does."""
        self.end(signal.SIGKILL)


def compare(client: halfstep.Client, blocks: dict[bytes, bytes], when: str) -> None:
    """Every block, bit for bit."""
    for key, block in blocks.items():
        target = bytearray(len(block))
        result = client.get([key], target)
        check(bool(result.ok.all()), f"{when}: get {key!r}: {result}")
        check(target == block, f"{when}: {key!r} is what was put")
    print(f"blocks: {when}: {len(blocks)} blocks compared", flush=True)


def after(seconds: float, call: Callable[[], None]) -> Callable[[], None]:
    """Runs `call` after that time, beside us. Returns how to wait for it."""
    timer = threading.Timer(seconds, call)
    timer.start()
    return timer.join


def wait_for(is_true: Callable[[], bool], what: str) -> None:
    """Or fails when it does not come true."""
    until = time.monotonic() + PATIENCE_S
    while not is_true():
        check(time.monotonic() < until, f"in time: {what}")
        time.sleep(0.1)


def check(holds: bool, what: str) -> None:
    """Ends the run where it does not."""
    if not holds:
        raise SystemExit(f"blocks: FAILED: {what}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
