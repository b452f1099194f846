"""Shared memory between a client and a daemon of one machine: what is particular to it.

That commands, deadlines, fences and forks are as over TCP, the tests of the client show over both.
"""

from __future__ import annotations

import array
import contextlib
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.integration.commands import wait_until
from tests.integration.conftest import SMALL_STORE, Daemon

import halfstep
from halfstep import Unavailable

pytestmark = pytest.mark.integration

Blocks = Callable[..., Any]
KEYS = [b"a", b"b", b"c"]
PATIENCE_S = 30

_ASK = struct.Struct("<4sHHQ")
_ANSWER = struct.Struct("<4sHHQIIQ")
_CONTROL_BYTES = 4096


class Rings:
    """What a client is given, in the hands of a test: the memory to write into, the descriptors to play with."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(path)
        self.socket.sendall(_ASK.pack(b"HSM1", 1, 1, 0))
        data, passed, _, _ = self.socket.recvmsg(_ANSWER.size, socket.CMSG_SPACE(3 * 4))
        self.magic, self.version, _, self.bytes, self.to_server, self.to_client, _ = _ANSWER.unpack(data)
        self.descriptors = array.array("i")
        for _, _, content in passed:
            self.descriptors.frombytes(content)
        self.memory = mmap.mmap(self.descriptors[0], self.bytes)

    def ring(self) -> None:
        """Wakes the daemon."""
        os.write(self.descriptors[1], struct.pack("<Q", 1))

    def close(self) -> None:
        self.memory.close()
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.socket.close()


@pytest.fixture
def rings(daemon: Any) -> Iterator[Rings]:
    one = Rings(daemon.unix_url.removeprefix("halfstep+unix://"))
    try:
        yield one
    finally:
        one.close()


def shm_clients(url: str) -> int:
    with halfstep.connect(url, required=True, deadline_ms=30_000) as client:
        return int(client.stat()["halfstep_connections_shm"])


def descriptors_of(daemon: Any) -> int:
    return len(list(Path(f"/proc/{daemon.pid}/fd").iterdir()))


def test_blocks_of_every_size_go_both_ways_and_meet_those_of_tcp(daemon: Any, layout: halfstep.Layout, blocks: Blocks) -> None:
    with (
        halfstep.connect(daemon.unix_url, layout=layout, required=True, deadline_ms=30_000, match_deadline_ms=30_000) as shm,
        halfstep.connect(daemon.url, layout=layout, required=True, deadline_ms=30_000, match_deadline_ms=30_000) as tcp,
    ):
        for size in (1, 64, 4096, 65_537, 1 << 20):
            source = blocks(8, size, seed=size)
            keys = [f"{size}-{at}".encode() for at in range(8)]
            writer, reader = (shm, tcp) if size % 2 else (tcp, shm)
            assert writer.put(keys, source).ok.all()
            assert reader.match(keys).prefix == 8
            target = np.zeros_like(source)
            assert reader.get(keys, target).ok.all()
            assert (target == source).all()
        assert shm.path.startswith("shm /")
        assert shm.stat()["halfstep_connections_shm"] >= 1
        assert shm.facts().checksum_failures == 0


def test_a_client_that_is_killed_in_a_get_leaves_nothing_behind(own_daemon: Any, blocks: Blocks) -> None:
    assert shm_clients(own_daemon.url) == 0
    source = blocks(16, 1 << 19)
    keys = [f"k{at}".encode() for at in range(16)]
    with halfstep.connect(own_daemon.url, required=True, deadline_ms=30_000) as client:
        assert client.put(keys, source).ok.all()
        before = descriptors_of(own_daemon)
        script = (
            "import sys, numpy as np, halfstep\n"
            "client = halfstep.connect(sys.argv[1], required=True, deadline_ms=30000)\n"
            "target = np.zeros((16, 1 << 19), np.uint8)\n"
            "print('up', flush=True)\n"
            "while True: client.get([f'k{at}'.encode() for at in range(16)], target)\n"
        )
        for _ in range(5):
            with subprocess.Popen([sys.executable, "-c", script, own_daemon.unix_url], stdout=subprocess.PIPE) as victim:
                assert victim.stdout is not None
                assert victim.stdout.readline() == b"up\n"
                target = np.zeros_like(source)
                assert client.get(keys, target).ok.all()
                assert (target == source).all()
                victim.kill()
        wait_until(lambda: shm_clients(own_daemon.url) == 0, "clients that are dead are still there")
        wait_until(lambda: client.stat()["halfstep_credit_held_bytes"] == 0, "bytes are still held for clients that are dead")
        wait_until(lambda: descriptors_of(own_daemon) <= before, "descriptors of clients that are dead are still open")
        maps = Path(f"/proc/{own_daemon.pid}/maps")
        wait_until(lambda: "halfstep-rings" not in maps.read_text(), "rings of clients that are dead are still mapped")


def test_a_daemon_that_is_killed_and_comes_back_is_found_again(own_daemon: Any, blocks: Blocks) -> None:
    source = blocks(3, 200_000)
    with halfstep.connect(own_daemon.unix_url, required=True, deadline_ms=30_000) as client:
        assert client.put(KEYS, source, durability="persist").ok.all()
        own_daemon.kill()
        started = time.monotonic()
        gone = client.get(KEYS, np.zeros_like(source))
        assert not gone.ok.any()
        assert gone.reason(0).startswith("unavailable")
        assert time.monotonic() - started < PATIENCE_S
        own_daemon.start()
        client.wait_ready(PATIENCE_S * 1000)
        target = np.zeros_like(source)
        assert client.get(KEYS, target).ok.all()
        assert (target == source).all()
        assert client.path.startswith("shm ")


def test_a_daemon_that_stops_removes_its_socket(own_daemon: Any) -> None:
    path = Path(own_daemon.unix_url.removeprefix("halfstep+unix://"))
    assert path.is_socket()
    assert path.stat().st_mode & 0o777 == 0o660
    assert own_daemon.stop() == 0
    assert not path.exists()


def test_a_wrong_path_is_named_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"ENOENT.*start halfstepd or correct the address"):
        halfstep.connect(f"halfstep+unix://{tmp_path}/no", required=True, deadline_ms=3000)
    (tmp_path / "file").write_text("x")
    with pytest.raises(Unavailable, match=r"ECONNREFUSED.*there is no socket at that path: correct the address"):
        halfstep.connect(f"halfstep+unix://{tmp_path}/file", required=True, deadline_ms=3000)


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become somebody else")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_who_may_not_open_the_socket_hears_so(own_daemon: Any) -> None:
    path = Path(own_daemon.unix_url.removeprefix("halfstep+unix://"))
    path.parent.chmod(0o755)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            halfstep.connect(own_daemon.unix_url, required=True, deadline_ms=3000)
            os.write(writer, b"connected")
        except BaseException as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    said = os.read(reader, 4096).decode()
    os.close(reader)
    os.close(writer)
    assert "EACCES" in said
    assert "0660" in said


def test_a_server_that_accepts_and_passes_nothing_is_no_daemon(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        with pytest.raises(Unavailable, match="300 ms"):
            halfstep.connect(f"halfstep+unix://{path}", required=True, deadline_ms=300)


def test_a_server_that_speaks_otherwise_is_named(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        client = halfstep.connect(f"halfstep+unix://{path}")
        with client:
            client.match(KEYS)  # the first use connects
            accepted, _ = server.accept()
            with accepted:
                accepted.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n1234567890")

                def named() -> bool:
                    client.match(KEYS)
                    return "no answer" in client.facts().last_error

                wait_until(named, "what the other end said is not told")


def test_the_memory_is_sealed(rings: Rings) -> None:
    assert (rings.magic, rings.version) == (b"HSM1", 1)
    assert rings.bytes == _CONTROL_BYTES + rings.to_server + rings.to_client
    for size in (0, _CONTROL_BYTES, 2 * rings.bytes):
        with pytest.raises(PermissionError):
            os.ftruncate(rings.descriptors[0], size)


def test_scribbling_harms_only_who_does_it(daemon: Any, client: halfstep.Client, blocks: Blocks) -> None:
    source = blocks(8, 1 << 19)
    keys = [f"k{at}".encode() for at in range(8)]
    assert client.put(keys, source).ok.all()
    path = daemon.unix_url.removeprefix("halfstep+unix://")
    random = np.random.default_rng(5)
    for _ in range(20):
        villain = Rings(path)
        # Anything in the data, lies in the control words, flags that would make a careless server wait, and an early end.
        for _ in range(10):
            villain.memory[_CONTROL_BYTES:] = random.bytes(villain.bytes - _CONTROL_BYTES)
            villain.memory[:1024] = random.bytes(1024)
            for descriptor in villain.descriptors[1:]:
                os.set_blocking(descriptor, True)
            villain.ring()
        target = np.zeros_like(source)
        assert client.get(keys, target).ok.all()
        assert (target == source).all()
        villain.close()
    assert daemon.running


def test_a_client_that_scribbles_over_its_own_rings_in_a_get_gets_misses_or_right_bytes(
    own_daemon: Any, blocks: Blocks
) -> None:
    """The rings of a real client, overwritten by a thread of its process while it works."""
    source = blocks(8, 1 << 19)
    keys = [f"k{at}".encode() for at in range(8)]
    with halfstep.connect(own_daemon.url, required=True, deadline_ms=30_000) as honest:
        assert honest.put(keys, source).ok.all()
        with halfstep.connect(own_daemon.unix_url, required=True, deadline_ms=5_000) as client:
            random = np.random.default_rng(6)
            scribbled = 0
            for turn in range(60):
                rings = _rings_of_this_process()
                ticket = client.submit("get", keys, target := np.zeros_like(source))
                if rings is not None:
                    control = turn % 3 == 0
                    noise = random.bytes(8 if control else 64)
                    at = int(random.integers(0, 1024 if control else len(rings) - len(noise)))
                    rings[at : at + len(noise)] = noise
                    rings.close()
                    scribbled += 1
                result = ticket.result(PATIENCE_S)
                for item in range(8):
                    if result.ok[item]:
                        assert (target[item] == source[item]).all()
                honest_target = np.zeros_like(source)
                assert honest.get(keys, honest_target).ok.all()
                assert (honest_target == source).all()
            assert scribbled > 0, "the rings were never found"
        assert own_daemon.running


def _rings_of_this_process() -> mmap.mmap | None:
    """Another mapping of the memory that the client of this process has; None while it has none."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if "halfstep-rings" not in line:
            continue
        where = line.split()[0]
        start, end = (int(text, 16) for text in where.split("-"))
        try:
            descriptor = os.open(f"/proc/self/map_files/{start:x}-{end:x}", os.O_RDWR)
        except FileNotFoundError:
            return None  # the connection has ended meanwhile
        except PermissionError as error:
            pytest.skip(f"/proc/self/map_files: {error}; needs CAP_CHECKPOINT_RESTORE")
        try:
            return mmap.mmap(descriptor, end - start)
        finally:
            os.close(descriptor)
    return None


def test_clients_that_say_nothing_are_dropped_and_others_served(daemon: Any, client: halfstep.Client) -> None:
    path = daemon.unix_url.removeprefix("halfstep+unix://")
    silent = []
    for asks in (False, True):
        one = socket.socket(socket.AF_UNIX)
        one.connect(path)
        if asks:
            one.sendall(_ASK.pack(b"HSM1", 1, 1, 0))
            one.recv(_ANSWER.size)
        silent.append(one)
    assert client.put([b"k"], b"x" * 100).ok.all()
    for one in silent:
        one.settimeout(PATIENCE_S)
        while one.recv(4096):  # an Abort, perhaps; then the end
            pass
        one.close()


def test_a_stopped_client_does_not_hold_up_another(daemon: Any, layout: halfstep.Layout, blocks: Blocks) -> None:
    source = blocks(8, 1 << 19)
    keys = [f"k{at}".encode() for at in range(8)]
    with halfstep.connect(daemon.unix_url, layout=layout, required=True, deadline_ms=30_000) as client:
        assert client.put(keys, source).ok.all()
        script = (
            "import sys, numpy as np, halfstep\n"
            "client = halfstep.connect(sys.argv[1], required=True, deadline_ms=30000)\n"
            "print('up', flush=True)\n"
            "while True: client.put([b'x'], np.zeros((1, 1 << 20), np.uint8)); client.delete([b'x'])\n"
        )
        with subprocess.Popen([sys.executable, "-c", script, daemon.unix_url], stdout=subprocess.PIPE) as stopped:
            assert stopped.stdout is not None
            assert stopped.stdout.readline() == b"up\n"
            os.kill(stopped.pid, signal.SIGSTOP)
            for _ in range(10):
                target = np.zeros_like(source)
                assert client.get(keys, target).ok.all()
                assert (target == source).all()
            stopped.kill()


# ---- the bound of their memory --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def limited(directory: Path, shm_memory: str) -> Iterator[Daemon]:
    daemon = Daemon(directory, SMALL_STORE, "--shm-memory", shm_memory)
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.close()


def test_a_client_without_room_for_rings_is_served_through_the_socket(tmp_path: Path) -> None:
    with limited(tmp_path, "3MiB") as daemon:  # a client has two rings of a MiB
        options: dict[str, Any] = {"required": True, "deadline_ms": 30_000, "match_deadline_ms": 30_000}
        with halfstep.connect(daemon.unix_url, **options) as first:
            assert first.path.startswith("shm ")
            with halfstep.connect(daemon.unix_url, **options) as second:
                assert second.path.startswith("unix ")
                assert "--shm-memory" in second.facts().last_error
                block = os.urandom(256 << 10)
                assert second.put([b"k"], block).ok.all()
                target = bytearray(len(block))
                assert first.get([b"k"], target).ok.all()
                assert second.get([b"k"], target).ok.all()
                assert bytes(target) == block
                assert second.stat()["halfstep_shm_refused_total"] == 1
                assert second.stat()["halfstep_connections_shm"] == 1
        deadline = time.monotonic() + PATIENCE_S
        while shm_clients(daemon.url) != 0:  # the first one's rings are given back as its end is seen
            assert time.monotonic() < deadline
        with halfstep.connect(daemon.unix_url, **options) as third:
            assert third.path.startswith("shm ")


def test_without_memory_for_rings_all_clients_go_through_the_socket(tmp_path: Path) -> None:
    with limited(tmp_path, "0") as daemon:
        for _ in range(3):
            with halfstep.connect(daemon.unix_url, required=True, deadline_ms=30_000) as client:
                assert client.path.startswith("unix ")
                assert client.match([b"absent"]).prefix == 0
