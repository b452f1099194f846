"""What a device holds, by the marks that file systems, partition tables, volume managers and stores leave at fixed places.

Invariants: it reads alone; a range that the device does not have is no mark, and nothing that is read is believed as a length.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

# What stands in the first and in the last bytes of a device; a mark beyond them has places of its own.
_HEAD_BYTES, _TAIL_BYTES = 2 << 20, 1 << 20
_ZFS_LABEL_BYTES, _ZFS_UBERBLOCK = 256 << 10, 0x00BAB10C
_MD_MAGIC = struct.pack("<I", 0xA92B4EFC)

Read = Callable[[int, int], bytes]


@dataclass(frozen=True)
class Signature:
    """kind: of a few words, such as "file system". name: as mount or blkid say it. at: the byte where the mark stands.

    remedy: how it is let go in an orderly way, before the device is wiped.
    """

    kind: str
    name: str
    at: int
    remedy: str


_REMEDIES = {
    "file system": "copy what is wanted from it",
    "partition table": "name one of its partitions, or remove them all with `wipefs`",
    "LVM": "`vgreduce` and `pvremove` it",
    "RAID": "`mdadm --stop` the array and `mdadm --zero-superblock` each member",
    "encryption": "`cryptsetup close` it, and `cryptsetup erase` it",
    "ZFS": "`zpool export` the pool and `zpool labelclear` the device",
    "swap": "`swapoff` it, and take it out of /etc/fstab",
    "cache": "detach it from its set (`bcache unregister`)",
    "store": "stop its daemon; `halfstep fsck` shows what is in it",
    "object store": "take the disk out of the cluster (`ceph-volume lvm zap`)",
}

# (kind, name, byte, mark) of those that stand at one place.
_FIXED: tuple[tuple[str, str, int, bytes], ...] = (
    ("store", "Halfstep", 0, b"HALFSTEP"),
    ("file system", "XFS", 0, b"XFSB"),
    ("file system", "ext2, ext3 or ext4", 1080, b"\x53\xef"),
    ("file system", "Btrfs", 0x10040, b"_BHRfS_M"),
    ("file system", "Btrfs (spare superblock)", 0x4000040, b"_BHRfS_M"),
    ("file system", "F2FS", 1024, b"\x10\x20\xf5\xf2"),
    ("file system", "EROFS", 1024, b"\xe2\xe1\xf5\xe0"),
    ("file system", "NTFS", 3, b"NTFS    "),
    ("file system", "exFAT", 3, b"EXFAT   "),
    ("file system", "FAT", 82, b"FAT32   "),
    ("file system", "FAT", 54, b"FAT16   "),
    ("file system", "FAT", 54, b"FAT12   "),
    ("file system", "HFS+", 1024, b"H+\x00\x04"),
    ("file system", "HFS+", 1024, b"HX\x00\x05"),
    ("file system", "APFS", 32, b"NXSB"),
    ("file system", "JFS", 0x8000, b"JFS1"),
    ("file system", "ReiserFS", 0x10034, b"ReIsEr"),
    ("file system", "NILFS2", 1030, b"\x34\x34"),
    ("file system", "GFS2", 0x10000, b"\x01\x16\x19\x70"),
    ("file system", "OCFS2", 0x800, b"OCFSV2"),
    ("file system", "bcachefs", 4096 + 24, bytes.fromhex("c68573f666ce90a9d96a60cf803df7ef")),
    ("file system", "SquashFS", 0, b"hsqs"),
    ("file system", "ISO 9660", 0x8001, b"CD001"),
    ("file system", "UDF", 0x8001, b"BEA01"),
    ("file system", "VMFS", 0x200000, b"\x5e\xf1\xab\x2f"),
    ("cache", "bcache", 4096 + 24, bytes.fromhex("c68573f64e1a45ca8265f57f48ba6d81")),
    ("encryption", "LUKS", 0, b"LUKS\xba\xbe"),
    ("encryption", "BitLocker", 3, b"-FVE-FS-"),
    ("RAID", "Linux md 1.1", 0, _MD_MAGIC),
    ("RAID", "Linux md 1.2", 4096, _MD_MAGIC),
    ("object store", "Ceph BlueStore", 0, b"bluestore block device"),
)


def signatures_of(descriptor: int, device_bytes: int) -> list[Signature]:
    """All that are known, each kind and name once, in the order of their places. Errors: OSError of a read."""

    def read(at: int, count: int) -> bytes:
        if at < 0 or at + count > device_bytes:
            return b""
        return os.pread(descriptor, count, at)

    head = _pieces(descriptor, 0, min(device_bytes, _HEAD_BYTES))
    tail_at = max(device_bytes - _TAIL_BYTES, 0)
    tail = _pieces(descriptor, tail_at, device_bytes - tail_at)

    def cached(at: int, count: int) -> bytes:
        if at >= 0 and at + count <= len(head):
            return head[at : at + count]
        if at >= tail_at and at + count <= device_bytes:
            return tail[at - tail_at : at - tail_at + count]
        return read(at, count)

    found: dict[tuple[str, str], Signature] = {}
    for kind, name, at in _marks(cached, device_bytes):
        key = kind, name
        if key not in found or at < found[key].at:
            found[key] = Signature(kind, name, at, _REMEDIES[kind])
    return sorted(found.values(), key=lambda one: one.at)


def _pieces(descriptor: int, at: int, count: int) -> bytes:
    """As much of it as there is. Errors: OSError."""
    data = b""
    while len(data) < count and (more := os.pread(descriptor, count - len(data), at + len(data))):
        data += more
    return data


def _marks(read: Read, device_bytes: int) -> Iterator[tuple[str, str, int]]:
    for kind, name, at, mark in _FIXED:
        if read(at, len(mark)) == mark:
            yield kind, name, at
    yield from _luks_second(read)
    yield from _lvm(read)
    yield from _swap(read)
    yield from _raid_at_the_end(read, device_bytes)
    yield from _zfs(read, device_bytes)
    yield from _partitions(read, device_bytes)
    yield from _second_header(read, device_bytes)


def _luks_second(read: Read) -> Iterator[tuple[str, str, int]]:
    for at in (0x4000 << shift for shift in range(9)):
        if read(at, 6) == b"SKUL\xba\xbe":
            yield "encryption", "LUKS", at


def _lvm(read: Read) -> Iterator[tuple[str, str, int]]:
    for at in range(0, 2048, 512):
        label = read(at, 32)
        if label[:8] == b"LABELONE" and label[24:32] == b"LVM2 001":
            yield "LVM", "physical volume", at


def _swap(read: Read) -> Iterator[tuple[str, str, int]]:
    # It ends the first page, whose size is the machine's that made it.
    for page in (4096, 8192, 16384, 32768, 65536):
        if read(page - 10, 10) in (b"SWAPSPACE2", b"SWAP-SPACE"):
            yield "swap", "swap space", page - 10


def _raid_at_the_end(read: Read, device_bytes: int) -> Iterator[tuple[str, str, int]]:
    for name, at in (
        ("Linux md 1.0", (device_bytes - 8192) & ~0xFFF),
        ("Linux md 0.90", (device_bytes & ~0xFFFF) - 0x10000),
    ):
        if read(at, 4) == _MD_MAGIC:
            yield "RAID", name, at
    at = device_bytes - 1024
    if read(at, 24) == b"Intel Raid ISM Cfg Sig. ":
        yield "RAID", "Intel Matrix", at
    at = device_bytes - 512
    if read(at, 4) in (b"\xde\x11\xde\x11", b"\x11\xde\x11\xde"):
        yield "RAID", "DDF", at


def _zfs(read: Read, device_bytes: int) -> Iterator[tuple[str, str, int]]:
    """Of four labels, two at each end, one uberblock is enough."""
    end = device_bytes // _ZFS_LABEL_BYTES * _ZFS_LABEL_BYTES
    for label in (0, _ZFS_LABEL_BYTES, end - 2 * _ZFS_LABEL_BYTES, end - _ZFS_LABEL_BYTES):
        for at in range(label + (128 << 10), label + _ZFS_LABEL_BYTES, 1024):
            mark = read(at, 8)
            if len(mark) == 8 and _ZFS_UBERBLOCK in (struct.unpack("<Q", mark)[0], struct.unpack(">Q", mark)[0]):
                yield "ZFS", "member of a pool", at
                return


def _partitions(read: Read, device_bytes: int) -> Iterator[tuple[str, str, int]]:
    for block in (512, 4096):
        for at in (block, device_bytes - block):
            if _is_gpt(read(at, 92)):
                yield "partition table", "GPT", at
    sector = read(0, 512)
    if sector[510:512] != b"\x55\xaa" or sector[3:11] in (b"NTFS    ", b"EXFAT   "):
        return
    entries = [sector[446 + 16 * number : 462 + 16 * number] for number in range(4)]
    used = [entry for entry in entries if any(entry)]
    # The first sector of FAT has the same end; its code is not four entries of which each is active or not.
    if used and all(entry[0] in (0, 0x80) and entry[4] != 0 for entry in used):
        yield "partition table", "MBR", 510


def _is_gpt(header: bytes) -> bool:
    """Its own checksum tells it from what has the letters by accident."""
    if len(header) < 92 or header[:8] != b"EFI PART":
        return False
    size, stored = struct.unpack_from("<II", header, 12)
    whole = zlib.crc32(header[:16] + bytes(4) + header[20:])
    return bool(92 <= size <= 4096 and (size != 92 or whole == stored))


def _second_header(read: Read, device_bytes: int) -> Iterator[tuple[str, str, int]]:
    """A store's, where the first one is gone."""
    at = device_bytes // 4096 * 4096 - (1 << 20)
    if at > 0 and read(at, 8) == b"HALFSTEP":
        yield "store", "Halfstep", at
