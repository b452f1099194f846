"""RDMA devices as libibverbs sees them, asked through ctypes; a second opinion by pyverbs where that is installed.

The structures are those that native/rdma/abi.h declares: the head of struct ibv_context is not needed, ports are asked for by
ibv_query_port(), which fills what has not changed since 2006.
"""

from __future__ import annotations

import ctypes
import importlib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

LIBRARY = "libibverbs.so.1"
# The newest symbol that the daemon and the client load, of rdma-core 32.
NEWEST_SYMBOL, NEWEST_VERSION = b"_ibv_query_gid_ex", b"IBVERBS_1.11"
# enum ibv_mtu: 1 is 256 bytes, 5 is 4096.
MTU_BYTES = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}
STATES = {0: "NOP", 1: "DOWN", 2: "INIT", 3: "ARMED", 4: "ACTIVE", 5: "ACTIVE_DEFER"}
PORTS_MAX = 16


class Port(NamedTuple):
    """Of a device. MTUs in bytes, 0 where the number is not known."""

    device: str
    number: int
    state: str
    mtu: int
    mtu_max: int


@dataclass(frozen=True)
class Verbs:
    """missing: why the library, or what is needed of it, is not there; nothing else is known then. version: of its file.

    devices: names of those that a provider serves. refused: of those that this user may not open, with the error's number.
    """

    missing: str = ""
    version: str = ""
    too_old: bool = False
    devices: tuple[str, ...] = ()
    refused: dict[str, int] = field(default_factory=dict)
    ports: tuple[Port, ...] = ()


class _PortAttributes(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int) for name in ("state", "max_mtu", "active_mtu", "gid_tbl_len")),
        ("rest", ctypes.c_uint8 * 64),
    ]


def ask_library() -> Verbs:
    """Loads the library into this process and asks it for its devices and their ports."""
    try:
        library: Any = ctypes.CDLL(LIBRARY, use_errno=True)
    except OSError as error:
        return Verbs(missing=str(error))
    symbol = _versioned(library, NEWEST_SYMBOL, NEWEST_VERSION)
    library.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
    library.ibv_get_device_name.restype = ctypes.c_char_p
    library.ibv_get_device_name.argtypes = [ctypes.c_void_p]
    library.ibv_open_device.restype = ctypes.c_void_p
    library.ibv_open_device.argtypes = [ctypes.c_void_p]
    library.ibv_close_device.argtypes = [ctypes.c_void_p]
    library.ibv_query_port.argtypes = [ctypes.c_void_p, ctypes.c_uint8, ctypes.POINTER(_PortAttributes)]
    library.ibv_free_device_list.argtypes = [ctypes.POINTER(ctypes.c_void_p)]
    count = ctypes.c_int()
    listed = library.ibv_get_device_list(ctypes.byref(count))
    names, refused, ports = [], {}, []
    if listed:
        for number in range(count.value):
            name = library.ibv_get_device_name(listed[number]).decode(errors="replace")
            names.append(name)
            ctypes.set_errno(0)
            context = library.ibv_open_device(listed[number])
            if not context:
                refused[name] = ctypes.get_errno()
                continue
            ports += _ports_of(library, context, name)
            library.ibv_close_device(context)
        library.ibv_free_device_list(listed)
    return Verbs("", _version_of_file(), not symbol, tuple(names), refused, tuple(ports))


def _ports_of(library: Any, context: int, name: str) -> list[Port]:
    found = []
    for number in range(1, PORTS_MAX + 1):
        told = _PortAttributes()
        if library.ibv_query_port(context, number, ctypes.byref(told)) != 0:
            break
        mtus = MTU_BYTES.get(told.active_mtu, 0), MTU_BYTES.get(told.max_mtu, 0)
        found.append(Port(name, number, STATES.get(told.state, str(told.state)), *mtus))
    return found


def _versioned(library: Any, name: bytes, version: bytes) -> int | None:
    """An address, as dlvsym(3) finds it."""
    find = ctypes.CDLL(None).dlvsym
    find.restype = ctypes.c_void_p
    find.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
    found: int | None = find(library._handle, name, version)  # noqa: SLF001 -- the library's handle has no other name
    return found


def _version_of_file() -> str:
    """The end of the loaded file's name, such as 1.14.44.0, whose third number is that of rdma-core."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if (found := re.search(r"/libibverbs\.so\.([\d.]+)$", line)) is not None:
            return found[1]
    return ""


def ask_pyverbs() -> tuple[Port, ...] | None:
    """The same ports by pyverbs; None where it is not installed."""
    try:
        device: Any = importlib.import_module("pyverbs.device")
    except ImportError:
        return None
    found = []
    for listed in device.get_device_list():
        name = listed.name.decode()
        with device.Context(name=name) as context:
            for number in range(1, context.query_device().phys_port_cnt + 1):
                told = context.query_port(number)
                mtus = MTU_BYTES.get(told.active_mtu, 0), MTU_BYTES.get(told.max_mtu, 0)
                found.append(Port(name, number, STATES.get(told.state, str(told.state)), *mtus))
    return tuple(found)
