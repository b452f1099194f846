"""Health and formats of NVMe drives, by admin commands: root alone may send them."""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.daemon.units import format_bytes
from halfstep.doctor.areas.drive import each_disk
from halfstep.doctor.case import Case
from halfstep.doctor.disks import Disk
from halfstep.doctor.finding import Area, Check, Finding, Rule, Severity, SkipCheck
from halfstep.doctor.host import Host
from halfstep.doctor.nvme import controllers_of, formats_of, health_of, identify, places_data

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
        in_use, formats = formats_of(host, name, host.number(f"{disk.directory}/nsid") or 1)
        now = next((one for one in formats if one.number == in_use), None)
        if now is None:
            raise SkipCheck(f"{disk.name}: its format {in_use} is none of those that it names")
        better = [
            one
            for one in formats
            if one.data_bytes == 4096
            and not one.metadata_bytes
            and one.performance < now.performance
            and now.data_bytes != 4096
        ]
        placement = ", places data (FDP)" if places_data(identify(host, name)) else ""
        told = f"{disk.name}: format {in_use}, {now.data_bytes} bytes{placement}"
        if better:
            yield FORMAT_SLOW.found(told, best=min(better, key=lambda one: one.performance).number, disk=disk.name)
        else:
            yield told


AREA = Area(
    "endurance",
    "Health of NVMe drives",
    (
        Check("drive's health", health, (CRITICAL, WORN, MEDIA_ERRORS)),
        Check("drive's format", block_format, (FORMAT_SLOW,)),
    ),
    of_daemon=True,
)
