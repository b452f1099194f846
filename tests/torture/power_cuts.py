"""A power cut that really loses what was written and not flushed, under full load, again and again on one store that wraps.

The store's file is an nbdfuse mount of a block device whose volatile write cache is nbdkit's cache filter in write-back mode.
The cut is SIGKILL to nbdkit: what the daemon wrote since its last flush is gone, what a flush was writing just then is there in
part. The daemon sees a dead device for a moment, then it is killed, too. SIGKILL to the daemon alone loses nothing of what it
wrote, which is what kills.py is for.

    store.hs (FUSE) -> nbdfuse -> unix socket -> nbdkit --filter=cache (volatile) -> disk.img

QEMU's FUSE export does not do in nbdfuse's place: in 7.2 writes that are under way at once overwrite each other's bytes.
The rules are those of kills.py (load.py, oracle.py). Needs the packages below and /dev/fuse; where they are missing nothing is
run, and the exit status says so.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from tests.torture.load import Tally, report, run_rounds

from halfstep.tools.daemon_process import DaemonProcess

STORE, ARENA = "132MiB", "32MiB"
LOAD_S = (0.05, 0.8)
# How long the daemon lives on with a dead device: its answers then acknowledge nothing that it cannot have flushed.
AFTERWARDS_S = 0.05
READY_S = 20.0
# Commands and the Debian packages that bring them.
PACKAGES = {"nbdkit": "nbdkit", "nbdfuse": "libnbd-bin", "fusermount3": "fuse3"}
EXIT_SKIPPED = 77


def why_not() -> str:
    """What is missing here, with its remedy; "" when a power cut can be made."""
    missing = [command for command in PACKAGES if shutil.which(command) is None]
    if missing:
        packages = " ".join(PACKAGES[command] for command in missing)
        return f"{', '.join(missing)}: not installed; apt-get install --no-install-recommends {packages}"
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        return f"/dev/fuse: {error.strerror}; load the module fuse, or run where the device may be opened"
    return ""


class VolatileDisk:
    """`file`, seen through a write cache that a cut empties, as a file at `mountpoint`."""

    def __init__(self, file: Path, mountpoint: Path) -> None:
        self._file = file
        self._mountpoint = mountpoint
        self._socket = file.with_suffix(".nbd")
        self._log = file.with_suffix(".log")
        self._nbdkit: subprocess.Popen[bytes] | None = None
        self._exporter: subprocess.Popen[bytes] | None = None

    def power_on(self) -> None:
        """Both servers, until the file can be opened. Errors: RuntimeError with the end of their log."""
        self._socket.unlink(missing_ok=True)
        filters = ["--filter=cache", "file", str(self._file), "cache=writeback"]
        self._nbdkit = self._spawn(["nbdkit", "--foreground", "--unix", str(self._socket), *filters])
        self._wait(self._nbdkit, self._socket.exists)
        self._mountpoint.touch()
        before = self._mountpoint.stat().st_dev
        self._exporter = self._spawn(["nbdfuse", str(self._mountpoint), f"nbd+unix:///?socket={self._socket}"])
        self._wait(self._exporter, lambda: self._mountpoint.stat().st_dev != before)

    def cut(self) -> None:
        """From now on nothing that is in the cache exists any more."""
        assert self._nbdkit is not None
        self._nbdkit.send_signal(signal.SIGKILL)
        self._nbdkit.wait()
        self._nbdkit = None

    def power_off(self) -> None:
        """After cut() and the end of all who use the file, or in good order: the cache is flushed by then."""
        # A mount that stays behind a dead server would be in the next one's way.
        subprocess.run(["fusermount3", "-u", "-z", "-q", str(self._mountpoint)], capture_output=True, check=False)
        for process in (self._exporter, self._nbdkit):
            if process is not None:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(READY_S)
                if process.poll() is None:
                    process.kill()
                    process.wait()
        self._exporter = self._nbdkit = None

    def _spawn(self, command: list[str]) -> subprocess.Popen[bytes]:
        # The cache lies in TMPDIR, unlinked, and dies with its process.
        environment = os.environ | {"TMPDIR": str(self._file.parent)}
        with self._log.open("ab") as log:
            return subprocess.Popen(command, stdout=log, stderr=log, env=environment)

    def _wait(self, process: subprocess.Popen[bytes], ready: Callable[[], bool]) -> None:
        end = time.monotonic() + READY_S
        while not ready():
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{process.args!r}: not ready: {self._log.read_text(errors='replace')[-1000:]}")
            time.sleep(0.01)


class PoweredDaemon:
    """A daemon whose store lies on such a disk."""

    def __init__(self, directory: Path, seed: int, *serve_arguments: str) -> None:
        self._rng = random.Random(seed)
        self._disk_file = directory / "disk.img"
        self._maker = DaemonProcess(directory, "--size", STORE, "--arena", ARENA)
        mounted = directory / "mounted"
        mounted.mkdir()
        self._disk = VolatileDisk(self._disk_file, mounted / "store.hs")
        self._daemon = DaemonProcess(mounted, "--arena", ARENA, *serve_arguments)

    @property
    def url(self) -> str:
        """For connect()."""
        return self._daemon.url

    @property
    def facts(self) -> dict[str, Any]:
        """What the daemon said at its last start."""
        return self._daemon.facts

    def start(self) -> None:
        """The first time it makes the store, on the plain file: an export has the size that its disk has."""
        if not self._disk_file.exists():
            self._maker.start()
            assert self._maker.end() == 0, self._maker.log_end()
            self._maker.store.rename(self._disk_file)
        self._disk.power_on()
        self._daemon.start()

    def cut(self) -> None:
        """The device first."""
        self._disk.cut()
        time.sleep(self._rng.uniform(0, AFTERWARDS_S))
        self._daemon.end(signal.SIGKILL)
        self._disk.power_off()

    def stop(self) -> None:
        """A clean stop of the daemon, and a cut right afterwards: it has flushed by then."""
        assert self._daemon.end() == 0, self._daemon.log_end()
        self._disk.cut()
        self._disk.power_off()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._daemon.running:
            self._daemon.end(signal.SIGKILL)
        self._disk.power_off()


def loses_what_was_not_flushed(directory: Path) -> bool:
    """Whether the rig does what it is for: of two writes the one that was flushed is there after a cut, the other is not."""
    file, mountpoint = directory / "probe.img", directory / "probe"
    file.write_bytes(bytes(1 << 20))
    disk = VolatileDisk(file, mountpoint)
    try:
        disk.power_on()
        descriptor = os.open(mountpoint, os.O_RDWR)
        os.pwrite(descriptor, b"flushed.", 0)
        os.fsync(descriptor)
        os.pwrite(descriptor, b"written.", 1 << 19)
        disk.cut()
        with contextlib.suppress(OSError):  # closing flushes, which the dead device refuses
            os.close(descriptor)
    finally:
        disk.power_off()
    image = file.read_bytes()
    return image[:8] == b"flushed." and image[1 << 19 : (1 << 19) + 8] == bytes(8)


def run(rounds: int, seed: int, directory: Path, *serve_arguments: str, verbose: bool = False) -> Tally:
    """`rounds` power cuts. Errors: RuntimeError where the rig loses nothing, and would prove nothing."""
    if not loses_what_was_not_flushed(directory):
        raise RuntimeError("a write that was not flushed survived the cut of the probe: this rig proves nothing")
    with PoweredDaemon(directory, seed, *serve_arguments) as daemon:
        return run_rounds(daemon, rounds, seed, load_s=LOAD_S, verbose=verbose)


def main() -> int:
    """0 when no rule was broken; 77 when no power can be cut here."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", default="auto")
    options = parser.parse_args()
    if why := why_not():
        print(f"skipped: {why}", file=sys.stderr)
        return EXIT_SKIPPED
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="halfstep-power-") as directory:
        tally = run(options.rounds, options.seed, Path(directory), "--engine", options.engine, verbose=True)
    return report(tally, options.seed)


if __name__ == "__main__":
    sys.exit(main())
