"""The CUDA driver, asked through ctypes: whether it is there, its version, its devices and what they can."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

LIBRARY = "libcuda.so.1"
_ATTRIBUTE_GPUDIRECT, _ATTRIBUTE_DMA_BUF = 116, 124  # CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, _DMA_BUF_SUPPORTED
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE


@dataclass(frozen=True)
class Gpu:
    """A device. gpudirect: other devices may read and write its memory. dma_buf: it can be handed to them as a dma-buf."""

    name: str
    pci: str
    gpudirect: bool
    dma_buf: bool


@dataclass(frozen=True)
class Cuda:
    """missing: why the library cannot be loaded. error: of cuInit(), 0 for none. version: of CUDA that it speaks, as 13.0."""

    missing: str = ""
    error: int = 0
    version: str = ""
    gpus: tuple[Gpu, ...] = ()


def ask_driver() -> Cuda:
    """Loads the driver's library into this process and asks it; makes no context on any device."""
    try:
        driver: Any = ctypes.CDLL(LIBRARY)
    except OSError as refusal:
        return Cuda(missing=str(refusal))
    error = driver.cuInit(0)
    number = ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(number))
    version = f"{number.value // 1000}.{number.value % 1000 // 10}"
    if error == _NO_DEVICE:
        return Cuda("", 0, version)
    if error:
        return Cuda("", error, version)
    count = ctypes.c_int()
    driver.cuDeviceGetCount(ctypes.byref(count))
    return Cuda("", 0, version, tuple(_gpu(driver, ordinal) for ordinal in range(count.value)))


def _gpu(driver: Any, ordinal: int) -> Gpu:
    device = ctypes.c_int()
    driver.cuDeviceGet(ctypes.byref(device), ordinal)
    name, pci = ctypes.create_string_buffer(128), ctypes.create_string_buffer(32)
    driver.cuDeviceGetName(name, len(name), device)
    driver.cuDeviceGetPCIBusId(pci, len(pci), device)

    def has(attribute: int) -> bool:
        value = ctypes.c_int()
        return driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device) == 0 and value.value == 1

    named = name.value.decode(errors="replace"), pci.value.decode(errors="replace").lower()
    return Gpu(*named, has(_ATTRIBUTE_GPUDIRECT), has(_ATTRIBUTE_DMA_BUF))
