"""`halfstep serve` as a process: what it says, what it refuses and how, and how it ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import halfstep
from halfstep.daemon.config import store_path

pytestmark = pytest.mark.integration

# The smallest store; and what bounds a hang, not a speed.
SIZE, ARENA = "132MiB", "64MiB"
PATIENCE_S = 60


class Serve:
    """One `halfstep serve`: its lines so far, and its end."""

    def __init__(self, *arguments: str, environment: dict[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "halfstep.tools.cli", "serve", *arguments]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | (environment or {}),
        )
        self.lines: list[str] = []

    def read_until(self, start: str) -> str:
        """Read lines until one that starts so; that line."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            if line.startswith(start):
                return line
        raise AssertionError(f"no line starts with {start!r}: {self.lines}\n{self.finish()[2]}")

    def line(self, start: str) -> str:
        """The line that starts so, of those that were read."""
        return next(line for line in self.lines if line.startswith(start))

    def finish(self, number: int | None = None) -> tuple[int, str, str]:
        """Send a signal if there is one to send; exit status, the rest of stdout, stderr."""
        if number is not None:
            self.process.send_signal(number)
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, out, err


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Serve]]:
    """serve(*arguments): a small store in tmp_path on a free port, unless the arguments say otherwise; killed at the end."""
    started: list[Serve] = []

    def start(*arguments: str, environment: dict[str, str] | None = None) -> Serve:
        defaults = {"--store": str(tmp_path / "store.hs"), "--size": SIZE, "--arena": ARENA, "--listen": "127.0.0.1:0"}
        defaults["--unix"] = "none"
        given = [text for name, value in defaults.items() if name not in arguments for text in (name, value)]
        started.append(Serve(*given, *arguments, environment=environment))
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


def facts_of(one: Serve) -> dict[str, Any]:
    """What `serve --json` says: one object on one line."""
    facts: dict[str, Any] = json.loads(one.read_until("{"))
    return facts


def works(url: str) -> bool:
    """A block goes there and comes back."""
    block, back = np.arange(5000, dtype=np.uint8), np.zeros(5000, np.uint8)
    with halfstep.connect(url, required=True, deadline_ms=30_000) as client:
        assert client.put([b"k"], block).ok.all()
        return bool(client.get([b"k"], back).ok.all() and (back == block).all())


def stat_of(url: str) -> str:
    """What `halfstep stat` prints."""
    command = [sys.executable, "-m", "halfstep.tools.cli", "stat", url]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True).stdout


def refused(one: Serve) -> str:
    """Its one line of error; it ended with status 3 and without a trace."""
    status, out, err = one.finish()
    assert status == 3, (status, out, err)
    assert err.count("\n") == 1, err
    assert err.startswith("halfstep: "), err
    return err


def test_start_says_what_is_in_force_and_sigterm_ends_it_cleanly(serve: Callable[..., Serve]) -> None:
    one = serve()
    one.read_until("listening")
    engine, store = one.line("engine"), one.line("store")
    assert "queue depth 128" in engine
    assert "registered buffers" in engine
    if "uring," in engine:
        assert "single_issuer" in engine
        assert "defer_taskrun" in engine
    else:
        assert "io_uring" in engine, "a fallback says what was refused"
    assert "132 MiB" in store
    assert "O_DIRECT" in store or "buffered: " in store
    assert "arena 64 MiB" in one.line("memory")
    assert "pages" in one.line("memory")
    assert "index" in one.line("memory")
    assert "node" in one.line("numa")
    assert "64 segments of 2 MiB" in one.line("capacity")
    assert "blocks up to 256 KiB" in one.line("capacity")
    assert "seg-adapt10, up to 10% of what is put" in one.line("eviction")
    assert "a day" not in one.line("eviction")
    assert "the store is new" in one.line("recovery")
    status, out, err = one.finish(signal.SIGTERM)
    assert (status, err) == (0, "")
    assert "stopping   SIGTERM" in out
    assert "stopped    clean" in out


def test_says_whether_payload_is_sent_without_a_copy(serve: Callable[..., Serve]) -> None:
    one = serve("--json")
    facts = facts_of(one)
    assert facts["zero_copy"] == facts["zero_copy_possible"]
    with halfstep.connect(f"halfstep://{facts['listening'][0]}", required=True) as client:
        counted = client.stat()
    assert counted["halfstep_zero_copy_on"] == 1
    assert counted["halfstep_connections_zero_copy"] == 0, "loopback is never asked"
    assert one.finish(signal.SIGTERM)[0] == 0
    told = serve()
    url = "halfstep://" + told.read_until("listening").split()[1]
    assert told.line("zero copy").startswith("zero copy  of large payload" if facts["zero_copy"] else "zero copy  none")
    assert "sends  0 connections without a copy, 0 B so far" in stat_of(url)
    assert told.finish(signal.SIGTERM)[0] == 0
    off = serve("--zero-copy", "off")
    url = "halfstep://" + off.read_until("listening").split()[1]
    assert "what is sent is copied" in off.line("zero copy")
    assert "sends  with copies" in stat_of(url)
    assert off.finish(signal.SIGTERM)[0] == 0


def test_what_may_be_written_again_is_the_users_to_say(serve: Callable[..., Serve]) -> None:
    flags = ("--eviction", "seg-low", "--rewrite-share", "0.25", "--daily-writes", "1.9TB")
    one = serve("--json", *flags)
    assert facts_of(one)["eviction"] == {
        "policy": "seg-low",
        "rewrite_share": 0.25,
        "rewrite_bytes_per_day": 1_900_000_000_000,
        "discard_bytes_per_s": 1 << 30,
    }
    assert one.finish(signal.SIGTERM)[0] == 0
    again = serve(*flags)
    again.read_until("listening")
    assert "seg-low, up to 25% of what is put" in again.line("eviction")
    assert "1.73 TiB a day" in again.line("eviction")


def test_a_second_start_recovers_what_was_put(serve: Callable[..., Serve]) -> None:
    first = serve("--json")
    assert works(f"halfstep://{facts_of(first)['listening'][0]}")
    assert first.finish(signal.SIGTERM)[0] == 0
    second = serve()
    address = second.read_until("listening").split()[1]
    assert "recovery   1 blocks" in second.line("recovery")
    assert "size" not in second.line("store"), "an existing store keeps its size"
    back = np.zeros(5000, np.uint8)
    with halfstep.connect(f"halfstep://{address}", required=True, deadline_ms=30_000) as client:
        assert client.get([b"k"], back).ok.all()
    assert (back == np.arange(5000, dtype=np.uint8)).all()


def test_json_is_one_object_on_one_line_and_nothing_else(serve: Callable[..., Serve]) -> None:
    one = serve("--json")
    facts = facts_of(one)
    assert len(one.lines) == 1, one.lines
    assert {"engine", "backing", "arena", "geometry", "recovery", "index_bytes", "listening", "created"} <= facts.keys()
    assert facts["created"] is True
    assert facts["geometry"]["device_bytes"] == 132 << 20
    status, out, err = one.finish(signal.SIGTERM)
    assert (status, out, err) == (0, "", "")


def test_ctrl_c_ends_it_as_cleanly(serve: Callable[..., Serve]) -> None:
    one = serve()
    one.read_until("listening")
    status, out, err = one.finish(signal.SIGINT)
    assert (status, err) == (0, "")
    assert "stopping   SIGINT" in out


def test_a_busy_port_is_named_with_its_holder_and_leaves_no_store(serve: Callable[..., Serve], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = refused(serve("--listen", f"127.0.0.1:{port}"))
    assert f"127.0.0.1:{port}: in use by pid {os.getpid()}" in message
    assert "choose another port" in message
    assert not (tmp_path / "store.hs").exists()


def test_a_locked_store_is_named_with_its_holder(serve: Callable[..., Serve]) -> None:
    first = serve("--json")
    facts_of(first)
    message = refused(serve())
    assert f"locked by process {first.process.pid}" in message
    assert "use another path" in message


def test_a_unix_socket_in_use_is_named(serve: Callable[..., Serve], socket_directory: Path, tmp_path: Path) -> None:
    path = socket_directory / "h.sock"
    first = serve("--json", "--unix", str(path))
    facts_of(first)
    message = refused(serve("--unix", str(path), "--store", str(tmp_path / "other.hs")))
    assert f"unix:{path}: in use by pid {first.process.pid}" in message
    assert "choose another path with --unix" in message


def test_a_size_below_the_smallest_names_the_smallest(serve: Callable[..., Serve], tmp_path: Path) -> None:
    message = refused(serve("--size", "100MiB"))
    assert "100 MiB" in message
    assert "132 MiB" in message
    assert not (tmp_path / "store.hs").exists()


def test_a_size_that_the_segments_do_not_fit_names_the_smallest(serve: Callable[..., Serve], tmp_path: Path) -> None:
    message = refused(serve("--size", "200MiB", "--segment", "8MiB"))
    assert "64 segments of 8 MiB" in message
    assert "the smallest size is" in message
    assert not (tmp_path / "store.hs").exists()


def test_a_disk_too_full_names_what_is_wanted_and_what_is_free(serve: Callable[..., Serve], tmp_path: Path) -> None:
    message = refused(serve("--size", "60TiB"))
    assert str(60 << 40) in message
    assert str(tmp_path) in message
    assert "free" in message
    assert "lower it or mount a larger device" in message
    assert not (tmp_path / "store.hs").exists()


@pytest.mark.parametrize("size", ["lots", "12 parsecs", "-1GiB"])
def test_a_size_that_is_none_is_refused_with_examples(serve: Callable[..., Serve], size: str) -> None:
    message = refused(serve(f"--size={size}", "--size", size) if not size.startswith("-") else serve(f"--size={size}"))
    assert repr(size) in message
    assert "512MiB" in message


@pytest.mark.parametrize("address", ["192.0.2.1:0", "0.0.0.0:0", "[::]:0"])
def test_beyond_loopback_only_with_the_flag(serve: Callable[..., Serve], address: str, tmp_path: Path) -> None:
    message = refused(serve("--listen", address))
    assert address in message
    assert "not authenticated" in message
    assert "insecure" in message
    assert not (tmp_path / "store.hs").exists()


def test_the_flag_allows_listening_beyond_loopback(serve: Callable[..., Serve]) -> None:
    one = serve("--json", "--listen", "0.0.0.0:0", "--insecure-listen")
    port = facts_of(one)["listening"][0].rsplit(":", 1)[1]
    assert works(f"halfstep://127.0.0.1:{port}")


def test_a_path_that_cannot_be_made_is_named(serve: Callable[..., Serve], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    message = refused(serve("--store", str(tmp_path / "file" / "store.hs")))
    assert f"store={tmp_path / 'file' / 'store.hs'}" in message
    message = refused(serve("--unix", str(tmp_path / "file" / "h.sock")))
    assert f"unix={tmp_path / 'file' / 'h.sock'}" in message


def test_a_temporary_directory_of_somebody_else_is_no_place_for_the_socket(tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give a directory away")
    theirs = tmp_path / f"halfstep-{os.getuid()}"
    theirs.mkdir()
    os.chown(theirs, 65534, 65534)
    environment = {"TMPDIR": str(tmp_path), "XDG_RUNTIME_DIR": "", "RUNTIME_DIRECTORY": ""}
    store = str(tmp_path / "store.hs")
    one = Serve("--store", store, "--size", SIZE, "--arena", ARENA, "--listen", "127.0.0.1:0", environment=environment)
    assert "belongs to uid 65534" in refused(one)
    assert list(theirs.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("--arena", "1MiB"), "arena"),
        (("--queue-depth", "0"), "queue_depth"),
        (("--connections", "15"), "connections=15: must be 16 to 65536"),
        (("--eviction", "lru"), "policy=lru"),
        (("--eviction", "\udcff"), "policy=\\udcff"),
        (("--rewrite-share", "2"), "rewrite_share"),
        (("--daily-writes", "much"), "daily_writes"),
        (("--arena", "64MiB", "--shards", "3"), "arena=64 MiB: must be 96 MiB to 24 GiB for 3 shards"),
        *(((flag, "0"), "='0': must be above 0; leave it out") for flag in ("--size", "--segment", "--index")),
        *(
            ((flag, "9000000TiB"), "must be at most 1048576TiB")
            for flag in ("--size", "--segment", "--index", "--discard-rate")
        ),
        (("--listen", "nowhere"), "nowhere"),
        (("--metrics", "nowhere"), "metrics"),
    ],
)
def test_a_wrong_value_is_named(serve: Callable[..., Serve], arguments: tuple[str, ...], name: str) -> None:
    assert name in refused(serve(*arguments))


def test_an_address_given_twice_is_said_to_be_its_own(serve: Callable[..., Serve], socket_directory: Path) -> None:
    address = f"unix:{socket_directory / 'h.sock'}"
    message = refused(serve("--listen", address, "--listen", address))
    assert "which is this process: it was given twice" in message
    assert list(socket_directory.iterdir()) == []


@pytest.mark.parametrize("metrics", ["nowhere", "192.0.2.1:9350", "a..b:9350"])
def test_a_metrics_address_that_cannot_be_is_found_before_a_store_is_made(
    serve: Callable[..., Serve], tmp_path: Path, metrics: str
) -> None:
    assert metrics in refused(serve("--metrics", metrics))
    assert list(tmp_path.iterdir()) == []


def test_what_an_existing_store_does_not_take_is_said(serve: Callable[..., Serve]) -> None:
    for arguments, told in (
        ((), []),
        ((), []),
        (("--size", "1GiB"), ["--size 1 GiB has no effect: the store was made with 132 MiB, for good"]),
        (("--segment", "4MiB"), ["--segment 4 MiB has no effect: the store was made with 2 MiB, for good"]),
    ):
        one = serve("--json", *arguments)
        assert facts_of(one)["recovery"]["notes"] == told
        assert one.finish(signal.SIGTERM)[0] == 0


def test_a_store_that_was_cut_is_said_to_be(serve: Callable[..., Serve], tmp_path: Path) -> None:
    one = serve()
    one.read_until("listening")
    one.finish(signal.SIGTERM)
    store = tmp_path / "store.hs"
    os.truncate(store, 100 << 20)
    one = serve()
    one.read_until("listening")
    assert "store.hs was cut: 100 MiB of the store's 132 MiB are there" in one.line("note")
    one.finish(signal.SIGTERM)
    os.truncate(store, 100 << 20)
    command = [sys.executable, "-m", "halfstep.tools.cli", "fsck", str(store)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert "cut       the file has 100 MiB" in told.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody who may not look into a directory")
def test_a_store_that_nobody_may_look_at_is_named(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    script = (
        "import os, sys\n"
        "from halfstep.daemon.config import store_path\n"
        "from halfstep.errors import ConfigError\n"
        "from pathlib import Path\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try: store_path(Path(sys.argv[1]))\n"
        "except ConfigError as error: print(error)\n"
    )
    command = [sys.executable, "-c", script, str(closed / "store.hs")]
    told = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert "store.hs: Permission denied; run as the user that made it" in told.stdout, told.stderr


def scrape(one: Serve) -> str:
    """What Prometheus would read."""
    address = next(line for line in one.lines if line.startswith("metrics")).split()[1]
    with urllib.request.urlopen(address, timeout=PATIENCE_S) as answer:
        text: str = answer.read().decode()
    return text


def sample(text: str, name: str) -> float:
    """The value of one sample, named with its labels."""
    return float(next(line for line in text.splitlines() if line.startswith(name + " ")).rsplit(" ", 1)[1])


def test_metrics_count_hits_misses_by_reason_bytes_and_latencies(serve: Callable[..., Serve]) -> None:
    one = serve("--metrics", "127.0.0.1:0")
    one.read_until("metrics")
    url = f"halfstep://{one.line('listening').split()[1]}"
    before = scrape(one)
    assert sample(before, 'halfstep_payload_bytes_total{command="put"}') == 0
    assert works(url)
    with halfstep.connect(url, required=True, deadline_ms=30_000) as client:
        assert not client.get([b"absent"], bytearray(5000)).ok.any()
    after = scrape(one)
    assert sample(after, 'halfstep_answers_total{answer="ok",command="get",reason=""}') == 1
    assert sample(after, 'halfstep_answers_total{answer="miss",command="get",reason="absent"}') == 1
    assert sample(after, 'halfstep_payload_bytes_total{command="put"}') == 5000
    assert sample(after, 'halfstep_payload_bytes_total{command="get"}') == 5000
    assert sample(after, 'halfstep_request_latency_seconds_count{command="get"}') == 2
    assert sample(after, 'halfstep_request_latency_seconds_bucket{command="get",le="+Inf"}') == 2
    assert sample(after, 'halfstep_request_latency_seconds_sum{command="get"}') > 0
    assert sample(after, 'halfstep_store_writes_total{outcome="throttled"}') == 0
    assert 'halfstep_store_misses_total{reason="corrupt"} 0.0' in after
    assert one.finish(signal.SIGTERM)[0] == 0
    with pytest.raises(urllib.error.URLError):
        scrape(one)


def test_a_metrics_address_of_version_6_is_printed_as_a_url(serve: Callable[..., Serve]) -> None:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            pass
    except OSError as error:
        pytest.skip(f"no ::1 here: {error}")
    one = serve("--metrics", "::1:0")
    assert one.read_until("metrics").startswith("metrics    http://[::1]:")
    assert "halfstep_connections_open" in scrape(one)
    assert one.finish(signal.SIGTERM)[0] == 0


def test_a_busy_metrics_address_is_named(serve: Callable[..., Serve]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        message = refused(serve("--metrics", address))
    assert f"metrics={address}" in message
    assert "--metrics" in message


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_hears_when_it_serves_and_when_it_stops(
    serve: Callable[..., Serve], socket_directory: Path, *, abstract: bool
) -> None:
    name = f"@halfstep-test-{os.getpid()}" if abstract else str(socket_directory / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind("\0" + name[1:] if abstract else name)
        supervisor.settimeout(PATIENCE_S)
        one = serve("--json", environment={"NOTIFY_SOCKET": name})
        facts = facts_of(one)
        told = ""
        while "READY=1" not in told:
            told = supervisor.recv(4096).decode()
        assert facts["listening"][0] in told
        one.process.send_signal(signal.SIGTERM)
        while "STOPPING=1" not in told:
            told = supervisor.recv(4096).decode()
        assert one.finish()[0] == 0


def test_without_arguments_it_uses_the_xdg_directories(tmp_path: Path, socket_directory: Path) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path / "state"), "XDG_RUNTIME_DIR": str(socket_directory)}
    for name in ("STATE_DIRECTORY", "RUNTIME_DIRECTORY"):
        environment[name] = ""
    one = Serve("--json", "--listen", "127.0.0.1:0", "--size", SIZE, "--arena", ARENA, environment=environment)
    try:
        facts = facts_of(one)
        store, path = tmp_path / "state/halfstep/store.hs", socket_directory / "halfstep/halfstep.sock"
        assert facts["backing"]["path"] == str(store)
        assert store.stat().st_size == 132 << 20
        assert store.stat().st_mode & 0o077 == 0, "the store's secret and its blocks are the owner's alone"
        assert f"unix:{path}" in facts["listening"]
        assert works(f"halfstep+unix://{path}")
    finally:
        status, out, err = one.finish(signal.SIGTERM)
        shutil.rmtree(tmp_path / "state", ignore_errors=True)
    assert (status, out, err) == (0, "", "")


def test_a_store_is_where_it_was_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STATE_DIRECTORY", "/a")
    assert store_path(None) == Path("/a/store.hs")
    assert store_path(Path()) == Path("store.hs"), "a directory like any other"
    assert store_path(Path("mine")) == Path("mine")


def test_systemd_directories_go_before_the_xdg_ones() -> None:
    command = [sys.executable, "-c", "from halfstep.daemon.config import *; print(state_directory(), runtime_directory())"]
    environment = {"STATE_DIRECTORY": "/a:/b", "RUNTIME_DIRECTORY": "/c", "XDG_STATE_HOME": "/d", "XDG_RUNTIME_DIR": "/e"}
    out = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=True).stdout
    assert out.split() == ["/a", "/c"]


def test_the_pread_engine_serves_and_says_so(serve: Callable[..., Serve]) -> None:
    one = serve("--engine", "pread")
    address = one.read_until("listening").split()[1]
    assert one.line("engine").startswith("engine     pread")
    assert works(f"halfstep://{address}")
    assert one.finish(signal.SIGTERM)[0] == 0


def test_a_store_as_a_directory_holds_the_store(serve: Callable[..., Serve], tmp_path: Path) -> None:
    one = serve("--json", "--store", str(tmp_path))
    assert facts_of(one)["backing"]["path"] == str(tmp_path / "store.hs")
    assert one.finish(signal.SIGTERM)[0] == 0


def test_ctrl_c_while_the_store_is_made_leaves_no_file(serve: Callable[..., Serve], tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    size = min(16 << 30, free // 2 >> 20 << 20)
    one = serve("--size", str(size))
    # It says its first step as soon as it begins; the store is then being made, or just made on a very quick disk.
    one.read_until("allocating the store")
    status, _, err = one.finish(signal.SIGINT)
    if status == 0:
        pytest.skip(f"this disk allocates {size} bytes before a signal arrives")
    assert (status, err) == (130, "")
    assert list(tmp_path.iterdir()) == []


def test_a_second_signal_does_not_break_a_clean_end(serve: Callable[..., Serve]) -> None:
    one = serve()
    one.read_until("listening")
    one.process.send_signal(signal.SIGTERM)
    one.read_until("stopping")
    one.process.send_signal(signal.SIGTERM)
    status, out, err = one.finish()
    assert (status, err) == (0, "")
    assert "stopped    clean" in out


def test_killed_it_leaves_a_socket_that_the_next_start_takes_over(serve: Callable[..., Serve], socket_directory: Path) -> None:
    path = socket_directory / "h.sock"
    first = serve("--json", "--unix", str(path))
    facts_of(first)
    first.finish(signal.SIGKILL)
    assert path.exists()
    second = serve("--json", "--unix", str(path))
    facts_of(second)
    assert works(f"halfstep+unix://{path}")


# ---- block devices ----


@pytest.fixture
def block_device(tmp_path: Path) -> Iterator[Path]:
    """A blank device of 160 MiB: a loop device over a sparse file."""
    # Users other than root have no sbin in their path.
    losetup = shutil.which("losetup", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")
    if losetup is None:
        pytest.skip("no loop device can be made here: there is no losetup")
    image = tmp_path / "drive"
    with image.open("wb") as file:
        file.truncate(160 << 20)
    made = subprocess.run(
        [losetup, "--find", "--show", "--direct-io=on", str(image)], capture_output=True, text=True, timeout=60, check=False
    )
    if made.returncode:
        pytest.skip(f"no loop device can be made here: {made.stderr.strip()}")
    device = Path(made.stdout.strip())
    yield device
    subprocess.run([losetup, "--detach", str(device)], timeout=60, check=True)


def test_a_blank_block_device_becomes_a_store(serve: Callable[..., Serve], block_device: Path) -> None:
    device = str(block_device)
    wrong = refused(serve("--store", device, "--size", "150MiB"))
    assert f"size={150 << 20}: {device} is a block device of {160 << 20} bytes" in wrong
    assert "leave the size out" in wrong
    one = serve("--store", device, "--size", "")
    url = "halfstep://" + one.read_until("listening").split()[1]
    assert "block device" in one.line("store")
    assert one.line("discard")
    assert "the store is new" in one.line("recovery")
    assert works(url)
    assert "in use" in refused(serve("--store", device, "--size", ""))
    assert one.finish(signal.SIGTERM)[0] == 0
    again = serve("--store", device, "--size", "")
    again.read_until("listening")
    assert "1 block" in again.line("recovery")
    assert again.finish(signal.SIGTERM)[0] == 0


def test_a_block_device_that_holds_something_else_is_refused(serve: Callable[..., Serve], block_device: Path) -> None:
    with block_device.open("r+b") as device:
        device.seek(1080)
        device.write(b"\x53\xef")  # as ext4 says it is there
    assert "this is not a store" in refused(serve("--store", str(block_device), "--size", ""))
