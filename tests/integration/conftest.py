"""A daemon for tests: `halfstep serve` as a process of its own, on a free port and a unix socket, with a store of its own.

`daemon` is shared by all tests of a run; each test sees blocks of its own, because `client` has a layout of its own.
`own_daemon` is for tests that kill it. HALFSTEP_TEST_STORE puts stores elsewhere than in files: `vhost-user` all of them on
devices of qemu-storage-daemon (`make vhost-user`); the path of a device that of `daemon`, and the device's bytes are lost.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.integration import serving
from tests.integration.commands import COMMAND, PATIENCE_S, Done, Run
from tests.integration.vhost_target import Target
from tests.wire.rings import SharedMemoryStream
from tests.wire.session import Session
from tests.wire.streams import SocketStream, Stream

import halfstep
from halfstep.daemon.config import block_device_of
from halfstep.daemon.units import parse_bytes
from halfstep.tools.daemon_process import DaemonProcess

# Segments of 8 MiB, so that a block may have 1.75 MiB; and the smallest that is quick to make.
LARGE_STORE, SMALL_STORE, ARENA = "1100MiB", "256MiB", "64MiB"
STORE = os.environ.get("HALFSTEP_TEST_STORE", "")
BEHIND_TARGETS = STORE == "vhost-user"
DEVICE = "" if BEHIND_TARGETS else STORE


def target_of(directory: Path, size: str) -> Target:
    """A blank device of that size, where the tests' stores are behind a target."""
    program = shutil.which("qemu-storage-daemon")
    if program is None:
        pytest.skip("no vhost-user-blk target: there is no qemu-storage-daemon here")
    return Target(directory, program, parse_bytes(size))


def reserved_port(port: int = 0) -> socket.socket:
    """A free port of loopback, or this one: a daemon may listen there, and nobody else gets it, until this is closed."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.bind(("127.0.0.1", port))
    return one


class Daemon(DaemonProcess):
    """One with a unix socket and a store of `size`, as tests treat it. arguments: further flags of `serve`."""

    def __init__(self, directory: Path, size: str, *arguments: str, arena: str = ARENA) -> None:
        # A socket's path is short; a test's directory may not be.
        self._socket_directory = tempfile.TemporaryDirectory(prefix="halfstep-")
        self._socket = Path(self._socket_directory.name) / "h.sock"
        self._target = target_of(Path(self._socket_directory.name), size) if BEHIND_TARGETS else None
        sized = ("--size", size) if self._target is None else ()
        super().__init__(directory, *sized, "--arena", arena, *arguments, unix=str(self._socket))
        if self._target is not None:
            self.store = Path(self._target.store)
        # Nobody else gets the port while the daemon is down. Of several shards each has its own, behind one another.
        self._port: socket.socket | None = None
        if "--shards" not in arguments:
            self._port = reserved_port()
            self._listen = f"127.0.0.1:{self._port.getsockname()[1]}"

    @property
    def unix_url(self) -> str:
        """For connect(), without a namespace."""
        return f"halfstep+unix://{self._socket}"

    def stream(self, transport: str) -> Stream:
        """For the client in plain Python. transport: tcp, unix or shm."""
        if transport == "shm":
            return SharedMemoryStream.connect(str(self._socket))
        return SocketStream.connect(self.address if transport == "tcp" else str(self._socket))

    def pause(self) -> None:
        """It is there and says nothing, until resume()."""
        os.kill(self.pid, signal.SIGSTOP)
        # The signal only asks; this waits until the last of its threads has stopped.
        os.waitpid(self.pid, os.WUNTRACED)

    def resume(self) -> None:
        """After pause()."""
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """As the power does."""
        self.end(signal.SIGKILL)

    def stop(self) -> int:
        """As an operator does; its exit status."""
        return self.end(signal.SIGTERM)

    def restart(self) -> None:
        """Kill it if it runs, and start it again on the same store and addresses."""
        if self.running:
            self.kill()
        self.start()

    def close(self) -> None:
        """No process stays, whatever happened, and no store: pytest would keep it for three runs."""
        if self._process is not None:
            self.end(signal.SIGKILL)
        if self._target is not None:
            self._target.kill()
        elif self.store.is_file():
            self.store.unlink()
        self._socket_directory.cleanup()
        if self._port is not None:
            self._port.close()


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """The daemon of a module's tests: a namespace holds 256 layouts, and most tests register one of their own."""
    started = Daemon(tmp_path_factory.mktemp("daemon"), "" if DEVICE else LARGE_STORE)
    if DEVICE:
        subprocess.run(["blkdiscard", "-z", block_device_of(DEVICE)], check=True, timeout=PATIENCE_S)
        started.store = Path(DEVICE)
    try:
        started.start()
        yield started
    finally:
        started.close()


@pytest.fixture
def daemon(shared_daemon: Daemon) -> Iterator[Daemon]:
    """The daemon that the tests of a module share; it is resumed after each."""
    if not shared_daemon.running:
        shared_daemon.restart()
    yield shared_daemon
    if shared_daemon.running:
        shared_daemon.resume()


@pytest.fixture
def own_daemon(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon for one test alone."""
    started = Daemon(tmp_path, SMALL_STORE)
    try:
        started.start()
        yield started
    finally:
        started.close()


@pytest.fixture
def layout(request: pytest.FixtureRequest) -> halfstep.Layout:
    """A layout that no other test has."""
    return halfstep.Layout.opaque(request.node.nodeid[-200:], process=os.getpid())


@pytest.fixture(params=["tcp", "shm"])
def client(request: pytest.FixtureRequest, daemon: Daemon, layout: halfstep.Layout) -> Iterator[halfstep.Client]:
    """A client of the shared daemon, over each transport. Its deadlines are those of a busy machine: no test is about speed."""
    url = daemon.url if request.param == "tcp" else daemon.unix_url
    with halfstep.connect(url, layout=layout, required=True, deadline_ms=30_000, match_deadline_ms=30_000) as client:
        assert client.path.startswith(request.param)
        yield client


@pytest.fixture(params=["tcp", "unix", "shm"])
def wire(request: pytest.FixtureRequest, daemon: Daemon) -> Iterator[Callable[..., Session]]:
    """wire(**options): a session in plain Python (tests/wire) with the shared daemon, over each transport."""
    opened: list[Session] = []

    def connect(**options: Any) -> Session:
        opened.append(Session(daemon.stream(request.param), **options))
        return opened[-1]

    yield connect
    for session in opened:
        session.close()


@pytest.fixture
def blocks() -> Callable[..., npt.NDArray[np.uint8]]:
    """blocks(count, block_bytes, seed=0): arbitrary bytes, the same for the same seed."""

    def make(count: int, block_bytes: int, seed: int = 0) -> npt.NDArray[np.uint8]:
        return np.random.default_rng(seed).integers(0, 256, (count, block_bytes), np.uint8)

    return make


@pytest.fixture
def run_script(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """run_script(text, *arguments): a Python process of its own, with what it printed; a hang is a failure."""

    def run(text: str, *arguments: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        script = tmp_path / "script.py"
        script.write_text(text)
        return subprocess.run(
            [sys.executable, "-X", "faulthandler", str(script), *arguments],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    return run


@pytest.fixture
def run(daemon: Any) -> Run:
    """run(*arguments, stdin=b""): a command against the shared daemon. Whatever it does, it prints no trace."""

    def run(*arguments: str | Path, stdin: bytes = b"", url: str | None = None) -> Done:
        environment = os.environ | {"HALFSTEP_URL": url or daemon.url}
        command = [*COMMAND, *map(str, arguments)]
        done = subprocess.run(command, input=stdin, env=environment, capture_output=True, timeout=PATIENCE_S, check=False)
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        return done

    return run


@pytest.fixture
def nobody() -> Iterator[str]:
    """The URL of a port where nobody listens, and nobody will."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield f"halfstep://127.0.0.1:{reserved.getsockname()[1]}/default"


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., serving.Serve]]:
    """serve(*arguments): a small store in tmp_path on a free port, unless the arguments say otherwise; killed at the end."""
    started: list[serving.Serve] = []

    def start(*arguments: str, environment: dict[str, str] | None = None) -> serving.Serve:
        defaults = {
            "--store": str(tmp_path / "store.hs"),
            "--size": serving.SIZE,
            "--arena": serving.ARENA,
            "--listen": "127.0.0.1:0",
            "--unix": "none",
        }
        given = [text for name, value in defaults.items() if name not in arguments for text in (name, value)]
        started.append(serving.Serve(*given, *arguments, environment=environment))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait(PATIENCE_S)
        for pipe in (one.process.stdout, one.process.stderr):
            assert pipe is not None
            pipe.close()
    (tmp_path / "store.hs").unlink(missing_ok=True)


@pytest.fixture
def socket_directory() -> Iterator[Path]:
    """A directory whose path is short enough for a unix socket."""
    with tempfile.TemporaryDirectory(prefix="halfstep-") as directory:
        yield Path(directory)
