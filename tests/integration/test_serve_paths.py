"""Where a store and a socket may lie: paths of any bytes, directories that have to be made, users without a home."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from halfstep import _store
from halfstep.daemon.config import ServeConfig, setting_named, store_path
from halfstep.errors import ConfigError

pytestmark = pytest.mark.integration

PATIENCE_S = 60
COMMAND = [sys.executable, "-m", "halfstep.tools.cli"]
SMALL = ["--size", "132MiB", "--arena", "64MiB", "--listen", "127.0.0.1:0"]


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory whose name is no text, and short enough for a socket."""
    path = Path(os.fsdecode(b"/tmp/halfstep-\xff-%d" % os.getpid()))
    path.mkdir()
    yield path
    for left in sorted(path.rglob("*"), reverse=True):
        left.rmdir() if left.is_dir() else left.unlink()
    path.rmdir()


def serve(*arguments: str, **environment: str | None) -> subprocess.Popen[str]:
    """A daemon whose output is read as Python writes paths. None takes a variable away."""
    variables = {name: value for name, value in (os.environ | environment).items() if value is not None}
    return subprocess.Popen(
        [*COMMAND, "serve", *arguments, *SMALL],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=variables,
    )


def refused(one: subprocess.Popen[str]) -> str:
    """Its one line of error; it ended with status 3 and without a trace."""
    out, err = one.communicate(timeout=PATIENCE_S)
    assert one.returncode == 3, (out, err)
    assert err.count("\n") == 1, err
    return err


def facts_of(one: subprocess.Popen[str]) -> dict[str, Any]:
    """What `serve --json` says; then it is ended."""
    assert one.stdout is not None
    line = one.stdout.readline()
    one.send_signal(signal.SIGTERM)
    _, err = one.communicate(timeout=PATIENCE_S)
    assert (one.returncode, err) == (0, "")
    facts: dict[str, Any] = json.loads(line)
    return facts


@pytest.mark.parametrize(
    "environment", [{}, {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}], ids=["utf-8", "C"]
)
def test_a_store_and_a_socket_may_have_a_path_of_any_bytes(directory: Path, environment: dict[str, str]) -> None:
    store, socket = directory / os.fsdecode(b"\xfe.hs"), directory / "h.sock"
    facts = facts_of(serve("--json", "--store", str(store), "--unix", str(socket), **environment))
    assert facts["backing"]["path"] == str(store)
    assert f"unix:{socket}" in facts["listening"]
    assert store.exists()
    done = subprocess.run(
        [*COMMAND, "fsck", "--json", str(store)],
        capture_output=True,
        timeout=PATIENCE_S,
        env=os.environ | environment,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["path"] == str(store)


def test_what_is_said_of_a_path_of_any_bytes_is_escaped(directory: Path) -> None:
    one = serve("--store", str(directory / "s.hs"), "--unix", str(directory / "h.sock"))
    assert one.stdout is not None
    lines = [one.stdout.readline()]
    while not lines[-1].startswith("listening  unix:"):
        lines.append(one.stdout.readline())
    assert any("halfstep-\\udcff-" in line for line in lines if line.startswith("store"))
    assert "halfstep-\\udcff-" in lines[-1]
    again = serve("--store", str(directory / "s.hs"), "--unix", "none")
    assert "halfstep-\\udcff-" in refused(again), "a refusal names it, too"
    one.send_signal(signal.SIGTERM)
    assert one.communicate(timeout=PATIENCE_S)[1] == ""
    assert one.returncode == 0


def test_what_is_no_store_is_named_by_fsck_whatever_its_path(directory: Path) -> None:
    wrong = directory / os.fsdecode(b"\xfd.hs")
    wrong.write_bytes(bytes(1 << 20))
    done = subprocess.run([*COMMAND, "fsck", str(wrong)], capture_output=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 3
    assert b"\\udcfd.hs" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_an_embedded_store_may_have_a_path_of_any_bytes(directory: Path) -> None:
    for path in (str(directory / "embedded"), bytes(directory / "embedded")):
        store = _store.Store(capacity_blocks=1 << 16, segments=64, device_bytes=132 << 20, path=path)
        store.close()
    with pytest.raises(_store.StoreError) as refusal:
        _store.Store(capacity_blocks=1 << 16, segments=64, device_bytes=132 << 20, path=str(directory / "none" / "embedded"))
    assert str(directory / "none") in refusal.value.args[1]


# ---- directories


def test_a_path_that_ends_in_a_slash_is_a_directory(directory: Path) -> None:
    facts = facts_of(serve("--json", "--store", f"{directory}/new/", "--unix", "none"))
    assert facts["backing"]["path"] == str(directory / "new" / "store.hs")
    assert (directory / "new" / "store.hs").is_file()
    done = subprocess.run([*COMMAND, "fsck", f"{directory}/new/"], capture_output=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0


def test_a_file_with_a_slash_behind_it_is_no_directory(directory: Path) -> None:
    (directory / "file").touch()
    assert "file is no directory" in refused(serve("--store", f"{directory}/file/", "--unix", "none"))


def test_an_empty_path_is_refused(directory: Path) -> None:
    assert "store='': is empty" in refused(serve("--store", "", "--unix", "none"))


def test_store_path_keeps_what_is_named() -> None:
    assert store_path("new/") == Path("new/store.hs")
    assert store_path("new") == Path("new")


# ---- users and limits

# Imported before: an interpreter may lie where nobody may look.
_NOBODY = """
import os, sys
import halfstep.daemon.serve, halfstep.tools.fsck, halfstep.tools.serve
from halfstep.tools.cli import main
os.setgroups([]); os.setgid(54321); os.setuid(54321)
main(sys.argv[1:], prog_name="halfstep")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody who has no entry in passwd")
@pytest.mark.parametrize("home", [None, ""])
@pytest.mark.parametrize("command", ["serve", "fsck"])
def test_without_a_home_the_remedy_is_named(command: str, home: str | None) -> None:
    environment = {**os.environ, "HOME": home, "XDG_STATE_HOME": None, "STATE_DIRECTORY": None}
    done = subprocess.run(
        [sys.executable, "-c", _NOBODY, command],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={name: value for name, value in environment.items() if value is not None},
        check=False,
    )
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == (
        "halfstep: store: HOME is not set and uid 54321 has no home directory; name the store's path with --store, or set "
        "XDG_STATE_HOME\n"
    )


def test_a_default_socket_whose_path_is_too_long_is_said_to_be_nobodys_choice(tmp_path: Path) -> None:
    runtime = str(tmp_path / ("r" * 100))
    err = refused(serve("--store", str(tmp_path / "s.hs"), XDG_RUNTIME_DIR=runtime, RUNTIME_DIRECTORY=None))
    assert f"{runtime}/halfstep/halfstep.sock: has " in err
    assert "it comes from XDG_RUNTIME_DIR: name another with --unix, or none" in err
    assert "shorter" not in err
    assert list(tmp_path.iterdir()) == []


def test_no_temporary_directory_matters_only_to_a_default_socket(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def none() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr("tempfile.gettempdir", none)
    for name in ("RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    config = ServeConfig(store=tmp_path / "s.hs", size_bytes=132 << 20)
    with pytest.raises(
        ConfigError, match="unix: No usable temporary directory found; name the socket's path with --unix, or none"
    ):
        config.validated()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert config.validated().unix == str(tmp_path / "halfstep" / "halfstep.sock")


def test_a_time_of_too_many_digits_is_out_of_bounds() -> None:
    with pytest.raises(ConfigError, match="must be 1 us to 10 s, or off"):
        setting_named("latency-goal").read("9" * 400 + "s")
