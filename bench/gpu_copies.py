#!/usr/bin/env python3
"""How fast do many small pieces go between pinned slots and the memory of a GPU: a copy each, a batch of copies, a kernel?

By the driver itself, without torch and without the client: 64 slots of 256 KiB, whose pieces lie twice their length apart on
the device. `copies` are cuMemcpyHtoDAsync and cuMemcpyDtoHAsync, one a piece; `batch` is cuMemcpyBatchAsync of a slot, which
drivers from CUDA 12.8 on have; `kernel` is the client's own (native/gpu/move_kernel.h), 128 pieces a launch; `whole` are
copies of whole slots, the limit. What arrives is compared. Without a driver it says why it measures nothing: exit status 0.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from script import header, positive, run

from halfstep.daemon.units import KIB

SLOT_BYTES, SLOTS = 256 * KIB, 64
PIECES_PER_LAUNCH, THREADS = 128, 256  # as native/gpu/mover.h
KERNEL_TEXT = Path(__file__).parents[1] / "native" / "gpu" / "move_kernel.h"
NON_BLOCKING, PORTABLE = 1, 1
WAYS = ("copies", "kernel", "batch", "whole")
SOURCE_ORDER_STREAM = 1  # CU_MEMCPY_SRC_ACCESS_ORDER_STREAM


class Failed(Exception):
    """The driver refused a call."""


class BatchAttributes(ctypes.Structure):
    """CUmemcpyAttributes."""

    _fields_ = (
        ("order", ctypes.c_int),
        ("source_type", ctypes.c_int),
        ("source_id", ctypes.c_int),
        ("target_type", ctypes.c_int),
        ("target_id", ctypes.c_int),
        ("flags", ctypes.c_uint),
    )


class Driver:
    """The first device's primary context, and a stream. Errors: OSError (no driver), Failed."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self("cuInit", ctypes.c_uint(0))
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self("cuDeviceGet", ctypes.byref(device), 0)
        name, version = ctypes.create_string_buffer(128), ctypes.c_int()
        self("cuDeviceGetName", name, 127, device)
        self("cuDriverGetVersion", ctypes.byref(version))
        self.version = version.value
        self.name = f"{name.value.decode()}, driver {version.value // 1000}.{version.value % 1000 // 10}"
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self("cuCtxSetCurrent", context)
        self.stream = ctypes.c_void_p()
        self("cuStreamCreate", ctypes.byref(self.stream), NON_BLOCKING)

    def __call__(self, name: str, *arguments: Any) -> None:
        if error := getattr(self.library, name)(*arguments):
            raise Failed(f"{name}: error {error}")

    def host(self, count: int) -> tuple[int, np.ndarray[Any, np.dtype[np.uint8]]]:
        """Pinned memory, and its bytes."""
        at = ctypes.c_void_p()
        self("cuMemHostAlloc", ctypes.byref(at), ctypes.c_size_t(count), PORTABLE)
        address = at.value or 0
        return address, np.ctypeslib.as_array((ctypes.c_ubyte * count).from_address(address))

    def device(self, count: int) -> int:
        """Memory of the device, of zeros."""
        at = ctypes.c_uint64()
        self("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(count))
        self.zero(at.value, count)
        return at.value

    def zero(self, at: int, count: int) -> None:
        """This memory of the device, and it is done. The call itself is not of our stream."""
        self("cuMemsetD8_v2", ctypes.c_uint64(at), ctypes.c_ubyte(0), ctypes.c_size_t(count))
        self("cuCtxSynchronize")

    def wait(self) -> None:
        self("cuStreamSynchronize", self.stream)

    def kernel(self) -> ctypes.c_void_p:
        """The client's, from its text."""
        text = KERNEL_TEXT.read_text().split('R"PTX(')[1].split(')PTX"')[0]
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self("cuModuleLoadData", ctypes.byref(module), text.encode())
        self("cuModuleGetFunction", ctypes.byref(function), module, b"halfstep_move")
        return function


class Pieces:
    """Slots and the device's memory, in pieces of one size that lie `step` apart on the device; each way moves all of them."""

    def __init__(self, driver: Driver, host: int, device: int, size: int, step: int, *, to_device: bool) -> None:
        self._driver, self._size, self._to_device = driver, size, to_device
        self.count = SLOTS * SLOT_BYTES // size
        self._hosts = host + np.arange(self.count, dtype=np.uint64) * np.uint64(size)
        self._devices = device + np.arange(self.count, dtype=np.uint64) * np.uint64(step)
        self._from, self._to = (self._hosts, self._devices) if to_device else (self._devices, self._hosts)

    def copies(self) -> None:
        name = "cuMemcpyHtoDAsync_v2" if self._to_device else "cuMemcpyDtoHAsync_v2"
        call, stream, size = getattr(self._driver.library, name), self._driver.stream, ctypes.c_size_t(self._size)
        wrap = ctypes.c_uint64
        for to, of in zip(self._to.tolist(), self._from.tolist(), strict=True):
            if error := call(wrap(to), wrap(of), size, stream):
                raise Failed(f"{name}: error {error}")
        self._driver.wait()

    def batch(self) -> None:
        """A slot a call. Since CUDA 13 the call has no argument for the piece that failed."""
        each = SLOT_BYTES // self._size
        sizes = np.full(each, self._size, np.uint64)
        attributes = BatchAttributes(SOURCE_ORDER_STREAM, 0, 0, 0, 0, 0)
        first, failed = ctypes.c_size_t(0), ctypes.c_size_t(0)
        newest = hasattr(self._driver.library, "cuMemcpyBatchAsync_v2")
        name = "cuMemcpyBatchAsync_v2" if newest else "cuMemcpyBatchAsync"
        for at in range(0, self.count, each):
            some = [ctypes.c_void_p(int(one[at : at + each].ctypes.data)) for one in (self._to, self._from)]
            arguments = [*some, ctypes.c_void_p(sizes.ctypes.data), ctypes.c_size_t(each), ctypes.byref(attributes)]
            arguments += [ctypes.byref(first), ctypes.c_size_t(1), *([] if newest else [ctypes.byref(failed)])]
            self._driver(name, *arguments, self._driver.stream)
        self._driver.wait()

    def kernel(self, function: ctypes.c_void_p) -> None:
        table = np.zeros((self.count, 3), np.uint64)
        table[:, 0], table[:, 1], table[:, 2] = self._from, self._to, self._size
        shares = max(1, -(-self._size // (THREADS * 16)))
        for at in range(0, self.count, PIECES_PER_LAUNCH):
            some = np.zeros((PIECES_PER_LAUNCH, 3), np.uint64)
            pieces = len(table[at : at + PIECES_PER_LAUNCH])
            some[:pieces] = table[at : at + PIECES_PER_LAUNCH]
            arguments = (ctypes.c_void_p * 1)(int(some.ctypes.data))
            grid = (ctypes.c_uint(pieces), ctypes.c_uint(shares), ctypes.c_uint(1))
            block = (ctypes.c_uint(THREADS), ctypes.c_uint(1), ctypes.c_uint(1))
            self._driver("cuLaunchKernel", function, *grid, *block, ctypes.c_uint(0), self._driver.stream, arguments, None)
        self._driver.wait()


def gb_per_s(call: Callable[[], None], rounds: int) -> dict[str, float]:
    call()
    speeds = []
    for _ in range(rounds):
        began_s = time.monotonic()
        call()
        speeds.append(SLOTS * SLOT_BYTES / (time.monotonic() - began_s) / 1e9)
    return {"median": statistics.median(speeds), "min": min(speeds), "max": max(speeds)}


class Bench:
    """Bytes in pinned memory, pinned memory for what comes back, and the device's memory, which each way finds of zeros."""

    def __init__(self, driver: Driver) -> None:
        self._driver, self._kernel = driver, driver.kernel()
        self._source, self._sent = driver.host(SLOTS * SLOT_BYTES)
        self._target, self._came = driver.host(SLOTS * SLOT_BYTES)
        self._device_bytes = 2 * SLOTS * SLOT_BYTES
        self._device = driver.device(self._device_bytes)
        self._sent[:] = np.random.default_rng(1).integers(0, 256, len(self._sent), np.uint8)

    def row(self, size: int, way: str, rounds: int, *, to_device: bool) -> dict[str, Any]:
        """Its speed, or why the driver does not have this way. Errors: SystemExit (other bytes arrived)."""
        found: dict[str, Any] = {"piece_bytes": size, "to_device": to_device, "way": way}
        piece, step = (SLOT_BYTES, SLOT_BYTES) if way == "whole" else (size, 2 * size)
        out = Pieces(self._driver, self._source, self._device, piece, step, to_device=True)
        back = Pieces(self._driver, self._target, self._device, piece, step, to_device=False)
        measured = out if to_device else back
        calls: dict[str, Callable[[], None]] = {
            "copies": measured.copies,
            "kernel": lambda: measured.kernel(self._kernel),
            "batch": measured.batch,
            "whole": measured.copies,
        }
        # The measured way alone brings the bytes: where it writes there are zeros, and the other way is that of plain copies.
        self._driver.zero(self._device, self._device_bytes)
        self._came[:] = 0
        if not to_device:
            out.copies()
        try:
            found["gb_per_s"] = gb_per_s(calls[way], rounds)
        except (Failed, AttributeError) as error:
            return found | {"error": str(error)}
        if to_device:
            back.copies()
        if not np.array_equal(self._sent, self._came):
            raise SystemExit(f"{way}, {size} bytes {'to the device' if to_device else 'to the host'}: other bytes arrived")
        return found


def measure(driver: Driver, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A row for each size, direction and way."""
    bench = Bench(driver)
    for size in options.piece_bytes:
        for to_device in (True, False):
            for way in WAYS:
                yield bench.row(size, way, options.rounds, to_device=to_device)


def main() -> int:
    """The document, or a line for each measurement."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--piece-bytes", type=positive, nargs="+", default=[4096, 16_384, 32_768, 65_536])
    parser.add_argument("--rounds", type=positive, default=9)
    parser.add_argument("--json", action="store_true", help="one document on stdout")
    options = parser.parse_args()
    for size in options.piece_bytes:
        if SLOT_BYTES % size:
            parser.error(f"--piece-bytes {size}: must divide {SLOT_BYTES}")
    try:
        driver = Driver()
    except (OSError, Failed) as error:
        print(json.dumps({"measured": False, "why": str(error)}) if options.json else f"nothing is measured: {error}")
        return 0
    if options.json:
        head = header(slots=SLOTS, slot_bytes=SLOT_BYTES, rounds=options.rounds)
        print(json.dumps({"measured": True, "header": head, "device": driver.name, "rows": list(measure(driver, options))}))
        return 0
    print(f"{driver.name}: {SLOTS} slots of {SLOT_BYTES} bytes, GB/s")
    for row in measure(driver, options):
        where = f"{row['piece_bytes']:>7} bytes {'to the device' if row['to_device'] else 'to the host':<14}{row['way']:<8}"
        speed = row.get("gb_per_s")
        print(
            where + (f"{speed['median']:6.2f} ({speed['min']:.2f}-{speed['max']:.2f})" if speed else row["error"]), flush=True
        )
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
