"""Each condition of the kernel and the process, made on a machine that is healthy otherwise."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from tests.unit.doctor.machine import PID, Machine

from halfstep.doctor.kernel import Kernel, RingRefusal
from halfstep.io.second_opinion import NEEDED, Opinion


@pytest.mark.parametrize("release", ["5.14.21-generic", "4.18.0-553.el8"])
def test_a_kernel_that_is_too_old_is_found(machine: Machine, release: str) -> None:
    machine.kernel.kernel = release
    assert machine.findings()["kernel-old"].value == release


@pytest.mark.parametrize("release", ["5.15.0", "5.100.1", "6.1.0-38-amd64"])
def test_a_kernel_that_is_new_enough_is_well(machine: Machine, release: str) -> None:
    machine.kernel.kernel = release
    assert machine.findings() == {}


@pytest.mark.parametrize(
    ("error", "disabled", "seccomp", "remedy"),
    [
        (errno.EPERM, "2", "0", "sysctl kernel.io_uring_disabled=0"),
        (errno.EPERM, "1", "0", "joins group 991 (kernel.io_uring_group)"),
        (errno.EPERM, "0", "2", "seccomp profile"),
        (errno.ENOSYS, "0", "2", "seccomp profile"),
        (errno.ENOSYS, "0", "0", "CONFIG_IO_URING"),
        (errno.ENOMEM, "0", "0", "ulimit -l"),
        (errno.EMFILE, "0", "0", "ulimit -n"),
        (errno.EACCES, "0", "0", "security module"),
    ],
)
def test_who_refuses_io_uring_is_named(machine: Machine, error: int, disabled: str, seccomp: str, remedy: str) -> None:
    machine.kernel.ring = RingRefusal("io_uring_setup", error)
    machine.write("/proc/sys/kernel/io_uring_disabled", f"{disabled}\n")
    machine.write("/proc/sys/kernel/io_uring_group", "991\n")
    machine.edit("/proc/self/status", "Seccomp:\t0", f"Seccomp:\t{seccomp}")
    found = machine.findings()["io-uring-refused"]
    assert found.value == f"io_uring_setup: {errno.errorcode[error]}"
    assert remedy in found.remedy


def test_io_uring_that_nobody_wants_is_not_tried(machine: Machine) -> None:
    machine.kernel.ring = RingRefusal("io_uring_setup", errno.EPERM)
    machine.serve(engine="pread")
    assert machine.findings() == {}
    assert machine.outcome("io_uring").why_skipped


def test_too_few_open_files_are_found(machine: Machine) -> None:
    machine.set_limit("Max open files", 1024)
    found = machine.findings()["open-files-low"]
    assert found.value == f"1024 for the daemon, pid {PID}"
    assert "at least 5184" in found.bound
    assert "LimitNOFILE=" in found.remedy


def test_too_few_open_files_of_this_shell_count_where_no_daemon_runs(machine: Machine) -> None:
    machine.stop()
    machine.set_limit("Max open files", 1024, "self")
    assert machine.findings()["open-files-low"].value == "1024 for this process"


def test_fewer_connections_need_fewer_files(machine: Machine) -> None:
    machine.set_limit("Max open files", 1024)
    machine.serve(connections_max=256)
    assert machine.findings() == {}


@pytest.mark.parametrize("lines", ["0::/system.slice/halfstepd.service\n", "3:pids:/x\n1:memory:/y\n"])
def test_a_group_without_room_for_threads_is_found(machine: Machine, lines: str) -> None:
    machine.write(f"/proc/{PID}/cgroup", lines)
    directory = "/pids/x" if "pids" in lines else "/system.slice/halfstepd.service"
    machine.write(f"/sys/fs/cgroup{directory}/pids.max", "32\n")
    machine.write(f"/sys/fs/cgroup{directory}/pids.current", "30\n")
    assert machine.findings()["threads-low"].value == "30 of 32"


def test_a_core_that_does_not_load_is_found(machine: Machine) -> None:
    machine.kernel.core = "liburing.so.2: cannot open shared object file"
    assert machine.findings()["core-missing"].value == machine.kernel.core


def test_the_real_kernel_is_asked_without_a_trace() -> None:
    kernel = Kernel()
    refusal = kernel.ring_refusal()
    assert refusal is None or refusal.call in ("io_uring_setup", "io_uring_register", "io_uring_enter")
    assert kernel.core_missing() == ""


def test_operations_that_the_kernel_lacks_are_found_by_a_second_opinion(machine: Machine) -> None:
    assert machine.outcome("io_uring, second opinion").seen == ("9 operations by liburing",)
    machine.kernel.opinion = Opinion(frozenset(NEEDED) - {"READ_FIXED"})
    assert machine.findings()["io-uring-operations"].value == "without READ_FIXED"
    machine.kernel.opinion = Opinion()
    assert machine.findings()["io-uring-views-differ"].value == "the doctor made a ring, liburing sees 0 operations"


def test_a_second_opinion_that_there_is_not_says_why(machine: Machine) -> None:
    machine.kernel.opinion = Opinion(why_none="liburing ended by SIGILL")
    assert machine.outcome("io_uring, second opinion").why_skipped == "liburing ended by SIGILL"
    assert machine.findings() == {}


def test_calls_that_a_filter_refuses_are_found_where_there_is_one(machine: Machine) -> None:
    machine.kernel.filtered = ("mbind",)
    assert machine.findings() == {}
    assert machine.outcome("seccomp").seen == (f"no filter on the daemon, pid {PID}",)
    machine.edit(f"/proc/{PID}/status", "Seccomp:\t0", "Seccomp:\t2")
    assert "run it inside" in machine.outcome("seccomp").seen[0]
    machine.edit("/proc/self/status", "Seccomp:\t0", "Seccomp:\t2")
    found = machine.findings()["seccomp-refuses"]
    assert found.value == "mbind: refused"
    assert "allow mbind in the seccomp profile" in found.remedy
    machine.kernel.filtered = ()
    assert machine.findings() == {}


def test_the_real_kernel_lets_calls_through_where_nothing_filters_them() -> None:
    descriptors, cores = len(list(Path("/proc/self/fd").iterdir())), os.sched_getaffinity(0)
    refused = Kernel().refused_calls()
    if "Seccomp:\t2" in Path("/proc/self/status").read_text():
        pytest.skip("this process has a filter of system calls")
    assert refused == ()
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
    assert os.sched_getaffinity(0) == cores
