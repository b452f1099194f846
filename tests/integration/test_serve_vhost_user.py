"""`halfstep serve` on a vhost-user-blk target: qemu-storage-daemon, in another process, has the drive."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.integration.vhost_target import BLOCK_BYTES, IMAGE_BYTES, PATIENCE_S, Target, block_of

import halfstep
from halfstep.errors import HalfstepError
from halfstep.tools.daemon_process import DaemonProcess

pytestmark = pytest.mark.integration

ARGUMENTS = ("--arena", "32MiB", "--scrub", "off")


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    """A target with a blank image of 160 MiB."""
    program = shutil.which("qemu-storage-daemon")
    if program is None:
        pytest.skip("no vhost-user-blk target: there is no qemu-storage-daemon here")
    one = Target(tmp_path, program)
    yield one
    one.kill()


@pytest.fixture
def daemon(tmp_path: Path, target: Target) -> Iterator[DaemonProcess]:
    """A daemon whose store is on the target; not started."""
    one = DaemonProcess(tmp_path, *ARGUMENTS)
    one.store = Path(target.store)
    yield one
    if one.running:
        one.end(signal.SIGKILL)


def test_a_blank_target_becomes_a_store_that_is_there_after_a_restart(target: Target, daemon: DaemonProcess) -> None:
    daemon.start()
    assert daemon.facts["engine"]["name"] == "vhost_user"
    assert daemon.facts["engine"]["registered_buffers"], daemon.facts["engine"]
    assert daemon.facts["backing"]["vhost_user"]
    assert daemon.facts["backing"]["bytes"] == IMAGE_BYTES
    keys, back = [b"key-%d" % number for number in range(200)], np.zeros(BLOCK_BYTES, np.uint8)
    with halfstep.connect(daemon.url, required=True, deadline_ms=30_000) as client:
        for number, key in enumerate(keys):
            assert client.put([key], block_of(number), durability="persist").ok.all()
    assert daemon.end(signal.SIGTERM) == 0
    daemon.start()
    with halfstep.connect(daemon.url, required=True, deadline_ms=30_000) as client:
        for number, key in enumerate(keys):
            assert client.get([key], back).ok.all()
            assert np.array_equal(back, block_of(number))
        counted = client.stat()
    assert counted["halfstep_device_kicks_total"] > 0
    assert counted["halfstep_device_losses_total"] == 0


def test_a_target_that_is_not_there_or_holds_something_else_is_refused(target: Target, daemon: DaemonProcess) -> None:
    target.kill()
    with pytest.raises(HalfstepError, match="start the target, or name the socket that it listens on"):
        daemon.start()
    with target.image.open("r+b") as image:
        image.seek(1080)
        image.write(b"\x53\xef")
    target.start()
    with pytest.raises(HalfstepError, match="blank it on the target's side"):
        daemon.start()


def test_fsck_reads_a_store_through_its_target(target: Target, daemon: DaemonProcess) -> None:
    daemon.start()
    with halfstep.connect(daemon.url, required=True, deadline_ms=30_000) as client:
        assert client.put([b"one"], block_of(1), durability="persist").ok.all()
    assert daemon.end(signal.SIGTERM) == 0
    command = [sys.executable, "-P", "-m", "halfstep.tools.cli", "fsck", target.store]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    assert "1 live" in done.stdout
    target.kill()
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 3
    assert "start the target" in done.stderr


def kill_under_load(target: Target, daemon: DaemonProcess, times: int) -> None:
    """Kills and restarts the target while blocks are put and read: no wrong byte, no lost block that is on media."""
    daemon.start()
    stop = threading.Event()
    wrong: list[int] = []
    persisted: list[int] = []
    failed: list[HalfstepError] = []

    def load(worker: int) -> None:
        back = np.zeros(BLOCK_BYTES, np.uint8)
        rng = np.random.default_rng(worker)
        try:
            with halfstep.connect(daemon.url, required=True, deadline_ms=PATIENCE_S * 1000) as client:
                for round_number in range(1_000_000):
                    if stop.is_set():
                        return
                    number = worker * 1_000_000 + round_number % 400
                    key = b"load-%d" % number
                    if round_number % 4:
                        client.put([key], block_of(number))
                    elif client.put([key], block_of(number), durability="persist").ok.all():
                        persisted.append(number)
                    asked = worker * 1_000_000 + int(rng.integers(0, round_number % 400 + 1))
                    if client.get([b"load-%d" % asked], back).ok.all() and not np.array_equal(back, block_of(asked)):
                        wrong.append(asked)
        except HalfstepError as error:
            failed.append(error)

    workers = [threading.Thread(target=load, args=(worker,)) for worker in range(2)]
    for one in workers:
        one.start()
    for _ in range(times):
        before = len(persisted)
        target.kill()
        target.start()
        until = time.monotonic() + PATIENCE_S
        while len(persisted) < before + 4 and time.monotonic() < until and not failed:
            time.sleep(0.02)
        assert not failed, failed
        assert len(persisted) >= before + 4, "puts do not reach the target that came back"
    stop.set()
    for one in workers:
        one.join(PATIENCE_S)
        assert not one.is_alive()
    assert not failed, failed
    assert not wrong
    back = np.zeros(BLOCK_BYTES, np.uint8)
    with halfstep.connect(daemon.url, required=True, deadline_ms=30_000) as client:
        # One that is killed before it was taken back is no further loss.
        assert 0 < client.stat()["halfstep_device_losses_total"] <= times
    # From media, by another process: what was said to be there is.
    assert daemon.end(signal.SIGKILL) != 0
    daemon.start()
    with halfstep.connect(daemon.url, required=True, deadline_ms=30_000) as client:
        for number in set(persisted):
            assert client.get([b"load-%d" % number], back).ok.all(), number
            assert np.array_equal(back, block_of(number)), number


def test_a_target_killed_under_load_costs_misses_alone(target: Target, daemon: DaemonProcess) -> None:
    kill_under_load(target, daemon, 2)


@pytest.mark.slow
def test_a_target_killed_twenty_times_under_load_costs_misses_alone(target: Target, daemon: DaemonProcess) -> None:
    kill_under_load(target, daemon, 20)


def test_gets_and_matches_end_as_misses_while_the_target_is_away(target: Target, daemon: DaemonProcess) -> None:
    # More than the arena: what is asked for is on the target alone.
    keys = [b"away-%d" % number for number in range(1200)]
    back = np.zeros(BLOCK_BYTES, np.uint8)
    daemon.start()
    with halfstep.connect(daemon.url, required=True, deadline_ms=30_000) as client:
        for number, key in enumerate(keys):
            assert client.put([key], block_of(number), durability="persist").ok.all()
        target.kill()
        for key in keys[:20]:
            got = client.get([key], back, deadline_ms=5000)
            assert not got.ok.any(), key
            client.match([key], deadline_ms=5000)
        assert client.stat()["halfstep_device_losses_total"] == 1


def test_another_image_of_the_same_size_is_not_used_and_the_store_that_returns_is(
    target: Target, daemon: DaemonProcess, tmp_path: Path
) -> None:
    # A store of somebody else's, made by another daemon.
    own, other = tmp_path / "own", tmp_path / "other"
    daemon.start()
    assert daemon.end(signal.SIGTERM) == 0
    target.kill()
    target.image.rename(other)
    with target.image.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    target.start()
    daemon.start()
    stranger = other.read_bytes()
    back = np.zeros(BLOCK_BYTES, np.uint8)
    with halfstep.connect(daemon.url, required=True, deadline_ms=30_000) as client:
        assert client.put([b"before"], block_of(1), durability="persist").ok.all()
        target.kill()
        target.image.rename(own)
        other.rename(target.image)
        target.start()
        until = time.monotonic() + PATIENCE_S
        number = 0
        while "it is not used" not in daemon.log_end():
            assert time.monotonic() < until, "nothing is said of the other image"
            client.put([b"during-%d" % number], block_of(2), durability="persist")
            number += 1
            time.sleep(0.1)
        assert target.image.read_bytes() == stranger, "written into somebody else's store"
        target.kill()
        target.image.rename(other)
        own.rename(target.image)
        target.start()
        until = time.monotonic() + PATIENCE_S
        while not client.put([b"after"], block_of(3), durability="persist").ok.all():
            assert time.monotonic() < until, "the store that came back is not used"
            time.sleep(0.1)
        assert client.get([b"before"], back).ok.all()
        assert np.array_equal(back, block_of(1))
