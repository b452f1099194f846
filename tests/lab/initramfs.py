"""The initramfs of the guest: busybox, init.sh and the modules that it takes to see this machine's root. As a newc archive."""

from __future__ import annotations

import gzip
import lzma
import re
import shutil
import stat
import subprocess
from pathlib import Path

MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay")
INIT = Path(__file__).with_name("init.sh")

# Whatever the kernel loads by itself (crc32 for rxe, congestion controls) it asks of this path in the initramfs.
_MODPROBE = b'#!/bin/busybox sh\nexec /bin/busybox chroot /root /sbin/modprobe "$@"\n'


def build(release: str) -> bytes:
    """For the kernel of this release, whose modules lie in /lib/modules. Errors: CalledProcessError, FileNotFoundError."""
    archive = _Archive()
    for folder in ("bin", "sbin", "modules", "proc", "sys", "dev"):
        archive.add(folder, stat.S_IFDIR | 0o755, b"")
    busybox = shutil.which("busybox")
    if busybox is None:
        raise FileNotFoundError("busybox")
    archive.add("bin/busybox", stat.S_IFREG | 0o755, Path(busybox).read_bytes())
    for library in _libraries(busybox):
        archive.add_folders(library)
        archive.add(library.lstrip("/"), stat.S_IFREG | 0o755, Path(library).read_bytes())
    names = []
    for module in _with_dependencies(release):
        data = module.read_bytes()
        name = module.name
        if name.endswith(".xz"):
            name, data = name.removesuffix(".xz"), lzma.decompress(data)
        names.append(name)
        archive.add(f"modules/{name}", stat.S_IFREG | 0o644, data)
    archive.add("modules/order", stat.S_IFREG | 0o644, "".join(f"{name}\n" for name in names).encode())
    archive.add("init", stat.S_IFREG | 0o755, INIT.read_bytes())
    archive.add("sbin/modprobe", stat.S_IFREG | 0o755, _MODPROBE)
    return gzip.compress(archive.finish(), 1)


def _libraries(program: str) -> list[str]:
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    return re.findall(r"(/lib\S+)", listed)


def _with_dependencies(release: str) -> list[Path]:
    """In the order in which they have to be loaded, each once."""
    files: dict[str, None] = {}
    for module in MODULES:
        shown = subprocess.run(
            ["/sbin/modprobe", "-S", release, "--show-depends", module], capture_output=True, text=True, check=True
        ).stdout
        files.update(dict.fromkeys(re.findall(r"^insmod (\S+)", shown, re.MULTILINE)))
    return [Path(file) for file in files]


class _Archive:
    """cpio in the format newc (Documentation/driver-api/early-userspace/buffer-format.rst)."""

    def __init__(self) -> None:
        self._out = bytearray()
        self._inode = 0
        self._folders: set[str] = set()

    def add_folders(self, path: str) -> None:
        for folder in reversed(Path(path.lstrip("/")).parents):
            name = str(folder)
            if name != "." and name not in self._folders:
                self._folders.add(name)
                self.add(name, stat.S_IFDIR | 0o755, b"")

    def add(self, name: str, mode: int, data: bytes) -> None:
        self._inode += 1
        encoded = name.encode() + b"\0"
        fields = (self._inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(encoded), 0)
        self._out += b"070701" + b"".join(b"%08x" % field for field in fields) + encoded
        self._pad()
        self._out += data
        self._pad()

    def finish(self) -> bytes:
        self.add("TRAILER!!!", 0, b"")
        return bytes(self._out)

    def _pad(self) -> None:
        self._out += b"\0" * (-len(self._out) % 4)
