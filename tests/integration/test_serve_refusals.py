"""What `halfstep serve` refuses: one line that names it, status 3, and no store left behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.integration.serving import ARENA, PATIENCE_S, SIZE, Serve, facts_of, refused, works

pytestmark = pytest.mark.integration


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
        (("--shards", "17"), "shards=17: must be 1 to 16"),
        (("--engine", "aio"), "engine=aio: must be auto, uring, uring_cmd or pread"),
        (("--eviction", "lru"), "eviction=lru: must be seg-adapt10, seg-low or seg-fifo"),
        (("--eviction", "\udcff"), "eviction=\\udcff: must be seg-adapt10"),
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
