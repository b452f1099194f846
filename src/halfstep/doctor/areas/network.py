"""The network of this host, and the path to the daemon behind a URL."""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.daemon.units import KIB, MIB, format_bytes
from halfstep.doctor.case import NO_DAEMON_HERE, Case
from halfstep.doctor.finding import Area, Check, Finding, Rule, Severity, SkipCheck
from halfstep.doctor.host import Host
from halfstep.doctor.sockets import holder_of, listeners

FAST_MBITS = 25_000
BUFFER_BYTES_MIN = 4 * MIB
LOOPBACK_DOWN = Rule(
    "loopback-down",
    Severity.ERROR,
    "up",
    "The daemon listens on 127.0.0.1 by default: it does not start, and no local command reaches it by TCP.",
    "`sudo ip link set lo up`",
)
PORT_BUSY = Rule(
    "port-busy",
    Severity.ERROR,
    "free for the daemon",
    "The daemon does not start, or clients of it reach somebody else.",
    "stop that process, or choose another address with `--listen`",
)
WINDOW_OFF = Rule(
    "tcp-window-scaling",
    Severity.ERROR,
    "1",
    "A connection has 64 KiB under way at most: 64 MB/s over a path of one millisecond.",
    "`sudo sysctl net.ipv4.tcp_window_scaling=1`, and the same in /etc/sysctl.d",
)
BUFFERS_SMALL = Rule(
    "socket-buffers-small",
    Severity.WARNING,
    "a third number of at least {wanted}",
    "The kernel cannot let a connection have enough under way for a fast path; large gets are slower.",
    "`sudo sysctl -w {name}='4096 131072 {wanted}'`, and the same in /etc/sysctl.d",
)
RENO = Rule(
    "tcp-reno",
    Severity.WARNING,
    "cubic, bbr or dctcp",
    "After a loss it takes a round trip for each packet to be as fast again.",
    "`sudo modprobe tcp_cubic; sudo sysctl net.ipv4.tcp_congestion_control=cubic`",
)
OPTMEM_LOW = Rule(
    "zero-copy-optmem",
    Severity.WARNING,
    "at least {wanted}, for `--zero-copy auto`",
    "The kernel has no memory for its book-keeping of sends, and copies all the same.",
    "`sudo sysctl net.core.optmem_max=1048576`, and the same in /etc/sysctl.d",
)
PATH_MTU = Rule(
    "path-mtu-low",
    Severity.WARNING,
    "{link}, as the device {device} has it",
    "Something on the way takes smaller packets than both ends send; where it also drops its own error messages, large "
    "answers hang while small ones pass.",
    "give all devices and switches on the way one MTU: `tracepath {peer}` shows where it shrinks",
)
LINK_MTU = Rule(
    "link-mtu-small",
    Severity.WARNING,
    "9000 on a link of 25 Gbit/s and more",
    "Both ends handle six times as many packets for the same bytes.",
    "`sudo ip link set {device} mtu 9000` at both ends, once the switches between them take it",
)
LINK_DOWN = Rule(
    "link-down",
    Severity.ERROR,
    "up",
    "The route to the daemon leads through it.",
    "look at cable and switch; `sudo ip link set {device} up`",
)


def loopback(host: Host, case: Case) -> Iterator[Finding | str]:  # noqa: ARG001 -- every check has one signature
    """Whether it is up; containers and namespaces begin without."""
    if not host.kernel.is_up("lo"):
        yield LOOPBACK_DOWN.found("down")
    else:
        yield "up"


def port(host: Host, case: Case) -> Iterator[Finding | str]:
    """Whether somebody else has the daemon's addresses, where no daemon of ours does."""
    if not case.serves:
        raise SkipCheck(NO_DAEMON_HERE)
    if case.daemon is not None:
        yield "the daemon's own"
        return
    if case.answer is not None and not case.answer.why_not:
        raise SkipCheck("a daemon answers")
    bound = listeners(host)
    for address in case.config.listen:
        name, _, number = address.rpartition(":")
        holders = [one for one in bound if str(one.port) == number and one.port and _meet(name.strip("[]"), one.address)]
        for one in holders:
            yield PORT_BUSY.found(f"{address}: {holder_of(host, one.inode) or 'by a process that this user may not see'}")
        if not holders:
            yield f"{address} is free"


def _meet(name: str, bound: str) -> bool:
    everywhere = ("", "0.0.0.0", "::")  # noqa: S104 -- nothing is bound to it
    return name == bound or name in everywhere or bound in everywhere


def tcp(host: Host, case: Case) -> Iterator[Finding | str]:  # noqa: ARG001
    """Settings of TCP that bound what a connection may have under way."""
    if host.number("/proc/sys/net/ipv4/tcp_window_scaling") == 0:
        yield WINDOW_OFF.found(0)
    control = host.text("/proc/sys/net/ipv4/tcp_congestion_control") or "not known"
    if control == "reno":
        yield RENO.found(control)
    else:
        yield f"congestion control {control}"


def buffers(host: Host, case: Case) -> Iterator[Finding | str]:
    """The largest buffers that the kernel lets sockets grow to."""
    for name in ("tcp_rmem", "tcp_wmem"):
        numbers = (host.text(f"/proc/sys/net/ipv4/{name}") or "").split()
        if len(numbers) != 3:
            raise SkipCheck(f"/proc/sys/net/ipv4/{name} has no three numbers")
        if int(numbers[2]) < BUFFER_BYTES_MIN:
            told = f"net.ipv4.{name}"
            yield BUFFERS_SMALL.found(f"{told} = {' '.join(numbers)}", name=told, wanted=BUFFER_BYTES_MIN)
        else:
            yield f"{name}: up to {format_bytes(int(numbers[2]))}"
    if case.config.zero_copy != "off":
        most = host.number("/proc/sys/net/core/optmem_max")
        if most is not None and most < 128 * KIB:
            yield OPTMEM_LOW.found(most, wanted=128 * KIB)


def path(host: Host, case: Case) -> Iterator[Finding | str]:
    """The route to the daemon: its device, and the largest packets that it takes."""
    if case.answer is None:
        raise SkipCheck(case.why_no_answer)
    address = case.answer.address
    if address.startswith("unix:"):
        raise SkipCheck("the daemon is asked through a unix socket")
    name, _, number = address.rpartition(":")
    route = host.kernel.route(name.strip("[]"), int(number))
    # A source that lies on loopback, as where BGP goes to the host, is not that of the device which packets leave by.
    if not route.device or (route.device == "lo" and route.source != route.peer):
        yield f"packets of {route.mtu} bytes, from {route.source}"
        return
    directory = f"/sys/class/net/{route.device}"
    state, link = host.text(f"{directory}/operstate"), host.number(f"{directory}/mtu") or route.mtu
    if state in ("down", "lowerlayerdown"):
        yield LINK_DOWN.found(f"{route.device}: {state}", device=route.device)
    if route.mtu < link:
        yield PATH_MTU.found(f"{route.mtu} bytes", link=link, device=route.device, peer=route.peer)
    try:
        speed = host.number(f"{directory}/speed") or 0
    except OSError:  # the driver of a virtual device knows none
        speed = 0
    if speed >= FAST_MBITS and link < 9000:
        yield LINK_MTU.found(f"{route.device}: {link} bytes at {speed // 1000} Gbit/s", device=route.device)
    else:
        yield f"{route.device}, packets of {route.mtu} bytes, from {route.source}"


AREA = Area(
    "network",
    "Network",
    (
        Check("loopback", loopback, (LOOPBACK_DOWN,)),
        Check("daemon's port", port, (PORT_BUSY,)),
        Check("TCP", tcp, (WINDOW_OFF, RENO)),
        Check("socket buffers", buffers, (BUFFERS_SMALL, OPTMEM_LOW)),
        Check("path to the daemon", path, (LINK_DOWN, PATH_MTU, LINK_MTU)),
    ),
)
