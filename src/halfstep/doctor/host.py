"""The one door to the machine: files below a root, and the calls of the kernel (doctor.kernel).

Invariant: nothing is written, and nothing but a store's file, a device or a socket is opened beside /proc, /sys, /etc and the
places of units. Tests give another root, and a kernel of their own.
"""

from __future__ import annotations

import os
from pathlib import Path

from halfstep.doctor.finding import SkipCheck
from halfstep.doctor.kernel import Kernel

TEXT_BYTES_MAX = 4 << 20
# A read of more at once from /proc/sys is answered with ENOMEM.
READ_BYTES = 64 << 10
RDMA_DEVICES = "/sys/class/infiniband"


class Host:
    """Paths are absolute, as they are on the machine. What may not be read raises OSError; the runner makes a skip of it."""

    def __init__(self, root: Path = Path("/"), kernel: Kernel | None = None) -> None:
        self.root = root
        self.kernel = kernel or Kernel()

    def path(self, path: str) -> Path:
        """Where it lies for this process."""
        return self.root / path.lstrip("/")

    def read(self, path: str) -> str:
        """A file's text without space around it; at most 4 MiB. Errors: OSError, also of a missing file."""
        return self.read_bytes(path).decode(errors="replace").strip()

    def read_bytes(self, path: str) -> bytes:
        """As read(), as it is."""
        data = b""
        with self.path(path).open("rb", buffering=0) as file:
            while len(data) < TEXT_BYTES_MAX and (more := file.read(READ_BYTES)):
                data += more
        return data

    def text(self, path: str) -> str | None:
        """As read(); None where there is no such file, or its directory. Errors: OSError of a file that may not be read."""
        try:
            return self.read(path)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def number(self, path: str) -> int | None:
        """The first word of a file as a number; None where there is no file, or no number in it."""
        words = (self.text(path) or "").split()
        try:
            return int(words[0], 0) if words else None
        except ValueError:
            return None

    def names(self, directory: str) -> list[str]:
        """What is in a directory, sorted; nothing where there is none."""
        try:
            return sorted(entry.name for entry in self.path(directory).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def exists(self, path: str) -> bool:
        """Whether it is there."""
        return self.path(path).exists()

    def resolved(self, path: str) -> str:
        """Its real path, links followed."""
        root, real = os.path.realpath(self.root), os.path.realpath(self.path(path))
        return "/" + os.path.relpath(real, root) if root != "/" else real

    def link(self, path: str) -> str:
        """What a link says. Errors: OSError; "" where it is none, or there is nothing."""
        place = self.path(path)
        return str(place.readlink()) if place.is_symlink() else ""

    def field(self, path: str, name: str) -> str:
        """What stands behind `name:` in a file of such lines. Errors: OSError, SkipCheck where no line begins so."""
        for line in self.read(path).splitlines():
            key, colon, value = line.partition(":")
            if colon and key.strip() == name:
                return value.strip()
        raise SkipCheck(f"{path} has no line {name}")

    def limit_of(self, pid: str, name: str) -> int | None:
        """A soft limit of a process, or "self", by its name in its limits; None: unlimited. Errors: OSError, SkipCheck."""
        for line in self.read(f"/proc/{pid}/limits").splitlines():
            if line.startswith(name):
                soft = line[len(name) :].split()[0]
                return None if soft == "unlimited" else int(soft)
        raise SkipCheck(f"/proc/{pid}/limits has no line {name}")
