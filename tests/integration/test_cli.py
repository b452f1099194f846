"""The command line as people and scripts use it: every command in a process of its own, its output and its exit status."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.integration.commands import COMMAND, PATIENCE_S, Run, error_of

import halfstep
from halfstep.tools.blocks import LAST_CELL, PIECES_PER_CALL, file_layout
from halfstep.tools.cli import COMMANDS

pytestmark = pytest.mark.integration


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    """A key that no other test has."""
    return f"{request.node.name[:100]}-{os.getpid()}"


@pytest.fixture
def files(daemon: Any) -> Iterator[halfstep.Client]:
    """A client that sees the pieces of which `put` makes values."""
    with halfstep.connect(
        daemon.url, layout=file_layout(), required=True, deadline_ms=30_000, match_deadline_ms=30_000
    ) as client:
        yield client


def content(count: int, seed: int = 1) -> bytes:
    """Arbitrary bytes."""
    return np.random.default_rng(seed).bytes(count)


# ---- help ----


def test_help_lists_every_command_and_the_exit_statuses(run: Run) -> None:
    done = run("--help")
    assert done.returncode == 0
    text = done.stdout.decode()
    assert all(f"\n  {name} " in text for name in COMMANDS)
    assert "Exit status" in text
    assert "HALFSTEP_URL" in text


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_help(run: Run, name: str) -> None:
    done = run(name, "--help")
    assert (done.returncode, done.stderr) == (0, b"")
    assert f"Usage: halfstep {name}" in done.stdout.decode()


def test_version_says_build_and_commit(run: Run) -> None:
    done = run("--version")
    info = halfstep.build_info()
    assert done.returncode == 0
    text = done.stdout.decode()
    assert text.startswith(f"halfstep {info['version']}")
    assert text.rstrip().endswith(f"commit {info['commit']}")
    assert (f"({info['build']} build)" in text) == (info["build"] != "release")


def test_the_package_runs_as_a_module(run: Run) -> None:
    done = subprocess.run([sys.executable, "-m", "halfstep", "-V"], capture_output=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, run("--version").stdout, b"")


@pytest.mark.parametrize("command", ["check", "stat"])
def test_a_command_about_a_daemon_takes_its_url_both_ways(run: Run, daemon: Any, nobody: str, command: str) -> None:
    for option in ("-u", "--url"):
        assert run(command, option, daemon.url, url=nobody).returncode == 0
    assert run(command, daemon.url, url=nobody).returncode == 0
    assert run(command, "-u", daemon.url, daemon.url).returncode == 2


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_for_that_shell(run: Run, shell: str) -> None:
    done = run("completion", shell)
    assert (done.returncode, done.stderr) == (0, b"")
    assert f"_HALFSTEP_COMPLETE={shell}_complete" in done.stdout.decode()


def test_completion_knows_the_commands() -> None:
    environment = os.environ | {"_HALFSTEP_COMPLETE": "bash_complete", "COMP_WORDS": "halfstep m", "COMP_CWORD": "1"}
    done = subprocess.run(COMMAND, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.stdout.split() == ["plain,mount", "plain,match"]


@pytest.mark.parametrize(
    "arguments", [("fly",), ("put",), ("get",), ("rm",), ("match",), ("completion", "tcsh"), ("ls", "--limit", "0")]
)
def test_wrong_usage_is_status_2_with_a_hint(run: Run, arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert b"--help" in done.stderr


# ---- put, get, match, rm ----


@pytest.mark.parametrize("size", [1, 4096, 10 << 20])
def test_a_file_comes_back_as_it_was(run: Run, tmp_path: Path, key: str, size: int) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(content(size))
    put = run("put", source, "--key", key)
    assert put.returncode == 0, put.stderr
    assert f"{key}: {size} bytes" in put.stdout.decode()
    got = run("get", key, "-o", target)
    assert (got.returncode, got.stdout, got.stderr) == (0, b"", b"")
    assert target.read_bytes() == source.read_bytes()


def test_a_large_file_is_several_pieces_with_the_last_one_flagged(
    run: Run, files: halfstep.Client, tmp_path: Path, key: str
) -> None:
    source = tmp_path / "source"
    source.write_bytes(content(20 << 20))
    told = json.loads(run("put", source, "--key", key, "--json").stdout)
    assert told["bytes"] == 20 << 20
    pieces = told["pieces"]
    assert pieces > PIECES_PER_CALL, "several calls, or the pipeline is not tried"
    name = key.encode()
    plain = files.match([name], components=pieces, lengths=True).lengths
    assert plain is not None
    assert (plain.reshape(-1)[:-1] > 0).all()
    assert plain.reshape(-1)[-1] == 0
    assert files.match([name], first_component=LAST_CELL | (pieces - 1)).present.all()


def test_the_name_of_a_file_is_its_key(run: Run, tmp_path: Path, key: str) -> None:
    (tmp_path / key).write_bytes(b"named")
    assert run("put", tmp_path / key).returncode == 0
    assert run("get", key).stdout == b"named"


def test_an_empty_key_is_refused_and_is_not_the_name_of_the_file(run: Run, tmp_path: Path, key: str) -> None:
    (tmp_path / key).write_bytes(b"named")
    for file, value in ((tmp_path / key, None), ("-", b"value")):
        refused = run("put", file, "--key", "", **({} if value is None else {"stdin": value}))
        assert refused.returncode not in (0, 1)
        assert b"has 0 bytes; an engine key has 1 to 255" in refused.stderr
    assert run("get", key).returncode == 1, "it was stored under the file's name"


def test_standard_input_and_output(run: Run, key: str) -> None:
    value = content(5 << 20, seed=2)
    assert run("put", "-", "--key", key, stdin=value).returncode == 0
    got = run("get", key)
    assert (got.returncode, got.stderr) == (0, b"")
    assert got.stdout == value


def test_standard_input_needs_a_key(run: Run) -> None:
    assert "--key" in error_of(run("put", "-", stdin=b"x"))


def test_keys_of_any_bytes_are_written_in_hex(run: Run, files: halfstep.Client, key: str) -> None:
    name = b"\xff\x00\n" + key.encode()
    text = "hex:" + name.hex()
    assert run("put", "-", "--key", text, stdin=b"value").returncode == 0
    assert files.match([name], first_component=LAST_CELL).present.all()
    assert run("get", text).stdout == b"value"
    assert text in run("ls", "--limit", "100000").stdout.decode()
    assert run("rm", text).returncode == 0
    assert run("get", text).returncode == 1


@pytest.mark.parametrize(("text", "why"), [("hex:abc", "hexadecimal"), ("hex:", "1 to 255"), ("x" * 256, "1 to 255")])
def test_a_key_that_is_none_is_refused(run: Run, text: str, why: str) -> None:
    assert why in error_of(run("get", text))


def test_an_empty_file_is_refused(run: Run, tmp_path: Path, key: str) -> None:
    (tmp_path / key).touch()
    message = error_of(run("put", tmp_path / key))
    assert str(tmp_path / key) in message
    assert "empty" in message
    assert run("match", key).returncode == 1


def test_an_error_is_one_line_whatever_was_typed(run: Run) -> None:
    assert r"a\nb\x1b[31m" in error_of(run("put", "/none/a\nb\x1b[31m"))


def test_a_missing_file_is_named(run: Run, tmp_path: Path) -> None:
    assert f"{tmp_path / 'absent'}: No such file" in error_of(run("put", tmp_path / "absent"))
    assert "directory" in error_of(run("put", tmp_path)).lower()


def test_an_output_that_cannot_be_written_is_named(run: Run, tmp_path: Path, key: str) -> None:
    assert run("put", "-", "--key", key, stdin=b"x").returncode == 0
    target = tmp_path / "no" / "target"
    assert f"{target}: No such file" in error_of(run("get", key, "-o", target))


def test_a_missing_key_is_status_1_and_no_output(run: Run, tmp_path: Path, key: str) -> None:
    got = run("get", key, "-o", tmp_path / "target")
    assert (got.returncode, got.stdout) == (1, b"")
    assert "miss" in got.stderr.decode()
    assert not (tmp_path / "target").exists()
    assert run("rm", key).returncode == 1
    assert run("match", key).returncode == 1


def test_a_key_keeps_its_first_bytes(run: Run, key: str) -> None:
    assert run("put", "-", "--key", key, stdin=b"first").returncode == 0
    again = run("put", "-", "--key", key, "--json", stdin=b"second one")
    assert again.returncode == 0
    assert json.loads(again.stdout) == {"key": key, "bytes": 5, "pieces": 1, "present": 1}
    assert "was there already" in run("put", "-", "--key", key, stdin=b"third").stdout.decode()
    assert run("get", key).stdout == b"first"


def test_a_value_that_the_store_cannot_keep_whole_is_no_success(run: Run, own_daemon: Any, tmp_path: Path) -> None:
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(300 << 20)  # of zeros; the store has 256 MiB
    text = error_of(run("put", large, url=own_daemon.url))
    assert "put large: of its" in text
    assert "the store does not keep all at once" in text
    assert run("get", "large", url=own_daemon.url).returncode == 1


def test_a_key_need_not_be_utf_8(run: Run, key: str) -> None:
    name = key.encode() + b"\xff\x80"
    raw, told = os.fsdecode(name), f"hex:{name.hex()}".encode()
    assert told in run("put", "-", "--key", raw, stdin=b"bytes").stdout
    assert run("get", raw).stdout == run("get", told.decode()).stdout == b"bytes"
    for command in ("match", "explain", "rm"):
        done = run(command, raw)
        assert (done.returncode, told in done.stdout) == (0, True), done
    missed = run("get", raw)
    assert (missed.returncode, missed.stderr) == (1, told + b": miss (absent)\n")


def test_a_question_without_an_answer_changes_nothing(run: Run) -> None:
    done = run("clear", "0123456789abcdef0123456789abcdef")
    assert done.returncode == 3
    assert done.stderr.endswith(b"halfstep: not confirmed, so nothing was changed\n")


def test_the_default_namespace_stays(run: Run) -> None:
    assert "cannot be deleted" in error_of(run("namespace", "delete", "default", "--yes"))


def test_output_that_has_no_room_is_an_error_on_one_line(daemon: Any) -> None:
    with Path("/dev/full").open("wb") as full:
        command = [*COMMAND, "stat", daemon.url]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=PATIENCE_S, check=False)
    assert (done.returncode, done.stderr) == (3, b"halfstep: No space left on device\n")


def test_match_and_rm_tell_of_every_key(run: Run, key: str) -> None:
    assert run("put", "-", "--key", key, stdin=bytes(100)).returncode == 0
    match = run("match", key, key + "-absent", "--json")
    assert match.returncode == 1
    assert json.loads(match.stdout) == [
        {"key": key, "present": True, "bytes": 100},
        {"key": key + "-absent", "present": False, "bytes": 0},
    ]
    assert run("match", key).returncode == 0
    table = run("match", key).stdout.decode()
    assert key in table
    assert "yes" in table
    gone = run("rm", key, key + "-absent", "--json")
    assert gone.returncode == 1
    assert json.loads(gone.stdout) == [{"key": key, "deleted": True}, {"key": key + "-absent", "deleted": False}]
    assert run("match", key).returncode == 1


def test_an_interrupted_put_is_a_miss_and_leaves_the_key_free(run: Run, daemon: Any, files: halfstep.Client, key: str) -> None:
    piece = files.facts().block_bytes_max
    environment = os.environ | {"HALFSTEP_URL": daemon.url}
    name = key.encode()
    with subprocess.Popen(
        [*COMMAND, "put", "-", "--key", key], stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        # One piece more than a call takes: then the call goes, and the next read waits for us.
        process.stdin.write(content(piece * PIECES_PER_CALL + piece, seed=3))
        process.stdin.flush()
        until = time.monotonic() + PATIENCE_S
        while not files.match([name], components=PIECES_PER_CALL).present.all():
            assert time.monotonic() < until, "the pieces never came"
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
        assert process.stderr.read() == b"halfstep: interrupted\n"
    assert run("match", key).returncode == 1
    assert run("get", key).returncode == 1
    # Pieces of the old value would lie before those of the new one.
    value = content(piece * 2, seed=4)
    assert run("put", "-", "--key", key, stdin=value).returncode == 0
    assert run("get", key).stdout == value


def test_what_is_left_of_a_longer_value_is_not_mixed_into_a_shorter_one(run: Run, files: halfstep.Client, key: str) -> None:
    piece = files.facts().block_bytes_max
    assert run("put", "-", "--key", key, stdin=content(3 * piece, seed=5)).returncode == 0
    # As eviction does it: the oldest piece first.
    assert files.delete([key.encode()]).ok.all()
    assert run("get", key).returncode == 1
    value = content(piece + 1, seed=6)
    assert run("put", "-", "--key", key, stdin=value).returncode == 0
    assert run("get", key).stdout == value
    assert run("rm", key).returncode == 0
    assert not files.match([key.encode()], components=3).present.any()


def test_rm_takes_along_what_an_interrupted_put_left(run: Run, files: halfstep.Client, key: str) -> None:
    assert files.put([key.encode()], bytes(10), first_component=0).ok.all()
    assert run("rm", key).returncode == 1, "the value as such was not there"
    assert not files.match([key.encode()]).present.any()


# ---- about a daemon ----


def test_check_passes_and_leaves_nothing(run: Run, daemon: Any) -> None:
    done = run("check", daemon.url)
    assert done.returncode == 0, done.stdout
    text = done.stdout.decode()
    assert "bytes identical" in text
    assert "path in use: tcp" in text
    told = json.loads(run("check", daemon.unix_url, "--json").stdout)
    assert told["ok"] is True
    assert told["path"].startswith("shm")
    assert [step["ok"] for step in told["steps"]] == [True] * 5
    assert "check-" not in run("ls", "--limit", "100000").stdout.decode()


def test_stat_shows_counters(run: Run, daemon: Any) -> None:
    told = json.loads(run("stat", "--json").stdout)
    assert told["counters"]['halfstep_requests_total{command="stat"}'] >= 0
    assert len(bytes.fromhex(told["store_uuid"])) == 16
    text = run("stat", daemon.url).stdout.decode()
    assert "path   tcp" in text
    assert "scrub  " in text
    assert "0 errors found" in text
    assert 'requests_total{command="hello"}' in text
    assert len(run("stat", "--all").stdout) > len(text)


def test_ls_shows_blocks_up_to_a_limit(run: Run, key: str) -> None:
    for number in range(3):
        assert run("put", "-", "--key", f"{key}-{number}", "--ttl", "3600", stdin=bytes(7)).returncode == 0
    entries = json.loads(run("ls", "--json", "--limit", "100000").stdout)
    ours = [entry for entry in entries if bytes.fromhex(entry["key"]).startswith(key.encode())]
    assert {entry["block_bytes"] for entry in ours} == {7}
    assert len(ours) == 3
    assert all(0 < entry["expiry_s"] - entry["created_s"] <= 3600 for entry in ours)
    shown = run("ls", "--limit", "2").stdout.decode()
    assert "2 shown; there may be more" in shown


@pytest.mark.parametrize(
    "arguments",
    [
        ("check",),
        ("stat",),
        ("ls",),
        ("get", "k"),
        ("rm", "k"),
        ("match", "k"),
        ("put", "-", "--key", "k"),
    ],
)
def test_without_a_daemon_the_error_names_the_url_and_the_remedy(run: Run, nobody: str, arguments: tuple[str, ...]) -> None:
    message = error_of(run(*arguments, stdin=b"x", url=nobody))
    assert nobody in message
    assert "halfstep serve" in message


@pytest.mark.parametrize("url", ["http://127.0.0.1", "halfstep://", "127.0.0.1:7350", "halfstep://127.0.0.1:99999"])
def test_a_wrong_url_is_refused_by_name(run: Run, url: str) -> None:
    assert url.split("://")[-1] in error_of(run("stat", url))


def test_an_unknown_namespace_is_refused_by_name(run: Run, daemon: Any) -> None:
    assert "nowhere" in error_of(run("stat", f"{daemon.url}/nowhere"))


def test_an_option_goes_before_the_environment(run: Run, daemon: Any, nobody: str, key: str) -> None:
    assert run("put", "-", "--key", key, "--url", daemon.url, stdin=b"x", url=nobody).returncode == 0


# ---- explain


def explain(run: Run, *arguments: str) -> dict[str, Any]:
    done = run("explain", *arguments, "--json")
    assert done.stderr == b""
    told: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if told["verdict"] == "there" else 1)
    return told


def test_explain_says_where_a_block_is_and_what_keeps_it(run: Run, key: str, files: halfstep.Client) -> None:
    assert run("put", "-", "--key", key, "--ttl", "1000", stdin=content(5000)).returncode == 0
    files.hold([key.encode()], owner=7, seconds=30, first_component=LAST_CELL)
    told = explain(run, key)
    (block,) = told["blocks"]
    assert told["verdict"] == "there"
    assert block["component"] == LAST_CELL
    assert block["block_bytes"] == 5000
    assert block["where"]["flash"]
    assert block["where"]["on_media"]
    assert block["created_s"] + 992 <= block["expiry_s"] <= block["created_s"] + 1000, "it is kept in steps of four seconds"
    assert [hold["persistent"] for hold in block["holds"]] == [False]
    assert [event["kind"] for event in block["events"]] == ["stored"]
    text = run("explain", key).stdout.decode()
    assert f"{key}: there, 1 block(s)" in text
    assert "lease, " in text
    assert "segment " in text


def test_explain_says_what_a_put_has_hinted(run: Run, key: str, files: halfstep.Client) -> None:
    assert files.put([key.encode()], [content(100)], block_bytes=100, first_component=LAST_CELL, hint=1).ok.all()
    (block,) = explain(run, key)["blocks"]
    assert block["hint"] == "final_turn"
    assert "hinted final turn" in " ".join(run("explain", key).stdout.decode().split())


def test_explain_says_when_and_why_a_block_went(run: Run, key: str) -> None:
    assert run("put", "-", "--key", key, stdin=content(5000)).returncode == 0
    assert run("rm", key).returncode == 0
    told = explain(run, key)
    (block,) = told["blocks"]
    assert told["verdict"] == "gone"
    assert [event["reason"] for event in block["events"]] == ["put", "deleted"]
    done = run("explain", key)
    assert done.returncode == 1
    assert "a client deleted it" in done.stdout.decode()


def test_explain_says_that_a_layout_was_cleared(run: Run, key: str, daemon: Any) -> None:
    layout = halfstep.Layout.opaque("explain", process=os.getpid())
    with halfstep.connect(daemon.url, layout=layout, required=True, deadline_ms=60_000) as client:
        assert client.put([key.encode()], [content(100)]).ok.all()
        client.clear()
    told = explain(run, key)
    (block,) = told["blocks"]
    assert told["verdict"] == "gone"
    assert block["layout"] == layout.id.hex()
    assert block["layout_cleared"]
    assert "its layout was cleared" in run("explain", key).stdout.decode()


def test_explain_says_how_far_its_memory_reaches(run: Run, key: str) -> None:
    told = explain(run, key)
    assert told["verdict"] == "never_seen"
    assert told["blocks"] == []
    assert told["whole"]
    assert f"{key}: never seen, as far as memory reaches" in run("explain", key).stdout.decode()


def test_explain_finds_a_component_that_nobody_would_guess(run: Run, key: str, files: halfstep.Client) -> None:
    component = 12_345
    files.put([key.encode()], [content(100)], first_component=component)
    assert [block["component"] for block in explain(run, key)["blocks"]] == [component]
    assert [block["component"] for block in explain(run, key, "--component", str(component))["blocks"]] == [component]
    assert explain(run, key, "--layout", "f" * 32)["verdict"] == "never_seen"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("hex:zz",), "pairs of hexadecimal digits"),
        (("k", "--layout", "xyz"), "up to 32 hexadecimal digits"),
        (("x" * 256,), "1 to 255"),
    ],
)
def test_explain_names_what_is_wrong(run: Run, arguments: tuple[str, ...], told: str) -> None:
    assert told in error_of(run("explain", *arguments))
