"""`halfstep device list, probe, format`: drives, what is on them, what the daemon would do with one, a store ahead of it."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Any

import click

from halfstep.daemon.config import setting_named
from halfstep.tools.options import json_option, print_json, print_table
from halfstep.tools.settings import fields_of, setting_options
from halfstep.tools.streams import say

if TYPE_CHECKING:
    from halfstep.io.devices import Device
    from halfstep.io.probe import Drive, Probe
    from halfstep.io.spdk.target import State

EXIT_REFUSED = 1
# Options of `serve` that say what a new store is like.
OF_A_STORE = tuple(setting_named(option) for option in ("size", "segment", "shards", "arena"))
UNCHANGED = "the drive's LBA format, its partitions and its write cache are as they were"


@click.group()
def device() -> None:
    """Drives of this host: which there are, what is on one, what the daemon would do with it, and a store on it."""


@device.command("list")
@json_option
def list_command(as_json: bool) -> None:
    """Block devices, what is on each, and who uses it. Changes nothing.

    Run it as root: what this user may not read is shown as not known, and never as free.
    """
    from halfstep.daemon.units import format_bytes
    from halfstep.io.devices import Tree, list_devices

    found = list_devices(Tree())
    if as_json:
        print_json([_as_json(one) for one in found])
        return
    rows = [
        (
            one.path,
            one.model or one.backing or one.kind,
            format_bytes(one.bytes),
            one.logical_block_bytes,
            "flash" if not one.rotational else "disk",
            one.namespace or "-",
            _holds(one),
            one.why_not_free or "yes",
        )
        for one in found
    ]
    size, block = ("size", "right"), ("block", "right")
    print_table(["device", "model", size, block, "kind", "namespace", "holds", "free"], rows)


def _holds(one: Device) -> str:
    if one.signatures is None:
        return "not known"
    names = [f"{mark.kind} {mark.name}" for mark in one.signatures]
    return ", ".join([*dict.fromkeys(names), *one.inside]) or "nothing known"


def _as_json(one: Device) -> dict[str, Any]:
    return {**dataclasses.asdict(one), "free": not one.why_not_free, "why_not_free": one.why_not_free}


@device.command("probe")
@click.argument("path", type=click.Path())
@json_option
def probe_command(path: str, as_json: bool) -> None:
    """What the daemon would do with a PATH: a device, a file, a namespace, or vhost-user:SOCKET. Measures nothing.

    Exit status: 0 it could be opened; 1 it could not, and why.
    """
    from halfstep.io.probe import NOTHING_THERE, probe

    found = probe(path)
    refused = found.why_not if found.why_not_code != NOTHING_THERE or found.kind != "new file" else ""
    if as_json:
        print_json({**dataclasses.asdict(found), "why_not": refused})
    else:
        for title, text in _lines(found, refused):
            say(f"{title:<10}{text}")
    if refused:
        sys.exit(EXIT_REFUSED)


def _lines(found: Probe, refused: str) -> list[tuple[str, str]]:
    from halfstep.daemon.units import format_bytes

    out = [("path", f"{found.path}, {found.kind}")]
    if found.device is not None and found.device.by_id:
        out.append(("name", f"{found.device.by_id} stays this drive's; {found.device.path} need not"))
    if refused:
        out.append(("refused", refused))
    backing = found.backing
    if backing:
        fallback = f"; {backing['why_fallback']}" if backing["why_fallback"] else ""
        out.append(("engine", f"{backing['engine']}, {format_bytes(backing['bytes'])}{fallback}"))
        direct = (
            f"O_DIRECT, aligned to {backing['direct_align_bytes']} bytes" if backing["direct"] else backing["why_not_direct"]
        )
        out.append(("access", direct))
    elif found.kind == "new file":
        out.append(("store", "nothing is there: `halfstep serve --store` makes a file"))
    elif found.kind == "directory":
        out.append(("store", f"`halfstep serve --store {found.path}` has store.hs in it"))
    if found.device is not None:
        out += _device_lines(found, found.device)
    if found.drive is not None:
        out += _drive_lines(found.drive)
    elif found.why_no_drive:
        out.append(("drive", found.why_no_drive))
    return out


def _device_lines(found: Probe, one: Device) -> list[tuple[str, str]]:
    from halfstep.daemon.units import format_bytes

    physical = f", {one.physical_block_bytes} inside" if one.physical_block_bytes != one.logical_block_bytes else ""
    cache = {
        True: "volatile: a put with `persist` waits for a flush",
        False: "none that a power loss empties",
        None: "not known",
    }
    discard = f"up to {format_bytes(found.discard_bytes_max)} at once, granules of {format_bytes(found.discard_granule_bytes)}"
    return [
        ("blocks", f"{one.logical_block_bytes} bytes{physical}"),
        ("cache", cache[found.volatile_cache]),
        ("discards", discard if found.discard_bytes_max else "none are taken"),
        ("holds", _holds(one)),
        ("free", one.why_not_free or "yes"),
    ]


def _drive_lines(drive: Drive) -> list[tuple[str, str]]:
    from halfstep.daemon.units import format_bytes

    identity, health = drive.identity, drive.health
    now, better = drive.namespace.format, drive.namespace.better
    most = format_bytes(drive.transfer_bytes_max) if drive.transfer_bytes_max else "unbounded"
    formats = ", ".join(f"{one.number}: {one.data_bytes}+{one.metadata_bytes}" for one in drive.namespace.formats)
    in_use = f"format {now.number}, {now.data_bytes} bytes" if now is not None else "format not known"
    advice = f"; format {better.number} is faster, by its own word" if better is not None else ""
    placement = {None: "none" if not identity.placement else "has it, state not known", True: "on", False: "off"}
    return [
        ("drive", f"{identity.model}, serial {identity.serial}, firmware {identity.firmware}"),
        ("transfer", f"{most} a command"),
        ("format", f"{in_use} (of {formats}){advice}"),
        ("placement", f"FDP {placement[drive.placement_on]}"),
        ("health", f"{health.used_percent} % used, spare {health.spare_percent} %, {health.media_errors} media errors"),
        *[("warning", text) for text in health.warnings],
    ]


@device.command("spdk")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--check", is_flag=True, help="Look alone: make nothing. Exit status 1 where something is missing.")
@json_option
def spdk_command(file: str, check: bool, as_json: bool) -> None:
    """Make in an SPDK target what FILE wants, where it is missing, and say how it is: bdev, controller, drive.

    `halfstep serve --spdk FILE` does so at its start, and when the target comes back. docs/drives.md shows a FILE.
    """
    from pathlib import Path

    from halfstep.io.spdk.config import read_config
    from halfstep.io.spdk.target import Target

    config = read_config(Path(file))
    target = Target(config)
    state = target.state() if check else target.ensure()
    if as_json:
        print_json(None if state is None else dataclasses.asdict(state))
    elif state is None:
        say(f"missing    bdev {config.block_device} or vhost controller {config.controller} is not there")
    else:
        _print_state(state)
    if state is None:
        sys.exit(EXIT_REFUSED)


def _print_state(state: State) -> None:
    from halfstep.daemon.units import format_bytes

    say(f"target     {state.version or 'version not told'}")
    say(f"bdev       {state.bdev}, {format_bytes(state.blocks * state.block_bytes)}, blocks of {state.block_bytes} bytes")
    mask = f", cores {state.cpumask}" if state.cpumask else ""
    say(f"controller {state.controller} at {state.socket or 'a socket that it does not tell'}{mask}")
    known = ("temperature_celsius", "percentage_used", "available_spare_percentage", "media_errors")
    if told := [f"{key} {state.drive[key]}" for key in known if key in state.drive]:
        say(f"health     {', '.join(told)}")
    say(f"made       {', '.join(state.made) or 'nothing: all of it was there'}")
    if state.socket:
        say(f"next       halfstep serve --store vhost-user:{state.socket}")


@device.command("format")
@click.argument("path", type=click.Path())
@setting_options(OF_A_STORE)
@click.option("--force", is_flag=True, help="Destroy what is there. Does not help against a mount or another daemon.")
@json_option
def format_command(path: str, force: bool, as_json: bool, **given: Any) -> None:
    """Make a store at PATH ahead of `halfstep serve`: a device, taken whole, or a new file.

    It refuses what is mounted or in use, a file system, a partition table, LVM, RAID, encryption, ZFS, swap, another store, and
    any other byte that is not zero. The last lines say what it did not change.
    """
    from halfstep import _shard
    from halfstep.daemon.config import ServeConfig, store_path
    from halfstep.daemon.refusals import error_of
    from halfstep.daemon.serve import native_config
    from halfstep.io.format import make_store, plan_format
    from halfstep.tools.progress import bar

    plan = plan_format(path)
    config = ServeConfig(**{**fields_of(OF_A_STORE, given), "store": store_path(path)}).validated()
    native = native_config(config)
    native.store_bytes = config.size_bytes
    with bar("formatting") as progress:
        try:
            made = make_store(native, plan, force=force, progress=progress)
        except _shard.StartError as refusal:
            raise error_of(refusal, config.store) from None
    if as_json:
        print_json({**made, "unchanged": UNCHANGED})
        return
    _print_made(made)


def _print_made(made: dict[str, Any]) -> None:
    from halfstep.daemon.units import format_bytes

    kind = ", block device" if made["block_device"] else ", vhost-user target" if made["vhost_user"] else ""
    say(f"store      {made['path']}, {format_bytes(made['bytes'])}{kind}")
    say(f"capacity   {made['segments']} segments of {format_bytes(made['segment_bytes'])}, {made['shards']} shard(s)")
    say(f"unchanged  {UNCHANGED}")
    say(f"next       halfstep serve --store {made['path']}")
