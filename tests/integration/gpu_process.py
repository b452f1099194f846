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
import halfstep.tier

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


class Kind:
    """As torch.device."""

    type = "cuda"

    def __str__(self) -> str:
        return "cuda:0"


class DeviceTensor:
    """As much of a tensor of torch on cuda:0 as the planes of a tier are asked for."""

    device = Kind()

    def __init__(self, device: Device, held: np.ndarray[Any, Any]) -> None:
        self._device, self.held = device, held
        self.shape, self.dtype = held.shape, held.dtype

    def data_ptr(self) -> int:
        return int(self.held.ctypes.data)

    def stride(self) -> list[int]:
        return [step // self.held.itemsize for step in self.held.strides]

    def element_size(self) -> int:
        return self.held.itemsize

    def untyped_storage(self) -> np.ndarray[Any, Any]:
        base = self.held if self.held.base is None else self.held.base
        assert isinstance(base, np.ndarray)
        return base.reshape(-1)

    def storage_offset(self) -> int:
        return (self.data_ptr() - int(self.untyped_storage().ctypes.data)) // self.held.itemsize

    def new_empty(self, count: int) -> DeviceTensor:
        return DeviceTensor(self._device, self.held[:count])

    def set_(self, storage: np.ndarray[Any, Any], offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> DeviceArray:
        assert strides == (1,)
        return self._device.array(storage[offset : offset + shape[0]])


class Stream:
    """As torch.cuda.Stream says which it is."""

    def __init__(self, number: int) -> None:
        self.cuda_stream = number


def blocks(seed: int = 1) -> np.ndarray[Any, Any]:
    """Arbitrary bytes."""
    return np.random.default_rng(seed).integers(0, 256, (len(KEYS), BLOCK_BYTES), np.uint8)


def all_ok(result: Any) -> None:
    """Otherwise what each item met."""
    assert result.ok.all(), result


def both_ways(client: halfstep.Client, device: Device) -> None:
    """Whole arrays, and lists of them."""
    values = blocks()
    all_ok(client.put(KEYS, device.array(values)))
    target = device.array(np.zeros_like(values))
    all_ok(client.get(KEYS, target))
    assert (target.held == values).all()
    rows = [device.array(np.zeros(BLOCK_BYTES, np.uint8)) for _ in KEYS]
    all_ok(client.get(KEYS, rows, stream=-1))
    assert all((row.held == value).all() for row, value in zip(rows, values, strict=True))
    host = np.zeros_like(values)
    all_ok(client.get(KEYS, host))
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
        all_ok(client.put(KEYS, halfstep.Rows(template, [5, 0, 3])))
        all_ok(client.get(KEYS, halfstep.Rows(template, [1, 2, 4])))
        assert (pool.held[[1, 2, 4]] == values).all()
        addresses = halfstep.Addresses([region], [[region.address + row * BLOCK_BYTES] for row in (6, 7, 5)], BLOCK_BYTES)
        all_ok(client.get(KEYS, addresses))
        assert (pool.held[[6, 7, 5]] == values).all()


def planes(client: halfstep.Client, device: Device) -> None:
    """Of a tier: pages with tokens before heads, whose pieces are small, after what a stream has under way."""
    layers, heads, tokens, values, blocks = 3, 4, 16, 8, 10
    kind = halfstep.tier.Kind("full", tuple(range(layers)), heads, (2 * values, 2 * values))
    layout = halfstep.tier.KVLayout(
        model="planes " + client.path, weights_revision="1", dtype="bfloat16", block_tokens=tokens, kinds=(kind,)
    )

    def pages(seed: int) -> list[list[DeviceTensor]]:
        shape = (layers, 2, blocks, tokens, heads, values)
        held = np.random.default_rng(seed).integers(0, 1 << 16, shape, np.uint16) if seed else np.zeros(shape, np.uint16)
        return [[DeviceTensor(device, held[layer, plane].transpose(0, 2, 1, 3)) for plane in (0, 1)] for layer in range(layers)]

    saved, into = pages(1), pages(0)
    tier = client.tier(layout)
    prefix = tier.prefix(np.arange(blocks * tokens))
    with tier.memory(saved) as memory, tier.memory(into) as other:
        stored = prefix.put(memory, stream=-1, deadline_ms=60_000)
        assert (stored.stored, stored.reason) == (blocks, ""), stored
        stream = device.stream()
        loading = prefix.begin_get(other, rows=np.arange(blocks)[::-1].copy(), stream=stream, deadline_ms=60_000)
        assert not loading.done
        device.release(stream)
        assert loading.whole_result().blocks == blocks
    for mine, theirs in zip(saved, into, strict=True):
        for one, other_one in zip(mine, theirs, strict=True):
            assert (one.held == other_one.held[::-1]).all()
    assert device.library.fake_count(b"cuLaunchKernel") > 0, "pieces of 16 bytes are moved by the kernel"
    host = DeviceTensor(device, saved[0][1].held)
    host.device = type("Host", (), {"type": "cpu", "__str__": lambda _: "cpu"})()
    refused("is on cpu, others are on cuda:0", lambda: tier.memory([[saved[0][0], host], *saved[1:]]))
    tier.close()


def prefetch(client: halfstep.Client, device: Device) -> None:
    """A get into the device's memory that nobody waits for yet, behind a stream."""
    values = blocks(3)
    all_ok(client.put(KEYS, values))
    target = device.array(np.zeros_like(values))
    before = device.copies()
    stream = device.stream()
    with client.queue() as queue:
        ticket = queue.get(KEYS, target, stream=Stream(stream), deadline_ms=60_000)
        assert client.get(KEYS, np.zeros_like(values)).ok.all()  # another one goes ahead of it
        assert not ticket.done
        assert device.copies() == before
        device.release(stream)
        all_ok(ticket.result(60))
    assert (target.held == values).all()
    late = device.stream()
    result = client.get(KEYS, target, stream=late, deadline_ms=20)
    assert result.reason(0) == "late (deadline)", result.reason(0)


def failures(client: halfstep.Client, device: Device) -> None:
    """A copy that fails is a reason and no bytes; what cannot be is refused."""
    values = blocks(4)
    all_ok(client.put(KEYS, values))
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
    with halfstep.connect(url, layout=layout, deadline_ms=30_000, required=True) as client:
        scenarios = {"both_ways": both_ways, "regions": regions, "planes": planes, "prefetch": prefetch, "failures": failures}
        scenarios[scenario](client, device)
    assert device.library.fake_faults() == 0
    print("done")


if __name__ == "__main__":
    main()
