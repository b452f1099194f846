"""Standard streams as shells and supervisors leave them: closed, a pipe without a reader, a full disk, another encoding."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from halfstep.tools.cli import COMMANDS

pytestmark = pytest.mark.integration

PATIENCE_S = 60
COMMAND = [sys.executable, "-m", "halfstep.tools.cli"]

# Of every command that answers at once, a line that works against a daemon which has the key "there". What takes a daemon's
# place or a benchmark's time is refused instead, which prints on stderr.
LINES: dict[str, tuple[str, ...]] = {
    "serve": ("serve", "--store", "/proc/none/store.hs", "--listen", "127.0.0.1:0", "--unix", "none"),
    "mount": ("mount", "nowhere"),
    "check": ("check",),
    "doctor": ("doctor",),
    "fsck": ("fsck", "/proc/none"),
    "stat": ("stat",),
    "ls": ("ls",),
    "explain": ("explain", "there"),
    "put": ("put", __file__, "--key", "there"),
    "get": ("get", "there"),
    "rm": ("rm", "never there"),
    "match": ("match", "there"),
    "clear": ("clear", "0" * 32),
    "namespace": ("namespace", "ls"),
    "plan": ("plan", "--blocks", "8", "--block-bytes", "1MiB", "--prefill", "8000", "--link", "2GB", "--explain"),
    "layout": ("layout", "show", str(Path(__file__).parents[1] / "unit" / "configs" / "llama-3-70b.json")),
    "size": ("size", "--blocks", "1000", "--block-bytes", "1MiB"),
    "compress": ("compress", "analyse", str(Path(__file__).parents[1] / "unit" / "tensors" / "kv.npz"), "--unit-tokens", "16"),
    "calibrate": ("calibrate", "--help"),
    "device": ("device", "list"),
    "bench": ("bench", "--help"),
    "replay": ("replay", "--help"),
    "effect": ("effect", "--records", str(Path(__file__).parents[1] / "unit" / "records"), "--step", "1h"),
    "completion": ("completion", "bash"),
}

Run = Callable[..., tuple[int, bytes, bytes]]


def test_every_command_has_a_line() -> None:
    assert LINES.keys() == COMMANDS.keys()


@pytest.fixture
def shell(daemon: Any) -> Run:
    """shell(arguments, redirections, **environment): status, stdout and stderr of a command behind a shell's redirections.

    The shell's own streams are pipes; what the redirections close or lead elsewhere does not come back.
    """

    def run(arguments: tuple[str, ...], redirections: str = "", **environment: str) -> tuple[int, bytes, bytes]:
        script = f'exec "$@" {redirections}'
        done = subprocess.run(
            ["/bin/sh", "-c", script, "sh", *COMMAND, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE_S,
            env=os.environ | {"HALFSTEP_URL": daemon.url} | environment,
            check=False,
        )
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        assert b"Exception ignored" not in done.stderr, done.stderr.decode()
        return done.returncode, done.stdout, done.stderr

    # On a busy machine a connection may take longer than a command waits for it.
    assert any(run(LINES["put"])[0] == 0 for _ in range(5))
    return run


CLOSED = ["".join(chosen) for count in (1, 2, 3) for chosen in itertools.combinations(("0<&- ", "1>&- ", "2>&- "), count)]


@pytest.mark.parametrize("name", LINES)
def test_a_closed_stream_changes_no_exit_status(shell: Run, name: str) -> None:
    whole = shell(LINES[name])
    for closed in ("0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"):
        status, out, err = shell(LINES[name], closed)
        assert status == whole[0], (closed, out, err)


@pytest.mark.parametrize("closed", CLOSED)
def test_closed_streams_get_no_file_of_ours(shell: Run, tmp_path: Path, closed: str) -> None:
    """Where a number is free, the next file that is opened takes it, and what is printed would go into it."""
    target = tmp_path / "target"
    status, _, _ = shell(("get", "there", "-o", str(target)), closed)
    assert status == 0
    assert target.read_bytes() == Path(__file__).read_bytes()
    source = tmp_path / "source"
    source.write_bytes(b"a value of its own, which no message may be mixed with")
    assert shell(("put", str(source), "--key", f"source {closed}"), closed)[0] == 0
    assert source.read_bytes() == b"a value of its own, which no message may be mixed with"
    assert shell(("get", f"source {closed}"))[1] == source.read_bytes()


def test_standard_input_that_is_closed_is_an_empty_one(shell: Run) -> None:
    status, out, err = shell(("put", "-", "--key", "empty"), "0<&-")
    assert (status, out, err) == (3, b"", b"halfstep: -: is empty; a block has at least one byte\n")


def test_a_question_that_nobody_can_answer_is_no_miss(shell: Run) -> None:
    assert shell(LINES["clear"], "0<&-")[0] == 3


@pytest.mark.parametrize("name", [name for name in LINES if name not in ("serve", "mount", "fsck", "clear")])
def test_a_reader_that_went_away_ends_a_command_without_a_word(daemon: Any, shell: Run, name: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [*COMMAND, *LINES[name]],
            stdin=subprocess.DEVNULL,
            stdout=writer,
            stderr=subprocess.PIPE,
            timeout=PATIENCE_S,
            env=os.environ | {"HALFSTEP_URL": daemon.url},
            check=False,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (3, b""), "1 is a miss, and nothing was missed"


@pytest.mark.parametrize("name", [name for name in LINES if name not in ("serve", "mount", "fsck", "clear")])
def test_output_that_has_no_room_is_an_error_on_one_line(shell: Run, name: str) -> None:
    status, _, err = shell(LINES[name], ">/dev/full")
    assert (status, err) == (3, b"halfstep: No space left on device\n")


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-"])
def test_what_stderr_does_not_take_is_lost_and_the_status_stays(shell: Run, redirection: str) -> None:
    assert shell(("get", "never there"), redirection)[0] == 1
    assert shell(("get", "hex:zz"), redirection)[0] == 3
    assert shell(("ls", "--limit", "0"), redirection)[0] == 2
    assert shell(LINES["clear"], redirection)[0] == 3


@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize(
    "environment",
    [{"PYTHONIOENCODING": "ascii"}, {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}],
    ids=["ascii", "C"],
)
def test_output_of_another_encoding_is_escaped(shell: Run, name: str, environment: dict[str, str]) -> None:
    assert shell(LINES[name], **environment)[0] == shell(LINES[name])[0]


def test_what_an_encoding_cannot_say_is_escaped(shell: Run) -> None:
    key = "schlüssel"
    assert shell(("put", __file__, "--key", key))[0] == 0
    for arguments in (("ls", "--limit", "100000"), ("match", key), ("explain", key)):
        status, out, _ = shell(arguments, PYTHONIOENCODING="ascii")
        assert status == 0
        assert out.isascii()
        assert b"schl\\xfcssel" in out
    status, out, err = shell(("get", "kein " + key), PYTHONIOENCODING="ascii")
    assert (status, out, err) == (1, b"", b"kein schl\\xfcssel: miss (absent)\n")


def test_a_path_that_is_no_utf_8_is_named_escaped(shell: Run, tmp_path: Path) -> None:
    path = os.fsdecode(bytes(tmp_path) + b"/\xff\xfe")
    for arguments in (("put", path), ("get", "there", "-o", path + "/target"), ("fsck", path)):
        status, out, err = shell(arguments)
        assert (status, out) == (3, b"")
        assert b"\\udcff\\udcfe" in err
