"""`halfstep bench device`: the speed of a drive by fio, by plain preadv, or by the Python package liburing.

Invariants: a path that was given is opened for reading alone; what is written is a file that this made, and removes.
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.random import default_rng

from halfstep.daemon.units import GIB, KIB, MIB, format_bytes
from halfstep.errors import ConfigError, DeviceError
from halfstep.io.second_opinion import Job, ask, transfer
from halfstep.tools.bench.device import DEVICE_SHARE_MIN, BlockDevice, Transfer, plain_io
from halfstep.tools.bench.fio import Side, fio_version, run_fio
from halfstep.tools.bench.machine import device_name, machine_facts, machine_text
from halfstep.tools.bench.plan import SEED_MAX, chosen_from, within
from halfstep.tools.bench.terminal import Tell
from halfstep.tools.bench.workload import median_run, percentiles_us

MODES = ("read", "randread", "write", "mixed")
_READS = ("read", "randread")
_SECTOR_BYTES = 512
# In which the file is made: it has a whole number of them.
_FILL_BYTES, _FILL_DEPTH = MIB, 8


@dataclass(frozen=True)
class DevicePlan:
    """path: read and never written; None: a file of its own of size_bytes in `directory`; None: the temporary one.

    Every mode x size x depth.
    """

    path: Path | None
    directory: Path | None
    tool: str
    modes: tuple[str, ...]
    block_bytes: tuple[int, ...]
    iodepth: tuple[int, ...]
    read_percent: int
    size_bytes: int
    seconds: float
    repeat: int
    seed: int

    def validated(self) -> DevicePlan:
        """Itself. Errors: ConfigError with value, bound and remedy."""
        chosen_from("rw", self.modes, MODES)
        if self.path is not None and (writes := [mode for mode in self.modes if mode not in _READS]):
            raise ConfigError(
                f"rw={','.join(self.modes)}: {self.path} is somebody's data, and {writes[0]} would overwrite it; "
                "choose from read, randread, or leave the path out to have a file made in --directory"
            )
        for block_bytes in self.block_bytes:
            if not _SECTOR_BYTES <= block_bytes <= 64 * MIB or block_bytes % _SECTOR_BYTES:
                raise ConfigError(f"bs={block_bytes}: must be a multiple of {_SECTOR_BYTES} up to 64MiB, as O_DIRECT has it")
        within("values of bs", len(self.block_bytes), 1, 16)
        within("values of iodepth", len(self.iodepth), 1, 16)
        for depth in self.iodepth:
            within("iodepth", depth, 1, 1024)
        within("rwmixread", self.read_percent, 0, 100)
        within("size", self.size_bytes, max((MIB, *self.block_bytes)), 1024 * GIB)
        within("runtime", self.seconds, 0.05, 3600.0)
        within("repeat", self.repeat, 1, 99)
        within("seed", self.seed, 0, SEED_MAX)
        if self.tool == "liburing" and (why_none := ask().why_none):
            raise ConfigError(f"tool=liburing: {why_none}; or use --tool fio or preadv")
        if self.tool == "fio" and not fio_version():
            raise ConfigError("tool=fio: there is no fio here; install the package fio, or use --tool preadv")
        return self

    @property
    def steps(self) -> int:
        """Announced ones."""
        return 1 + len(self.modes) * len(self.block_bytes) * len(self.iodepth) * self.repeat


@dataclass(frozen=True)
class DeviceResult:
    """One mode, size and depth: of `repeat` runs the one with the median speed. device_read_bytes: by the kernel's count."""

    rw: str
    block_bytes: int
    iodepth: int
    by: str
    sides: tuple[Side, ...]
    device_read_bytes: int | None
    read_bytes: int
    runs_bytes_per_s: tuple[float, ...]

    @property
    def bytes_per_s(self) -> float:
        """Read and written."""
        return sum(side.bytes_per_s for side in self.sides)

    @property
    def from_device(self) -> bool | None:
        """Whether the device says that it read what came; None where nothing was read or nothing counts."""
        if not self.read_bytes or self.device_read_bytes is None:
            return None
        return self.device_read_bytes >= DEVICE_SHARE_MIN * self.read_bytes

    def as_json(self) -> dict[str, Any]:
        """Speeds in GB/s, times in microseconds."""
        sides = [
            {**asdict(side), "gigabytes_per_s": side.bytes_per_s / 1e9, "bytes_per_s": side.bytes_per_s} for side in self.sides
        ]
        return {
            "rw": self.rw,
            "block_bytes": self.block_bytes,
            "iodepth": self.iodepth,
            "by": self.by,
            "gigabytes_per_s": self.bytes_per_s / 1e9,
            "sides": sides,
            "read_bytes": self.read_bytes,
            "device_read_bytes": self.device_read_bytes,
            "read_from_device": self.from_device,
            "runs_gigabytes_per_s": [speed / 1e9 for speed in self.runs_bytes_per_s],
        }

    def rows(self) -> Iterator[list[str]]:
        """Of the table: one a side."""
        for side in self.sides:
            yield [
                self.rw if self.rw != "mixed" else f"mixed: {side.name}",
                format_bytes(self.block_bytes),
                str(self.iodepth),
                f"{side.bytes_per_s / 1e9:.2f}",
                f"{side.iops:,.0f}",
                *(f"{us:,.0f}" for us in (side.p50_us, side.p99_us, side.p999_us)),
                self.by,
            ]


COLUMNS: tuple[str | tuple[str, str], ...] = (
    "",
    *((title, "right") for title in ("block", "depth", "GB/s", "transfers/s", "p50 us", "p99 us", "p99.9 us")),
    "by",
)


def measure_device(plan: DevicePlan, tell: Tell, command: str) -> tuple[dict[str, Any], list[DeviceResult]]:
    """(header, results). Errors: ConfigError, DeviceError."""
    plan = plan.validated()
    with _file(plan, tell) as (path, file_bytes):
        device = BlockDevice.of(path)
        header = {
            **machine_facts(command),
            "path": str(path) if plan.path is not None else f"its own file in {path.parent}",
            "file_bytes": file_bytes,
            "device": device_name(device),
            "seconds": plan.seconds,
            "repeat": plan.repeat,
            "seed": plan.seed,
        }
        results = [
            _Point(plan, path, file_bytes, device, mode, block_bytes, depth).measured(tell)
            for mode in plan.modes
            for block_bytes in plan.block_bytes
            for depth in plan.iodepth
        ]
    return header, results


def remarks(header: dict[str, Any], results: list[DeviceResult]) -> Iterator[str]:
    """What a reader has to know to read the table rightly."""
    yield machine_text(header)
    yield f"{header['path']}, {format_bytes(header['file_bytes'])}, on {header['device']}; O_DIRECT; writes are not flushed"
    yield f"a latency is one transfer, depth: how many are at the device at once; the median run of {header['repeat']} is shown"
    if any(result.by.startswith(("pread", "liburing")) for result in results):
        yield "below 64KiB or at a depth of many it is Python that is measured; with the package fio it would be the device"
    for result in results:
        if result.from_device is False:
            yield (
                f"{result.rw} {format_bytes(result.block_bytes)} depth {result.iodepth}: the device read "
                f"{result.device_read_bytes} of {result.read_bytes} bytes: a cache, or never-written ranges, answered; "
                "this is no limit of the drive"
            )


@dataclass(frozen=True)
class _Point:
    """What one result is of: a mode, size and depth, on a file."""

    plan: DevicePlan
    path: Path
    file_bytes: int
    device: BlockDevice
    mode: str
    block_bytes: int
    depth: int

    def measured(self, tell: Tell) -> DeviceResult:
        """The median of the plan's runs. Errors: ConfigError, DeviceError."""
        if self.file_bytes < self.block_bytes:
            raise ConfigError(f"bs={self.block_bytes}: {self.path} has {self.file_bytes} bytes; a transfer must fit")
        what = f"{self.mode} {format_bytes(self.block_bytes)} x {self.depth}"
        version = fio_version() if self.plan.tool in ("auto", "fio") else ""
        runs = []
        for number in range(self.plan.repeat):
            tell(f"{what}: run {number + 1} of {self.plan.repeat}")
            before = self.device.read_bytes() if self.device.stat_files else None
            if self.plan.tool == "liburing":
                by, sides = "liburing in Python", self._by_liburing()
            else:
                by, sides = (f"{version}, io_uring", self._by_fio(tell, what)) if version else self._by_preadv()
            moved = None if before is None else self.device.read_bytes() - before
            read_bytes = sum(side.transfers * self.block_bytes for side in sides if side.name == "read")
            runs.append((sum(side.bytes_per_s for side in sides), by, tuple(sides), moved, read_bytes))
        _, by, sides_shown, moved, read_bytes = median_run(runs, lambda run: run[0])
        speeds = tuple(run[0] for run in runs)
        return DeviceResult(self.mode, self.block_bytes, self.depth, by, sides_shown, moved, read_bytes, speeds)

    @property
    def _blocks(self) -> int:
        """Whole ones."""
        return self.file_bytes // self.block_bytes

    def _by_fio(self, tell: Tell, what: str) -> list[Side]:
        last = [time.monotonic(), self.device.read_bytes() + self.device.written_bytes()]

        def news() -> None:
            now, moved = time.monotonic(), self.device.read_bytes() + self.device.written_bytes()
            if self.device.stat_files:
                tell(f"{what}: {(moved - last[1]) / (now - last[0]) / 1e9:.2f} GB/s", 0)
            last[:] = now, moved

        return run_fio(
            self.path,
            rw=self.mode,
            block_bytes=self.block_bytes,
            depth=self.depth,
            file_bytes=self._blocks * self.block_bytes,
            read_percent=self.plan.read_percent,
            seconds=self.plan.seconds,
            seed=self.plan.seed,
            read_only=self.plan.path is not None,
            while_it_runs=news,
        )

    def _by_preadv(self) -> tuple[str, list[Side]]:
        def transfers() -> Iterator[Transfer]:
            rng = default_rng(self.plan.seed)
            until, number = time.perf_counter() + self.plan.seconds, 0
            while time.perf_counter() < until or number == 0:
                block = number % self._blocks if self.mode in ("read", "write") else int(rng.integers(self._blocks))
                write = self.mode == "write" or (self.mode == "mixed" and rng.random() * 100 >= self.plan.read_percent)
                yield Transfer(block * self.block_bytes, self.block_bytes, write)
                number += 1

        moved = plain_io(self.path, transfers(), self.depth, self.block_bytes, writes=self.mode not in _READS)
        return moved.by, self._sides(moved.seconds, moved.reads_us, moved.writes_us)

    def _by_liburing(self) -> list[Side]:
        job = Job(
            path=str(self.path),
            mode=self.mode,
            block_bytes=self.block_bytes,
            depth=self.depth,
            blocks=self._blocks,
            seconds=self.plan.seconds,
            seed=self.plan.seed,
            read_percent=self.plan.read_percent,
        )
        done = transfer(job)
        if why := done.why_none or done.failed:
            raise DeviceError(f"{self.path}: by liburing: {why}; --tool fio and preadv need none of it")
        return self._sides(done.seconds, np.array(done.reads_us), np.array(done.writes_us))

    def _sides(self, seconds: float, reads_us: npt.NDArray[np.float64], writes_us: npt.NDArray[np.float64]) -> list[Side]:
        both = (("read", reads_us), ("write", writes_us))
        return [_side(name, times, seconds, self.block_bytes) for name, times in both if len(times)]


def _side(name: str, times_us: npt.NDArray[np.float64], seconds: float, block_bytes: int) -> Side:
    count = len(times_us)
    return Side(name, count * block_bytes / seconds, count / seconds, *percentiles_us(times_us), count)


@contextmanager
def _file(plan: DevicePlan, tell: Tell) -> Iterator[tuple[Path, int]]:
    """(path, bytes) of what is measured."""
    if plan.path is not None:
        tell(f"looking at {plan.path}")
        yield plan.path, min(plan.size_bytes, _readable_bytes(plan.path))
        return
    with noise_file(plan.directory, plan.size_bytes, tell) as (path, size):
        yield path, size


@contextmanager
def noise_file(directory: Path | None, size_bytes: int, tell: Tell) -> Iterator[tuple[Path, int]]:
    """(path, bytes) of a new file in `directory`, or the temporary one, that was written once all over; removed afterwards."""
    directory = directory or Path(tempfile.gettempdir())
    free = shutil.disk_usage(directory).free
    if free < size_bytes:
        raise DeviceError(
            f"size={format_bytes(size_bytes)}: {directory} has {format_bytes(free // KIB * KIB)} free; lower it or name "
            "another --directory"
        )
    path = directory / f"halfstep-bench-{secrets.token_hex(8)}.dat"
    tell(f"writing {format_bytes(size_bytes)} to {path}")
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DeviceError(f"{path}: cannot be made: {error.strerror}; name another --directory") from None
    except BaseException:  # a signal, as soon as the file is there and before its descriptor is known
        path.unlink(missing_ok=True)
        raise
    try:
        size = -(-size_bytes // _FILL_BYTES) * _FILL_BYTES
        os.ftruncate(descriptor, size)
        fill = (Transfer(at, _FILL_BYTES, write=True) for at in range(0, size, _FILL_BYTES))
        plain_io(path, fill, _FILL_DEPTH, _FILL_BYTES, writes=True)
        os.fsync(descriptor)
        yield path, size
    finally:
        os.close(descriptor)
        path.unlink()


def _readable_bytes(path: Path) -> int:
    """Errors: ConfigError, DeviceError."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISBLK(mode):
        raise ConfigError(f"{path}: is neither a file nor a block device; name one, or none to have a file made in --directory")
    try:
        with path.open("rb") as file:
            return file.seek(0, os.SEEK_END)
    except OSError as error:
        raise DeviceError(f"{path}: cannot be read: {error.strerror}; run it as somebody who may, or name another") from None
