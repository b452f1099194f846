"""Each condition of memory, made on a machine that is healthy otherwise."""

from __future__ import annotations

import shutil

import pytest
from tests.unit.doctor.machine import PID, Machine

from halfstep.daemon.units import GIB, KIB, MIB
from halfstep.doctor.finding import Severity

POOL = "/sys/kernel/mm/hugepages/hugepages-2048kB"
GROUP = "/sys/fs/cgroup/system.slice/halfstepd.service"
THP = "/sys/kernel/mm/transparent_hugepage/enabled"


def test_no_huge_pages_are_found(machine: Machine) -> None:
    machine.write(THP, "always madvise [never]\n")
    found = machine.findings()["huge-pages-off"]
    assert found.value == "transparent: never; reserved: 0 pages, 0 free"
    assert "128 free pages" in found.bound
    assert "tee /sys/kernel/mm/transparent_hugepage/enabled" in found.remedy


def test_reserved_pages_serve_where_transparent_ones_do_not(machine: Machine) -> None:
    machine.write(THP, "always madvise [never]\n")
    machine.write(f"{POOL}/nr_hugepages", "128\n")
    machine.write(f"{POOL}/free_hugepages", "128\n")
    machine.stop()
    assert machine.findings() == {}


def test_reserved_pages_that_the_daemon_has_serve_it(machine: Machine) -> None:
    machine.write(THP, "always madvise [never]\n")
    machine.write(f"{POOL}/nr_hugepages", "128\n")
    assert machine.findings() == {}


def test_a_kernel_without_transparent_pages_has_none(machine: Machine) -> None:
    machine.remove(THP)
    assert machine.findings()["huge-pages-off"].value.startswith("transparent: not in this kernel")


def test_reserved_pages_that_lie_idle_are_found(machine: Machine) -> None:
    machine.write(f"{POOL}/nr_hugepages", "64\n")
    machine.write(f"{POOL}/free_hugepages", "64\n")
    assert machine.findings()["huge-pages-idle"].remedy.startswith("`sudo sysctl vm.nr_hugepages=128`")


def test_who_wants_no_huge_pages_is_not_asked(machine: Machine) -> None:
    machine.write(THP, "never\n")
    machine.serve(huge_pages=False)
    assert machine.findings() == {}
    assert machine.outcome("huge pages").why_skipped == "the daemon has --no-huge-pages"


def test_a_low_memlock_of_the_daemon_is_found(machine: Machine) -> None:
    machine.set_limit("Max locked memory", 8 * MIB)
    found = machine.findings()["memlock-low"]
    assert found.value == f"8 MiB for the daemon, pid {PID}"
    assert found.bound.startswith("256 MiB or more")
    assert "LimitMEMLOCK=infinity" in found.remedy


def test_without_io_uring_no_arena_is_locked(machine: Machine) -> None:
    machine.set_limit("Max locked memory", 8 * MIB)
    machine.serve(engine="pread")
    assert machine.findings() == {}
    machine.serve(engine="pread", rdma="auto")
    assert machine.findings()["memlock-low"].bound.startswith("512 MiB")


def test_a_daemon_that_may_lock_what_it_likes_has_no_limit(machine: Machine) -> None:
    machine.set_limit("Max locked memory", 8 * MIB)
    machine.edit(f"/proc/{PID}/status", "CapEff:\t0000000000000000", "CapEff:\t0000000000004000")
    assert machine.findings() == {}


def test_rdma_wants_more_locked_memory(machine: Machine) -> None:
    machine.set_limit("Max locked memory", 300 * MIB)
    assert "memlock-low" not in machine.findings()
    machine.serve(rdma="auto")
    assert machine.findings()["memlock-low"].bound.startswith("768 MiB"), "the arena twice, and the rings"


def test_each_rdma_device_locks_the_arena_anew(machine: Machine) -> None:
    machine.set_limit("Max locked memory", 8 * MIB)
    machine.serve(rdma="auto")
    machine.host.path("/sys/class/infiniband/mlx5_1").mkdir()
    assert machine.findings()["memlock-low"].bound.startswith("1 GiB")
    for device in machine.host.path("/sys/class/infiniband").iterdir():
        shutil.rmtree(device)
    assert machine.findings()["memlock-low"].bound.startswith("768 MiB"), "one may come"


def test_a_low_memlock_of_this_shell_counts_where_no_daemon_runs(machine: Machine) -> None:
    machine.stop()
    machine.set_limit("Max locked memory", 64 * KIB, "self")
    found = machine.findings()["memlock-low"]
    assert found.value == "64 KiB for this process"
    assert "ulimit -l unlimited" in found.remedy


@pytest.mark.parametrize("runs", [True, False])
def test_a_limit_of_addresses_is_found(machine: Machine, runs: bool) -> None:
    if runs:
        machine.set_limit("Max address space", 512 * MIB)
    else:
        machine.stop()
        machine.set_limit("Max address space", 512 * MIB, "self")
    found = machine.findings()["address-space-low"]
    assert found.value == f"512 MiB for {f'the daemon, pid {PID}' if runs else 'this process'}"
    assert found.severity == Severity.ERROR


def test_a_control_group_that_cannot_hold_the_arena_is_found(machine: Machine) -> None:
    machine.serve(arena_bytes=4 * GIB)
    found = machine.findings()["cgroup-memory-low"]
    assert found.value == f"2 GiB ({GROUP}/memory.max)"
    assert "4.38 GiB" in found.bound


def test_a_group_above_the_daemons_counts_too(machine: Machine) -> None:
    machine.write("/sys/fs/cgroup/system.slice/memory.max", "268435456\n")
    assert machine.findings()["cgroup-memory-low"].value == "256 MiB (/sys/fs/cgroup/system.slice/memory.max)"


def test_a_control_group_of_version_1_is_read(machine: Machine) -> None:
    machine.write(f"/proc/{PID}/cgroup", "5:cpu,cpuacct:/a\n4:memory:/a/b\n0::/none\n")
    machine.write("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "104857600\n")
    assert machine.findings()["cgroup-memory-low"].value.startswith("100 MiB (/sys/fs/cgroup/memory/a/b/")
    machine.write("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n")
    assert machine.findings() == {}


def test_a_control_group_without_room_for_all_rings_is_found(machine: Machine) -> None:
    machine.write(f"{GROUP}/memory.max", f"{1536 * MIB}\n")
    found = machine.findings()["cgroup-memory-tight"]
    assert found.severity == Severity.WARNING
    machine.serve(shm_memory_bytes=256 * MIB)
    assert machine.findings() == {}


def test_kills_for_want_of_memory_are_found(machine: Machine) -> None:
    machine.edit(f"{GROUP}/memory.events.local", "oom_kill 0", "oom_kill 3")
    assert machine.findings()["cgroup-killed"].value == f"3 kills ({GROUP})"


def test_a_machine_without_room_is_found_before_the_start(machine: Machine) -> None:
    machine.edit("/proc/meminfo", "MemAvailable:   60000000 kB", "MemAvailable:   262144 kB")
    assert machine.findings() == {}, "what a running daemon has taken is not available, and no fault"
    machine.stop()
    assert machine.findings()["memory-short"].value == "256 MiB available"


def reserve(machine: Machine, pages: int, free: int) -> None:
    """Huge pages, as the remedy of huge-pages-idle says."""
    machine.write(f"{POOL}/nr_hugepages", f"{pages}\n")
    machine.write(f"{POOL}/free_hugepages", f"{free}\n")


def test_what_lies_in_reserved_pages_is_charged_to_no_group(machine: Machine) -> None:
    machine.serve(arena_bytes=4 * GIB)
    assert {"cgroup-memory-low", "unit-memory-max"} <= set(machine.findings())
    reserve(machine, 2056, 0)
    assert machine.findings() == {}
    reserve(machine, 2047, 0)  # the arena does not fit, and lies elsewhere
    assert {"cgroup-memory-low", "unit-memory-max"} <= set(machine.findings())
    reserve(machine, 2056, 0)
    machine.serve(huge_pages=False)
    assert {"cgroup-memory-low", "unit-memory-max"} <= set(machine.findings())


def test_reserved_pages_need_not_be_available_once_more(machine: Machine) -> None:
    machine.stop()
    machine.serve(arena_bytes=4 * GIB)
    machine.edit("/proc/meminfo", "MemAvailable:   60000000 kB", "MemAvailable:   1048576 kB")
    assert "memory-short" in machine.findings()
    reserve(machine, 2056, 2056)
    assert "memory-short" not in machine.findings()
    machine.edit("/proc/meminfo", "MemAvailable:   1048576 kB", "MemAvailable:   262144 kB")
    # Of the rest, requests and the process still have to fit.
    assert machine.findings()["memory-short"].bound.startswith("at least 369 MiB")


def test_a_daemon_in_swap_is_found(machine: Machine) -> None:
    machine.edit(f"/proc/{PID}/status", "VmSwap:\t       0 kB", "VmSwap:\t  131072 kB")
    assert machine.findings()["daemon-swapped"].value == "128 MiB"


def test_too_few_mappings_are_found(machine: Machine) -> None:
    machine.write("/proc/sys/vm/max_map_count", "2000\n")
    found = machine.findings()["map-count-low"]
    assert found.bound == "at least 2560: three for each of 512 local clients, and the process"


def test_reclaim_within_a_memory_node_is_found(machine: Machine) -> None:
    machine.write("/proc/sys/vm/zone_reclaim_mode", "1\n")
    assert machine.findings()["numa-zone-reclaim"].value == "1"


def test_pages_spread_over_nodes_are_found(machine: Machine) -> None:
    name = 'halfstep_memory_sampled_pages{{of="arena",node="{}"}}'
    machine.answer({name.format(0): 40, name.format(1): 24})
    assert machine.findings()["numa-spread"].value == "of 128 pages looked at node 0: 104, node 1: 24"
    machine.answer({name.format(0): 40, name.format(1): 24}, shards=2)
    assert "numa-spread" not in machine.findings(), "each shard may have a node of its own"


def test_what_may_not_be_read_is_skipped_and_never_well(machine: Machine) -> None:
    machine.remove(f"/proc/{PID}/limits")
    for check in ("locked memory", "address space", "open files"):
        one = machine.outcome(check)
        assert one.why_skipped == f"/proc/{PID}/limits: ENOENT (No such file or directory)"
        assert (one.seen, one.findings) == ((), ())
