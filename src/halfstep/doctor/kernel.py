"""Calls of the kernel that checks make, one method each; tests give a kernel that answers as they like.

Invariants: nothing that is called changes anything: a ring is closed again, a file is opened for reading, the file that tries
O_DIRECT has no name. Errors of calls are OSError with the number; a check that lets one through is skipped with its text.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import functools
import hashlib
import importlib
import mmap
import os
import socket
import stat
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from halfstep import _peer
from halfstep.doctor.cuda import Cuda, ask_driver
from halfstep.doctor.verbs import Port, Verbs, ask_library, ask_pyverbs
from halfstep.io import nvme
from halfstep.io.second_opinion import Opinion, Transfers, ask, first_page
from halfstep.io.spdk.config import SpdkConfig, read_config
from halfstep.io.spdk.target import State, Target

# io_uring(7): the numbers are those of every architecture but alpha.
_IO_URING_SETUP, _IO_URING_ENTER, _IO_URING_REGISTER = 425, 426, 427
_IORING_REGISTER_PROBE, _PROBE_BYTES = 8, 16 + 256 * 8
_PARAMS_BYTES = 120  # struct io_uring_params
_CPU_SET_BYTES, _MFD_CLOEXEC = 128, 1
_MBIND = {"x86_64": 237, "aarch64": 235}.get(os.uname().machine)
_TIMEX_BYTES = 208  # struct timex
_SIOCGIFADDR, _SIOCGIFFLAGS, _IFF_UP = 0x8915, 0x8913, 1
_IP_MTU, _IPV6_MTU = 14, 24


class RingRefusal(NamedTuple):
    """The first call of io_uring that is refused, and the number of its error."""

    call: str
    error: int


class PageViews(NamedTuple):
    """A page by SHA-256: as this process read it before and after another one, which read it by liburing."""

    before: str
    other: Transfers
    after: str


class Clock(NamedTuple):
    """Of adjtimex(2). synchronised: whether something keeps it; error_s: how far off it may be, as the kernel reckons."""

    synchronised: bool
    error_s: float


@dataclass(frozen=True)
class Place:
    """What lies at a path, of stat(2). device: (major, minor) of itself where it is a block device, else of its file system.

    stored_bytes: what is allocated of a file; less than bytes where it has holes.
    """

    device: tuple[int, int]
    is_block_device: bool
    is_directory: bool
    bytes: int
    stored_bytes: int


class Route(NamedTuple):
    """To a peer. source, peer: addresses. mtu: bytes of the largest packet. device: that has the source, or ""."""

    source: str
    peer: str
    mtu: int
    device: str


def _device_with(address: str) -> str:
    """The network device that has an address."""
    if ":" in address:
        digits = socket.inet_pton(socket.AF_INET6, address.partition("%")[0]).hex()
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
        return next((line.split()[-1] for line in lines if line.startswith(digits)), "")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(asked, _SIOCGIFADDR, request)
            except OSError:  # it has no address
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return ""


def _first_page(path: str) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    try:
        with mmap.mmap(-1, mmap.PAGESIZE) as page:
            count = os.preadv(descriptor, [page], 0)
            return hashlib.sha256(page[:count]).hexdigest()
    finally:
        os.close(descriptor)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


class Kernel:
    """The real one."""

    def name(self) -> str:
        """Of this host."""
        return os.uname().nodename

    def release(self) -> str:
        """Of the kernel, as uname -r says it."""
        return os.uname().release

    def machine(self) -> str:
        """As uname -m says it."""
        return os.uname().machine

    def user(self) -> int:
        """The effective user of this process."""
        return os.geteuid()

    def now_s(self) -> float:
        """Seconds since 1970."""
        return time.time()

    def ring_refusal(self) -> RingRefusal | None:
        """Tries a ring with nothing in it: set up, registered with, entered. None where all three are allowed."""
        libc = _libc()
        params = ctypes.create_string_buffer(_PARAMS_BYTES)
        ring = libc.syscall(_IO_URING_SETUP, 1, params)
        if ring < 0:
            return RingRefusal("io_uring_setup", ctypes.get_errno())
        try:
            probe = ctypes.create_string_buffer(_PROBE_BYTES)
            if libc.syscall(_IO_URING_REGISTER, ring, _IORING_REGISTER_PROBE, probe, 256) < 0:
                return RingRefusal("io_uring_register", ctypes.get_errno())
            if libc.syscall(_IO_URING_ENTER, ring, 0, 0, 0, None, 0) < 0:
                return RingRefusal("io_uring_enter", ctypes.get_errno())
        finally:
            os.close(ring)
        return None

    def refused_calls(self) -> tuple[str, ...]:
        """Of those that a daemon makes and a container's filter may refuse: each with arguments that change nothing."""
        libc = _libc()
        mask = ctypes.create_string_buffer(_CPU_SET_BYTES)
        kept = libc.sched_getaffinity(0, _CPU_SET_BYTES, mask)
        memory = libc.memfd_create(b"halfstep-doctor", _MFD_CLOEXEC)
        errors = {"memfd_create": ctypes.get_errno() if memory < 0 else 0}
        if memory >= 0:
            os.close(memory)
        if _MBIND is not None:
            errors["mbind"] = ctypes.get_errno() if libc.syscall(_MBIND, None, 0, 0, None, 0, 0) < 0 else 0
        if kept >= 0:
            moved = libc.sched_setaffinity(0, _CPU_SET_BYTES, mask)
            errors["sched_setaffinity"] = ctypes.get_errno() if moved < 0 else 0
        return tuple(name for name, error in errors.items() if error in (errno.EPERM, errno.EACCES, errno.ENOSYS))

    def core_missing(self) -> str:
        """Why the daemon's half of the package cannot be loaded; "" where it can."""
        try:
            importlib.import_module("halfstep._shard")
        except ImportError as error:
            return str(error)
        return ""

    def clock(self) -> Clock:
        """Of the machine's wall clock. Errors: OSError."""
        told = ctypes.create_string_buffer(_TIMEX_BYTES)  # modes 0: nothing is set
        state = _libc().adjtimex(told)
        if state < 0:
            raise OSError(ctypes.get_errno(), "adjtimex")
        (maxerror_us,) = struct.unpack_from("q", told, 24)
        return Clock(state != 5, maxerror_us / 1e6)  # TIME_ERROR

    def place(self, path: str) -> Place | None:
        """Links are followed; None where there is nothing. Errors: OSError."""
        try:
            found = Path(path).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        block = stat.S_ISBLK(found.st_mode)
        number = found.st_rdev if block else found.st_dev
        return Place(
            device=(os.major(number), os.minor(number)),
            is_block_device=block,
            is_directory=stat.S_ISDIR(found.st_mode),
            bytes=found.st_size,
            stored_bytes=found.st_blocks * 512,
        )

    def place_refusal(self, path: str) -> str:
        """Why no store is at a path, or may be made there, as the daemon would say it; "" where it may. Makes nothing."""
        from halfstep import _shard  # which may not load: see core_missing()

        try:
            _shard.look_at_place(os.fsencode(path))
        except _shard.StartError as refusal:
            return str(refusal.args[1])
        return ""

    def real_path(self, path: str) -> str:
        """Links followed."""
        return os.path.realpath(path)

    def nvme(self, controller: str, command: int, namespace: int, word10: int, count: int) -> bytes:
        """What an admin command of a controller such as "nvme0" answers. Errors: OSError, EIO for one that it refuses.

        command: the opcode of one that only reads. word10: command dword 10.
        """
        return nvme.admin(f"/dev/{controller}", command, namespace, word10, 0, count).data

    def second_opinion(self) -> Opinion:
        """Of io_uring, by the Python package liburing."""
        return ask()

    def first_page(self, path: str) -> PageViews:
        """Of a store, with O_DIRECT: what this process reads, before and after liburing does. Errors: OSError."""
        before = _first_page(path)
        return PageViews(before, first_page(path), _first_page(path))

    def spdk(self, file: str) -> tuple[SpdkConfig, State | None]:
        """What an SPDK target is to have, and what it has; None where something is missing. Errors: HalfstepError."""
        config = read_config(Path(file))
        return config, Target(config).state()

    def nvme_feature(self, controller: str, number: int, group: int) -> int:
        """A feature of a controller, of an endurance group where it has one. Errors: as nvme()."""
        return nvme.admin(f"/dev/{controller}", nvme.GET_FEATURES, 0, number, group, 0).result

    def free_bytes(self, path: str) -> int:
        """Of a path's file system, for users that are not root. Errors: OSError."""
        told = os.statvfs(path)
        return told.f_bavail * told.f_frsize

    def may_write(self, path: str) -> bool:
        """Whether this user may."""
        return os.access(path, os.W_OK, effective_ids=True)

    def try_direct(self, path: str) -> int:
        """Opens a file, a device or, in a directory, a file without a name with O_DIRECT; 0, or the number of the error."""
        try:
            if Path(path).is_dir():
                descriptor = os.open(path, os.O_TMPFILE | os.O_RDWR | os.O_DIRECT, 0o600)
            else:
                descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
        except OSError as error:
            return error.errno or errno.EIO
        os.close(descriptor)
        return 0

    def build(self) -> dict[str, str]:
        """Version, kind and commit of this package."""
        return dict(_peer.build_info())

    def is_up(self, device: str) -> bool:
        """Whether a network device of this process's network is. Errors: OSError. /sys may be that of another network."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
            answer = fcntl.ioctl(asked, _SIOCGIFFLAGS, struct.pack("40s", device.encode()[:15]))
        return bool(struct.unpack_from("=H", answer, 16)[0] & _IFF_UP)

    def route(self, host: str, port: int) -> Route:
        """The one that packets to a peer take. Errors: OSError. Sends nothing but a question for the peer's name."""
        try:
            family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        except UnicodeError as error:  # an empty label, or one over 63 characters
            raise OSError(errno.EINVAL, f"{host}: no name of a host: {error}") from error
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            level, option = (socket.IPPROTO_IPV6, _IPV6_MTU) if family == socket.AF_INET6 else (socket.IPPROTO_IP, _IP_MTU)
            source = probe.getsockname()[0]
            return Route(source, str(address[0]), probe.getsockopt(level, option), _device_with(source))

    @functools.cached_property
    def _verbs(self) -> Verbs:
        return ask_library()

    def verbs(self) -> Verbs:
        """RDMA devices as libibverbs sees them; asked once."""
        return self._verbs

    def cuda(self) -> Cuda:
        """The driver of NVIDIA's GPUs; asked once."""
        return self._cuda

    @functools.cached_property
    def _cuda(self) -> Cuda:
        return ask_driver()

    def pyverbs(self) -> tuple[Port, ...] | None:
        """Their ports as pyverbs sees them; None where it is not installed. Errors: OSError."""
        return ask_pyverbs()
