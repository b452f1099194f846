"""NVMe drives below the store, asked through the host's door. What the answers mean is halfstep.io.nvme's."""

from __future__ import annotations

import re

from halfstep.doctor.disks import Disk
from halfstep.doctor.host import Host
from halfstep.io import nvme


def controllers_of(host: Host, disk: Disk) -> list[str]:
    """Names such as nvme0; several where a namespace has several paths, none of a drive that is no NVMe."""
    if not disk.is_nvme:
        return []
    paths = [name for name in host.names(f"{disk.directory}/device") if re.fullmatch(r"nvme\d+", name)]
    own = disk.name.rpartition("n")[0]
    return paths or ([own] if host.exists(f"/sys/class/nvme/{own}") else [])


def identity_of(host: Host, controller: str) -> nvme.Identity:
    """The controller. Errors: OSError."""
    return nvme.identity_of(host.kernel.nvme(controller, nvme.IDENTIFY, 0, nvme.IDENTIFY_CONTROLLER, nvme.IDENTIFY_BYTES))


def namespace_of(host: Host, controller: str, number: int) -> nvme.Namespace:
    """Errors: OSError."""
    return nvme.namespace_of(host.kernel.nvme(controller, nvme.IDENTIFY, number, nvme.IDENTIFY_NAMESPACE, nvme.IDENTIFY_BYTES))


def health_of(host: Host, controller: str) -> nvme.Health:
    """Errors: OSError."""
    return nvme.health_of(host.kernel.nvme(controller, nvme.GET_LOG, nvme.ALL_NAMESPACES, nvme.SMART_WORD, nvme.SMART_BYTES))


def has_volatile_cache(host: Host, disk: Disk) -> bool | None:
    """Whether a drive has a write cache that a power loss empties; None where it does not say, or this user may not ask."""
    try:
        return any(identity_of(host, name).volatile_cache for name in controllers_of(host, disk)) if disk.is_nvme else None
    except OSError:
        return None
