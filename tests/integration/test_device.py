"""`halfstep device list, probe, format`: on files, and on loop devices where there are any."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.loop_device import SEARCH, loop_device
from tests.integration.serving import Serve, works

pytestmark = pytest.mark.integration

MIB = 1 << 20
EXIT_ERROR = 3


def device(*arguments: str, expect: int = 0) -> str:
    """What `halfstep device …` prints, or says on stderr where it fails."""
    command = [sys.executable, "-P", "-m", "halfstep.tools.cli", "device", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == expect, done.stderr + done.stdout
    return done.stdout if expect == 0 else done.stdout + done.stderr


def as_json(*arguments: str, expect: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(device(*arguments, "--json", expect=expect))
    return found


@pytest.fixture
def drive(tmp_path: Path) -> Iterator[Path]:
    """A blank device of 160 MiB."""
    with loop_device(tmp_path / "drive") as one:
        yield one


def test_a_file_is_made_a_store_ahead_of_its_daemon(tmp_path: Path, serve: Callable[..., Serve]) -> None:
    store = tmp_path / "store.hs"
    made = as_json("format", str(store), "--size", "160MiB")
    assert (made["bytes"], made["segments"] > 63, made["block_device"]) == (160 * MIB, True, False)
    assert "LBA format" in made["unchanged"]
    one = serve("--store", str(store), "--size", "")
    assert works("halfstep://" + one.read_until("listening").split()[1])
    assert one.finish(signal.SIGTERM)[0] == 0
    again = device("format", str(store), "--size", "160MiB", expect=EXIT_ERROR)
    assert "holds store Halfstep at byte 0" in again
    assert "stop its daemon" in again


def test_a_file_that_holds_something_is_kept_unless_it_is_forced(tmp_path: Path) -> None:
    store = tmp_path / "image"
    for content, says in (
        (b"LUKS\xba\xbe" + bytes(8186), "encryption LUKS at byte 0"),
        (b"my thesis" * 1000, "is there already"),
    ):
        store.write_bytes(content)
        assert says in device("format", str(store), "--size", "160MiB", expect=EXIT_ERROR)
        assert store.read_bytes() == content
    made = as_json("format", str(store), "--size", "160MiB", "--force")
    assert made["bytes"] == 160 * MIB == store.stat().st_size
    assert store.read_bytes()[:8] == b"HALFSTEP"
    assert as_json("probe", str(store))["kind"] == "file"


def test_what_no_store_can_be_made_of_is_refused_by_its_kind(tmp_path: Path) -> None:
    assert "is a directory; name a file in it" in device("format", str(tmp_path), "--force", expect=EXIT_ERROR)
    assert "neither a block device nor a file" in device("format", "/dev/null", "--force", expect=EXIT_ERROR)
    assert "there is no such device" in device("format", "/dev/no-such-drive", expect=EXIT_ERROR)
    assert "at least 64 segments" in device("format", str(tmp_path / "small"), "--size", "1MiB", expect=EXIT_ERROR)
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_a_daemon_serves_is_not_formatted_by_force(tmp_path: Path, serve: Callable[..., Serve]) -> None:
    store = tmp_path / "store.hs"
    one = serve("--store", str(store))
    url = "halfstep://" + one.read_until("listening").split()[1]
    refused = device("format", str(store), "--force", expect=EXIT_ERROR)
    assert "one store serves one daemon" in refused
    assert works(url)
    assert one.finish(signal.SIGTERM)[0] == 0


def test_probe_says_what_the_daemon_would_do_with_a_path(tmp_path: Path) -> None:
    new = as_json("probe", str(tmp_path / "new"))
    assert (new["kind"], new["why_not"]) == ("new file", "")
    assert as_json("probe", str(tmp_path))["kind"] == "directory"
    file = tmp_path / "file"
    file.write_bytes(bytes(MIB))
    found = as_json("probe", str(file))
    assert found["backing"]["engine"] in ("uring", "pread")
    assert found["backing"]["bytes"] == MIB
    gone = as_json("probe", f"vhost-user:{tmp_path / 'nobody'}", expect=1)
    assert "start the target" in gone["why_not"]
    text = device("probe", str(file))
    assert "engine" in text
    assert "access" in text


def test_a_blank_device_is_listed_probed_formatted_and_served(drive: Path, serve: Callable[..., Serve]) -> None:
    def listed() -> dict[str, Any]:
        return next(one for one in json.loads(device("list", "--json")) if one["path"] == str(drive))

    assert listed()["free"]
    assert listed()["bytes"] == 160 * MIB
    found = as_json("probe", str(drive))
    assert (found["kind"], found["why_not"]) == ("block device", "")
    assert found["backing"]["engine"] in ("uring", "pread")
    made = as_json("format", str(drive))
    assert (made["bytes"], made["block_device"]) == (160 * MIB, True)
    one = serve("--store", str(drive), "--size", "")
    url = "halfstep://" + one.read_until("listening").split()[1]
    assert "the store is new" not in one.line("recovery")
    assert works(url)
    assert not listed()["free"]
    assert "halfstep" in listed()["why_not_free"] or "python" in listed()["why_not_free"]
    assert "in use" in as_json("probe", str(drive), expect=1)["why_not"]
    assert "in use" in device("format", str(drive), "--force", expect=EXIT_ERROR)
    assert one.finish(signal.SIGTERM)[0] == 0
    assert listed()["why_not_free"] == "holds store: Halfstep"
    assert str(drive) in device("list")


def test_a_device_with_a_file_system_is_formatted_by_force_alone_and_not_while_it_is_mounted(
    drive: Path, tmp_path: Path, serve: Callable[..., Serve]
) -> None:
    make, wipefs = shutil.which("mkfs.ext4", path=SEARCH), shutil.which("wipefs", path=SEARCH)
    if make is None or wipefs is None:
        pytest.skip("mkfs.ext4 and wipefs are not both here")
    subprocess.run([make, "-q", str(drive)], check=True, timeout=60)
    refused = device("format", str(drive), expect=EXIT_ERROR)
    assert "holds file system ext2, ext3 or ext4 at byte 1080" in refused
    assert "--force, which destroys it" in refused
    point = tmp_path / "mounted"
    point.mkdir()
    mounted = subprocess.run(["mount", str(drive), str(point)], capture_output=True, text=True, timeout=60, check=False)
    if mounted.returncode == 0:
        try:
            for force in ((), ("--force",)):
                refused = device("format", str(drive), *force, expect=EXIT_ERROR)
                assert f"is mounted at {point}" in refused
                assert f"umount {point}" in refused
            (point / "alive").write_text("yes")
        finally:
            subprocess.run(["umount", str(point)], check=True, timeout=60)
    assert as_json("format", str(drive), "--force")["block_device"]
    left = subprocess.run([wipefs, "--noheadings", str(drive)], check=True, capture_output=True, text=True, timeout=60).stdout
    assert left.strip() == "", "a mark of what was there"
    one = serve("--store", str(drive), "--size", "")
    assert works("halfstep://" + one.read_until("listening").split()[1])
    assert one.finish(signal.SIGTERM)[0] == 0


def test_a_device_that_holds_what_nobody_knows_is_refused_too(drive: Path) -> None:
    with drive.open("r+b") as file:
        file.seek(100 * MIB)
        file.write(b"?")
    refused = device("format", str(drive), expect=EXIT_ERROR)
    assert f"holds something, at byte {100 * MIB} first" in refused
    assert as_json("format", str(drive), "--force")["bytes"] == 160 * MIB
