"""Each condition of drives, made on a machine that is healthy otherwise."""

from __future__ import annotations

import pytest
from tests.unit.doctor.machine import DISK, NVME, PCI, STORE, Machine

from halfstep.doctor.disks import disks_below
from halfstep.doctor.finding import Severity
from halfstep.doctor.kernel import Place
from halfstep.io import nvme

SMART = nvme.GET_LOG, 0x7F0002


@pytest.fixture
def device(machine: Machine) -> Machine:
    """With the store on the device itself."""
    machine.serve(store=machine.case.config.store.parent.parent.parent.parent / "dev" / "nvme0n1")
    return machine


@pytest.mark.parametrize(
    ("file", "text", "found", "value"),
    [
        (f"{DISK}/ro", "1", "drive-read-only", "nvme0n1"),
        (f"{DISK}/queue/rotational", "1", "drive-rotational", "nvme0n1"),
        (f"{DISK}/queue/logical_block_size", "16384", "drive-block-large", "nvme0n1: 16384 bytes"),
        (f"{DISK}/queue/scheduler", "none [mq-deadline] kyber", "drive-scheduler", "nvme0n1: mq-deadline"),
        (f"{DISK}/queue/write_cache", "write through", "drive-cache-unflushed", "nvme0n1: write through"),
        (f"{NVME}/state", "dead", "drive-not-live", "nvme0: dead"),
        (f"{PCI}/current_link_speed", "8.0 GT/s PCIe", "drive-link-slow", "nvme0: 8.0 GT/s x4"),
        (f"{PCI}/current_link_width", "2", "drive-link-slow", "nvme0: 16.0 GT/s x2"),
        ("/sys/kernel/iommu_groups/7/type", "DMA", "iommu-strict", "nvme0n1: DMA"),
    ],
)
def test_a_condition_of_sysfs_is_found(machine: Machine, file: str, text: str, found: str, value: str) -> None:
    machine.write(file, f"{text}\n")
    (one,) = machine.findings().values()
    assert (one.id, one.value) == (found, value)


def test_remedies_name_the_disk_and_its_files(machine: Machine) -> None:
    machine.write(f"{DISK}/queue/scheduler", "[bfq]\n")
    machine.write(f"{PCI}/current_link_width", "2\n")
    found = machine.findings()
    assert found["drive-scheduler"].remedy.startswith("`echo none | sudo tee /sys/block/nvme0n1/queue/scheduler`")
    assert "lspci -vv -s 0000:01:00.0" in found["drive-link-slow"].remedy
    assert found["drive-link-slow"].bound == "16.0 GT/s x4"


def test_a_drive_without_a_cache_needs_no_flush(machine: Machine) -> None:
    machine.write(f"{DISK}/queue/write_cache", "write through\n")
    machine.set_admin(nvme.IDENTIFY, 1, 525, b"\0")
    assert machine.findings() == {}


def test_a_cache_that_nobody_may_ask_about_is_not_called_well(machine: Machine) -> None:
    machine.write(f"{DISK}/queue/write_cache", "write through\n")
    machine.kernel.admin.clear()
    assert machine.findings() == {}
    assert machine.outcome("write cache").seen == ("nvme0n1: write through; not known whether it has a cache",)


def test_a_store_on_a_device_that_takes_no_discards_is_found(device: Machine) -> None:
    assert device.findings() == {}
    device.write(f"{DISK}/queue/discard_max_bytes", "0\n")
    assert device.findings()["drive-no-discard"].value == "nvme0n1: 0 bytes"
    device.serve(discard_rate_bytes=0)
    assert device.findings() == {}


def test_a_store_in_a_file_discards_nothing(machine: Machine) -> None:
    machine.write(f"{DISK}/queue/discard_max_bytes", "0\n")
    assert machine.findings() == {}
    assert machine.outcome("discard").why_skipped == "the store is a file, which is not discarded from"


@pytest.mark.parametrize(("bit", "text"), [(0, "spare blocks are below"), (1, "temperature"), (3, "media is read-only")])
def test_a_critical_warning_of_the_drive_is_found(machine: Machine, bit: int, text: str) -> None:
    machine.set_admin(*SMART, 0, bytes([1 << bit]))
    found = machine.findings()["drive-critical"]
    assert text in found.value
    assert found.severity == Severity.ERROR


def test_a_worn_drive_is_found(machine: Machine) -> None:
    machine.set_admin(*SMART, 5, bytes([93]))
    assert machine.findings()["drive-worn"].value == "nvme0: 93 % used, spare 100 %"


def test_media_errors_are_found(machine: Machine) -> None:
    machine.set_admin(*SMART, 160, (17).to_bytes(16, "little"))
    assert machine.findings()["drive-media-errors"].value == "nvme0: 17"


def test_a_healthy_drive_says_how_it_is(machine: Machine) -> None:
    machine.set_admin(*SMART, 48, (2_000_000).to_bytes(16, "little"))
    assert machine.outcome("drive's health").seen == ("nvme0: 3 % used, spare 100 %, 41 °C, 954 GiB written",)


def test_health_that_this_user_may_not_ask_for_is_skipped(machine: Machine) -> None:
    machine.kernel.admin.clear()
    machine.kernel.uid = 1000
    for check in ("drive's health", "drive's format", "drive's placement"):
        assert machine.outcome(check).why_skipped == "/dev/nvme0: EACCES (Permission denied); run it as root"


def test_a_format_of_small_blocks_is_found_where_a_faster_one_is(machine: Machine) -> None:
    machine.set_admin(nvme.IDENTIFY, 0, 26, b"\0")
    found = machine.findings()["drive-format"]
    assert found.value == "nvme0n1: format 0, 512 bytes"
    assert "nvme format /dev/nvme0n1 --lbaf=1" in found.remedy
    machine.set_admin(nvme.IDENTIFY, 0, 128, bytes([0, 0, 9, 0]))
    assert machine.findings() == {}, "no format is faster"


def test_data_placement_is_told_of(machine: Machine) -> None:
    assert machine.outcome("drive's placement").seen == ("nvme0n1: the drive has no FDP",)
    machine.set_admin(nvme.IDENTIFY, 1, 96, (1 << 19).to_bytes(4, "little"))
    machine.set_admin(nvme.IDENTIFY, 0, 102, (3).to_bytes(2, "little"))
    machine.kernel.features["nvme0", nvme.FEATURE_PLACEMENT, 3] = 1
    assert machine.outcome("drive's placement").seen == ("nvme0n1: FDP, on in endurance group 3",)
    machine.kernel.features["nvme0", nvme.FEATURE_PLACEMENT, 3] = 0
    found = machine.findings()["drive-placement-off"]
    assert found.value == "nvme0n1: off in endurance group 3"
    assert "nvme fdp feature /dev/nvme0 --endgrp-id=3" in found.remedy


def test_a_drive_far_from_the_arena_is_found(machine: Machine) -> None:
    pages = 'halfstep_memory_sampled_pages{{of="arena",node="{}"}}'
    machine.answer({pages.format(0): 0, pages.format(1): 64})
    found = machine.findings()["numa-far-drive"]
    assert (found.value, found.remedy[:10]) == ("nvme0n1: 0 of 64 pages on its node", "`--numa 0`")


def test_disks_are_found_through_partitions_and_what_is_stacked(machine: Machine) -> None:
    machine.write(f"{DISK}/nvme0n1p2/partition", "2\n")
    machine.write("/sys/devices/virtual/block/dm-0/dm/name", "vg-store\n")
    machine.write("/sys/devices/virtual/block/md0/size", "1\n")
    machine.link("/sys/devices/virtual/block/dm-0/slaves/md0", "../../md0")
    machine.link("/sys/devices/virtual/block/md0/slaves/nvme0n1p2", f"../../../../../..{DISK}/nvme0n1p2")
    machine.link("/sys/dev/block/253:0", "../../devices/virtual/block/dm-0")
    machine.set_place(STORE, device=(253, 0))
    assert [disk.name for disk in disks_below(machine.host, STORE)] == ["nvme0n1"]


def test_a_file_system_with_numbers_of_its_own_is_found_by_its_mount(machine: Machine) -> None:
    machine.set_place(STORE, device=(0, 44))
    assert [disk.name for disk in disks_below(machine.host, STORE)] == ["nvme0n1"]


def test_a_store_on_no_device_skips_what_is_asked_of_drives(machine: Machine) -> None:
    machine.set_place(STORE, device=(0, 44))
    machine.edit("/proc/self/mountinfo", "xfs /dev/nvme0n1", "nfs4 server:/a")
    assert machine.outcome("scheduler").why_skipped == f"{STORE} lies on no block device that /sys names (nfs4)"


def test_a_drive_that_is_no_nvme_has_no_log_of_ours(machine: Machine) -> None:
    machine.write("/sys/devices/pci0000:00/0000:00:02.0/block/vda/queue/rotational", "0\n")
    machine.link("/sys/dev/block/254:0", "../../devices/pci0000:00/0000:00:02.0/block/vda")
    machine.kernel.places[STORE] = Place((254, 0), is_block_device=False, is_directory=False, bytes=1, stored_bytes=1)
    for check in ("drive's health", "NVMe controller"):
        assert machine.outcome(check).why_skipped == "no NVMe drive is below the store"
    assert machine.findings() == {}
