"""Devices of a made-up tree of /sys and /proc: what is told of each, and why one is not free."""

from __future__ import annotations

from pathlib import Path

import pytest

from halfstep.io.devices import Device, Tree, list_devices
from halfstep.io.signatures import Signature

MIB = 1 << 20


class Machine:
    """A tree below a root; nothing of it is there until a test makes it."""

    def __init__(self, root: Path) -> None:
        self.root, self.tree = root, Tree(root)

    def write(self, path: str, text: str | bytes) -> None:
        place = self.tree.path(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(text.encode() if isinstance(text, str) else text)

    def link(self, path: str, to: str) -> None:
        place = self.tree.path(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(to)

    def disk(self, name: str, number: str, size: int = 64 * MIB) -> str:
        """Its directory in /sys; its bytes are zeros."""
        directory = f"/sys/devices/{name}"
        self.write(f"{directory}/dev", f"{number}\n")
        self.write(f"{directory}/size", f"{size // 512}\n")
        for file, text in {"logical_block_size": "512", "physical_block_size": "4096", "rotational": "0"}.items():
            self.write(f"{directory}/queue/{file}", f"{text}\n")
        for place in ("block", "class/block"):
            self.link(f"/sys/{place}/{name}", f"{self.root}{directory}")
        self.write(f"/dev/{name}", bytes(size))
        return directory

    def one(self) -> Device:
        (found,) = list_devices(self.tree)
        return found


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_blank_drive_is_free_and_described(machine: Machine) -> None:
    directory = machine.disk("nvme0n1", "259:0")
    machine.write(f"{directory}/device/model", "LAB DRIVE 7   \n")
    machine.write(f"{directory}/device/serial", "S123\n")
    machine.write("/dev/ng0n1", "")
    machine.link("/dev/disk/by-id/nvme-eui.0011", "../../nvme0n1")
    machine.link("/dev/disk/by-id/nvme-LAB_DRIVE_7_S123", "../../nvme0n1")
    found = machine.one()
    assert found.why_not_free == ""
    assert (found.model, found.serial, found.bytes, found.kind) == ("LAB DRIVE 7", "S123", 64 * MIB, "nvme")
    assert (found.logical_block_bytes, found.physical_block_bytes) == (512, 4096)
    assert (found.namespace, found.controller) == ("/dev/ng0n1", "nvme0")
    assert found.by_id == "/dev/disk/by-id/nvme-LAB_DRIVE_7_S123"


def test_each_use_of_a_drive_is_told_and_none_is_free(machine: Machine) -> None:
    directory = machine.disk("sda", "8:0")
    mounts = "22 1 8:0 / /data\\040one rw - ext4 /dev/sda rw\n23 1 0:44 / /pool rw - btrfs /dev/sda rw\n"
    machine.write("/proc/self/mountinfo", mounts)
    assert [one.point for one in machine.one().mounts] == ["/data one", "/pool"]
    assert machine.one().why_not_free == "mounted at /data one"
    machine.write("/proc/self/mountinfo", "22 1 8:9 / / rw - ext4 /dev/sdb rw\n")
    assert machine.one().why_not_free == ""
    machine.write(f"{directory}/holders/dm-0/dev", "253:0")
    machine.write("/sys/class/block/dm-0/dm/name", "vg-lv\n")
    assert machine.one().why_not_free == "holds vg-lv"
    machine.write(f"{directory}/ro", "1\n")
    assert machine.one().why_not_free == "read-only"


def test_partitions_and_their_mounts_belong_to_the_disk(machine: Machine) -> None:
    directory = machine.disk("sda", "8:0")
    machine.write(f"{directory}/sda1/partition", "1\n")
    machine.write("/sys/class/block/sda1/dev", "8:1\n")
    assert machine.one().why_not_free == "holds sda1"
    machine.write("/proc/self/mountinfo", "22 1 8:1 / /home rw - xfs /dev/sda1 rw\n")
    assert machine.one().why_not_free == "mounted at /home"


def test_what_a_drive_holds_is_told(machine: Machine) -> None:
    machine.disk("sda", "8:0")
    content = bytearray(64 * MIB)
    content[1080:1082] = b"\x53\xef"
    machine.write("/dev/sda", bytes(content))
    assert machine.one().why_not_free == "holds file system: ext2, ext3 or ext4"


def test_a_drive_that_may_not_be_read_is_not_called_free(machine: Machine) -> None:
    machine.disk("sda", "8:0")
    machine.tree.path("/dev/sda").unlink()
    found = machine.one()
    assert found.signatures is None
    assert found.why_not_free.startswith("not known: /dev/sda cannot be read")


def test_drives_are_in_the_order_of_their_numbers_and_empty_ones_left_out(machine: Machine) -> None:
    for name, number in (("nvme10n1", "259:1"), ("nvme2n1", "259:0"), ("ram0", "1:0"), ("sr0", "11:0")):
        machine.disk(name, number, MIB)
    machine.disk("loop0", "7:0", 0)
    assert [one.name for one in list_devices(machine.tree)] == ["nvme2n1", "nvme10n1"]


def test_the_devices_of_this_machine_are_listed() -> None:
    real = [one.name for one in Path("/sys/block").iterdir() if int((one / "size").read_text())]
    listed = {one.name: one for one in list_devices(Tree())}
    assert {name for name in real if not name.startswith(("ram", "zram", "sr", "fd"))} == set(listed)
    for one in listed.values():
        assert one.signatures is None or all(isinstance(mark, Signature) for mark in one.signatures)
