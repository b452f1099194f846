"""What an NVMe controller says of itself, of a namespace and of its health, by admin commands that only read.

Offsets are those of the NVMe base specification 2.0: Identify Controller, Identify Namespace, SMART / Health Information.
Invariants: no command that is sent changes anything; what a drive answers is never believed as a length.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass

# struct nvme_admin_cmd and NVME_IOCTL_ADMIN_CMD of linux/nvme_ioctl.h.
_ADMIN = struct.Struct("=BBHIIIQQII6III")
_NVME_IOCTL_ADMIN = 0xC0484E41
GET_LOG, IDENTIFY, GET_FEATURES = 0x02, 0x06, 0x0A
READING = (GET_LOG, IDENTIFY, GET_FEATURES)

ALL_NAMESPACES = 0xFFFFFFFF
IDENTIFY_BYTES, SMART_BYTES = 4096, 512
IDENTIFY_NAMESPACE, IDENTIFY_CONTROLLER = 0, 1
# Command dword 10 of the SMART log: its number, and how many words are wanted, less one.
SMART_WORD = 0x02 | (SMART_BYTES // 4 - 1) << 16
FEATURE_WRITE_CACHE, FEATURE_PLACEMENT = 0x06, 0x1D
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
class Answer:
    """data: what the drive wrote. result: dword 0 of the completion."""

    data: bytes
    result: int


# command, namespace, command dword 10, command dword 11, bytes of the answer.
Ask = Callable[[int, int, int, int, int], Answer]


@dataclass(frozen=True)
class Identity:
    """Of a controller. transfer_pages_max: of the smallest page that it has, 0 unbounded. placement: whether it has FDP."""

    model: str
    serial: str
    firmware: str
    transfer_pages_max: int
    volatile_cache: bool
    deallocates: bool
    placement: bool


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


@dataclass(frozen=True)
class Namespace:
    """blocks: of the format in use. endurance_group: where FDP is configured; 0: the drive names none."""

    blocks: int
    format_in_use: int
    formats: tuple[Format, ...]
    endurance_group: int

    @property
    def format(self) -> Format | None:
        """The one in use; None where it is none of those that the drive names."""
        return next((one for one in self.formats if one.number == self.format_in_use), None)

    @property
    def better(self) -> Format | None:
        """A format of 4 KiB without metadata that the drive says is faster than the one in use; None: there is none."""
        now = self.format
        if now is None or now.data_bytes == 4096:
            return None
        better = [
            one
            for one in self.formats
            if one.data_bytes == 4096 and not one.metadata_bytes and one.performance < now.performance
        ]
        return min(better, key=lambda one: one.performance, default=None)


def admin(path: str, command: int, namespace: int, word10: int, word11: int, count: int) -> Answer:
    """What an admin command of a controller or namespace at a path answers. Errors: OSError, EIO for one that it refuses."""
    assert command in READING, command
    answer = ctypes.create_string_buffer(max(count, 1))
    address = ctypes.addressof(answer) if count else 0
    words = (word10, word11, 0, 0, 0, 0)
    packed = bytearray(_ADMIN.pack(command, 0, 0, namespace, 0, 0, 0, address, 0, count, *words, 0, 0))
    descriptor = os.open(path, os.O_RDONLY)
    try:
        status = fcntl.ioctl(descriptor, _NVME_IOCTL_ADMIN, packed, True)
    finally:
        os.close(descriptor)
    if status != 0:
        raise OSError(errno.EIO, f"the drive refuses the command, status {status:#x}", path)
    return Answer(answer.raw[:count], struct.unpack_from("=I", packed, _ADMIN.size - 4)[0])


def identity_of(told: bytes) -> Identity:
    """Of what Identify Controller answers."""
    (attributes,) = struct.unpack_from("<I", told, 96)
    (optional,) = struct.unpack_from("<H", told, 520)
    return Identity(
        serial=_text(told[4:24]),
        model=_text(told[24:64]),
        firmware=_text(told[64:72]),
        transfer_pages_max=1 << told[77] if 0 < told[77] < 32 else 0,
        volatile_cache=bool(told[525] & 1),
        deallocates=bool(optional >> 2 & 1),
        placement=bool(attributes >> 19 & 1),
    )


def _text(told: bytes) -> str:
    return "".join(c if c.isprintable() else "?" for c in told.decode("ascii", "replace")).strip()


def namespace_of(told: bytes) -> Namespace:
    """Of what Identify Namespace answers."""
    formats = []
    for number in range(min(told[25] + 1, 64)):
        metadata, shift, performance = struct.unpack_from("<HBB", told, 128 + 4 * number)
        if 0 < shift < 32:
            formats.append(Format(number, 1 << shift, metadata, performance & 3))
    return Namespace(
        blocks=int.from_bytes(told[:8], "little"),
        format_in_use=told[26] & 0xF | (told[26] >> 5 & 3) << 4,
        formats=tuple(formats),
        endurance_group=int.from_bytes(told[102:104], "little"),
    )


def health_of(log: bytes) -> Health:
    """Of the log of health."""

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


def placement_enabled(result: int) -> bool:
    """Of what Get Features answers for Flexible Data Placement of an endurance group."""
    return bool(result & 1)


def write_cache_enabled(result: int) -> bool:
    """Of what Get Features answers for the volatile write cache."""
    return bool(result & 1)
