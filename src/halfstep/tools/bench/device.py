"""The device below a store: bytes moved by the kernel's count, and the speed of plain reads of the same bytes."""

from __future__ import annotations

import mmap
import os
import stat
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.random import default_rng

from halfstep.errors import DeviceError

PAGE_BYTES = 4096
_SECTOR_BYTES = 512  # of /sys/…/stat, whatever the device's own are (Documentation/block/stat.rst)
_READS, _READ_SECTORS, _WRITTEN_SECTORS, _QUEUE_MS = 0, 2, 6, 10
# A written range shorter than this is the store's header, log or footers, not blocks.
_RANGE_BYTES_MIN = 1 << 20
# Smaller pieces are moved together, or a limit would be that of Python.
PIECE_BYTES_MIN = 64 << 10
# Less than this of what was read came from the device: something else answered. The rest is other traffic's rounding.
DEVICE_SHARE_MIN = 0.99
# Threads that wait in a read at once; past this the interpreter's lock is what is measured.
_THREADS_MAX = 64


@dataclass(frozen=True)
class BlockDevice:
    """What counts the bytes of a file's file system. name: for people. stat_files: empty where nothing counts them."""

    name: str
    stat_files: tuple[Path, ...]

    @classmethod
    def of(cls, path: Path) -> BlockDevice:
        """The device that holds `path`, or is it; all disks together where the file system hides it (overlay, btrfs)."""
        status = path.stat()
        number = status.st_rdev if stat.S_ISBLK(status.st_mode) else status.st_dev
        entry = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
        if (entry / "stat").exists():
            return cls(entry.resolve().name, (entry / "stat",))
        disks = [
            disk for disk in sorted(Path("/sys/block").glob("*")) if (disk / "device").exists() or disk.name.startswith("vd")
        ]
        names = ", ".join(disk.name for disk in disks)
        return cls(f"one of {names}" if names else "none that the kernel counts", tuple(disk / "stat" for disk in disks))

    def read_bytes(self) -> int:
        """Bytes that completed reads have brought, since boot."""
        return self._sum(_READ_SECTORS) * _SECTOR_BYTES

    def written_bytes(self) -> int:
        """Bytes of completed writes, since boot."""
        return self._sum(_WRITTEN_SECTORS) * _SECTOR_BYTES

    def work(self) -> DeviceWork:
        """Since boot."""
        return DeviceWork(self.read_bytes(), self._sum(_READS), self._sum(_QUEUE_MS))

    def _sum(self, field: int) -> int:
        return sum(int(file.read_text().split()[field]) for file in self.stat_files)


@dataclass(frozen=True)
class DeviceWork:
    """What a device did. reads: requests that came to it, some neighbours as one, large ones in pieces.

    queue_ms: the sum of the times of all requests, writes too: in a second a thousand for each that was there all the time.
    """

    read_bytes: int
    reads: int
    queue_ms: int

    def since(self, before: DeviceWork) -> DeviceWork:
        """Between two moments."""
        return DeviceWork(self.read_bytes - before.read_bytes, self.reads - before.reads, self.queue_ms - before.queue_ms)

    def text(self, seconds: float) -> str:
        """For people."""
        return f"{self.read_bytes / max(1, self.reads) / 1024:,.0f} KiB a request, {self.queue_ms / 1e3 / seconds:.1f} at once"


@dataclass(frozen=True)
class RawSpeed:
    """bytes_per_s of plain reads; by: what made them. device_bytes: what the device says it read meanwhile, of `bytes`."""

    bytes_per_s: float
    by: str
    bytes: int
    device_bytes: int


def written_ranges(path: Path) -> list[tuple[int, int]]:
    """(offset, end) of what was ever written: a preallocated range that was not is read without touching the device."""
    ranges = []
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        at = 0
        while at < size:
            try:
                start = os.lseek(file.fileno(), at, os.SEEK_DATA)
            except OSError:  # ENXIO: nothing written from here on
                break
            at = os.lseek(file.fileno(), start, os.SEEK_HOLE)
            if at - start >= _RANGE_BYTES_MIN:
                ranges.append((start, at))
    return ranges


def extents_of(
    path: Path, block_bytes: int, batch: int, bytes_wanted: int, seed: int, *, merged: bool = True
) -> list[tuple[int, int]]:
    """(offset, length) of reads over the store's written ranges: batches of neighbouring blocks, the batches in random order.

    That is the order in which cold gets ask. Neighbours that are smaller than PIECE_BYTES_MIN are read together, or the limit
    would be that of Python; merged=False: for whom that is not so. Batches come again where fewer bytes were written
    than are wanted.
    Errors: DeviceError where too little was written to be read.
    """
    length = -(-block_bytes // PAGE_BYTES) * PAGE_BYTES
    together = max(1, min(batch, PIECE_BYTES_MIN // length)) if merged else 1
    length, batch = length * together, -(-batch // together)
    extents = [
        (at, length)
        for start, end in written_ranges(path)
        for at in range(-(-start // PAGE_BYTES) * PAGE_BYTES, end - length + 1, length)
    ]
    batches = len(extents) // batch
    if batches == 0:
        raise DeviceError(f"{path}: has no written ranges that hold {batch} neighbours of {length} bytes")
    order = np.resize(default_rng(seed).permutation(batches), max(1, bytes_wanted // (batch * length)))
    return [extent for chosen in order for extent in extents[chosen * batch : (chosen + 1) * batch]]


def raw_read_speed(path: Path, device: BlockDevice, extents: Sequence[tuple[int, int]], depth: int) -> RawSpeed:
    """Reads the extents in their order with O_DIRECT, `depth` at a time, checking nothing, by threads that do nothing else.

    Nothing is pinned: a limit takes what cores it gets. (fio, replaying the same extents, stops its clock and its count before
    the last reads have ended; with reads this large that is several hundredths.) Errors: DeviceError.
    """
    before = device.read_bytes()
    moved = plain_io(path, (Transfer(*extent) for extent in extents), depth, max(length for _, length in extents))
    total = sum(length for _, length in extents)
    return RawSpeed(total / moved.seconds, moved.by, total, device.read_bytes() - before)


class Transfer(NamedTuple):
    """One read, or one write, with O_DIRECT."""

    offset: int
    length: int
    write: bool = False


@dataclass(frozen=True)
class Moved:
    """What plain I/O came to. by: what made it. A latency for each read and each write."""

    seconds: float
    by: str
    reads_us: npt.NDArray[np.float64]
    writes_us: npt.NDArray[np.float64]


def plain_io(path: Path, transfers: Iterable[Transfer], depth: int, length_max: int, *, writes: bool = False) -> Moved:
    """Makes the transfers in their order, `depth` at a time; what is written is noise. Errors: DeviceError.

    writes: whether the file may be written to.
    """
    count = min(depth, _THREADS_MAX)
    left = iter(transfers)
    lock = threading.Lock()
    failures: list[str] = []
    took_ns: tuple[list[int], list[int]] = [], []
    stopped = False
    noise = os.urandom(length_max) if writes else b""
    try:
        descriptor = os.open(path, (os.O_RDWR if writes else os.O_RDONLY) | os.O_DIRECT | os.O_CLOEXEC)
    except OSError as error:
        raise DeviceError(f"{path}: cannot be opened with O_DIRECT: {error.strerror}; choose a disk that has it") from None

    def move() -> None:
        with mmap.mmap(-1, length_max) as buffer, memoryview(buffer) as view:
            buffer[: len(noise)] = noise
            while True:
                with lock:
                    transfer = None if stopped or failures else next(left, None)
                if transfer is None:
                    return
                offset, length, write = transfer
                began = time.perf_counter_ns()
                try:
                    got = (os.pwritev if write else os.preadv)(descriptor, [view[:length]], offset)
                    why = "" if got == length else f"{got} bytes came"
                except OSError as error:
                    why = str(error.strerror)
                if why:
                    failures.append(f"{path}: {'write' if write else 'read'} of {length} bytes at {offset}: {why}")
                    return
                took_ns[write].append(time.perf_counter_ns() - began)

    threads = [threading.Thread(target=move) for _ in range(count)]
    started = time.perf_counter()
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        elapsed = time.perf_counter() - started
    finally:
        stopped = True
        for thread in threads:
            if thread.ident is not None:
                thread.join()
        os.close(descriptor)
    if failures:
        raise DeviceError(f"plain {failures[0]}")
    reads_us, writes_us = (np.array(times, np.float64) / 1e3 for times in took_ns)
    calls = "preadv and pwritev" if writes else "preadv"
    return Moved(elapsed, f"{calls} in {count} Python threads", reads_us, writes_us)
