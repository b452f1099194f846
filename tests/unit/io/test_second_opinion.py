"""A second opinion costs this process nothing, whatever the package does."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from halfstep.io.second_opinion import NEEDED, Job, Opinion, ask, first_page, transfer

BLOCK = 4096


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "liburing ended by SIGILL: its builds of 2026 need AVX-512"),
        ("raise ModuleNotFoundError(\"No module named 'liburing'\")", "pip install 'halfstep[doctor]'"),
        ("raise OSError(1, 'Operation not permitted')", "Operation not permitted"),
        ("print('hello')", "no list of operations"),
        ("print('[1]')", "no list of operations"),
    ],
)
def test_a_package_that_fails_is_no_opinion_and_says_why(program: str, says: str) -> None:
    found = ask(program)
    assert says in found.why_none
    assert found.operations == frozenset()


def test_what_the_package_says_is_compared_with_what_the_daemon_needs() -> None:
    told = ", ".join(f"'IORING_OP_{one}': True" for one in NEEDED if one != "FSYNC")
    found = ask(f"import json; print(json.dumps({{{told}, 'IORING_OP_FSYNC': False}}))")
    assert found.missing == ("FSYNC",)
    assert Opinion(frozenset(NEEDED)).missing == ()


def test_the_package_itself_where_it_is_installed() -> None:
    found = ask()
    if found.why_none:
        pytest.skip(found.why_none)
    assert "NOP" in found.operations


def told(**facts: object) -> str:
    return json.dumps({"seconds": 0.5, "digest": "7a", "failed": "", "reads": 2, "writes": 1} | facts)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "SIGILL"),
        ("print('hello')", "no times of transfers"),
        (f"print({told(reads=7)!r})", "no times of transfers"),
        (f"print({told(reads=-1, writes=1)!r})", "no times of transfers"),
        (f"print({told()!r}, end='\\n1234')", "no times of transfers"),
        ("raise OSError(22, 'Invalid argument')", "Invalid argument"),
    ],
)
def test_a_process_that_fails_made_no_transfers(tmp_path: Path, text: str, says: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(text)
    found = transfer(Job("/nowhere", "read", BLOCK, 1, 1, 0.0), program)
    assert says in found.why_none
    assert found.reads_us == found.writes_us == ()


def test_times_of_reads_and_writes_are_told_apart(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        f"import array, sys\nassert '\"depth\": 3' in sys.argv[1]\n"
        f"sys.stdout.buffer.write({told()!r}.encode() + b'\\n' + array.array('d', [1.0, 2.0, 3.0]).tobytes())\n"
    )
    found = transfer(Job("/nowhere", "mixed", BLOCK, 3, 1, 0.0), program)
    assert (found.reads_us, found.writes_us, found.why_none) == ((1.0, 2.0), (3.0,), "")


def test_a_ring_of_the_package_moves_blocks_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(os.urandom(4 * BLOCK))
    found = first_page(str(file))
    if found.why_none:
        pytest.skip(found.why_none)
    assert found.digest == hashlib.sha256(file.read_bytes()[:BLOCK]).hexdigest()
    before = file.read_bytes()
    done = transfer(Job(str(file), "mixed", BLOCK, 4, 4, 0.2, read_percent=50))
    assert (done.why_none, done.failed) == ("", "")
    assert done.reads_us
    assert done.writes_us
    assert file.read_bytes() != before
    beyond = transfer(Job(str(file), "read", BLOCK, 1, 8, 0.2))
    assert beyond.failed == f"read of {BLOCK} bytes: 0 bytes came"
