"""Each condition of the store's place, made on a machine that is healthy otherwise."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
from pathlib import Path

import pytest
from tests.unit.doctor.machine import STORE, Machine

from halfstep.daemon.units import GIB, MIB
from halfstep.doctor.finding import Severity
from halfstep.doctor.kernel import Kernel, PageViews
from halfstep.io.second_opinion import Transfers

MOUNTS = "/proc/self/mountinfo"


@pytest.fixture
def new(machine: Machine) -> Machine:
    """Where no daemon runs and no store is yet, nor its directory."""
    machine.stop()
    del machine.kernel.places[STORE], machine.kernel.places["/var/lib/halfstep"]
    return machine


def test_a_new_store_may_be_made(new: Machine) -> None:
    assert new.findings() == {}
    assert new.outcome("store's place").seen == (f"{STORE}: there is none yet, and one may be made",)
    assert new.outcome("free space").seen == ("1 TiB free",)


def test_a_place_that_the_daemon_refuses_is_found_in_its_words(machine: Machine) -> None:
    machine.kernel.refusal = "/etc/fstab mounts /dev/nvme1n1 there, and nothing is mounted"
    found = machine.findings()["store-place"]
    assert (found.value, found.severity) == (machine.kernel.refusal, Severity.ERROR)


def test_of_a_device_that_is_not_there_nothing_else_is_said(machine: Machine) -> None:
    machine.serve(store=Path("/dev/nvme7n1"))
    machine.kernel.refusal = "/dev/nvme7n1: there is no such device"
    assert set(machine.findings()) == {"store-place"}
    assert machine.outcome("file system").why_skipped == machine.outcome("scheduler").why_skipped == machine.kernel.refusal


def test_a_new_store_in_shared_memory_is_found(new: Machine) -> None:
    new.serve(store=Path("/dev/shm/hs/store.hs"))
    new.kernel.places["/dev/shm"] = new.kernel.places["/var"]
    new.edit(MOUNTS, "xfs /dev/nvme0n1", "xfs /dev/nvme0n1 rw\n31 22 0:9 / /dev/shm rw - tmpfs tmpfs")
    assert "store-in-memory" in new.findings()


def test_a_store_that_this_user_may_not_write_is_found(new: Machine) -> None:
    new.kernel.closed = ("/var",)
    new.kernel.uid = 1000
    assert new.findings()["store-closed"].value == f"{STORE}, uid 1000"


def test_a_store_of_the_daemons_user_is_no_fault(machine: Machine) -> None:
    machine.kernel.closed = (STORE,)
    assert machine.findings() == {}


@pytest.mark.parametrize("runs", [True, False])
def test_a_store_that_this_user_may_not_see_is_skipped(machine: Machine, runs: bool) -> None:
    machine.kernel.uid, machine.kernel.unseen, machine.kernel.closed = 1000, (STORE,), (STORE,)
    if not runs:
        machine.stop()
        machine.case = dataclasses.replace(machine.case, by_unit=True)
    assert machine.findings() == {}
    assert machine.outcome("store's place").why_skipped == f"{STORE}: EACCES (Permission denied); run it as root"


def test_a_store_of_the_user_of_the_unit_is_no_fault(machine: Machine) -> None:
    machine.stop()
    machine.case = dataclasses.replace(machine.case, by_unit=True)
    machine.kernel.uid, machine.kernel.closed = 1000, (STORE,)
    assert "store-closed" not in machine.findings()


def test_links_in_a_circle_are_told_in_the_daemons_words(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def place(_path: str) -> None:
        raise OSError(errno.ELOOP, "Too many levels of symbolic links")

    monkeypatch.setattr(machine.kernel, "place", place)
    machine.kernel.refusal = f"{STORE}: its links lead in a circle"
    assert machine.findings()["store-place"].value == machine.kernel.refusal


def test_a_file_system_that_is_mounted_read_only_is_found(machine: Machine) -> None:
    machine.edit(MOUNTS, "xfs /dev/nvme0n1 rw", "xfs /dev/nvme0n1 ro")
    found = machine.findings()["store-read-only"]
    assert "remount,rw /var/lib/halfstep" in found.remedy


@pytest.mark.parametrize(
    ("kind", "name"), [("tmpfs", "store-in-memory"), ("overlay", "store-file-system"), ("nfs4", "store-file-system")]
)
def test_a_file_system_that_does_not_suit_is_found(machine: Machine, kind: str, name: str) -> None:
    machine.edit(MOUNTS, "xfs /dev/nvme0n1", f"{kind} none")
    assert machine.findings()[name].value == f"{kind}, none at /var/lib/halfstep"


def test_the_mount_on_top_counts(machine: Machine) -> None:
    machine.write(
        MOUNTS,
        machine.host.read(MOUNTS) + "\n31 30 0:9 / /var/lib/halfstep rw - tmpfs tmpfs rw\n32 22 0:8 / /var/lib ro - nfs a rw\n",
    )
    assert set(machine.findings()) == {"store-in-memory"}


def test_a_file_system_without_o_direct_is_found(machine: Machine) -> None:
    machine.kernel.direct = errno.EINVAL
    assert machine.findings()["store-buffered"].value == f"EINVAL for {STORE}"


@pytest.mark.parametrize("error", [errno.EOPNOTSUPP, errno.EACCES])
def test_o_direct_that_cannot_be_tried_is_skipped(machine: Machine, error: int) -> None:
    machine.kernel.direct = error
    assert machine.findings() == {}
    assert machine.outcome("O_DIRECT").why_skipped
    assert machine.outcome("O_DIRECT").seen == ()


@pytest.mark.parametrize(("size", "free"), [(0, 100 * MIB), (64 * GIB, 60 * GIB)])
def test_too_little_room_for_a_new_store_is_found(new: Machine, size: int, free: int) -> None:
    new.serve(size_bytes=size)
    new.kernel.free = free
    assert "store-space-low" in new.findings()


def test_a_store_with_holes_is_found(machine: Machine) -> None:
    machine.set_place(STORE, stored_bytes=1 << 30)
    found = machine.findings()["store-sparse"]
    assert found.value == "1 GiB of 64 GiB"
    assert f"fallocate -l {1 << 36} {STORE}" in found.remedy


def test_the_real_kernel_looks_at_places_and_leaves_none_behind(tmp_path: Path) -> None:
    kernel = Kernel()
    place = kernel.place(str(tmp_path))
    assert place is not None
    assert place.is_directory
    assert kernel.place(str(tmp_path / "none" / "none")) is None
    assert kernel.place_refusal(str(tmp_path / "store.hs")) == ""
    assert "no such device" in kernel.place_refusal("/dev/halfstep-none")
    assert kernel.free_bytes(str(tmp_path)) > 0
    assert kernel.try_direct(str(tmp_path)) in (0, errno.EINVAL, errno.EOPNOTSUPP, errno.EISDIR)
    assert kernel.try_direct(str(tmp_path / "none")) == errno.ENOENT
    assert list(tmp_path.iterdir()) == []


def test_of_a_vhost_user_target_only_its_socket_is_looked_at(machine: Machine) -> None:
    machine.serve(store=Path("vhost-user:/run/drive.sock"))
    assert machine.findings()["store-place"].value.startswith("vhost-user:/run/drive.sock: there is no such socket")
    assert "vhost-user target" in machine.outcome("file system").why_skipped
    assert "vhost-user target" in machine.outcome("free space").why_skipped


@pytest.mark.parametrize(
    ("pages", "value"),
    [
        (PageViews("7a", Transfers(0.1, "00", (90.0,)), "7a"), "other bytes by liburing"),
        (PageViews("7a", Transfers(failed="read of 4096 bytes: Input/output error"), "7a"), "Input/output error"),
    ],
)
def test_a_store_that_liburing_reads_otherwise_is_found(machine: Machine, pages: PageViews, value: str) -> None:
    machine.kernel.pages = pages
    assert value in machine.findings()["store-views-differ"].value


@pytest.mark.parametrize(
    ("pages", "why"),
    [
        (PageViews("7a", Transfers(why_none="liburing ended by SIGILL"), "7a"), "liburing ended by SIGILL"),
        (PageViews("7a", Transfers(0.1, "7b", (90.0,)), "7b"), "the page changed meanwhile: a daemon writes it"),
    ],
)
def test_a_second_opinion_of_a_store_that_says_nothing_is_skipped(machine: Machine, pages: PageViews, why: str) -> None:
    machine.kernel.pages = pages
    assert machine.outcome("store, second opinion").why_skipped == why
    assert machine.findings() == {}


def test_a_store_that_there_is_not_is_read_by_nobody(new: Machine) -> None:
    assert new.outcome("store, second opinion").why_skipped == "there is no store yet"


def test_a_store_in_the_daemons_memory_has_no_place(machine: Machine) -> None:
    machine.serve(store=Path("noop:"))
    assert machine.findings() == {}
    assert "memory of the daemon" in machine.outcome("store's place").seen[0]
    for check in ("file system", "O_DIRECT", "free space", "write cache"):
        assert "memory of the daemon" in machine.outcome(check).why_skipped, check
    assert "no file or device" in machine.outcome("store, second opinion").why_skipped


def test_the_real_kernel_reads_a_page_twice(tmp_path: Path) -> None:
    file = tmp_path / "store.hs"
    file.write_bytes(bytes(8192))
    try:
        views = Kernel().first_page(str(file))
    except OSError as error:
        pytest.skip(f"no O_DIRECT here: {error}")
    assert views.before == views.after == hashlib.sha256(bytes(4096)).hexdigest()
    assert views.other.why_none or views.other.digest == views.before
