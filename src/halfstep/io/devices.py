"""The block devices of this host, as /sys and /proc show them: what each is, what is on it, and who uses it.

Invariants: nothing is changed, and a device is opened for reading alone, for its marks. What this user may not see is said to
be unseen, and never to be free. Tests give another root.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from halfstep.io.signatures import Signature, signatures_of

SECTOR_BYTES = 512  # of /sys, whatever the drive has
TEXT_BYTES_MAX = 1 << 20


@dataclass(frozen=True)
class Mount:
    """Of a device, or of a partition of it."""

    device: str
    point: str
    file_system: str


@dataclass(frozen=True)
class User:
    """A process that has the device open."""

    pid: int
    command: str


@dataclass(frozen=True)
class Device:
    """path: below /dev. by_id: a name that stays the drive's, "" where it has none. number: (major, minor).

    inside: partitions, or what is stacked on it (LVM, md, dm-crypt). namespace: the character device of an NVMe namespace.
    signatures: None where this user may not read the device, and why_unread says so.
    backing: the file of a loop device.
    """

    name: str
    path: str
    by_id: str
    number: tuple[int, int]
    kind: str
    model: str
    serial: str
    bytes: int
    logical_block_bytes: int
    physical_block_bytes: int
    rotational: bool
    read_only: bool
    inside: tuple[str, ...]
    mounts: tuple[Mount, ...]
    swap: bool
    users: tuple[User, ...]
    signatures: tuple[Signature, ...] | None
    why_unread: str = ""
    namespace: str = ""
    controller: str = ""
    backing: str = ""

    @property
    def why_not_free(self) -> str:
        """Why no store may be made on it without more ado; "" where one may, as far as can be seen."""
        if self.read_only:
            return "read-only"
        if self.mounts:
            return f"mounted at {self.mounts[0].point}"
        if self.swap:
            return "swap space in use"
        if self.inside:
            return f"holds {', '.join(self.inside)}"
        if self.users:
            return f"open in pid {self.users[0].pid} ({self.users[0].command})"
        if self.signatures is None:
            return f"not known: {self.why_unread}"
        if self.signatures:
            return f"holds {self.signatures[0].kind}: {self.signatures[0].name}"
        return ""


class Tree:
    """Files below a root. What is not there is nothing; what may not be read is nothing, too."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root

    def path(self, path: str) -> Path:
        """Where it lies for this process."""
        return self.root / path.lstrip("/")

    def text(self, path: str) -> str:
        """A file's text, without space around it."""
        try:
            with self.path(path).open("rb") as file:
                return file.read(TEXT_BYTES_MAX).decode(errors="replace").strip()
        except OSError:
            return ""

    def number(self, path: str) -> int:
        """0 where there is none."""
        word = self.text(path).partition("\n")[0]
        return int(word) if word.isdecimal() else 0

    def names(self, path: str) -> list[str]:
        """Sorted."""
        try:
            return sorted(entry.name for entry in self.path(path).iterdir())
        except OSError:
            return []


def device_number(tree: Tree, name: str) -> tuple[int, int]:
    """Of a name in /sys/class/block; (0, 0) where there is none."""
    major, colon, minor = tree.text(f"/sys/class/block/{name}/dev").partition(":")
    return (int(major), int(minor)) if colon and major.isdecimal() and minor.isdecimal() else (0, 0)


def list_devices(tree: Tree) -> list[Device]:
    """Whole disks, and loop devices that have a file; what has no bytes is left out. By name, nvme2 before nvme10."""
    names = [name for name in tree.names("/sys/block") if tree.number(f"/sys/block/{name}/size")]
    names.sort(key=lambda name: [(not part.isdecimal(), int(part) if part.isdecimal() else part) for part in _parts(name)])
    openers = _openers(tree)
    return [_device(tree, name, openers) for name in names if not re.match(r"(ram|zram|fd|sr)\d", name)]


def _parts(name: str) -> list[str]:
    return [part for part in re.split(r"(\d+)", name) if part]


def device_at(tree: Tree, path: str) -> Device | None:
    """Of a block device, or of the character device of an NVMe namespace; links are followed. None: it is no such device.

    Errors: OSError of a path that cannot be looked at.
    """
    found = tree.path(path).stat()
    if stat.S_ISBLK(found.st_mode):
        number = os.major(found.st_rdev), os.minor(found.st_rdev)
    elif (name := namespace_name(path)) and stat.S_ISCHR(found.st_mode):
        number = device_number(tree, name)
    else:
        return None
    name = Path(os.path.realpath(tree.path(f"/sys/dev/block/{number[0]}:{number[1]}"))).name
    if device_number(tree, name) != number:
        return None
    return _device(tree, name, _openers(tree))


def namespace_name(path: str) -> str:
    """The block device of a character device such as /dev/ng0n1; "" where the path names none."""
    found = re.fullmatch(r"ng(\d+n\d+)", Path(path).name)
    return f"nvme{found[1]}" if found else ""


def _device(tree: Tree, name: str, openers: dict[tuple[int, int], list[User]]) -> Device:
    sys = f"/sys/class/block/{name}"
    number = device_number(tree, name)
    partitions = [entry for entry in tree.names(sys) if tree.text(f"{sys}/{entry}/partition")]
    own = {number, *(device_number(tree, one) for one in partitions)}
    signatures, why_unread = _signatures(tree, f"/dev/{name}")
    controller = re.fullmatch(r"(nvme\d+)n\d+", name)
    namespace = f"/dev/{name.replace('nvme', 'ng', 1)}" if controller else ""
    return Device(
        name=name,
        path=f"/dev/{name}",
        by_id=_by_id(tree, name),
        number=number,
        kind=_kind(tree, name),
        model=tree.text(f"{sys}/device/model"),
        serial=tree.text(f"{sys}/device/serial") or tree.text(f"{sys}/serial"),
        bytes=tree.number(f"{sys}/size") * SECTOR_BYTES,
        logical_block_bytes=tree.number(f"{sys}/queue/logical_block_size"),
        physical_block_bytes=tree.number(f"{sys}/queue/physical_block_size"),
        rotational=bool(tree.number(f"{sys}/queue/rotational")),
        read_only=bool(tree.number(f"{sys}/ro")),
        inside=(*partitions, *_holders(tree, [name, *partitions])),
        mounts=tuple(_mounts(tree, own, {f"/dev/{one}" for one in (name, *partitions)})),
        swap=any(_is_of(tree, line.split()[0], own) for line in tree.text("/proc/swaps").splitlines()[1:]),
        users=tuple(dict.fromkeys(user for one in sorted(own) for user in openers.get(one, ()))),
        signatures=signatures,
        why_unread=why_unread,
        namespace=namespace if namespace and tree.path(namespace).exists() else "",
        controller=controller[1] if controller else "",
        backing=tree.text(f"{sys}/loop/backing_file"),
    )


def _kind(tree: Tree, name: str) -> str:
    if name.startswith("nvme"):
        return "nvme"
    if name.startswith("loop"):
        return "loop"
    if name.startswith("dm-"):
        return tree.text(f"/sys/class/block/{name}/dm/uuid").partition("-")[0].lower() or "dm"
    if name.startswith("md"):
        return "md"
    return "disk"


def _by_id(tree: Tree, name: str) -> str:
    """Of the names that stay a drive's, the one of its serial number before those of numbers nobody reads."""
    names = []
    for one in tree.names("/dev/disk/by-id"):
        with suppress(OSError):
            if tree.path(f"/dev/disk/by-id/{one}").readlink().name == name:
                names.append(one)
    names.sort(key=lambda one: (one.startswith(("wwn-", "nvme-eui", "nvme-nvme", "dm-uuid")), len(one)))
    return f"/dev/disk/by-id/{names[0]}" if names else ""


def _holders(tree: Tree, names: list[str]) -> Iterator[str]:
    for name in names:
        for holder in tree.names(f"/sys/class/block/{name}/holders"):
            yield tree.text(f"/sys/class/block/{holder}/dm/name") or holder


def _mounts(tree: Tree, numbers: set[tuple[int, int]], paths: set[str]) -> Iterator[Mount]:
    for line in tree.text("/proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        left, right = before.split(), after.split()
        if len(left) < 6 or len(right) < 2:
            continue
        major, _, minor = left[2].partition(":")
        # btrfs has a number of its own; what was mounted stands behind it.
        if (int(major), int(minor)) in numbers or right[1] in paths:
            yield Mount(right[1], _unescaped(left[4]), right[0])


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), text)


def _is_of(tree: Tree, path: str, numbers: set[tuple[int, int]]) -> bool:
    with suppress(OSError):
        found = tree.path(path).stat()
        return stat.S_ISBLK(found.st_mode) and (os.major(found.st_rdev), os.minor(found.st_rdev)) in numbers
    return False


def _openers(tree: Tree) -> dict[tuple[int, int], list[User]]:
    """Which processes have which block devices open, as far as this user may see."""
    found: dict[tuple[int, int], list[User]] = {}
    for pid in tree.names("/proc"):
        if not pid.isdecimal() or int(pid) == os.getpid():
            continue
        for descriptor in tree.names(f"/proc/{pid}/fd"):
            place = tree.path(f"/proc/{pid}/fd/{descriptor}")
            with suppress(OSError):
                target = str(place.readlink())
                if not target.startswith("/dev/") or target.startswith(("/dev/pts/", "/dev/null")):
                    continue
                number = _number_of(tree, place, target)
                if number is not None:
                    found.setdefault(number, []).append(User(int(pid), tree.text(f"/proc/{pid}/comm")))
    return found


def _number_of(tree: Tree, place: Path, target: str) -> tuple[int, int] | None:
    about = place.stat()
    if stat.S_ISBLK(about.st_mode):
        return os.major(about.st_rdev), os.minor(about.st_rdev)
    if stat.S_ISCHR(about.st_mode) and (name := namespace_name(target)):
        return device_number(tree, name)
    return None


def _signatures(tree: Tree, path: str) -> tuple[tuple[Signature, ...] | None, str]:
    try:
        descriptor = os.open(tree.path(path), os.O_RDONLY)
    except OSError as error:
        why = "run it as root" if isinstance(error, PermissionError) else error.strerror
        return None, f"{path} cannot be read ({why})"
    try:
        return tuple(signatures_of(descriptor, os.lseek(descriptor, 0, os.SEEK_END))), ""
    except OSError as error:
        return None, f"{path} does not read ({error.strerror}); look at dmesg"
    finally:
        os.close(descriptor)
