"""Every mark that is known, alone on a blank device, and what has none."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import zlib
from pathlib import Path

import pytest

from halfstep.io.signatures import Signature, signatures_of

DEVICE_BYTES = 160 << 20
MD = struct.pack("<I", 0xA92B4EFC)


def found_on(path: Path) -> list[Signature]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return signatures_of(descriptor, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


def blank(path: Path, size: int = DEVICE_BYTES) -> Path:
    with path.open("wb") as file:
        file.truncate(size)
    return path


def put(path: Path, *pieces: tuple[int, bytes]) -> None:
    with path.open("r+b") as file:
        for at, data in pieces:
            file.seek(at)
            file.write(data)


def gpt() -> bytes:
    header = bytearray(92)
    header[:8], header[8:16] = b"EFI PART", struct.pack("<II", 0x10000, 92)
    header[16:20] = struct.pack("<I", zlib.crc32(bytes(header)))
    return bytes(header)


MBR = bytes([0x80, 0, 0, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 0, 1, 0]) + bytes(48) + b"\x55\xaa"

CASES = {
    "XFS": ("file system", [(0, b"XFSB")]),
    "ext2, ext3 or ext4": ("file system", [(1080, b"\x53\xef")]),
    "Btrfs": ("file system", [(0x10040, b"_BHRfS_M")]),
    "Btrfs (spare superblock)": ("file system", [(0x4000040, b"_BHRfS_M")]),
    "F2FS": ("file system", [(1024, b"\x10\x20\xf5\xf2")]),
    "NTFS": ("file system", [(3, b"NTFS    "), (510, b"\x55\xaa")]),
    "exFAT": ("file system", [(3, b"EXFAT   "), (510, b"\x55\xaa")]),
    "FAT": ("file system", [(82, b"FAT32   "), (510, b"\x55\xaa")]),
    "bcachefs": ("file system", [(4120, bytes.fromhex("c68573f666ce90a9d96a60cf803df7ef"))]),
    "bcache": ("cache", [(4120, bytes.fromhex("c68573f64e1a45ca8265f57f48ba6d81"))]),
    "physical volume": ("LVM", [(512, b"LABELONE" + bytes(16) + b"LVM2 001")]),
    "Linux md 1.1": ("RAID", [(0, MD)]),
    "Linux md 1.2": ("RAID", [(4096, MD)]),
    "Linux md 1.0": ("RAID", [(DEVICE_BYTES - 8192, MD)]),
    "Linux md 0.90": ("RAID", [(DEVICE_BYTES - 65536, MD)]),
    "Intel Matrix": ("RAID", [(DEVICE_BYTES - 1024, b"Intel Raid ISM Cfg Sig. ")]),
    "DDF": ("RAID", [(DEVICE_BYTES - 512, b"\xde\x11\xde\x11")]),
    "LUKS": ("encryption", [(0, b"LUKS\xba\xbe")]),
    "member of a pool": ("ZFS", [(DEVICE_BYTES - (256 << 10) + (128 << 10) + 4096, struct.pack("<Q", 0xBAB10C))]),
    "swap space": ("swap", [(4086, b"SWAPSPACE2")]),
    "GPT": ("partition table", [(512, gpt())]),
    "MBR": ("partition table", [(446, MBR)]),
    "Halfstep": ("store", [(0, b"HALFSTEP")]),
    "Ceph BlueStore": ("object store", [(0, b"bluestore block device")]),
}


@pytest.mark.parametrize("name", CASES)
def test_a_mark_is_found_with_its_place_and_remedy(tmp_path: Path, name: str) -> None:
    kind, pieces = CASES[name]
    path = blank(tmp_path / "device")
    put(path, *pieces)
    (one,) = found_on(path)
    assert (one.kind, one.name) == (kind, name)
    assert one.remedy
    assert 0 <= one.at < DEVICE_BYTES


def test_a_mark_whose_first_copy_is_gone_is_found_by_the_second(tmp_path: Path) -> None:
    for name, at, data in (
        ("GPT", DEVICE_BYTES - 512, gpt()),
        ("LUKS", 0x4000, b"SKUL\xba\xbe"),
        ("Halfstep", DEVICE_BYTES - (1 << 20), b"HALFSTEP"),
    ):
        path = blank(tmp_path / name)
        put(path, (at, data))
        (one,) = found_on(path)
        assert (one.name, one.at) == (name, at)


@pytest.mark.parametrize("size", [0, 1, 511, 4096, 65536, 1 << 20, DEVICE_BYTES + 4096])
def test_nothing_is_found_on_a_blank_device_of_any_size(tmp_path: Path, size: int) -> None:
    assert found_on(blank(tmp_path / "device", size)) == []


def test_letters_without_their_checksum_are_no_partition_table(tmp_path: Path) -> None:
    path = blank(tmp_path / "device")
    put(path, (512, b"EFI PART" + struct.pack("<II", 0x10000, 92) + bytes(100)))
    assert found_on(path) == []


def test_several_are_all_told_in_the_order_of_their_places(tmp_path: Path) -> None:
    path = blank(tmp_path / "device")
    put(path, (446, MBR), (1080, b"\x53\xef"), (512, gpt()), (4086, b"SWAPSPACE2"))
    assert [one.name for one in found_on(path)] == ["MBR", "GPT", "ext2, ext3 or ext4", "swap space"]


@pytest.mark.parametrize(("program", "name"), [("mkfs.ext4", "ext2, ext3 or ext4"), ("mkswap", "swap space")])
def test_what_the_system_makes_is_found_as_wipefs_finds_it(tmp_path: Path, program: str, name: str) -> None:
    search = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    make, wipefs = shutil.which(program, path=search), shutil.which("wipefs", path=search)
    if make is None or wipefs is None:
        pytest.skip(f"{program} and wipefs are not both here")
    path = blank(tmp_path / "device")
    subprocess.run([make, str(path)], check=True, capture_output=True, timeout=60)
    (one,) = found_on(path)
    assert one.name == name
    told = subprocess.run([wipefs, "--parsable", str(path)], check=True, capture_output=True, text=True, timeout=60).stdout
    offsets = [int(line.split(",")[0], 16) for line in told.splitlines() if not line.startswith("#")]
    assert offsets == [one.at]
