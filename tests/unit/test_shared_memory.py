"""What dead engines leave in shared memory is swept, what living ones have is not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from halfstep.connectors.shared_memory import SUFFIX, Owned, sweep

OWNER = """
import pathlib, sys, time
from halfstep.connectors.shared_memory import Owned
folder, name = pathlib.Path(sys.argv[1]), sys.argv[2]
owned = Owned(name, folder)
(folder / name).write_bytes(b"kv")
print("there", flush=True)
sys.stdin.read()
"""


def owner(folder: Path, name: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", OWNER, str(folder), name], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"there\n"
    return process


def test_the_killed_are_swept_and_the_living_are_not(tmp_path: Path) -> None:
    living, killed = owner(tmp_path, "living"), owner(tmp_path, "killed")
    try:
        assert sweep(tmp_path) == []
        killed.kill()
        killed.wait()
        assert sweep(tmp_path) == ["killed"]
        assert sorted(path.name for path in tmp_path.iterdir()) == ["living", "living" + SUFFIX]
    finally:
        living.communicate()
        killed.communicate()
    assert sweep(tmp_path) == ["living"]


RESTLESS = """
import pathlib, sys
from halfstep.connectors.shared_memory import Owned
folder, name = pathlib.Path(sys.argv[1]), sys.argv[2]
print("there", flush=True)
while True:
    owned = Owned(name, folder)
    (folder / name).write_bytes(b"kv")
    (folder / name).unlink()
    owned.close()
"""


def test_twenty_that_are_killed_at_any_moment_leave_nothing(tmp_path: Path) -> None:
    for number in range(20):
        command = [sys.executable, "-c", RESTLESS, str(tmp_path), f"memory-{number}"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"there\n"
        process.kill()
        process.wait()
        process.stdout.close()
    sweep(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_is_used_again_has_one_mark(tmp_path: Path) -> None:
    killed = owner(tmp_path, "memory")
    killed.kill()
    killed.communicate()
    again = owner(tmp_path, "memory")
    assert sweep(tmp_path) == []
    again.communicate()
    assert sweep(tmp_path) == ["memory"]


def test_what_is_closed_in_order_is_not_ours_to_remove(tmp_path: Path) -> None:
    (tmp_path / "memory").write_bytes(b"kv")
    Owned("memory", tmp_path).close()
    assert sweep(tmp_path) == []
    assert (tmp_path / "memory").exists()


def test_files_without_a_mark_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "somebody's").write_bytes(b"kv")
    assert sweep(tmp_path) == []
    assert (tmp_path / "somebody's").exists()


def test_a_folder_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    Owned("memory", tmp_path / "absent").close()
    assert sweep(tmp_path / "absent") == []
