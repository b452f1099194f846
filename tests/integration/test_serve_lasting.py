"""What happens around a serving daemon: to its terminal, its log, its store's path. It goes on, and says what it can."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import halfstep

pytestmark = pytest.mark.integration

PATIENCE_S = 60
SERVE = [sys.executable, "-m", "halfstep.tools.cli", "serve"]


@pytest.fixture
def flags(tmp_path: Path) -> Iterator[list[str]]:
    """A small store with a unix socket, whose path is known beforehand: nothing that is printed is needed to reach it."""
    directory = Path(f"/tmp/halfstep-lasting-{os.getpid()}")
    directory.mkdir()
    store, socket = tmp_path / "store.hs", directory / "h.sock"
    yield ["--store", str(store), "--size", "132MiB", "--arena", "64MiB", "--listen", "127.0.0.1:0", "--unix", str(socket)]
    store.unlink(missing_ok=True)
    socket.unlink(missing_ok=True)
    directory.rmdir()


Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """start(flags, **of Popen): a daemon that hears hangups, whoever started the tests; killed at the end."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # a daemon of nohup's leaves them alone
    started: list[subprocess.Popen[bytes]] = []

    def begin(flags: list[str], prefix: tuple[str, ...] = (), **options: object) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([*prefix, *SERVE, *flags], **options))  # type: ignore[call-overload]
        return started[-1]

    yield begin
    for one in started:
        if one.poll() is None:
            one.kill()
        one.communicate(timeout=PATIENCE_S)
    signal.signal(signal.SIGHUP, before)


def works(flags: list[str]) -> bool:
    """A block goes there and comes back."""
    block, back = np.arange(5000, dtype=np.uint8), np.zeros(5000, np.uint8)
    with halfstep.connect(f"halfstep+unix://{flags[-1]}", deadline_ms=30_000) as client:
        client.wait_ready(PATIENCE_S * 1000)
        assert client.put([b"k"], block).ok.all()
        return bool(client.get([b"k"], back).ok.all() and (back == block).all())


def ended(one: subprocess.Popen[bytes], number: int = signal.SIGTERM) -> tuple[int, bytes]:
    """Its status and what it wrote to stderr, if that was a pipe."""
    one.send_signal(number)
    _, err = one.communicate(timeout=PATIENCE_S)
    return one.returncode, err or b""


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("when", ["before", "while"])
def test_a_log_whose_reader_went_away_ends_nothing(start: Start, flags: list[str], when: str, *, as_json: bool) -> None:
    reader, writer = os.pipe()
    if when == "before":
        os.close(reader)
    one = start(["--json"] * as_json + flags, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    if when == "while":
        assert os.read(reader, 1)
        os.close(reader)
    assert works(flags)
    assert ended(one) == (0, b"")


def test_no_stream_has_a_reader_and_it_serves(start: Start, flags: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    one = start(flags, stdin=writer, stdout=writer, stderr=writer)
    os.close(writer)
    assert works(flags)
    assert ended(one)[0] == 0


def test_a_full_disk_under_its_log_refuses_no_start(start: Start, flags: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        one = start(flags, stdout=full, stderr=subprocess.PIPE)
    assert works(flags)
    assert ended(one) == (0, b"")


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_closed_streams_refuse_no_start_and_the_store_takes_none_of_their_numbers(
    start: Start, flags: list[str], closed: str
) -> None:
    null = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    one = start(flags, ("/bin/sh", "-c", f'exec "$@" {closed}', "sh"), **null)
    assert works(flags)
    for number in (0, 1, 2):
        assert str(Path(f"/proc/{one.pid}/fd/{number}").readlink()) == os.devnull
    assert ended(one)[0] == 0


@pytest.mark.parametrize("as_json", [False, True])
def test_an_encoding_that_cannot_say_its_path_refuses_no_start(
    start: Start, tmp_path: Path, flags: list[str], *, as_json: bool
) -> None:
    directory = tmp_path / "größe"
    flags[flags.index("--store") + 1] = str(directory / "store.hs")
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    one = start(["--json"] * as_json + flags, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    assert works(flags)
    one.send_signal(signal.SIGTERM)
    out, err = one.communicate(timeout=PATIENCE_S)
    assert (one.returncode, err) == (0, b"")
    assert (b"gr\\u00f6\\u00dfe" if as_json else b"gr\\xf6\\xdfe") in out
    (directory / "store.hs").unlink()


def read_until(one: subprocess.Popen[bytes], start_of: bytes) -> bytes:
    """The first line of stdout that begins so."""
    assert one.stdout is not None
    for line in one.stdout:
        if line.startswith(start_of):
            return line
    raise AssertionError(f"no line begins with {start_of!r}")


def test_a_hangup_ends_nothing_and_says_so(start: Start, flags: list[str]) -> None:
    one = start(flags, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    read_until(one, b"listening")
    for _ in range(2):
        one.send_signal(signal.SIGHUP)
        assert b"SIGHUP changes nothing" in read_until(one, b"note")
    assert works(flags)
    assert ended(one) == (0, b"")


def test_a_hangup_during_a_start_ends_nothing(start: Start, flags: list[str]) -> None:
    one = start(flags, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    read_until(one, b"allocating")  # its first line, before there is a store
    one.send_signal(signal.SIGHUP)
    assert works(flags)
    assert ended(one) == (0, b"")


def test_a_terminal_that_is_closed_ends_nothing(start: Start, flags: list[str]) -> None:
    ours, theirs = os.openpty()
    one = start(flags, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    assert works(flags)
    os.close(ours)
    assert works(flags)
    assert ended(one)[0] == 0


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda store: store.unlink(), b"store.hs was removed while"),
        (lambda store: store.rename(store.with_suffix(".old")), b"store.hs was moved away while"),
        (lambda store: (store.unlink(), store.write_bytes(b"another")), b"store.hs was replaced by another file while"),
    ],
    ids=["removed", "moved", "replaced"],
)
def test_a_store_whose_path_leads_elsewhere_is_no_clean_stop(
    start: Start, flags: list[str], change: Callable[[Path], object], told: bytes
) -> None:
    store = Path(flags[flags.index("--store") + 1])
    one = start(flags, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    read_until(one, b"listening")
    change(store)
    assert told in read_until(one, b"note"), "said while it serves"
    status, err = ended(one)
    assert status == 3
    assert told in err
    store.with_suffix(".old").unlink(missing_ok=True)


def test_a_store_that_stays_where_it_is_stops_cleanly(start: Start, flags: list[str]) -> None:
    one = start(flags, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    read_until(one, b"listening")
    one.send_signal(signal.SIGTERM)
    out, err = one.communicate(timeout=PATIENCE_S)
    assert (one.returncode, err) == (0, b"")
    assert b"stopped    clean" in out


@pytest.mark.parametrize("as_json", [False, True])
def test_writes_that_fail_are_said_while_it_serves(start: Start, flags: list[str], *, as_json: bool) -> None:
    one = start(["--json"] * as_json + flags, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert works(flags)
    _, hard = resource.prlimit(one.pid, resource.RLIMIT_FSIZE)
    # Connected before: the limit is one of rings in shared memory, too.
    with halfstep.connect(f"halfstep+unix://{flags[-1]}", deadline_ms=2000) as client:
        client.wait_ready(PATIENCE_S * 1000)
        resource.prlimit(one.pid, resource.RLIMIT_FSIZE, (1 << 20, hard))  # the store's segments lie behind it
        client.put([b"no room"], bytes(100_000), durability="persist")
    said = one.stderr if as_json else one.stdout
    assert said is not None
    line = next(line for line in said if line.startswith(b"note"))
    assert b" requests failed at the device" in line
    assert b"look at the kernel's log (dmesg)" in line
    resource.prlimit(one.pid, resource.RLIMIT_FSIZE, (hard, hard))
    one.send_signal(signal.SIGTERM)
    one.communicate(timeout=PATIENCE_S)
    assert one.returncode in (0, 3), "what could not be written may be told of at the end"
