"""Each condition of the network, the clock and the processor, made on a machine that is healthy otherwise."""

from __future__ import annotations

import socket

import pytest
from tests.unit.doctor.machine import PID, Machine

from halfstep.doctor.case import Answer
from halfstep.doctor.kernel import Clock, Kernel, Route

NETDEV = "/sys/class/net/eth0"
TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: {}:1CB6 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 80
"""


@pytest.mark.parametrize(
    ("file", "text", "found", "value"),
    [
        ("/proc/sys/net/ipv4/tcp_window_scaling", "0", "tcp-window-scaling", "0"),
        ("/proc/sys/net/ipv4/tcp_congestion_control", "reno", "tcp-reno", "reno"),
        ("/proc/sys/net/ipv4/tcp_rmem", "4096 87380 212992", "socket-buffers-small", "net.ipv4.tcp_rmem = 4096 87380 212992"),
        ("/proc/sys/net/ipv4/tcp_wmem", "4096 16384 212992", "socket-buffers-small", "net.ipv4.tcp_wmem = 4096 16384 212992"),
        (f"{NETDEV}/operstate", "down", "link-down", "eth0: down"),
        ("/sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet", "clock-source-slow", "hpet"),
        ("/proc/cpuinfo", "flags : fpu sse4_2", "cpu-features", "without pclmulqdq, avx2"),
    ],
)
def test_a_condition_of_a_file_is_found(machine: Machine, file: str, text: str, found: str, value: str) -> None:
    machine.write(file, f"{text}\n")
    (one,) = machine.findings().values()
    assert (one.id, one.value) == (found, value)


def test_a_loopback_that_is_down_is_found(machine: Machine) -> None:
    machine.kernel.up = ("eth0",)
    assert machine.findings()["loopback-down"].value == "down"


def test_little_memory_for_zero_copy_is_found_where_that_is_wanted(machine: Machine) -> None:
    machine.write("/proc/sys/net/core/optmem_max", "20480\n")
    assert machine.findings() == {}
    machine.serve(zero_copy="auto")
    assert machine.findings()["zero-copy-optmem"].value == "20480"


@pytest.mark.parametrize(
    ("listen", "bound", "busy"),
    [
        ("127.0.0.1:7350", "0100007F", True),
        ("127.0.0.1:7350", "00000000", True),
        ("0.0.0.0:7350", "0500000A", True),
        ("127.0.0.1:7350", "0500000A", False),
        ("127.0.0.1:7351", "0100007F", False),
    ],
)
def test_a_port_that_somebody_has_is_found(machine: Machine, listen: str, bound: str, busy: bool) -> None:
    machine.stop()
    machine.remove("/etc/systemd/system/halfstepd.service")
    machine.serve(listen=(listen,))
    machine.case = machine.case.with_answer(Answer("halfstep://10.0.0.5", "10.0.0.5:7350", "no daemon"))
    machine.write("/proc/net/tcp", TCP.format(bound))
    machine.link(f"/proc/{PID}/fd/9", "socket:[80]")
    machine.write(f"/proc/{PID}/comm", "nginx\n")
    found = machine.findings().get("port-busy")
    assert (found is not None) == busy
    assert found is None or found.value == f"{listen}: pid {PID} (nginx)"


def test_a_port_whose_holder_is_hidden_is_found_all_the_same(machine: Machine) -> None:
    machine.stop()
    machine.case = machine.case.with_answer(Answer("halfstep://10.0.0.5", "10.0.0.5:7350", "no daemon"))
    machine.write("/proc/net/tcp", TCP.format("0100007F"))
    assert machine.findings()["port-busy"].value == "127.0.0.1:7350: by a process that this user may not see"


def test_a_path_that_takes_smaller_packets_than_the_link_is_found(machine: Machine) -> None:
    machine.kernel.way = Route("10.0.0.8", "10.0.0.5", 1450, "eth0")
    found = machine.findings()["path-mtu-low"]
    assert (found.value, found.bound) == ("1450 bytes", "9000, as the device eth0 has it")
    assert "tracepath 10.0.0.5" in found.remedy


def test_a_source_on_loopback_does_not_name_the_device(machine: Machine) -> None:
    machine.write("/sys/class/net/lo/mtu", "65536\n")
    machine.kernel.way = Route("10.1.0.8", "10.0.0.5", 1500, "lo")
    assert machine.findings() == {}
    assert machine.outcome("path to the daemon").seen == ("packets of 1500 bytes, from 10.1.0.8",)
    machine.kernel.way = Route("10.0.0.5", "10.0.0.5", 1500, "lo")
    assert set(machine.findings()) == {"path-mtu-low"}


@pytest.mark.parametrize(("speed", "found"), [("100000", True), ("25000", True), ("10000", False), ("-1", False)])
def test_small_packets_on_a_fast_link_are_found(machine: Machine, speed: str, found: bool) -> None:
    machine.kernel.way = Route("10.0.0.8", "10.0.0.5", 1500, "eth0")
    machine.write(f"{NETDEV}/mtu", "1500\n")
    machine.write(f"{NETDEV}/speed", f"{speed}\n")
    assert set(machine.findings()) == ({"link-mtu-small"} if found else set())


def test_the_path_to_a_socket_is_no_route(machine: Machine) -> None:
    machine.case = machine.case.with_answer(Answer("halfstep+unix:///a.sock", "unix:/a.sock", "no daemon"))
    assert machine.outcome("path to the daemon").why_skipped == "the daemon is asked through a unix socket"


def test_a_clock_that_nobody_keeps_is_found(machine: Machine) -> None:
    machine.kernel.time = Clock(synchronised=False, error_s=16.0)
    assert machine.findings()["clock-unsynchronised"].value == "not synchronised"


@pytest.mark.parametrize("now", [0.0, 1_700_000_000.0, 4_000_000_000.0])
def test_a_clock_that_is_far_off_is_found(machine: Machine, now: float) -> None:
    machine.kernel.now = now
    assert machine.findings()["clock-wrong"].value == f"{now:.0f} s since 1970"


def test_the_real_kernel_knows_the_way_to_loopback_and_its_clock() -> None:
    kernel = Kernel()
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        way = kernel.route("127.0.0.1", listening.getsockname()[1])
    assert (way.source, way.peer, way.device) == ("127.0.0.1", "127.0.0.1", "lo")
    assert way.mtu >= 1280
    assert kernel.is_up("lo")
    with pytest.raises(OSError, match="No such device"):
        kernel.is_up("none0")
    assert kernel.clock().error_s >= 0
    assert kernel.now_s() > 1_735_689_600
    assert set(kernel.build()) >= {"version", "build", "commit"}
