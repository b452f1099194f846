"""What an NVMe controller says of itself, of a namespace and of its health, by admin commands that only read.

Offsets are those of the NVMe base specification 2.0: Identify Controller, Identify Namespace, SMART / Health Information.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from halfstep.doctor.disks import Disk
from halfstep.doctor.host import Host
from halfstep.doctor.kernel import NVME_GET_LOG, NVME_IDENTIFY

_ALL_NAMESPACES = 0xFFFFFFFF
_IDENTIFY_BYTES, _SMART_BYTES, _SMART_LOG = 4096, 512, 0x02
_IDENTIFY_NAMESPACE, _IDENTIFY_CONTROLLER = 0, 1
_KELVIN = 273
# A unit of data in the log is 1,000 sectors of 512 bytes.
DATA_UNIT_BYTES = 512_000
WARNINGS = {
    0: "spare blocks are below their threshold",
    1: "temperature beyond its threshold",
    2: "reliability is degraded by media errors",
    3: "media is read-only",
    4: "the backup of the volatile memory has failed",
    5: "persistent memory is unreliable",
}


@dataclass(frozen=True)
class Health:
    """warnings: texts of the critical ones. used_percent: of the endurance, may exceed 100. Temperatures in degrees Celsius."""

    warnings: tuple[str, ...]
    celsius: int
    spare_percent: int
    spare_threshold_percent: int
    used_percent: int
    written_bytes: int
    unsafe_shutdowns: int
    media_errors: int


@dataclass(frozen=True)
class Format:
    """A format of blocks that a namespace may have. performance: 0 is best, 3 degraded."""

    number: int
    data_bytes: int
    metadata_bytes: int
    performance: int


def controllers_of(host: Host, disk: Disk) -> list[str]:
    """Names such as nvme0; several where a namespace has several paths, none of a drive that is no NVMe."""
    if not disk.is_nvme:
        return []
    paths = [name for name in host.names(f"{disk.directory}/device") if re.fullmatch(r"nvme\d+", name)]
    own = disk.name.rpartition("n")[0]
    return paths or ([own] if host.exists(f"/sys/class/nvme/{own}") else [])


def identify(host: Host, controller: str) -> bytes:
    """The controller. Errors: OSError."""
    return host.kernel.nvme(controller, NVME_IDENTIFY, 0, _IDENTIFY_CONTROLLER, _IDENTIFY_BYTES)


def has_volatile_cache(host: Host, disk: Disk) -> bool | None:
    """Whether a drive has a write cache that a power loss empties; None where it does not say, or this user may not ask."""
    try:
        return any(bool(identify(host, name)[525] & 1) for name in controllers_of(host, disk)) if disk.is_nvme else None
    except OSError:
        return None


def places_data(identity: bytes) -> bool:
    """Whether the controller has Flexible Data Placement."""
    return bool(struct.unpack_from("<I", identity, 96)[0] >> 19 & 1)


def formats_of(host: Host, controller: str, namespace: int) -> tuple[int, list[Format]]:
    """(number of the format in use, all of them). Errors: OSError."""
    told = host.kernel.nvme(controller, NVME_IDENTIFY, namespace, _IDENTIFY_NAMESPACE, _IDENTIFY_BYTES)
    in_use = told[26] & 0xF | (told[26] >> 5 & 3) << 4
    formats = []
    for number in range(min(told[25] + 1, 64)):
        metadata, shift, performance = struct.unpack_from("<HBB", told, 128 + 4 * number)
        if shift:
            formats.append(Format(number, 1 << shift, metadata, performance & 3))
    return in_use, formats


def health_of(host: Host, controller: str) -> Health:
    """Errors: OSError."""
    log = host.kernel.nvme(controller, NVME_GET_LOG, _ALL_NAMESPACES, _SMART_LOG | (_SMART_BYTES // 4 - 1) << 16, _SMART_BYTES)

    def number(at: int) -> int:
        return int.from_bytes(log[at : at + 16], "little")

    return Health(
        warnings=tuple(text for bit, text in WARNINGS.items() if log[0] >> bit & 1),
        celsius=int.from_bytes(log[1:3], "little") - _KELVIN,
        spare_percent=log[3],
        spare_threshold_percent=log[4],
        used_percent=log[5],
        written_bytes=number(48) * DATA_UNIT_BYTES,
        unsafe_shutdowns=number(144),
        media_errors=number(160),
    )
