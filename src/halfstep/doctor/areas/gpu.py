"""GPUs and what GPUDirect needs: the driver, a way to other devices, and a PCIe path that does not go round by the root."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import PurePosixPath

from halfstep.doctor.case import Case
from halfstep.doctor.finding import Area, Check, Finding, Rule, Severity, SkipCheck
from halfstep.doctor.host import Host

NVIDIA, DISPLAY_CLASSES = "0x10de", ("0x0300", "0x0302")
PCI = "/sys/bus/pci/devices"
# PCI Express base specification: extended capabilities, Access Control Services, its redirects of requests and completions.
_EXTENDED, _ACS, _REDIRECTS = 0x100, 0x000D, 0x1C
NO_DRIVER = Rule(
    "gpu-no-driver",
    Severity.WARNING,
    "`libcuda.so.1` can be loaded",
    "Engines on this host cannot use the GPU.",
    "install the driver that the distribution has; in a container `--gpus all` with the NVIDIA container toolkit",
)
DRIVER_FAILED = Rule(
    "gpu-driver-failed",
    Severity.ERROR,
    "cuInit() returns 0",
    "The driver is there and does not work: another version of library and kernel module, or a GPU that fell off the bus.",
    "`nvidia-smi`, `dmesg | grep -i -e nvrm -e xid`; after an upgrade of the driver reboot",
)
NO_PEER_MEMORY = Rule(
    "gpu-no-peer-memory",
    Severity.WARNING,
    "a driver that hands out dma-bufs (the open kernel module)",
    "Network cards cannot reach the GPU's memory: bytes go through the host's.",
    "install the open kernel module of the driver (515 or newer, Linux 5.12); nvidia_peermem is not used",
)
NO_GPUDIRECT = Rule(
    "gpu-no-gpudirect",
    Severity.WARNING,
    "a GPU whose memory other devices may reach",
    "Bytes from the network go through the host's memory; consumer cards have no other way.",
    "take a data centre GPU where that path matters",
)
ACS_REDIRECTS = Rule(
    "gpu-acs-redirects",
    Severity.WARNING,
    "no redirects of peers' requests above the GPU",
    "Traffic between GPU and network card goes up to the root complex and back: slower, and some platforms refuse it.",
    "turn ACS off in the firmware, or `sudo setpci -s {bridge} ECAP_ACS+6.w=0000` after each boot, where no guest has devices",
)
IOMMU_TRANSLATES = Rule(
    "gpu-iommu",
    Severity.WARNING,
    "`identity`, or no IOMMU",
    "Addresses of peers are translated at the root complex, which all traffic between devices passes then.",
    "boot with `iommu=pt`",
)


def _gpus(host: Host) -> list[str]:
    """PCI addresses of NVIDIA's. Errors: SkipCheck where there is none."""
    found = []
    for address in host.names(PCI):
        kind = host.text(f"{PCI}/{address}/class") or ""
        if host.text(f"{PCI}/{address}/vendor") == NVIDIA and kind.startswith(DISPLAY_CLASSES):
            found.append(address)
    if not found:
        raise SkipCheck("this machine has no GPU of NVIDIA")
    return found


def driver(host: Host, case: Case) -> Iterator[Finding | str]:  # noqa: ARG001 -- every check has one signature
    """That the driver is there, and works."""
    found = _gpus(host)
    cuda = host.kernel.cuda()
    if cuda.missing:
        yield NO_DRIVER.found(cuda.missing)
    elif cuda.error:
        yield DRIVER_FAILED.found(f"error {cuda.error}")
    else:
        told = re.search(r"\d+\.\d+(?:\.\d+)?", host.text("/proc/driver/nvidia/version") or "")
        names = ", ".join(gpu.name for gpu in cuda.gpus) or f"{len(found)} on the bus, none for this process"
        yield f"driver {told[0] if told else 'of a version not known'}, CUDA {cuda.version}: {names}"


def peers(host: Host, case: Case) -> Iterator[Finding | str]:  # noqa: ARG001
    """Whether network cards may reach the GPU's memory."""
    _gpus(host)
    cuda = host.kernel.cuda()
    if cuda.missing or cuda.error or not cuda.gpus:
        raise SkipCheck("the driver names no GPU")
    if unable := [gpu.name for gpu in cuda.gpus if not gpu.gpudirect]:
        yield NO_GPUDIRECT.found(", ".join(unable))
    if closed := [gpu.name for gpu in cuda.gpus if not gpu.dma_buf]:
        yield NO_PEER_MEMORY.found(f"no dma-buf of {', '.join(closed)}")
    else:
        yield "dma-buf"


def _acs_control(config: bytes) -> int | None:
    """The control register of Access Control Services in a function's configuration space; None where it has none."""
    at, seen = _EXTENDED, set[int]()
    while at >= _EXTENDED and at + 8 <= len(config) and at not in seen:
        seen.add(at)
        (header,) = struct.unpack_from("<I", config, at)
        if header & 0xFFFF == _ACS:
            control: int = struct.unpack_from("<H", config, at + 6)[0]
            return control
        at = header >> 20
    return None


def bridges(host: Host, case: Case) -> Iterator[Finding | str]:  # noqa: ARG001
    """Redirects of Access Control Services on the bridges above each GPU."""
    for address in _gpus(host):
        parts = PurePosixPath(host.resolved(f"{PCI}/{address}")).parts[:-1]
        above = [part for part in parts if re.fullmatch(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", part)]
        redirecting = []
        for bridge in above:
            config = host.read_bytes(f"{PCI}/{bridge}/config")
            if len(config) <= _EXTENDED:
                raise SkipCheck(f"{PCI}/{bridge}/config: root alone sees all of it")
            if (control := _acs_control(config)) is not None and control & _REDIRECTS:
                redirecting.append(bridge)
        if redirecting:
            yield ACS_REDIRECTS.found(f"{address}: on {', '.join(redirecting)}", bridge=redirecting[0])
        else:
            yield f"{address}: none on {len(above)} bridges"


def translation(host: Host, case: Case) -> Iterator[Finding | str]:  # noqa: ARG001
    """How the GPU's addresses are mapped."""
    for address in _gpus(host):
        kind = host.text(f"{PCI}/{address}/iommu_group/type")
        if kind is not None and kind.startswith("DMA"):
            yield IOMMU_TRANSLATES.found(f"{address}: {kind}")
        else:
            yield f"{address}: {kind or 'no IOMMU before it'}"


AREA = Area(
    "gpu",
    "GPUs, with `--gpu`",
    (
        Check("GPU driver", driver, (NO_DRIVER, DRIVER_FAILED)),
        Check("GPUDirect", peers, (NO_GPUDIRECT, NO_PEER_MEMORY)),
        Check("PCIe path of GPUs", bridges, (ACS_REDIRECTS,)),
        Check("IOMMU of GPUs", translation, (IOMMU_TRANSLATES,)),
    ),
    for_gpu=True,
)
