"""Where the store is, or is to be: whether it may be there, the file system, O_DIRECT, free space."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from halfstep.daemon.config import STORE_BYTES_MIN, VHOST_USER, is_path, is_vhost_user
from halfstep.daemon.units import format_bytes
from halfstep.doctor.case import Case
from halfstep.doctor.disks import mount_of, nearest
from halfstep.doctor.finding import Area, Check, Finding, Rule, Severity, SkipCheck
from halfstep.doctor.host import Host

GOOD_FILE_SYSTEMS = frozenset({"ext4", "xfs", "btrfs"})
IN_MEMORY = frozenset({"tmpfs", "ramfs", "devtmpfs"})
PLACE_REFUSED = Rule(
    "store-place",
    Severity.ERROR,
    "a store, or a place where one may be made",
    "The daemon does not start: it makes no store where another one is meant.",
    "mount the drive that is meant, or name another path with `--store`",
)
CLOSED = Rule(
    "store-closed",
    Severity.ERROR,
    "this user may write it",
    "A daemon of this user does not start.",
    "run as the user that made it, or give this user access: `sudo chown`, or the group `disk` of a device",
)
READ_ONLY = Rule(
    "store-read-only",
    Severity.ERROR,
    "a file system that is mounted for writing",
    "Serving writes. A file system that the kernel made read-only has met errors of its drive.",
    "look at `dmesg` first, then `sudo mount -o remount,rw {point}`; under systemd name it in `ReadWritePaths=`",
)
IN_MEMORY_ONLY = Rule(
    "store-in-memory",
    Severity.WARNING,
    "a drive",
    "The store takes memory beside the arena, and is gone after a reboot.",
    "name a path on a drive with `--store`",
)
FILE_SYSTEM = Rule(
    "store-file-system",
    Severity.WARNING,
    "ext4, xfs, btrfs or a block device",
    "Others are not tested: they may copy each byte once more, wait as a request is handed over, or refuse O_DIRECT.",
    "make a file system: `sudo mkfs.xfs DEVICE`, or serve the whole device with `--store DEVICE`",
)
BUFFERED = Rule(
    "store-buffered",
    Severity.WARNING,
    "O_DIRECT is taken",
    "Each byte is copied once more, and fills the page cache.",
    "move the store to ext4, xfs, btrfs or a block device; `--require-direct` refuses to start instead",
)
SPACE_LOW = Rule(
    "store-space-low",
    Severity.ERROR,
    "at least {wanted} free",
    "A store is allocated whole when it is made, and the daemon does not start without the room.",
    "free space, lower `--size`, or name a larger file system with `--store`",
)
SPARSE = Rule(
    "store-sparse",
    Severity.WARNING,
    "all of the file is allocated",
    "Others may take the space that it was promised: puts are answered `unavailable (media)` then.",
    "stop the daemon, then `sudo fallocate -l {bytes} {path}`: it allocates the rest, and blocks stay",
)
VIEWS_DIFFER = Rule(
    "store-views-differ",
    Severity.ERROR,
    "the same page by io_uring, as the Python package liburing has it, and by a plain read",
    "The daemon reads by io_uring: what the kernel or the drive gives it that way is not what lies there.",
    "`--engine pread` serves meanwhile; look at `dmesg`, and at what lies below the store (md, device mapper, FUSE)",
)


def place(host: Host, case: Case) -> Iterator[Finding | str]:
    """Whether there is a store, or may be one, and this user may write it."""
    path = str(case.config.store)
    if host.kernel.core_missing():
        raise SkipCheck("the native core does not load")
    if is_vhost_user(path):
        yield _target(host, case, path)
        return
    if not is_path(path):
        yield f"{path}: memory of the daemon, to measure with"
        return
    found = None
    try:
        found = host.kernel.place(path)
    except PermissionError:  # below a directory of the daemon's user: this one knows nothing about it
        raise
    except OSError:  # a circle of links, a name that is too long: the daemon has words for it
        pass
    if refusal := host.kernel.place_refusal(path):
        yield PLACE_REFUSED.found(refusal)
        return
    # A daemon that runs, and one that the unit starts, is of a user of its own.
    if case.daemon is None and not case.by_unit and not host.kernel.may_write(path if found else nearest(host, path)):
        yield CLOSED.found(f"{path}, uid {host.kernel.user()}")
    elif found is None:
        yield f"{path}: there is none yet, and one may be made"
    elif found.is_block_device:
        yield f"{path}: a block device"
    else:
        yield f"{path}: {format_bytes(found.bytes)}"


def _target(host: Host, case: Case, path: str) -> Finding | str:
    """Of a vhost-user target: whether its socket is there, and this user may write to it. It is not connected to."""
    socket = path.removeprefix(VHOST_USER)
    if host.kernel.place(socket) is None:
        return PLACE_REFUSED.found(f"{path}: there is no such socket; start the target, or name the one that it listens on")
    if case.daemon is None and not case.by_unit and not host.kernel.may_write(socket):
        return CLOSED.found(f"{socket}, uid {host.kernel.user()}")
    return f"{path}: a vhost-user target's socket; the target is not asked"


def file_system(host: Host, case: Case) -> Iterator[Finding | str]:
    """Of a store that is a file: which it is, and whether it is mounted for writing."""
    path = nearest(host, str(case.config.store))
    if _is_device(host, path):
        raise SkipCheck("the store is a block device")
    mount = mount_of(host, path)
    told = f"{mount.file_system}, {mount.source} at {mount.point}"
    if "ro" in mount.options:
        yield READ_ONLY.found(told, point=mount.point)
    if mount.file_system in IN_MEMORY:
        yield IN_MEMORY_ONLY.found(told)
    elif mount.file_system not in GOOD_FILE_SYSTEMS:
        yield FILE_SYSTEM.found(told)
    elif "ro" not in mount.options:
        yield told


def direct(host: Host, case: Case) -> Iterator[Finding | str]:
    """Whether O_DIRECT is taken: of the store, or of a file without a name beside it."""
    path = nearest(host, str(case.config.store))
    error = host.kernel.try_direct(path)
    if error == errno.EINVAL:
        yield BUFFERED.found(f"EINVAL for {path}")
    elif error in (errno.EOPNOTSUPP, errno.EISDIR):
        raise SkipCheck(f"{path}: its file system makes no file without a name to try it with")
    elif error:
        raise OSError(error, os.strerror(error), path)
    else:
        yield "taken"


def space(host: Host, case: Case) -> Iterator[Finding | str]:
    """Room for a new store, or whether an old one has all of its own."""
    path = str(case.config.store)
    if is_vhost_user(path):
        raise SkipCheck("the store takes all of the device of a vhost-user target")
    if not is_path(path):
        raise SkipCheck("the store is memory of the daemon")
    found = host.kernel.place(path)
    if found is None:
        wanted = case.config.size_bytes or STORE_BYTES_MIN
        free = host.kernel.free_bytes(nearest(host, path))
        if free < wanted:
            yield SPACE_LOW.found(f"{format_bytes(free)} free", wanted=format_bytes(wanted))
        else:
            yield f"{format_bytes(free)} free"
    elif found.is_block_device:
        raise SkipCheck("the store is a block device")
    elif found.stored_bytes < found.bytes:
        told = f"{format_bytes(found.stored_bytes)} of {format_bytes(found.bytes)}"
        yield SPARSE.found(told, bytes=found.bytes, path=path)
    else:
        yield "all of the store is allocated"


def second_opinion(host: Host, case: Case) -> Iterator[Finding | str]:
    """The store's first page by a ring of the Python package liburing, beside a plain read of the doctor's own."""
    if not is_path(str(case.config.store)):
        raise SkipCheck("the store is no file or device of this host")
    path = str(case.config.store)
    if host.kernel.place(path) is None:
        raise SkipCheck("there is no store yet")
    before, other, after = host.kernel.first_page(path)
    if other.why_none:
        raise SkipCheck(other.why_none)
    if other.failed:
        yield VIEWS_DIFFER.found(f"{path}: by liburing {other.failed}; a plain read brings it")
    elif before == after != other.digest:
        yield VIEWS_DIFFER.found(f"{path}: other bytes by liburing than by a plain read")
    elif before != after:
        raise SkipCheck("the page changed meanwhile: a daemon writes it")
    else:
        yield "liburing reads what a plain read brings"


def _is_device(host: Host, path: str) -> bool:
    found = host.kernel.place(path)
    return found is not None and found.is_block_device


AREA = Area(
    "store",
    "Place of the store",
    (
        Check("store's place", place, (PLACE_REFUSED, CLOSED)),
        Check("file system", file_system, (READ_ONLY, IN_MEMORY_ONLY, FILE_SYSTEM)),
        Check("O_DIRECT", direct, (BUFFERED,)),
        Check("free space", space, (SPACE_LOW, SPARSE)),
        Check("store, second opinion", second_opinion, (VIEWS_DIFFER,)),
    ),
    of_daemon=True,
)
