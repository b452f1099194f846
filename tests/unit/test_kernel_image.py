"""The kernel of the lab's guest, out of its bzImage."""

from __future__ import annotations

import lzma
import struct
from pathlib import Path

import pytest
from tests.lab.kernel_image import KernelImageError, unpack

ELF = b"\x7fELF" + bytes(100)


def image(magic: bytes = b"HdrS", signature: bytes = b"\x55\xaa") -> bytes:
    """A boot sector, one of set-up, and a payload packed by xz."""
    payload = lzma.compress(ELF) + struct.pack("<I", len(ELF))
    head = bytearray(2 * 512)
    head[0x1F1] = 1
    head[0x1FE:0x200] = signature
    head[0x202:0x206] = magic
    head[0x248:0x250] = struct.pack("<II", 0, len(payload))
    return bytes(head) + payload


def test_a_kernel_is_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "vmlinuz"
    path.write_bytes(image())
    assert unpack(path) == ELF


@pytest.mark.parametrize("data", [image(magic=bytes(4)), image(signature=bytes(2)), b""], ids=["magic", "signature", "empty"])
def test_what_is_no_kernel_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "vmlinuz"
    path.write_bytes(data)
    with pytest.raises(KernelImageError, match="is it a bzImage"):
        unpack(path)
