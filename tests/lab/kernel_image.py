"""The kernel inside a bzImage: QEMU starts the ELF file some seconds sooner than it unpacks itself under emulation.

The format is Documentation/arch/x86/boot.rst: the payload's place is in the set-up header, its length too.
"""

from __future__ import annotations

import lzma
import struct
import subprocess
from pathlib import Path

_SETUP_SECTORS = 0x1F1
_PAYLOAD = 0x248  # u32 offset from the protected-mode code, u32 bytes; boot protocol 2.08
_SECTOR_BYTES = 512
_XZ, _ZSTD, _ELF = b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd", b"\x7fELF"


class KernelImageError(Exception):
    """The file is no kernel that can be unpacked here."""


def unpack(image: Path) -> bytes:
    """The ELF file in a bzImage. Errors: KernelImageError."""
    data = image.read_bytes()
    if data[0x202:0x206] != b"HdrS" or data[0x1FE:0x200] != b"\x55\xaa":
        raise KernelImageError(f"{image}: no boot sector signature; is it a bzImage?")
    code = ((data[_SETUP_SECTORS] or 4) + 1) * _SECTOR_BYTES
    offset, length = struct.unpack_from("<II", data, _PAYLOAD)
    payload = data[code + offset : code + offset + length]
    if payload.startswith(_XZ):
        # Its last four bytes are the size of what comes out.
        kernel = lzma.LZMADecompressor().decompress(payload)
    elif payload.startswith(_ZSTD):
        kernel = subprocess.run(["zstd", "-dc"], input=payload, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    else:
        raise KernelImageError(f"{image}: packed in a way that is not known here ({payload[:6].hex()})")
    if not kernel.startswith(_ELF):
        raise KernelImageError(f"{image}: what comes out is no ELF file ({kernel[:4].hex()})")
    return kernel
