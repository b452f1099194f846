"""What lies between a client and its daemon: closed ports, one address for two daemons, a node that loses its power."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import pytest
from tests.integration.conftest import SMALL_STORE, Daemon, reserved_port

import halfstep
from halfstep import Layout

pytestmark = pytest.mark.integration

KEYS = [f"key {number}".encode() for number in range(64)]
DEADLINE_MS = 30_000
# Bounds are generous: they tell an answer from a hang.
PATIENCE_S = 60


def comes_true(holds: Callable[[], bool]) -> bool:
    """Whether it does within PATIENCE_S."""
    until = time.monotonic() + PATIENCE_S
    while not (true := holds()) and time.monotonic() < until:
        time.sleep(0.01)
    return true


@contextmanager
def process_that_ends(command: list[str], **options: Any) -> Iterator[IO[str]]:
    """What a process prints, which has to end well. A hang is a failure: the lines that are read end with the watchdog."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)
    watchdog = threading.Timer(2 * PATIENCE_S, process.kill)
    watchdog.start()
    assert process.stdout is not None
    try:
        yield process.stdout
        assert process.wait(PATIENCE_S) == 0
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
        process.stdout.close()


class Forwarder:
    """Listens on an address and passes each connection on to the next of `targets`."""

    def __init__(self, listen: tuple[str, int], targets: list[tuple[str, int]]) -> None:
        self._targets = itertools.cycle(targets)
        self._server = socket.create_server(listen)
        self._sockets: list[socket.socket] = []
        self.address: tuple[str, int] = self._server.getsockname()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                target = socket.create_connection(next(self._targets))
                self._sockets += [client, target]
                for source, sink in ((client, target), (target, client)):
                    threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    @staticmethod
    def _pass_on(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """No connection is left, and nobody listens."""
        for one in (self._server, *self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    """daemons(*arguments): one more, with a store of its own."""
    started: list[Daemon] = []

    def start(*arguments: str, listen: str = "", size: str = SMALL_STORE) -> Daemon:
        directory = tmp_path / str(len(started))
        directory.mkdir()
        daemon = Daemon(directory, size, *arguments)
        daemon._listen = listen or daemon._listen
        started.append(daemon)
        daemon.start()
        return daemon

    yield start
    for daemon in started:
        daemon.close()


@pytest.fixture
def neighbouring_ports() -> Iterator[tuple[int, int]]:
    """Two on which daemons of this test alone may listen, one after the other."""
    while True:
        with reserved_port() as first:
            port = first.getsockname()[1]
            with suppress(OSError, OverflowError), reserved_port(port + 1):
                yield port, port + 1
                return


def test_who_insists_on_rdma_where_there_is_none_is_told_what_is_missing(shared_daemon: Daemon) -> None:
    """No path is ever looked for over loopback."""
    with pytest.raises(halfstep.Unavailable, match=r"no rings over RDMA within .*; \?transport=auto does without") as refused:
        halfstep.connect(f"{shared_daemon.url}?transport=rdma", required=True, deadline_ms=3000)
    assert "halfstep serve" not in str(refused.value), "it runs"


def test_shards_that_are_reached_serve_and_the_closed_port_is_named(
    daemons: Any, layout: Layout, neighbouring_ports: tuple[int, int]
) -> None:
    ports = neighbouring_ports
    daemons("--shards", "2", listen=f"127.0.0.1:{ports[0]}", size="300MiB")
    # Another address, of which the port of the second shard is closed.
    open_ports = [Forwarder(("127.0.0.2", port), [("127.0.0.1", port)]) for port in ports[:1]]
    try:
        url = f"halfstep://127.0.0.2:{ports[0]}"
        with halfstep.connect(url, layout=layout, deadline_ms=DEADLINE_MS, match_deadline_ms=DEADLINE_MS) as client:
            put = client.put(KEYS, bytes(len(KEYS)))
            served = [key for key, ok in zip(KEYS, put.ok, strict=True) if ok]
            assert 0 < len(served) < len(KEYS)
            reasons = {put.reason(item) for item in range(len(KEYS)) if not put.ok[item]}
            assert reasons == {"unavailable (no_connection)"}
            assert client.get(served, bytearray(len(served))).ok.all()
            with pytest.raises(halfstep.Unavailable) as raised:
                client.wait_ready(50)
            for said in (str(raised.value), client.path):
                assert f"127.0.0.2:{ports[1]}" in said
                assert f"shard 1 of 2 is not reached while others are: open ports {ports[0]} to {ports[1]}" in said
                assert str(ports[1]) in said
                assert "halfstep serve" not in said
            assert "1 of 2 connections" in client.path
            open_ports.append(Forwarder(("127.0.0.2", ports[1]), [("127.0.0.1", ports[1])]))
            client.wait_ready(PATIENCE_S * 1000)
            assert client.put(KEYS, bytes(len(KEYS))).ok.all()
            assert client.path == f"tcp cubic 127.0.0.2:{ports[0]}"
    finally:
        for one in open_ports:
            one.close()


def test_two_daemons_behind_one_address_are_one_store(daemons: Any, layout: Layout) -> None:
    pair = [daemons(), daemons()]
    for daemon in pair:
        with halfstep.connect(daemon.url, layout=layout, required=True, deadline_ms=DEADLINE_MS) as client:
            assert client.put(KEYS, bytes(len(KEYS))).ok.all()
    balancer = Forwarder(("127.0.0.1", 0), [daemon.address for daemon in pair])
    try:
        url = f"halfstep://127.0.0.1:{balancer.address[1]}"
        with halfstep.connect(
            url, layout=layout, connections=3, deadline_ms=DEADLINE_MS, match_deadline_ms=DEADLINE_MS
        ) as client:
            client.wait_ready(DEADLINE_MS)
            assert comes_true(lambda: client.facts().connected == 3), client.path
            assert "answers there, the client's is" in client.facts().last_error
            assert client.delete(KEYS).ok.all()
            with client.queue() as queue:  # over all connections
                tickets = [queue.get([key], bytearray(1)) for key in KEYS]
                assert {ticket.result().reason(0) for ticket in tickets} == {"miss (absent)"}
            store = client.facts().store_uuid
        assert store in {stores_uuid(daemon, layout) for daemon in pair}
    finally:
        balancer.close()


def stores_uuid(daemon: Daemon, layout: Layout) -> bytes:
    """Of the store behind it."""
    with halfstep.connect(daemon.url, layout=layout, required=True, deadline_ms=DEADLINE_MS) as client:
        return client.facts().store_uuid


# A name with two addresses, in a mount namespace of its own.
BY_NAME = """
import pathlib, socket, subprocess, sys, time
import halfstep

hosts = pathlib.Path(sys.argv[1])
hosts.write_text("127.0.0.1 two.test\\n127.0.0.2 two.test\\n")
subprocess.run(["mount", "--bind", str(hosts), "/etc/hosts"], check=True)
addresses = [info[4][0] for info in socket.getaddrinfo("two.test", 1, type=socket.SOCK_STREAM)]
if addresses != ["127.0.0.1", "127.0.0.2"]:
    print(f"two.test resolves to {addresses} here", flush=True)
    sys.exit()
client = halfstep.connect(sys.argv[2], required=True, deadline_ms=60_000, connections=2)
first = client.facts().store_uuid
print(first.hex(), flush=True)
while "answers there, the client's is " + first.hex() not in client.facts().last_error:
    time.sleep(0.001)
while client.facts().connected < 2 or client.facts().store_uuid == first:
    time.sleep(0.01)
print(client.facts().store_uuid.hex(), flush=True)
client.close()
"""


def test_another_store_of_the_same_name_is_taken_only_after_the_first_was_tried_again(
    daemons: Any, layout: Layout, tmp_path: Path
) -> None:
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("a mount namespace cannot be made here")
    first = daemons()
    second = daemons(listen=f"127.0.0.2:{first.address[1]}")
    stores = [stores_uuid(daemon, layout).hex() for daemon in (first, second)]
    script = tmp_path / "by_name.py"
    script.write_text(BY_NAME)
    url = f"halfstep://two.test:{first.address[1]}"
    command = ["unshare", "-m", sys.executable, str(script), str(tmp_path / "hosts"), url]
    with process_that_ends(command) as said:
        told = said.readline().strip()
        if "resolves to" in told:
            pytest.skip(told)
        assert told == stores[0]
        first.kill()
        assert said.readline().strip() == stores[1]


# ---- a node of its own ---------------------------------------------------------------------------------------------------


class Wire:
    """A network namespace, and a virtual cable from it to here that can be cut."""

    def __init__(self) -> None:
        self.name = f"hs-{os.getpid() % 100_000}"
        self._here = f"{self.name}-a"
        there = f"{self.name}-b"
        self.address = "198.18.7.1"  # of the range for tests of networks
        try:
            self._ip("netns", "add", self.name)
            self._ip("link", "add", self._here, "type", "veth", "peer", "name", there, "netns", self.name)
            self._ip("address", "add", f"{self.address}/30", "dev", self._here)
            self._ip("link", "set", self._here, "up")
            self._ip("-n", self.name, "address", "add", "198.18.7.2/30", "dev", there)
            self._ip("-n", self.name, "link", "set", there, "up")
        except BaseException:
            self.remove()
            raise

    @staticmethod
    def _ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)

    def cut(self) -> None:
        """What is sent is lost, and nobody is told."""
        self._ip("link", "set", self._here, "down")

    def mend(self) -> None:
        """After cut()."""
        self._ip("link", "set", self._here, "up")

    def remove(self) -> None:
        """Both ends go with the namespace."""
        with suppress(subprocess.CalledProcessError):
            self._ip("link", "delete", self._here)
        with suppress(subprocess.CalledProcessError):
            self._ip("netns", "delete", self.name)


@pytest.fixture
def wire() -> Iterator[Wire]:
    if shutil.which("ip") is None:
        pytest.skip("there is no ip (iproute2)")
    try:
        made = Wire()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"a network namespace cannot be made here: {error.stderr.strip()}")
    yield made
    made.remove()


# Calls without end, of a thread of its own, so that there is always something on the wire.
UNDER_TRAFFIC = """
import sys, threading, time
import halfstep

client = halfstep.connect(sys.argv[1], required=True, deadline_ms=10_000, match_deadline_ms=50)
assert client.put([b"key"], b"value").ok.all(), client.path

def say(word):
    print(word, flush=True)

def wait_for(holds):
    while not holds():
        client.match([b"key"])
        client.put([b"another"], bytes(100_000), deadline_ms=50)
        time.sleep(0.01)

say("served")
wait_for(lambda: client.facts().connected == 0)
say(client.path)
wait_for(lambda: client.put([b"key"], b"value").ok.all())
say("served again")
client.close()
"""


def test_a_node_that_loses_its_power_is_noticed_under_traffic_and_found_again(wire: Wire, daemons: Any, tmp_path: Path) -> None:
    daemon = daemons("--insecure-listen", listen=f"{wire.address}:0")
    script = tmp_path / "under_traffic.py"
    script.write_text(UNDER_TRAFFIC)
    command = ["ip", "netns", "exec", wire.name, sys.executable, str(script), daemon.url]
    with process_that_ends(command, stderr=subprocess.STDOUT) as said:
        assert said.readline() == "served\n"
        wire.cut()
        daemon.end(signal.SIGKILL)
        assert said.readline().startswith("not connected "), "the loss was not noticed"
        daemon.start()
        wire.mend()
        assert said.readline() == "served again\n"
