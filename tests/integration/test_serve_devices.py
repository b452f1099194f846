"""`halfstep serve` on a block device."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.integration.loop_device import loop_device
from tests.integration.serving import Serve, refused, works

pytestmark = pytest.mark.integration


@pytest.fixture
def block_device(tmp_path: Path) -> Iterator[Path]:
    """A blank device of 160 MiB: a loop device over a sparse file."""
    with loop_device(tmp_path / "drive") as device:
        yield device


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
    wrong = refused(serve("--store", str(block_device), "--size", ""))
    assert "this is not a store" in wrong
    assert f"halfstep device format --force {block_device}" in wrong
