"""Health and formats of NVMe drives, by admin commands: root alone may send them."""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.daemon.units import format_bytes
from halfstep.doctor.areas.drive import each_disk
from halfstep.doctor.case import Case
from halfstep.doctor.disks import Disk
from halfstep.doctor.finding import Area, Check, Finding, Rule, Severity, SkipCheck
from halfstep.doctor.host import Host
from halfstep.doctor.nvme import controllers_of, health_of, identity_of, namespace_of
from halfstep.io import nvme

USED_PERCENT = 90
CRITICAL = Rule(
    "drive-critical",
    Severity.ERROR,
    "no critical warning",
    "The drive itself says that it fails, or is about to.",
    "of temperature: airflow; of all else replace the drive, after `smartctl -a /dev/{controller}`",
)
WORN = Rule(
    "drive-worn",
    Severity.WARNING,
    f"below {USED_PERCENT} % of the endurance",
    "Worn flash reads slower, and the drive may make itself read-only.",
    "plan its replacement; `--daily-writes` and `--rewrite-share` bound what the daemon writes in a day",
)
MEDIA_ERRORS = Rule(
    "drive-media-errors",
    Severity.WARNING,
    "0",
    "Sectors were lost that the drive could not correct; blocks in them are misses.",
    "watch the number; replace the drive when it grows (`smartctl -a /dev/{controller}`)",
)
FORMAT_SLOW = Rule(
    "drive-format",
    Severity.WARNING,
    "format {best}, of 4096 bytes without metadata, which the drive says is faster",
    "Each page of 4 KiB is eight blocks to the drive.",
    "before the next store is made: `sudo nvme format /dev/{disk} --lbaf={best}`, which erases the drive",
)

PLACEMENT_OFF = Rule(
    "drive-placement-off",
    Severity.WARNING,
    "on, for the drive has it",
    "The drive mixes data of different lives in one block of flash, copies what still lives, and wears sooner.",
    "before the next store is made: `sudo nvme fdp feature /dev/{controller} --endgrp-id={group} --enable-conf-idx=0`; most "
    "drives want their namespaces deleted before, which erases them",
)


def _nvme_disks(host: Host, case: Case) -> list[tuple[Disk, str]]:
    found = [(disk, name) for disk in each_disk(host, case) for name in controllers_of(host, disk)[:1]]
    if not found:
        raise SkipCheck("no NVMe drive is below the store")
    return found


def health(host: Host, case: Case) -> Iterator[Finding | str]:
    """What the log of health says."""
    for _, name in _nvme_disks(host, case):
        one = health_of(host, name)
        if one.warnings:
            yield CRITICAL.found(f"{name}: {'; '.join(one.warnings)}", controller=name)
        if one.used_percent >= USED_PERCENT:
            yield WORN.found(f"{name}: {one.used_percent} % used, spare {one.spare_percent} %")
        if one.media_errors:
            yield MEDIA_ERRORS.found(f"{name}: {one.media_errors}", controller=name)
        if not one.warnings and one.used_percent < USED_PERCENT and not one.media_errors:
            written = format_bytes(one.written_bytes)
            yield f"{name}: {one.used_percent} % used, spare {one.spare_percent} %, {one.celsius} °C, {written} written"


def block_format(host: Host, case: Case) -> Iterator[Finding | str]:
    """Whether the drive has a better format for pages of 4 KiB than the one in use."""
    for disk, name in _nvme_disks(host, case):
        namespace = _namespace(host, disk, name)
        now = namespace.format
        if now is None:
            raise SkipCheck(f"{disk.name}: its format {namespace.format_in_use} is none of those that it names")
        told = f"{disk.name}: format {now.number}, {now.data_bytes} bytes"
        if namespace.better is not None:
            yield FORMAT_SLOW.found(told, best=namespace.better.number, disk=disk.name)
        else:
            yield told


def _namespace(host: Host, disk: Disk, controller: str) -> nvme.Namespace:
    return namespace_of(host, controller, host.number(f"{disk.directory}/nsid") or 1)


def placement(host: Host, case: Case) -> Iterator[Finding | str]:
    """Whether a drive that can keep data of different lives apart does (Flexible Data Placement)."""
    for disk, name in _nvme_disks(host, case):
        if not identity_of(host, name).placement:
            yield f"{disk.name}: the drive has no FDP"
            continue
        group = _namespace(host, disk, name).endurance_group or 1
        if nvme.placement_enabled(host.kernel.nvme_feature(name, nvme.FEATURE_PLACEMENT, group)):
            yield f"{disk.name}: FDP, on in endurance group {group}"
        else:
            found = f"{disk.name}: off in endurance group {group}"
            yield PLACEMENT_OFF.found(found, controller=name, group=group)


AREA = Area(
    "endurance",
    "Health of NVMe drives",
    (
        Check("drive's health", health, (CRITICAL, WORN, MEDIA_ERRORS)),
        Check("drive's format", block_format, (FORMAT_SLOW,)),
        Check("drive's placement", placement, (PLACEMENT_OFF,)),
    ),
    of_daemon=True,
)
