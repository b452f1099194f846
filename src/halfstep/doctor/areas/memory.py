"""Memory of the daemon: the pages it lies in, what may be locked, what control groups, limits and the machine leave."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from halfstep.daemon.units import KIB, MIB, format_bytes
from halfstep.doctor.case import Case, text_of
from halfstep.doctor.finding import Area, Check, Finding, Rule, Severity, SkipCheck
from halfstep.doctor.host import RDMA_DEVICES, Host

HUGE_PAGES_OFF = Rule(
    "huge-pages-off",
    Severity.WARNING,
    "`madvise` or `always`, or {pages} free pages of 2 MiB reserved",
    "On ordinary pages the drive gets each read in many small pieces, and look-ups in the index miss the TLB.",
    "`echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled`, then start the daemon again",
)
HUGE_PAGES_IDLE = Rule(
    "huge-pages-idle",
    Severity.WARNING,
    "0, or at least {pages} pages for arena and index",
    "Reserved pages that are too few for the arena lie idle: no other memory may use them.",
    "`sudo sysctl vm.nr_hugepages={pages}` before the daemon starts, or `=0`",
)
MEMLOCK_LOW = Rule(
    "memlock-low",
    Severity.WARNING,
    "{wanted} or more, or the capability CAP_IPC_LOCK",
    "The ring cannot register the arena (`unregistered buffers` in the line `engine`): each request pins its pages anew. "
    "RDMA cannot register memory at all.",
    "`LimitMEMLOCK=infinity` in the unit, and start the daemon again; by hand `ulimit -l unlimited` as root before "
    "`halfstep serve`, or /etc/security/limits.conf",
)
ADDRESS_SPACE_LOW = Rule(
    "address-space-low",
    Severity.ERROR,
    "unlimited, or at least {wanted}",
    "A daemon that cannot map its arena and index does not start; one that just fits ends at its next allocation.",
    "`ulimit -v unlimited`; under systemd remove `LimitAS=`",
)
CGROUP_MEMORY_LOW = Rule(
    "cgroup-memory-low",
    Severity.ERROR,
    "at least {wanted}: arena and index outside reserved huge pages, requests and the process",
    "The kernel kills the daemon when it has filled its arena, or the daemon refuses to start.",
    "raise `MemoryMax=` of the unit (`systemctl edit halfstepd`) or the container's limit, or lower `--arena` and `--index`",
)
CGROUP_MEMORY_TIGHT = Rule(
    "cgroup-memory-tight",
    Severity.WARNING,
    "at least {wanted}, with the rings of all local clients",
    "With as many local clients as `--shm-memory` allows, the kernel kills the daemon.",
    "raise `MemoryMax=`, or lower `--shm-memory`",
)
CGROUP_KILLED = Rule(
    "cgroup-killed",
    Severity.ERROR,
    "0",
    "The kernel has killed in the daemon's control group for want of memory since it was made.",
    "raise `MemoryMax=` to what `halfstep size` and docs/configure.md add up; `journalctl -k -g oom` tells when",
)
MEMORY_SHORT = Rule(
    "memory-short",
    Severity.ERROR,
    "at least {wanted}: arena and index outside reserved huge pages, requests and the process",
    "The daemon takes all of its arena when it starts: the machine would swap, or kill.",
    "lower `--arena`, or end what else runs here (`ps -eo rss,comm --sort -rss | head`)",
)
SWAPPED = Rule(
    "daemon-swapped",
    Severity.WARNING,
    "0",
    "Blocks in memory, or the index, come back from the swap device before an answer can leave.",
    "give the machine more memory or lower `--arena`; `MemorySwapMax=0` in the unit keeps the daemon out of swap",
)
MAPS_LOW = Rule(
    "map-count-low",
    Severity.WARNING,
    "at least {wanted}: three for each of {clients} local clients, and the process",
    "A local client for whose rings there is no mapping left is served through its socket, with two more copies.",
    "`sudo sysctl vm.max_map_count=65530`, and the same in /etc/sysctl.d",
)
RECLAIM_LOCAL = Rule(
    "numa-zone-reclaim",
    Severity.WARNING,
    "0",
    "A full memory node drops its page cache and swaps before it takes memory of another node.",
    "`sudo sysctl vm.zone_reclaim_mode=0`, and the same in /etc/sysctl.d",
)
NUMA_SPREAD = Rule(
    "numa-spread",
    Severity.WARNING,
    "9 of 10 pages of arena and index on one node for each shard",
    "Each read from the other node crosses the link between the processors.",
    "bind shards by `--cores`, or name nodes by `--numa`, and start the daemon again; see the line `numa` of its start",
)
CAP_IPC_LOCK = 14
MAPS_OF_PROCESS = 1024


class GroupLimit(NamedTuple):
    """A limit of memory of a control group: its file, its bytes, and its directory."""

    file: str
    bytes: int
    directory: str


def _pages_wanted(case: Case) -> int:
    return -(-(case.config.arena_bytes + case.config.index_bytes) // (2 * MIB))


def _pool(host: Host) -> tuple[int, int]:
    """Reserved pages of 2 MiB, and those of them that nobody has."""
    pool = "/sys/kernel/mm/hugepages/hugepages-2048kB"
    return host.number(f"{pool}/nr_hugepages") or 0, host.number(f"{pool}/free_hugepages") or 0


def pooled_bytes(host: Host, case: Case) -> int:
    """What of arena and index lies in reserved pages, or will: MemAvailable does not hold them, memory.max not charge them."""
    reserved, free = _pool(host)
    # Those that a daemon has taken are not free, and serve it.
    pages = free if case.daemon is None else max(free, reserved - free)
    if not case.config.huge_pages or pages < _pages_wanted(case):
        return 0
    return min(pages * 2 * MIB, case.config.arena_bytes + case.index_bytes)


def huge_pages(host: Host, case: Case) -> Iterator[Finding | str]:
    """Reserved and transparent pages of 2 MiB, and whether either serves the arena."""
    if not case.config.huge_pages:
        raise SkipCheck("the daemon has --no-huge-pages")
    enabled = host.text("/sys/kernel/mm/transparent_hugepage/enabled")
    chosen = re.search(r"\[(\w+)\]", enabled or "")
    transparent = chosen[1] if chosen else "not in this kernel"
    reserved, free = _pool(host)
    wanted = _pages_wanted(case)
    told = f"transparent: {transparent}; reserved: {reserved} pages, {free} free"
    enough = pooled_bytes(host, case) > 0
    if transparent not in ("always", "madvise") and not enough:
        yield HUGE_PAGES_OFF.found(told, pages=wanted)
    elif reserved and not enough and free == reserved:
        yield HUGE_PAGES_IDLE.found(told, pages=wanted)
    else:
        yield told


def pinned_bytes(host: Host, case: Case) -> int:
    """What the daemon locks: its arena, with io_uring and by each RDMA device anew, and rings over RDMA where they are wanted.

    The kernel counts each registration of a page (drivers/infiniband/core/umem.c, io_uring/rsrc.c: pinned_vm).
    """
    config = case.config
    times, rings = int(config.engine != "pread"), 0
    if config.rdma != "off":
        times, rings = times + max(len(host.names(RDMA_DEVICES)), 1), config.rdma_memory_bytes
    return times * config.arena_bytes + rings


def _may_lock(host: Host, status: str) -> bool:
    return bool(int(host.field(status, "CapEff"), 16) >> CAP_IPC_LOCK & 1)


def locked_memory(host: Host, case: Case) -> Iterator[Finding | str]:
    """Of the daemon that runs, and of this process, whose limits a daemon gets that is started here."""
    pid, of = case.limited
    limit, may = host.limit_of(pid, "Max locked memory"), _may_lock(host, f"/proc/{pid}/status")
    wanted = pinned_bytes(host, case)
    if limit is not None and limit < wanted and not may:
        yield MEMLOCK_LOW.found(f"{format_bytes(limit)} for {of}", wanted=format_bytes(wanted))
    else:
        yield f"{'any, by CAP_IPC_LOCK' if may else text_of(limit)} for {of}"


def address_space(host: Host, case: Case) -> Iterator[Finding | str]:
    """RLIMIT_AS against all that is mapped: memory, and rings of all local clients."""
    wanted = case.memory_bytes + case.config.shm_memory_bytes
    pid, of = case.limited
    limit = host.limit_of(pid, "Max address space")
    if limit is not None and limit < wanted:
        yield ADDRESS_SPACE_LOW.found(f"{format_bytes(limit)} for {of}", wanted=format_bytes(wanted))
    else:
        yield f"{text_of(limit)} for {of}"


def _groups(host: Host, pid: str) -> Iterator[tuple[str, str]]:
    """(directory, file of the limit) of the process's control group and those above it, of both versions."""
    for line in host.read(f"/proc/{pid}/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if not controllers:
            mounts, file = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"], "memory.max"
        elif "memory" in controllers.split(","):
            mounts, file = ["/sys/fs/cgroup/memory"], "memory.limit_in_bytes"
        else:
            continue
        for mount in mounts:
            parts = [part for part in group.split("/") if part and part != ".."]
            for count in range(len(parts), -1, -1):
                yield "/".join([mount, *parts[:count]]), file


def group_limit(host: Host, pid: str) -> GroupLimit | None:
    """The lowest limit of memory of a process's control groups. Errors: OSError."""
    found: GroupLimit | None = None
    for directory, file in _groups(host, pid):
        limit = host.number(f"{directory}/{file}")  # "max" is no number
        if limit is not None and limit < 1 << 62 and (found is None or limit < found.bytes):
            found = GroupLimit(f"{directory}/{file}", limit, directory)
    return found


def group_memory(host: Host, case: Case) -> Iterator[Finding | str]:
    """The limit of the daemon's control group, or of this process's, and whether the kernel has killed there."""
    pid, _ = case.limited
    limit = group_limit(host, pid)
    wanted = case.memory_bytes - pooled_bytes(host, case)
    with_rings = wanted + case.config.shm_memory_bytes
    if limit is None:
        yield "no limit"
    elif limit.bytes < wanted:
        yield CGROUP_MEMORY_LOW.found(f"{format_bytes(limit.bytes)} ({limit.file})", wanted=format_bytes(wanted))
    elif limit.bytes < with_rings:
        yield CGROUP_MEMORY_TIGHT.found(f"{format_bytes(limit.bytes)} ({limit.file})", wanted=format_bytes(with_rings))
    else:
        yield f"{format_bytes(limit.bytes)} ({limit.file})"
    if case.daemon is None:
        return
    # Its own group alone: those above it count what runs beside the daemon.
    for directory, _ in list(_groups(host, pid))[:1]:
        events = dict(line.split() for line in (host.text(f"{directory}/memory.events.local") or "").splitlines())
        if int(events.get("oom_kill", 0)) > 0:
            yield CGROUP_KILLED.found(f"{events['oom_kill']} kills ({directory})")


def machine_memory(host: Host, case: Case) -> Iterator[Finding | str]:
    """What is left for a daemon that is still to start, or what of a running one is in swap."""
    if case.daemon is not None:
        swapped = int(host.field(f"/proc/{case.daemon.pid}/status", "VmSwap").split()[0]) * KIB
        if swapped >= MIB:
            yield SWAPPED.found(format_bytes(swapped))
        else:
            yield "nothing of the daemon is in swap"
        return
    available = int(host.field("/proc/meminfo", "MemAvailable").split()[0]) * KIB
    wanted = case.memory_bytes - pooled_bytes(host, case)
    if available < wanted:
        yield MEMORY_SHORT.found(f"{format_bytes(available)} available", wanted=format_bytes(wanted))
    else:
        yield f"{format_bytes(available)} available"


def map_count(host: Host, case: Case) -> Iterator[Finding | str]:
    """vm.max_map_count against mappings of the rings of all local clients."""
    allowed = host.number("/proc/sys/vm/max_map_count")
    if allowed is None:
        raise SkipCheck("there is no vm.max_map_count")
    wanted = MAPS_OF_PROCESS + 3 * case.local_rings
    if allowed < wanted:
        yield MAPS_LOW.found(allowed, wanted=wanted, clients=case.local_rings)
    else:
        yield f"{allowed}"


def memory_nodes(host: Host, case: Case) -> Iterator[Finding | str]:
    """Memory nodes, reclaim within one, and on which the daemon's pages lie."""
    nodes = [name for name in host.names("/sys/devices/system/node") if re.fullmatch(r"node\d+", name)]
    if len(nodes) < 2:
        yield "one node"
        return
    if (mode := host.number("/proc/sys/vm/zone_reclaim_mode") or 0) != 0:
        yield RECLAIM_LOCAL.found(mode)
    if case.answer is not None and not case.answer.why_not:
        pages: dict[str, float] = {}
        for name, value in case.answer.counters.items():
            if (of := re.fullmatch(r'halfstep_memory_sampled_pages\{.*node="(\d+)".*\}', name)) is not None:
                pages[of[1]] = pages.get(of[1], 0) + value
        told = ", ".join(f"node {node}: {count:.0f}" for node, count in sorted(pages.items()) if count)
        # Shards of a store may each have a node of their own.
        if case.answer.shards == 1 and pages and max(pages.values()) < 0.9 * sum(pages.values()):
            yield NUMA_SPREAD.found(f"of {sum(pages.values()):.0f} pages looked at {told}")
            return
        yield f"{len(nodes)} nodes; pages looked at: {told or 'none'}"
    else:
        yield f"{len(nodes)} nodes"


AREA = Area(
    "memory",
    "Memory",
    (
        Check("huge pages", huge_pages, (HUGE_PAGES_OFF, HUGE_PAGES_IDLE)),
        Check("locked memory", locked_memory, (MEMLOCK_LOW,)),
        Check("address space", address_space, (ADDRESS_SPACE_LOW,)),
        Check("control group's memory", group_memory, (CGROUP_MEMORY_LOW, CGROUP_MEMORY_TIGHT, CGROUP_KILLED)),
        Check("machine's memory", machine_memory, (MEMORY_SHORT, SWAPPED)),
        Check("mappings", map_count, (MAPS_LOW,)),
        Check("memory nodes", memory_nodes, (RECLAIM_LOCAL, NUMA_SPREAD)),
    ),
    of_daemon=True,
)
