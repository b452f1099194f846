"""Several drives are several daemons: one whose drive hangs answers misses within their deadlines, and touches no other."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from tests.integration.vhost_target import BLOCK_BYTES, PATIENCE_S, Target, block_of

import halfstep
from halfstep.tools.daemon_process import DaemonProcess

pytestmark = pytest.mark.integration

ARGUMENTS = ("--arena", "32MiB", "--scrub", "off")
DEADLINE_MS = 500
BLOCKS = 1000  # more than an arena holds


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[tuple[DaemonProcess, DaemonProcess, Target]]:
    """One on a vhost-user target, one on a file, and the target."""
    program = shutil.which("qemu-storage-daemon")
    if program is None:
        pytest.skip("no drive that can be stopped: there is no qemu-storage-daemon here")
    with ExitStack() as ends:
        first, second = tmp_path / "first", tmp_path / "second"
        first.mkdir()
        second.mkdir()
        target = Target(first, program)
        ends.callback(target.kill)
        on_target, on_file = DaemonProcess(first, *ARGUMENTS), DaemonProcess(second, *ARGUMENTS, "--size", "160MiB")
        on_target.store = Path(target.store)
        for one in (on_target, on_file):
            one.start()
            ends.callback(one.end, signal.SIGKILL)
        yield on_target, on_file, target


def test_a_drive_that_hangs_costs_misses_of_its_own_daemon_alone(
    daemons: tuple[DaemonProcess, DaemonProcess, Target],
) -> None:
    on_target, on_file, target = daemons
    back = np.zeros(BLOCK_BYTES, np.uint8)
    keys = [b"key-%d" % number for number in range(BLOCKS)]
    with (
        halfstep.connect(on_target.url, required=True, deadline_ms=PATIENCE_S * 1000) as hanging,
        halfstep.connect(on_file.url, required=True, deadline_ms=PATIENCE_S * 1000) as well,
    ):
        for client in (hanging, well):
            for number, key in enumerate(keys):
                durability = "persist" if number % 50 == 0 else "cache"
                assert client.put([key], block_of(number), durability=durability).ok.all()
        os.kill(target.pid, signal.SIGSTOP)
        try:
            missed = 0
            for number, key in enumerate(keys[:20]):
                got = hanging.get([key], back, deadline_ms=DEADLINE_MS)
                missed += not got.ok.any()
                # Meanwhile the other one serves all that it has, from its own drive.
                assert well.get([key], back).ok.all()
                assert np.array_equal(back, block_of(number))
            assert missed > 0, "all of it was in memory: nothing was asked of the drive"
            assert well.put([b"during"], block_of(7), durability="persist").ok.all()
            assert hanging.stat()["halfstep_device_losses_total"] == 0, "it hangs, and is not gone"
        finally:
            os.kill(target.pid, signal.SIGCONT)
        until = time.monotonic() + PATIENCE_S
        while not hanging.get([keys[0]], back).ok.all():
            assert time.monotonic() < until, "the drive that goes on is not used"
        assert np.array_equal(back, block_of(0))
