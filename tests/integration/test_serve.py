"""`halfstep serve` as a process: what it says, where its store is, and how it ends."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.integration.commands import PATIENT
from tests.integration.serving import ARENA, PATIENCE_S, SIZE, Serve, facts_of, stat_of, works

import halfstep
from halfstep.daemon.config import store_path

pytestmark = pytest.mark.integration


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
    one = serve("--json", "--zero-copy", "auto")
    facts = facts_of(one)
    assert facts["zero_copy"] == facts["zero_copy_possible"]
    with halfstep.connect(f"halfstep://{facts['listening'][0]}", required=True, **PATIENT) as client:
        counted = client.stat()
    assert counted["halfstep_zero_copy_on"] == 1
    assert counted["halfstep_connections_zero_copy"] == 0, "loopback is never asked"
    assert one.finish(signal.SIGTERM)[0] == 0
    told = serve("--zero-copy", "auto")
    url = "halfstep://" + told.read_until("listening").split()[1]
    assert told.line("zero copy").startswith("zero copy  of large payload" if facts["zero_copy"] else "zero copy  none")
    assert "sends  0 connections without a copy, 0 B so far" in stat_of(url)
    assert told.finish(signal.SIGTERM)[0] == 0
    off = serve()  # as no network card has measured it
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


def large_kib(pid: int) -> int:
    """Of a process's memory, what lies in large pages."""
    lines = Path(f"/proc/{pid}/smaps").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("AnonHugePages:", "Private_Hugetlb:")))


def test_one_switch_keeps_arena_and_index_off_large_pages(serve: Callable[..., Serve]) -> None:
    transparent = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if "[always]" in (transparent.read_text() if transparent.exists() else ""):
        pytest.skip("any memory may lie in large pages here")
    one = serve()
    one.read_until("listening")
    by_default = large_kib(one.process.pid)
    assert one.finish(signal.SIGTERM)[0] == 0
    if by_default == 0:
        pytest.skip("there are no large pages here")
    one = serve("--no-huge-pages")
    one.read_until("listening")
    assert large_kib(one.process.pid) == 0
    assert "on ordinary pages" in one.line("memory")
    assert one.finish(signal.SIGTERM)[0] == 0


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
    one = serve("--json")
    (note,) = facts_of(one)["recovery"]["notes"][:1]
    assert note.startswith(f"{store} was cut: 100 MiB of the store's 132 MiB are there")
    one.finish(signal.SIGTERM)
    os.truncate(store, 100 << 20)
    command = [sys.executable, "-m", "halfstep.tools.cli", "fsck", str(store)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert "cut       the file has 100 MiB" in told.stdout


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
