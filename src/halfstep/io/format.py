"""Makes a store on a device or in a file, ahead of its first daemon, and refuses what is in use or holds something known.

Invariants: nothing is changed before everything that refuses has been asked; without `force` nothing that is there is changed
at all; what is mounted, or open with a claim elsewhere, is refused whatever is said, for no daemon could serve it. LBA format,
partitions and write cache of the drive are never changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from halfstep import _shard
from halfstep.errors import ConfigError
from halfstep.io.devices import Device, Tree, device_at, namespace_name
from halfstep.io.probe import VHOST_USER
from halfstep.io.signatures import Signature, signatures_of

Progress = Callable[[str, int, int], bool]


@dataclass(frozen=True)
class Plan:
    """What stands in the way of a store: `in_use` for good, `holds` unless it is forced. empty: nothing is there."""

    path: str
    device: Device | None
    in_use: str
    holds: tuple[Signature, ...]


def plan_format(path: str, tree: Tree | None = None) -> Plan:
    """Looks, and changes nothing. Errors: ConfigError of a path that no store can be at; OSError."""
    tree = tree or Tree()
    if path.startswith(VHOST_USER):
        return Plan(path, None, "", ())
    place = tree.path(path)
    if not place.exists():
        return Plan(path, None, "", ())
    if place.is_dir():
        raise ConfigError(f"{path}: is a directory; name a file in it, such as {path.rstrip('/')}/store.hs, or a device")
    device = device_at(tree, path)
    if device is not None:
        return Plan(path, device, _in_use(path, device), _signatures(device))
    if namespace_name(path) or not place.is_file():
        raise ConfigError(f"{path}: is neither a block device nor a file; `halfstep device list` shows the devices")
    with place.open("rb") as file:
        return Plan(path, None, "", tuple(signatures_of(file.fileno(), place.stat().st_size)))


def _signatures(device: Device) -> tuple[Signature, ...]:
    if device.signatures is None:
        raise ConfigError(f"{device.why_unread}: what it holds is not known, so that nothing was changed")
    return device.signatures


def _in_use(path: str, device: Device) -> str:
    """Why it is somebody's now, with the remedy; "" where it is not."""
    if device.read_only:
        return f"{path}: is read-only; `blockdev --setrw {device.path}` where somebody set it"
    if device.mounts:
        mount = device.mounts[0]
        return f"{path}: {mount.device} is mounted at {mount.point} ({mount.file_system}); `umount {mount.point}` first"
    if device.swap:
        return f"{path}: swap space is in use on it; `swapoff` it first"
    stacked = [name for name in device.inside if not name.startswith(device.name)]
    if stacked:
        return f"{path}: {', '.join(stacked)} is stacked on it; take that down first (`lsblk {device.path}` shows it)"
    return ""


def refuse(plan: Plan, *, force: bool) -> None:
    """Errors: ConfigError, with what is in the way and the remedy."""
    if plan.in_use:
        raise ConfigError(f"{plan.in_use}; --force does not help against it, for no daemon could serve it either")
    if force:
        return
    if plan.holds:
        one = plan.holds[0]
        others = f", and {len(plan.holds) - 1} more" if len(plan.holds) > 1 else ""
        raise ConfigError(
            f"{plan.path}: holds {one.kind} {one.name} at byte {one.at}{others}; {one.remedy}, "
            "or name another device, or give --force, which destroys it"
        )
    if plan.device is not None and plan.device.inside:
        names = ", ".join(plan.device.inside)
        raise ConfigError(f"{plan.path}: has partitions {names}; name one of them, or give --force, which destroys them")


def make_store(config: _shard.Config, plan: Plan, *, force: bool, progress: Progress | None = None) -> dict[str, Any]:
    """The store's facts. Errors: ConfigError; `_shard.StartError` of what the core refuses."""
    refuse(plan, force=force)
    config.store_path = os.fsencode(plan.path)
    return _shard.make_store(config, wipe=force, progress=progress)
