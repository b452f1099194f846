"""A client and a device whose memory is host memory, in a process of its own: python gpu_process.py LIBRARY URL SCENARIO.

LIBRARY is fake_libcuda.cc, built; it is loaded first, so that the client finds it by the driver's name.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import halfstep

KEYS = [b"a", b"b", b"c"]
BLOCK_BYTES = 600_000
CUDA = 2


class Device:
    """What the table of fake_libcuda.cc can be told."""

    def __init__(self, library: str) -> None:
        self.library = ctypes.CDLL(library)
        self.library.fake_stream.restype = ctypes.c_uint64
        self.library.fake_count.restype = ctypes.c_size_t
        self.library.fake_faults.restype = ctypes.c_size_t

    def array(self, values: Any) -> DeviceArray:
        """Values in memory of the device."""
        held = np.ascontiguousarray(values)
        self.library.fake_add_memory(ctypes.c_void_p(held.ctypes.data), ctypes.c_size_t(held.nbytes))
        return DeviceArray(held)

    def stream(self) -> int:
        """A stream with work under way."""
        return int(self.library.fake_stream(0))

    def release(self, stream: int) -> None:
        """Its work is done."""
        self.library.fake_release(ctypes.c_uint64(stream))

    def copies(self) -> int:
        """That were asked of the driver."""
        return int(self.library.fake_count(b"cuMemcpyHtoDAsync")) + int(self.library.fake_count(b"cuMemcpyDtoHAsync"))


class DeviceArray:
    """Exports its memory by DLPack alone, as that of cuda:0, like a tensor of torch or cupy."""

    def __init__(self, held: np.ndarray[Any, Any]) -> None:
        self.held = held

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, 0

    def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, int] | None = None) -> Any:
        assert stream == -1, "the exporter has nothing to order: the batch names the streams"
        capsule = self.held.__dlpack__(max_version=max_version)
        name = b"dltensor" if max_version is None else b"dltensor_versioned"
        pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
        pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        # DLTensor.device, behind its data pointer; the versioned struct has version, context, deleter and flags before it.
        at = pointer_of(capsule, name) + (8 if max_version is None else 40)
        ctypes.memmove(at, (ctypes.c_int32 * 2)(CUDA, 0), 8)
        return capsule


class Stream:
    """As torch.cuda.Stream says which it is."""

    def __init__(self, number: int) -> None:
        self.cuda_stream = number


def blocks(seed: int = 1) -> np.ndarray[Any, Any]:
    """Arbitrary bytes."""
    return np.random.default_rng(seed).integers(0, 256, (len(KEYS), BLOCK_BYTES), np.uint8)


def both_ways(client: halfstep.Client, device: Device) -> None:
    """Whole arrays, and lists of them."""
    values = blocks()
    assert client.put(KEYS, device.array(values)).ok.all()
    target = device.array(np.zeros_like(values))
    assert client.get(KEYS, target).ok.all()
    assert (target.held == values).all()
    rows = [device.array(np.zeros(BLOCK_BYTES, np.uint8)) for _ in KEYS]
    assert client.get(KEYS, rows, stream=-1).ok.all()
    assert all((row.held == value).all() for row, value in zip(rows, values, strict=True))
    host = np.zeros_like(values)
    assert client.get(KEYS, host).ok.all()
    assert (host == values).all()
    gpu = client.facts().gpu
    assert gpu.devices == "cuda:0 (Fake, driver 12.4)", gpu
    assert gpu.bytes_to_host == values.nbytes, gpu
    assert gpu.bytes_to_device == 2 * values.nbytes, gpu
    assert (gpu.slots_used, gpu.failures, gpu.error) == (0, 0, ""), gpu


def regions(client: halfstep.Client, device: Device) -> None:
    """Rows and addresses of registered memory."""
    values = blocks(2)
    pool = device.array(np.zeros((8, BLOCK_BYTES), np.uint8))
    pool.held[[5, 0, 3]] = values
    # Opaque blocks have parts of 256 KiB, the last one shorter.
    sizes = [262_144, 262_144, BLOCK_BYTES - 2 * 262_144]
    with client.register(pool) as region:
        assert region.writable
        parts = [halfstep.PartDescriptor(262_144 * p, BLOCK_BYTES, 1, size) for p, size in enumerate(sizes)]
        template = region.template(parts)
        assert client.put(KEYS, halfstep.Rows(template, [5, 0, 3])).ok.all()
        assert client.get(KEYS, halfstep.Rows(template, [1, 2, 4])).ok.all()
        assert (pool.held[[1, 2, 4]] == values).all()
        addresses = halfstep.Addresses([region], [[region.address + row * BLOCK_BYTES] for row in (6, 7, 5)], BLOCK_BYTES)
        assert client.get(KEYS, addresses).ok.all()
        assert (pool.held[[6, 7, 5]] == values).all()


def prefetch(client: halfstep.Client, device: Device) -> None:
    """A get into the device's memory that nobody waits for yet, behind a stream."""
    values = blocks(3)
    assert client.put(KEYS, values).ok.all()
    target = device.array(np.zeros_like(values))
    before = device.copies()
    stream = device.stream()
    with client.queue() as queue:
        ticket = queue.get(KEYS, target, stream=Stream(stream), deadline_ms=60_000)
        assert client.get(KEYS, np.zeros_like(values)).ok.all()  # another one goes ahead of it
        assert not ticket.done
        assert device.copies() == before
        device.release(stream)
        assert ticket.result(60).ok.all()
    assert (target.held == values).all()
    late = device.stream()
    result = client.get(KEYS, target, stream=late, deadline_ms=20)
    assert result.reason(0) == "late (deadline)", result.reason(0)


def failures(client: halfstep.Client, device: Device) -> None:
    """A copy that fails is a reason and no bytes; what cannot be is refused."""
    values = blocks(4)
    assert client.put(KEYS, values).ok.all()
    target = device.array(np.zeros_like(values))
    device.library.fake_fail_next(b"cuMemcpyHtoDAsync", 700)
    result = client.get(KEYS, target)
    failed = [n for n in range(len(KEYS)) if not result.ok[n]]
    assert failed, result.ok
    assert result.reason(failed[0]) == "unavailable (copy)", result.reason(failed[0])
    assert client.facts().gpu.error == "cuda:0: cuMemcpyHtoDAsync: CUDA_ERROR_ILLEGAL_ADDRESS"
    host = target.held[0]
    refused("another place", lambda: client.get(KEYS, [host, device.array(values[1]), device.array(values[2])]))
    refused("stream='x': must be a CUstream", lambda: client.get(KEYS, target, stream="x"))


def refused(says: str, attempt: Callable[[], object]) -> None:
    """It is, in these words."""
    try:
        attempt()
    except halfstep.ConfigError as error:
        if says in str(error):
            return
        raise
    raise AssertionError(says)


def main() -> None:
    """Runs one of them."""
    library, url, scenario = sys.argv[1:]
    device = Device(library)
    layout = halfstep.Layout.opaque(f"gpu {scenario}")
    with halfstep.connect(url, layout=layout, deadline_ms=30_000) as client:
        {"both_ways": both_ways, "regions": regions, "prefetch": prefetch, "failures": failures}[scenario](client, device)
    assert device.library.fake_faults() == 0
    print("done")


if __name__ == "__main__":
    main()
