"""What `halfstep serve` finds at the path of its store: links, devices, files that were cut, stores that were left."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import halfstep
from halfstep.tools.daemon_process import DaemonProcess

PATIENCE_S = 60
CLI = (sys.executable, "-m", "halfstep.tools.cli")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A command of halfstep's to its end."""
    return subprocess.run([*CLI, *arguments], capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def refusal(store: Path, *, size: str = "132MiB") -> str:
    """The one line of error of a `serve` that does not start."""
    arguments = ("--store", str(store), "--size", size, "--arena", "32MiB", "--unix", "none", "--listen", "127.0.0.1:0")
    done = run("serve", *arguments)
    assert done.returncode == 3, (done.returncode, done.stdout, done.stderr)
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


@contextlib.contextmanager
def serving(directory: Path, name: str = "store.hs") -> Iterator[DaemonProcess]:
    """A small daemon on a store in `directory`, stopped cleanly."""
    daemon = DaemonProcess(directory, "--size", "132MiB", "--arena", "32MiB")
    daemon.store = directory / name
    daemon.start()
    try:
        yield daemon
    finally:
        assert daemon.end(signal.SIGTERM) == 0


def put(url: str) -> None:
    """One block."""
    with halfstep.connect(url, required=True, deadline_ms=30_000) as client:
        assert client.put([b"k"], np.arange(5000, dtype=np.uint8)).ok.all()


def there(url: str) -> bool:
    """The block of put(), byte for byte."""
    back = np.zeros(5000, np.uint8)
    with halfstep.connect(url, required=True, deadline_ms=30_000) as client:
        return bool(client.get([b"k"], back).ok.all() and (back == np.arange(5000, dtype=np.uint8)).all())


def tree(directory: Path) -> list[str]:
    """All names below it."""
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


def test_a_link_to_a_drive_that_is_not_mounted_is_kept(tmp_path: Path) -> None:
    drive, state = tmp_path / "nvme", tmp_path / "state"
    drive.mkdir()
    state.mkdir()
    with serving(drive) as daemon:
        put(daemon.url)
    (state / "store.hs").symlink_to(drive / "store.hs")
    drive.rename(tmp_path / "away")
    before = tree(state)
    for store in (state, state / "store.hs"):
        assert f"links to {drive / 'store.hs'}, which is not there: mount it, or remove the link" in refusal(store)
    assert tree(state) == before
    checked = run("fsck", str(state / "store.hs"))
    assert "links to" in checked.stderr, checked
    (tmp_path / "away").rename(drive)
    with serving(state) as daemon:
        assert there(daemon.url)
    assert (state / "store.hs").is_symlink()


def test_a_directory_that_links_to_a_missing_drive_is_named(tmp_path: Path) -> None:
    (tmp_path / "state").symlink_to(tmp_path / "nvme")
    assert f"{tmp_path / 'state'} links to {tmp_path / 'nvme'}" in refusal(tmp_path / "state" / "deeper" / "store.hs")
    assert tree(tmp_path) == ["state"]


def test_a_circle_of_links_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert "lead in a circle" in refusal(tmp_path / "a")
    assert "lead in a circle" in refusal(tmp_path / "a" / "store.hs")


@pytest.mark.parametrize("device", ["/dev/halfstep-no-such-drive", "/dev/halfstep-none/drive", "/dev/../dev/halfstep-none"])
def test_nothing_is_made_below_dev(device: str) -> None:
    try:
        assert "nothing is made below /dev" in refusal(Path(device))
        assert not os.path.lexists(device)
        assert not os.path.lexists(Path(device).parent) or Path(device).parent.resolve() == Path("/dev")
    finally:  # where it was made all the same
        Path(device).unlink(missing_ok=True)
        shutil.rmtree("/dev/halfstep-none", ignore_errors=True)


def test_a_store_under_the_name_of_a_new_one_is_kept(tmp_path: Path) -> None:
    with serving(tmp_path, "store.hs.new") as daemon:
        put(daemon.url)
    inode = (tmp_path / "store.hs.new").stat().st_ino
    said = refusal(tmp_path / "store.hs")
    assert "store.hs.new: holds a store, with 1 blocks" in said
    assert "rename it" in said
    assert (tmp_path / "store.hs.new").stat().st_ino == inode
    assert not (tmp_path / "store.hs").exists()
    (tmp_path / "store.hs.new").rename(tmp_path / "store.hs")
    with serving(tmp_path) as daemon:
        assert there(daemon.url)


@pytest.mark.parametrize("by", [-4097, -1, 1, 4096, 5000])
def test_a_length_that_is_no_multiple_of_a_page_is_served(tmp_path: Path, by: int) -> None:
    with serving(tmp_path) as daemon:
        put(daemon.url)
    store = tmp_path / "store.hs"
    os.truncate(store, store.stat().st_size + by)
    checked = run("fsck", str(store))
    assert checked.returncode in (0, 1), checked
    assert "1 live" in checked.stdout, checked
    with serving(tmp_path) as daemon:
        assert there(daemon.url)


def test_a_damaged_start_of_a_longer_file_is_served(tmp_path: Path) -> None:
    with serving(tmp_path) as daemon:
        put(daemon.url)
    store = tmp_path / "store.hs"
    os.truncate(store, store.stat().st_size + 4096)
    with store.open("r+b") as file:
        file.write(os.urandom(8192))
    checked = run("fsck", str(store))
    assert "damaged, nothing lost" in checked.stdout, checked
    with serving(tmp_path) as daemon:
        assert there(daemon.url)
