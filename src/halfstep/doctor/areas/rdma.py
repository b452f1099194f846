"""RDMA: devices and their ports, addresses, packets and network devices; the library, its providers and its files."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from typing import NamedTuple

from halfstep.doctor.case import Case
from halfstep.doctor.finding import Area, Check, Finding, Rule, Severity, SkipCheck
from halfstep.doctor.host import RDMA_DEVICES, Host

# Of RoCE v2 over IPv6: what a packet has around 4096 bytes of payload.
NETDEV_MTU = 4200
# As many as connections look at: the index of an address travels in 8 bits.
GIDS_MAX = 256
ROCE_V2, INFINIBAND = "RoCE v2", "InfiniBand"
PORT_DOWN = Rule(
    "rdma-port-down",
    Severity.WARNING,
    "ACTIVE",
    "Connections to that address stay on TCP.",
    "`sudo ip link set {netdev} up`, cable and switch; `rdma link` shows it",
)
MTU_LOW = Rule(
    "rdma-mtu-low",
    Severity.WARNING,
    "{most} bytes, the most of the port",
    "Each RDMA write is cut into more packets.",
    "`sudo ip link set {netdev} mtu 9000` at both ends, once the switches between them take it",
)
NO_ROCE_V2 = Rule(
    "rdma-no-roce-v2",
    Severity.WARNING,
    "a GID of type RoCE v2 with an IP address",
    "Rings over RDMA are found by the IP address of the connection: without one they stay on TCP.",
    "give the network device an address (`sudo ip addr add ADDRESS dev {netdev}`), and the port Ethernet and RoCE v2",
)
LIBRARY_MISSING = Rule(
    "rdma-library-missing",
    Severity.WARNING,
    "`libibverbs.so.1` can be loaded",
    "The machine has an RDMA device, and nothing of ours can use it.",
    "`sudo apt-get install libibverbs1 ibverbs-providers`",
)
LIBRARY_OLD = Rule(
    "rdma-library-old",
    Severity.WARNING,
    "rdma-core 32 or newer",
    "It does not know the types of addresses, and connections stay on TCP.",
    "upgrade `libibverbs1` and `ibverbs-providers`",
)
NO_PROVIDER = Rule(
    "rdma-no-provider",
    Severity.WARNING,
    "a provider for each device",
    "The kernel has the device, and the library has no driver for it.",
    "`sudo apt-get install ibverbs-providers`; `sudo modprobe ib_uverbs` where /dev/infiniband is empty",
)
CLOSED = Rule(
    "rdma-closed",
    Severity.WARNING,
    "this user may open it",
    "Connections of this user's processes stay on TCP.",
    'udev rule `KERNEL=="uverbs*", MODE="0666"`, as distributions ship; in a container `--device /dev/infiniband`',
)
VIEWS_DIFFER = Rule(
    "rdma-views-differ",
    Severity.WARNING,
    "what libibverbs says through pyverbs",
    "One of both asks a library of another installation.",
    "`ldconfig -p | grep ibverbs` shows which there are; remove the one that is not the distribution's",
)


class Gid(NamedTuple):
    """An address of a port."""

    number: int
    kind: str
    text: str
    netdev: str


def _devices(host: Host) -> list[str]:
    found = host.names(RDMA_DEVICES)
    if not found:
        raise SkipCheck("this machine has no RDMA device")
    return found


def _ports(host: Host) -> Iterator[tuple[str, str, str]]:
    """(device, port, its directory)."""
    for device in _devices(host):
        for port in host.names(f"{RDMA_DEVICES}/{device}/ports"):
            yield device, port, f"{RDMA_DEVICES}/{device}/ports/{port}"


def _gids(host: Host, directory: str) -> list[Gid]:
    """Those that are in use. An entry without one cannot be read: EINVAL."""
    found = []
    numbers = sorted(map(int, filter(str.isdecimal, host.names(f"{directory}/gids"))))
    for index in numbers[:GIDS_MAX]:
        try:
            text = host.read(f"{directory}/gids/{index}")
            if not text.strip("0:"):
                continue
            kind = host.read(f"{directory}/gid_attrs/types/{index}")
            netdev = host.text(f"{directory}/gid_attrs/ndevs/{index}") or ""
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOENT, errno.ENODEV):
                raise
            continue
        found.append(Gid(index, kind, text, netdev))
    return found


def _netdev(host: Host, directory: str) -> str:
    named = [gid.netdev for gid in _gids(host, directory) if gid.netdev]
    device = directory.removeprefix(f"{RDMA_DEVICES}/").partition("/")[0]
    below = host.names(f"{RDMA_DEVICES}/{device}/device/net")
    return (named or below or ["DEVICE"])[0]


def _told(case: Case, finding: Finding) -> Finding | str:
    """What is found, where RDMA is wanted; elsewhere it harms nobody, and is something seen."""
    return finding if case.wants_rdma else f"{finding.value}; RDMA is off, and needs nothing"


def _layer(host: Host, directory: str) -> str:
    return host.text(f"{directory}/link_layer") or "link layer not known"


def _state(host: Host, directory: str) -> str:
    return host.read(f"{directory}/state").rpartition(":")[2].strip()


def _active(host: Host) -> Iterator[tuple[str, str, str]]:
    """Of _ports(), those that a connection could use. Errors: SkipCheck where there is none."""
    found = [one for one in _ports(host) if _layer(host, one[2]) != INFINIBAND and _state(host, one[2]) == "ACTIVE"]
    if not found:
        raise SkipCheck("no port of Ethernet is ACTIVE")
    yield from found


def _usable(host: Host, directory: str) -> list[Gid]:
    return [gid for gid in _gids(host, directory) if gid.kind == ROCE_V2 and not gid.text.startswith("fe80")]


def ports(host: Host, case: Case) -> Iterator[Finding | str]:
    """State of each port. One that is down is missed where it has an address, or where no other port is ACTIVE."""
    described = [(*one, _layer(host, one[2]), _state(host, one[2])) for one in _ports(host)]
    others = any(layer != INFINIBAND and state == "ACTIVE" for *_, layer, state in described)
    for device, port, directory, layer, state in described:
        software = "" if host.exists(f"{RDMA_DEVICES}/{device}/device/vendor") else ", in software"
        told = f"{device} port {port}: {state}"
        if layer == INFINIBAND:
            yield f"{told}, {layer}: not used, for RDMA goes over Ethernet here"
        elif state == "ACTIVE":
            yield f"{told}, {layer}, {host.text(f'{directory}/rate') or 'rate not known'}{software}"
        elif others and not _usable(host, directory):
            yield f"{told}, without an address: not used"
        else:
            yield _told(case, PORT_DOWN.found(told, netdev=_netdev(host, directory)))


def addresses(host: Host, case: Case) -> Iterator[Finding | str]:
    """GIDs by which a connection's address finds its device."""
    found = [(*one, _usable(host, one[2])) for one in _active(host)]
    others = any(usable for *_, usable in found)
    for device, port, directory, usable in found:
        told = f"{device} port {port}: "
        kinds = ", ".join(sorted({gid.kind for gid in _gids(host, directory)})) or "no GID"
        if usable:
            yield told + ", ".join(f"GID {gid.number} {_address(gid.text)} ({gid.netdev or 'no device'})" for gid in usable[:4])
        elif others:
            yield f"{told}{kinds}; another port has an address"
        else:
            yield _told(case, NO_ROCE_V2.found(told + kinds, netdev=_netdev(host, directory)))


def _address(gid: str) -> str:
    """An IPv4 address where that is what it stands for."""
    mapped = re.fullmatch(r"(?:0000:){5}ffff:([0-9a-f]{2})([0-9a-f]{2}):([0-9a-f]{2})([0-9a-f]{2})", gid)
    return ".".join(str(int(part, 16)) for part in mapped.groups()) if mapped else gid


def packets(host: Host, case: Case) -> Iterator[Finding | str]:
    """The active MTU of each port against the most that it could; by the library, else by its network device."""
    _devices(host)  # without one the library is not even loaded
    verbs = host.kernel.verbs()
    asked = {(port.device, str(port.number)): port for port in verbs.ports}
    for device, number, directory in _active(host):
        netdev = _netdev(host, directory)
        port = asked.get((device, number))
        told = f"{device} port {number}: "
        if port is not None and port.mtu:
            if port.mtu < port.mtu_max:
                yield _told(case, MTU_LOW.found(f"{told}{port.mtu} bytes", most=port.mtu_max, netdev=netdev))
            else:
                yield f"{told}{port.mtu} bytes"
            continue
        mtu = host.number(f"/sys/class/net/{netdev}/mtu")
        if mtu is None:
            raise SkipCheck(f"{device} has no network device, and {verbs.missing or 'this user may not open it'}")
        if mtu < NETDEV_MTU:
            yield _told(case, MTU_LOW.found(f"{told}below {mtu} bytes, by {netdev}", most=4096, netdev=netdev))
        else:
            yield f"{told}4096 bytes fit into {mtu} of {netdev}"


def library(host: Host, case: Case) -> Iterator[Finding | str]:
    """That it loads, is new enough, and has a driver for each device, which this user may open."""
    devices = _devices(host)
    verbs = host.kernel.verbs()
    if verbs.missing:
        yield _told(case, LIBRARY_MISSING.found(verbs.missing))
        return
    if verbs.too_old:
        yield _told(case, LIBRARY_OLD.found(verbs.version or "a version without IBVERBS_1.11"))
    if unserved := [name for name in devices if name not in verbs.devices]:
        yield _told(case, NO_PROVIDER.found(f"none for {', '.join(unserved)}"))
    for name, error in verbs.refused.items():
        yield _told(case, CLOSED.found(f"{name}: {errno.errorcode.get(error, error)}"))
    if not verbs.too_old and not unserved and not verbs.refused:
        yield f"libibverbs {verbs.version}, with {', '.join(verbs.devices)}"


def second_opinion(host: Host, case: Case) -> Iterator[Finding | str]:
    """Ports as pyverbs sees them."""
    _devices(host)
    theirs = host.kernel.pyverbs()
    if theirs is None:
        raise SkipCheck("pyverbs is not installed (python3-pyverbs)")
    ours = host.kernel.verbs().ports
    if set(ours) != set(theirs):
        differ = sorted(set(ours) ^ set(theirs))
        yield _told(
            case, VIEWS_DIFFER.found("; ".join(f"{port.device} port {port.number} {port.state} {port.mtu}" for port in differ))
        )
    else:
        yield f"the same of {len(theirs)} port{'s' if len(theirs) != 1 else ''}"


AREA = Area(
    "rdma",
    "RDMA",
    (
        Check("RDMA ports", ports, (PORT_DOWN,)),
        Check("RDMA addresses", addresses, (NO_ROCE_V2,)),
        Check("RDMA packets", packets, (MTU_LOW,)),
        Check("RDMA library", library, (LIBRARY_MISSING, LIBRARY_OLD, NO_PROVIDER, CLOSED)),
        Check("RDMA by pyverbs", second_opinion, (VIEWS_DIFFER,)),
    ),
)
