"""`halfstep serve --spdk`: what the target is to have is made at the start, and again when it comes back.

The control plane is a stand-in's (tests/unit/io/fake_spdk.py), the vhost-user-blk device below it qemu-storage-daemon's; a real
`spdk_tgt` is used where one is in the path.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.vhost_target import PATIENCE_S, Target, block_of
from tests.unit.io.fake_spdk import FakeSpdk

import halfstep
from halfstep.errors import HalfstepError
from halfstep.tools.daemon_process import DaemonProcess

pytestmark = pytest.mark.integration

ARGUMENTS = ("--arena", "32MiB", "--scrub", "off")


def settings(directory: Path, socket: Path, image: Path, controller: str) -> Path:
    """A file for --spdk."""
    path = directory / "spdk.toml"
    path.write_text(
        f'rpc_socket = "{socket}"\ndeadline_s = {PATIENCE_S}\n[bdev]\nname = "hs0"\nkind = "aio"\nsource = "{image}"\n'
        f'block_bytes = 4096\n[controller]\nname = "{controller}"\n'
    )
    return path


@pytest.fixture
def spdk(tmp_path: Path) -> Iterator[tuple[FakeSpdk, Target, DaemonProcess]]:
    """A stand-in's control plane whose controller's socket is a real target's, and a daemon that is not started."""
    program = shutil.which("qemu-storage-daemon")
    if program is None:
        pytest.skip("no vhost-user-blk target: there is no qemu-storage-daemon here")
    target = Target(tmp_path, program)
    fake = FakeSpdk(tmp_path / "rpc.sock", tmp_path)
    fake.start()
    file = settings(tmp_path, fake.path, target.image, target.socket.name)
    daemon = DaemonProcess(tmp_path, *ARGUMENTS, "--spdk", str(file))
    daemon.store = Path(target.store)
    yield fake, target, daemon
    if daemon.running:
        daemon.end(signal.SIGKILL)
    fake.stop()
    target.kill()


def test_what_the_target_is_to_have_is_made_and_made_again_after_its_restart(
    spdk: tuple[FakeSpdk, Target, DaemonProcess],
) -> None:
    fake, target, daemon = spdk
    daemon.start()
    assert list(fake.controllers) == [target.socket.name]
    with halfstep.connect(daemon.url, required=True, deadline_ms=PATIENCE_S * 1000) as client:
        assert client.put([b"one"], block_of(1), durability="persist").ok.all()
        fake.stop()
        fake.start()
        until = time.monotonic() + PATIENCE_S
        while "made again by bdev_aio_create, vhost_create_blk_controller" not in daemon.log_end():
            assert time.monotonic() < until, daemon.log_end()
            time.sleep(0.05)
        assert client.put([b"two"], block_of(2), durability="persist").ok.all()
    assert daemon.end(signal.SIGTERM) == 0


def test_a_target_that_is_not_there_or_has_something_else_ends_the_start(
    spdk: tuple[FakeSpdk, Target, DaemonProcess],
) -> None:
    fake, target, daemon = spdk
    daemon.store = Path(f"vhost-user:{target.socket}.other")
    with pytest.raises(HalfstepError, match=r"SPDK's controller target\.sock listens at"):
        daemon.start()
    fake.stop()
    with pytest.raises(HalfstepError, match="start the target, or correct rpc_socket"):
        daemon.start()
    fake.start()


@pytest.mark.slow
def test_a_real_target_of_spdks_serves_a_store(tmp_path: Path) -> None:
    program = shutil.which("spdk_tgt")
    if program is None:
        pytest.skip("there is no spdk_tgt in the path")
    free = int(Path("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages").read_text())
    if free < 300:
        pytest.skip(f"SPDK and the arena need 300 reserved pages of 2 MiB, {free} are free")
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(160 << 20)
    rpc = tmp_path / "spdk.sock"
    with subprocess.Popen([program, "-m", "0x1", "-s", "512", "--no-pci", "-r", str(rpc), "-S", str(tmp_path)]) as target:
        try:
            until = time.monotonic() + PATIENCE_S
            while not rpc.exists():
                assert target.poll() is None, "spdk_tgt ended"
                assert time.monotonic() < until, "spdk_tgt does not listen"
                time.sleep(0.05)
            file = settings(tmp_path, rpc, image, "halfstep.0")
            made = subprocess.run(
                [sys.executable, "-P", "-m", "halfstep.tools.cli", "device", "spdk", str(file)],
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                check=False,
            )
            assert made.returncode == 0, made.stderr
            daemon = DaemonProcess(tmp_path, *ARGUMENTS, "--spdk", str(file))
            daemon.store = Path(f"vhost-user:{tmp_path / 'halfstep.0'}")
            daemon.start()
            with halfstep.connect(daemon.url, required=True, deadline_ms=PATIENCE_S * 1000) as client:
                assert client.put([b"one"], block_of(1), durability="persist").ok.all()
            assert daemon.end(signal.SIGTERM) == 0
        finally:
            os.kill(target.pid, signal.SIGTERM)
