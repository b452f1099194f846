"""What the daemon would do with a path, and what the drive below says of itself. Nothing is changed, and no speed is measured.

Invariants: a path is opened for reading, with the lock of a look at a store, and closed again; a drive that does not answer, or
may not be asked, leaves its fields out, and the reason in.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from halfstep import _shard
from halfstep.io import nvme
from halfstep.io.devices import Device, Tree, device_at

PAGE_BYTES = 4096
VHOST_USER = "vhost-user:"
# Errors of the native look: the name of its code.
NOTHING_THERE = "not_found"

# path, command, namespace, command dword 10, command dword 11, bytes
Admin = Callable[[str, int, int, int, int, int], nvme.Answer]


@dataclass(frozen=True)
class Drive:
    """An NVMe drive's own words. transfer_bytes_max: 0 unbounded. cache_on: None where it did not say."""

    identity: nvme.Identity
    namespace: nvme.Namespace
    health: nvme.Health
    cache_on: bool | None
    placement_on: bool | None

    @property
    def transfer_bytes_max(self) -> int:
        """Of a request, by pages of 4 KiB, which are the smallest of all drives that matter."""
        return self.identity.transfer_pages_max * PAGE_BYTES


@dataclass(frozen=True)
class Probe:
    """why_not: why no daemon could open it now; "" where one could. backing: what the native core says, empty then.

    why_no_drive: why the drive was not asked; "" where it was, or is none of NVMe.
    """

    path: str
    kind: str
    why_not: str
    why_not_code: str
    backing: dict[str, Any]
    device: Device | None
    volatile_cache: bool | None
    discard_bytes_max: int
    discard_granule_bytes: int
    drive: Drive | None
    why_no_drive: str


def probe(path: str, tree: Tree | None = None, admin: Admin = nvme.admin) -> Probe:
    """Errors: OSError of a path that this user may not look at."""
    tree = tree or Tree()
    device = None
    kind = "vhost-user target" if path.startswith(VHOST_USER) else "new file"
    if not path.startswith(VHOST_USER) and tree.path(path).exists():
        device = device_at(tree, path)
        kind = "directory" if tree.path(path).is_dir() else "file"
        if device is not None:
            kind = "block device" if tree.path(path).is_block_device() else "NVMe namespace"
    backing, code, why_not = _look(path) if kind != "directory" else ({}, "", "")
    queue = f"/sys/class/block/{device.name}/queue" if device is not None else ""
    drive, why_no_drive = _drive(tree, device, admin) if device is not None and device.controller else (None, "")
    return Probe(
        path=path,
        kind=kind,
        why_not=why_not,
        why_not_code=code,
        backing=backing,
        device=device,
        volatile_cache=_volatile_cache(tree, queue, drive) if device is not None else None,
        discard_bytes_max=tree.number(f"{queue}/discard_max_bytes") if queue else 0,
        discard_granule_bytes=tree.number(f"{queue}/discard_granularity") if queue else 0,
        drive=drive,
        why_no_drive=why_no_drive,
    )


def _look(path: str) -> tuple[dict[str, Any], str, str]:
    try:
        return _shard.look_at_backing(os.fsencode(path)), "", ""
    except _shard.StartError as refusal:
        code, sentence = refusal.args
        return {}, code, sentence


def _volatile_cache(tree: Tree, queue: str, drive: Drive | None) -> bool | None:
    """A drive's own word counts before that of the kernel, which may have been told otherwise."""
    if drive is not None:
        return drive.identity.volatile_cache and drive.cache_on is not False
    told = tree.text(f"{queue}/write_cache")
    return {"write back": True, "write through": False}.get(told)


def _drive(tree: Tree, device: Device, admin: Admin) -> tuple[Drive | None, str]:
    # The namespace passes admin commands to its controller, whose number may be another one (several paths).
    path = device.path
    number = tree.number(f"/sys/class/block/{device.name}/nsid") or 1

    def ask(command: int, namespace: int, word10: int, count: int, word11: int = 0) -> nvme.Answer:
        return admin(path, command, namespace, word10, word11, count)

    def feature(which: int, word11: int = 0) -> int | None:
        try:
            return ask(nvme.GET_FEATURES, 0, which, 0, word11).result
        except OSError:  # one that the drive lacks
            return None

    try:
        told = ask(nvme.IDENTIFY, 0, nvme.IDENTIFY_CONTROLLER, nvme.IDENTIFY_BYTES)
        identity = nvme.identity_of(told.data)
        told = ask(nvme.IDENTIFY, number, nvme.IDENTIFY_NAMESPACE, nvme.IDENTIFY_BYTES)
        namespace = nvme.namespace_of(told.data)
        health = nvme.health_of(ask(nvme.GET_LOG, nvme.ALL_NAMESPACES, nvme.SMART_WORD, nvme.SMART_BYTES).data)
    except OSError as error:
        why = "; run it as root" if isinstance(error, PermissionError) else ""
        return None, f"{path} was not asked ({error.strerror}{why})"
    cache = feature(nvme.FEATURE_WRITE_CACHE) if identity.volatile_cache else None
    placement = feature(nvme.FEATURE_PLACEMENT, namespace.endurance_group or 1) if identity.placement else None
    return (
        Drive(
            identity=identity,
            namespace=namespace,
            health=health,
            cache_on=None if cache is None else nvme.write_cache_enabled(cache),
            placement_on=None if placement is None else nvme.placement_enabled(placement),
        ),
        "",
    )
