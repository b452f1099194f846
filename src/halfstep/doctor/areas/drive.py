"""The drives below the store, as /sys shows them: blocks, write cache, scheduler, discard, links, IOMMU."""

from __future__ import annotations

import re
from collections.abc import Iterator

from halfstep.daemon.config import is_vhost_user
from halfstep.doctor.case import Case
from halfstep.doctor.disks import Disk, disks_below
from halfstep.doctor.finding import Area, Check, Finding, Rule, Severity, SkipCheck
from halfstep.doctor.host import Host
from halfstep.doctor.nvme import controllers_of, has_volatile_cache

PAGE_BYTES = 4096
READ_ONLY = Rule(
    "drive-read-only",
    Severity.ERROR,
    "a drive that takes writes",
    "Puts are answered `unavailable (media)`. A drive that is worn out makes itself read-only.",
    "look at `dmesg` and `smartctl -a /dev/{disk}` first; `sudo blockdev --setrw /dev/{disk}` where somebody set it",
)
ROTATIONAL = Rule(
    "drive-rotational",
    Severity.WARNING,
    "flash",
    "Reads that gets wait for take milliseconds each, and queue behind each other.",
    "name a place on flash by `--store`; where a virtual disk is flash: `echo 0 | sudo tee /sys/block/{disk}/queue/rotational`",
)
BLOCK_LARGE = Rule(
    "drive-block-large",
    Severity.ERROR,
    "logical blocks of at most 4096 bytes",
    "The daemon reads and writes pages of 4 KiB with O_DIRECT, which such a drive refuses.",
    "format the namespace with blocks of 4096 bytes, which erases it (`nvme format`), or take another drive",
)
SCHEDULER = Rule(
    "drive-scheduler",
    Severity.WARNING,
    "`none`",
    "The daemon orders its requests itself; a scheduler below it delays them, and costs a lock for each.",
    "`echo none | sudo tee /sys/block/{disk}/queue/scheduler`, and a udev rule for the next boot",
)
CACHE_UNFLUSHED = Rule(
    "drive-cache-unflushed",
    Severity.ERROR,
    "`write back`, for the drive has a volatile write cache",
    "The kernel sends no flushes: what was acknowledged with `persist` is gone after a power loss.",
    "`echo 'write back' | sudo tee /sys/block/{disk}/queue/write_cache`, and find who turned it off",
)
NO_DISCARD = Rule(
    "drive-no-discard",
    Severity.WARNING,
    "above 0 bytes, for a store on the device itself",
    "The drive never hears which flash is empty, copies it around, and wears sooner.",
    "let the layers between pass discards on (`discard` of dm-crypt and virtio), or take another drive",
)
LINK_SLOW = Rule(
    "drive-link-slow",
    Severity.WARNING,
    "{best}",
    "The drive could read faster than its slot, or a bad contact, lets it.",
    "seat the drive anew, or move it to another slot; `lspci -vv -s {address}` shows the link",
)
NOT_LIVE = Rule(
    "drive-not-live",
    Severity.ERROR,
    "`live`",
    "The controller answers no requests: gets miss and puts are unavailable.",
    "`dmesg` says why; `echo 1 | sudo tee /sys/class/nvme/{controller}/reset_controller`, or a power cycle",
)
IOMMU_STRICT = Rule(
    "iommu-strict",
    Severity.WARNING,
    "`DMA-FQ` or `identity`",
    "Each request to the device waits until its old addresses are flushed from the IOMMU.",
    "boot with `iommu.strict=0`, or with `iommu=pt` where devices are trusted",
)
NODE_FAR = Rule(
    "numa-far-drive",
    Severity.WARNING,
    "the arena on node {node}, to which the drive is attached",
    "Each read crosses the link between the processors.",
    "`--numa {node}`, or `--cores` of that node (`lscpu`), and start the daemon again",
)


def each_disk(host: Host, case: Case) -> list[Disk]:
    """Below the store. Errors: SkipCheck where there is none."""
    return disks_below(host, str(case.config.store))


def device(host: Host, case: Case) -> Iterator[Finding | str]:
    """That it is flash, and takes writes."""
    for disk in each_disk(host, case):
        if host.number(f"{disk.directory}/ro"):
            yield READ_ONLY.found(disk.name, disk=disk.name)
        elif host.number(f"{disk.queue}/rotational"):
            yield ROTATIONAL.found(disk.name, disk=disk.name)
        else:
            model = host.text(f"{disk.directory}/device/model")
            yield disk.name + (f": {model}" if model else "")


def block_size(host: Host, case: Case) -> Iterator[Finding | str]:
    """Of the logical blocks, which O_DIRECT has to be aligned to."""
    for disk in each_disk(host, case):
        logical = host.number(f"{disk.queue}/logical_block_size")
        if logical is None:
            raise SkipCheck(f"{disk.queue}/logical_block_size is not there")
        if logical > PAGE_BYTES:
            yield BLOCK_LARGE.found(f"{disk.name}: {logical} bytes")
        else:
            physical = host.number(f"{disk.queue}/physical_block_size")
            yield f"{disk.name}: {logical} bytes" + (f", {physical} inside" if physical not in (logical, None) else "")


def scheduler(host: Host, case: Case) -> Iterator[Finding | str]:
    """Of requests, in the kernel."""
    for disk in each_disk(host, case):
        told = host.text(f"{disk.queue}/scheduler") or "none"
        chosen = re.search(r"\[([\w-]+)\]", told)
        name = chosen[1] if chosen else told
        if name != "none" and not host.number(f"{disk.queue}/rotational"):
            yield SCHEDULER.found(f"{disk.name}: {name}", disk=disk.name)
        else:
            yield f"{disk.name}: {name}"


def write_cache(host: Host, case: Case) -> Iterator[Finding | str]:
    """Whether the kernel flushes a drive that has something to flush."""
    for disk in each_disk(host, case):
        told = host.text(f"{disk.queue}/write_cache") or "not known"
        volatile = has_volatile_cache(host, disk)
        if volatile and told == "write through":
            yield CACHE_UNFLUSHED.found(f"{disk.name}: {told}", disk=disk.name)
        elif told == "write back":
            yield f"{disk.name}: write back, which a put with `persist` waits to be flushed"
        else:
            yield f"{disk.name}: {told}" + ("; not known whether it has a cache" if volatile is None else "")


def discard(host: Host, case: Case) -> Iterator[Finding | str]:
    """Only a store on a device tells its drive what is empty."""
    if is_vhost_user(case.config.store):
        raise SkipCheck("the store is on a vhost-user target, where ranges are not discarded")
    place = host.kernel.place(str(case.config.store))
    if place is None or not place.is_block_device:
        raise SkipCheck("the store is a file, which is not discarded from")
    if case.config.discard_rate_bytes == 0:
        raise SkipCheck("the daemon has --discard-rate 0")
    for disk in each_disk(host, case):
        most = host.number(f"{disk.queue}/discard_max_bytes") or 0
        if not most:
            yield NO_DISCARD.found(f"{disk.name}: 0 bytes")
        else:
            yield f"{disk.name}: up to {most} bytes, granules of {host.number(f'{disk.queue}/discard_granularity')}"


def controller(host: Host, case: Case) -> Iterator[Finding | str]:
    """State of NVMe controllers, and the width and speed of their links."""
    disks = each_disk(host, case)
    if not any(controllers_of(host, disk) for disk in disks):
        raise SkipCheck("no NVMe drive is below the store")
    for disk in disks:
        for name in controllers_of(host, disk):
            directory = host.resolved(f"/sys/class/nvme/{name}")
            state = host.text(f"{directory}/state") or "not known"
            if state not in ("live", "not known"):
                yield NOT_LIVE.found(f"{name}: {state}", controller=name)
            elif disk.pci:
                yield from _link(host, name, disk.pci)
            else:
                yield f"{name}: {state}, {host.text(f'{directory}/transport') or 'transport not known'}"


def _link(host: Host, name: str, pci: str) -> Iterator[Finding | str]:
    now, best = (
        (host.text(f"{pci}/{which}_link_speed") or "", host.number(f"{pci}/{which}_link_width") or 0)
        for which in ("current", "max")
    )
    told, could = (f"{speed.removesuffix(' PCIe')} x{width}" for speed, width in (now, best))
    if not now[0] or "Unknown" in now[0]:
        yield f"{name}: live, link not known"
    elif _gigatransfers(now[0]) < _gigatransfers(best[0]) or now[1] < best[1]:
        yield LINK_SLOW.found(f"{name}: {told}", best=could, address=pci.rpartition("/")[2])
    else:
        yield f"{name}: live, {told}"


def _gigatransfers(text: str) -> float:
    number = re.match(r"[\d.]+", text)
    return float(number[0]) if number else 0.0


def iommu(host: Host, case: Case) -> Iterator[Finding | str]:
    """How the drives' addresses are mapped."""
    for disk in each_disk(host, case):
        kind = host.text(f"{disk.pci}/iommu_group/type") if disk.pci else None
        if kind == "DMA":
            yield IOMMU_STRICT.found(f"{disk.name}: DMA")
        else:
            yield f"{disk.name}: {kind or 'no IOMMU before it'}"


def memory_node(host: Host, case: Case) -> Iterator[Finding | str]:
    """Whether the arena lies where the drive is attached."""
    counters = case.answered().counters
    for disk in each_disk(host, case):
        node = host.number(f"{disk.pci}/numa_node") if disk.pci else None
        if node is None or node < 0:
            yield f"{disk.name}: attached to no node"
            continue
        arena = {
            found[1]: value
            for name, value in counters.items()
            if (found := re.fullmatch(r'halfstep_memory_sampled_pages\{.*of="arena".*node="(\d+)".*\}', name)) is not None
        }
        there, all_pages = arena.get(str(node), 0), sum(arena.values())
        if all_pages and there < all_pages / 2:
            yield NODE_FAR.found(f"{disk.name}: {there:.0f} of {all_pages:.0f} pages on its node", node=node)
        else:
            yield f"{disk.name}: node {node}, with {there:.0f} of {all_pages:.0f} pages"


AREA = Area(
    "drive",
    "Drives below the store",
    (
        Check("drive", device, (READ_ONLY, ROTATIONAL)),
        Check("logical blocks", block_size, (BLOCK_LARGE,)),
        Check("write cache", write_cache, (CACHE_UNFLUSHED,)),
        Check("scheduler", scheduler, (SCHEDULER,)),
        Check("discard", discard, (NO_DISCARD,)),
        Check("NVMe controller", controller, (NOT_LIVE, LINK_SLOW)),
        Check("IOMMU", iommu, (IOMMU_STRICT,)),
        Check("drive's memory node", memory_node, (NODE_FAR,)),
    ),
    of_daemon=True,
)
