"""Which disks lie below a path: through mounts, partitions, and what is stacked on others (md, LVM, dm-crypt)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from halfstep.daemon.config import is_path, is_vhost_user
from halfstep.doctor.finding import SkipCheck
from halfstep.doctor.host import Host

_PCI = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


@dataclass(frozen=True)
class Mount:
    """A line of /proc/self/mountinfo. options: of the mount and of its file system."""

    point: str
    file_system: str
    source: str
    options: frozenset[str]


@dataclass(frozen=True)
class Disk:
    """A whole disk. directory: its real one in /sys."""

    name: str
    directory: str

    @property
    def queue(self) -> str:
        """Where the kernel says what it takes."""
        return f"{self.directory}/queue"

    @property
    def is_nvme(self) -> bool:
        """Whether it is a namespace of an NVMe controller."""
        return re.fullmatch(r"nvme\d+n\d+", self.name) is not None

    @property
    def pci(self) -> str:
        """The directory of the PCI function that it hangs on; "" where there is none."""
        parts = PurePosixPath(self.directory).parts
        last = max((number for number, part in enumerate(parts) if _PCI.fullmatch(part)), default=-1)
        return "/" + "/".join(parts[1 : last + 1]) if last >= 0 else ""


def mount_of(host: Host, path: str) -> Mount:
    """Where a path that exists lies. Errors: SkipCheck where no mount is known."""
    real = host.kernel.real_path(path)
    found: Mount | None = None
    for line in host.read("/proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        left, right = before.split(), after.split()
        if len(left) < 6 or len(right) < 2:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), left[4])
        within = real == point or real.startswith(point.rstrip("/") + "/")
        # Of two mounts at one point the later one lies on top.
        if within and (found is None or len(point) >= len(found.point)):
            options = {*left[5].split(","), *(right[2].split(",") if len(right) > 2 else ())}
            found = Mount(point, right[0], right[1], frozenset(options))
    if found is None:
        raise SkipCheck(f"/proc/self/mountinfo has no mount for {path}")
    return found


def nearest(host: Host, path: str) -> str:
    """The path, or the first directory above it that there is. Errors: OSError where this user may not look.

    Of a device that is not there, SkipCheck: nothing is made below /dev.
    """
    if is_vhost_user(path):
        raise SkipCheck("the store is on a vhost-user target, which has the drive: look where that runs")
    if not is_path(path):
        raise SkipCheck("the store is memory of the daemon, and on no drive")
    device = path.startswith("/dev/") and not path.startswith("/dev/shm/")  # noqa: S108 -- nothing is put there
    if device and host.kernel.place(path) is None:
        raise SkipCheck(f"{path}: there is no such device")
    while host.kernel.place(path) is None and path != "/":
        path = str(PurePosixPath(path).parent)
    return path


def disks_below(host: Host, path: str) -> list[Disk]:
    """The disks that a file, a directory or a device lies on, or is to. Errors: SkipCheck where there is none, OSError."""
    path = nearest(host, path)
    place = host.kernel.place(path)
    assert place is not None, path
    directory = _directory(host, place.device)
    if not directory and not place.is_block_device:
        # A file system over several devices, or with numbers of its own (btrfs): what was mounted.
        source = mount_of(host, path).source
        device = host.kernel.place(source) if source.startswith("/dev/") else None
        directory = _directory(host, device.device) if device is not None else ""
    if not directory:
        file_system = "" if place.is_block_device else f" ({mount_of(host, path).file_system})"
        raise SkipCheck(f"{path} lies on no block device that /sys names{file_system}")
    return list(dict.fromkeys(_whole(host, directory)))


def _directory(host: Host, device: tuple[int, int]) -> str:
    link = f"/sys/dev/block/{device[0]}:{device[1]}"
    return host.resolved(link) if host.exists(link) else ""


def _whole(host: Host, directory: str) -> list[Disk]:
    if host.exists(f"{directory}/partition"):
        return _whole(host, str(PurePosixPath(directory).parent))
    below = host.names(f"{directory}/slaves")
    if below:
        return [disk for name in below for disk in _whole(host, host.resolved(f"{directory}/slaves/{name}"))]
    return [Disk(PurePosixPath(directory).name, directory)]
