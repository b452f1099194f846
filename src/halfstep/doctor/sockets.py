"""Who listens where on this host: addresses of listening sockets, and the processes that hold them."""

from __future__ import annotations

import re
import socket
import struct
from contextlib import suppress
from typing import NamedTuple

from halfstep.doctor.host import Host

_LISTEN = "0A"  # TCP_LISTEN, in /proc/net/tcp
_ACCEPTS = 0x10000  # SO_ACCEPTCON, in /proc/net/unix


class Listener(NamedTuple):
    """A listening socket. address: of the host for TCP, the path of a unix socket. port: 0 for a unix socket."""

    address: str
    port: int
    inode: str


def listeners(host: Host) -> list[Listener]:
    """All of this network namespace, unix sockets first."""
    found = []
    for line in (host.text("/proc/net/unix") or "").splitlines()[1:]:
        words = line.split(maxsplit=7)
        # A path may have an end of line in it, and what follows that is no line of the table.
        with suppress(ValueError):
            if len(words) == 8 and int(words[3], 16) & _ACCEPTS:
                found.append(Listener(words[7], 0, words[6]))
    for file in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in (host.text(file) or "").splitlines()[1:]:
            words = line.split()
            if len(words) > 9 and words[3] == _LISTEN:
                address, _, port = words[1].partition(":")
                found.append(Listener(_address(address), int(port, 16), words[9]))
    return found


def _address(digits: str) -> str:
    """Of words in the byte order of the machine, as the kernel prints them."""
    packed = b"".join(struct.pack("=I", int(digits[at : at + 8], 16)) for at in range(0, len(digits), 8))
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)


def inodes_of(host: Host, pid: int) -> set[str]:
    """Of the sockets that a process holds; nothing where this user may not see them."""
    found = set()
    try:
        for number in host.names(f"/proc/{pid}/fd"):
            if (link := re.fullmatch(r"socket:\[(\d+)\]", host.link(f"/proc/{pid}/fd/{number}"))) is not None:
                found.add(link[1])
    except OSError:  # it has ended, or is another user's
        pass
    return found


def holder_of(host: Host, inode: str) -> str:
    """The process that holds a socket, as "pid (name)"; "" where this user may not see it."""
    for name in host.names("/proc"):
        if name.isdecimal() and inode in inodes_of(host, int(name)):
            return f"pid {name} ({host.text(f'/proc/{name}/comm') or 'its name is not known'})"
    return ""
