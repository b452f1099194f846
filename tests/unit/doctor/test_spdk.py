"""Each condition of an SPDK target behind the store."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.doctor.machine import Machine

from halfstep.errors import ConfigError, Unavailable
from halfstep.io.spdk.config import SpdkConfig
from halfstep.io.spdk.target import State

FILE = "/etc/halfstep/spdk.toml"
HUGE = "/sys/kernel/mm/hugepages/hugepages-2048kB"
CONFIG = SpdkConfig("hs0", "nvme", "0000:01:00.0", "c0")
DRIVE = {"percentage_used": 3, "media_errors": 0}
STATE = State("SPDK v26.09", "hs0n1", 4096, 1 << 20, "c0", "/run/c0", "0x2", (), DRIVE)


@pytest.fixture
def spdk(machine: Machine) -> Machine:
    """With the store behind a target that is well, and pages for it."""
    machine.serve(spdk=FILE, store=Path("vhost-user:/run/c0"))
    machine.kernel.spdk_target = CONFIG, STATE
    return machine


def test_a_target_that_is_well_says_what_it_has(spdk: Machine) -> None:
    assert spdk.outcome("SPDK target").seen == ("SPDK v26.09: c0 of hs0n1, 4 GiB, blocks of 4096 bytes",)
    assert spdk.outcome("SPDK's drive").seen == ("3 % used, 0 media errors",)
    assert not [one for one in spdk.findings() if one.startswith("spdk")]


def test_a_target_that_does_not_answer_or_lacks_something_is_found(spdk: Machine) -> None:
    spdk.kernel.spdk_target = Unavailable("SPDK at /s: no answer")
    found = spdk.findings()["spdk-unreached"]
    assert (found.value, FILE in found.remedy) == ("SPDK at /s: no answer", True)
    spdk.kernel.spdk_target = CONFIG, None
    assert f"`halfstep device spdk {FILE}`" in spdk.findings()["spdk-missing"].remedy
    spdk.kernel.spdk_target = ConfigError("spdk=f: bdev.kind")
    assert spdk.findings()["spdk-configuration"].value == "spdk=f: bdev.kind"
    spdk.kernel.spdk_target = CONFIG, replace(STATE, socket="/run/other")
    assert "listens at /run/other" in spdk.findings()["spdk-configuration"].value


def test_pages_that_the_next_start_lacks_are_found(spdk: Machine) -> None:
    spdk.stop()
    found = spdk.findings()["spdk-huge-pages"]
    assert (found.value, found.bound) == ("0", "at least 136 free pages of 2 MiB")
    for name in ("nr_hugepages", "free_hugepages"):
        spdk.write(f"{HUGE}/{name}", "136\n")
    assert spdk.outcome("SPDK's huge pages").seen == ("136 free pages of 2 MiB",)


@pytest.mark.parametrize("change", [{"percentage_used": 93}, {"media_errors": 2}])
def test_a_drive_that_only_spdk_sees_is_judged_by_its_words(spdk: Machine, change: dict[str, int]) -> None:
    spdk.kernel.spdk_target = CONFIG, replace(STATE, drive={**DRIVE, **change})
    assert "halfstep device spdk" in spdk.findings()["spdk-drive-worn"].remedy


def test_a_daemon_without_a_target_is_not_asked(machine: Machine) -> None:
    assert machine.outcome("SPDK target").why_skipped == "the daemon has no --spdk"
    assert machine.findings() == {}
