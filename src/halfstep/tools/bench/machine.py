"""Facts of machine and build that a figure depends on, for the record beside it."""

from __future__ import annotations

import datetime as dt
import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import halfstep
from halfstep.tools.bench.device import BlockDevice
from halfstep.tools.bench.place import Place
from halfstep.tools.bench.plan import Plan


def header_of(plan: Plan, place: Place, client: halfstep.Client, command: str) -> dict[str, Any]:
    """Build, machine, path and question; one flat object of JSON values."""
    facts = place.facts
    header: dict[str, Any] = {
        **machine_facts(command),
        "seed": plan.seed,
        "pinned": _pinned(place),
        "path": client.path,
        "congestion_control": client.facts().congestion,
        "connections": plan.connections,
        "numjobs": plan.numjobs,
        "rate": plan.rate,
        "seconds": plan.seconds,
        "ramp_s": plan.ramp_s,
        "repeat": plan.repeat,
        "daemon": "its own" if facts else "as found; its build is not known",
        "device": "not known: somebody else's daemon",
        "engine": "",
        "direct": None,
        "arena_bytes": None,
    }
    if place.store is not None:
        header |= {
            "device": device_name(BlockDevice.of(place.store)),
            "engine": facts["engine"]["name"],
            "direct": facts["backing"]["direct"],
            "arena_bytes": facts["arena"]["bytes"],
        }
    return header


def machine_facts(command: str) -> dict[str, Any]:
    """What every document says first. `command`: how it was asked."""
    info = halfstep.build_info()
    return {
        "started": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "version": info["version"],
        "build": info["build"],
        "commit": info["commit"],
        "command": command,
        "kernel": platform.release(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
    }


def machine_text(header: Mapping[str, Any]) -> str:
    """Of machine_facts() what people are told."""
    return (
        f"kernel {header['kernel']}, {header['cpu']}, {header['cores']} cores, load {header['load_average']:.1f} at the start"
    )


def _pinned(place: Place) -> str:
    if not place.client_cores:
        return "no"
    daemon = "the daemon is not ours" if place.daemon_core is None else f"daemon and sender on core {place.daemon_core}"
    cores = ", ".join(str(core) for core in place.client_cores)
    clients = f"client on core {cores}" if len(place.client_cores) == 1 else f"clients on cores {cores}"
    return f"{clients}, {daemon}"


def cpu_seconds(pid: int) -> float:
    """CPU time of a process so far, user's and kernel's, in clock ticks of a hundredth (proc(5), stat: utime and stime)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def waited_seconds(pid: int) -> float | None:
    """Time that all threads of a process were ready and had no core, so far; None where the kernel does not say."""
    # Documentation/scheduler/sched-stats.rst: time on a core, time waiting for one, turns.
    process = Path(f"/proc/{pid}")
    if not (process / "schedstat").exists():
        return None
    waited_ns = 0
    for task in (process / "task").iterdir():
        with suppress(ProcessLookupError, FileNotFoundError):  # it has ended meanwhile
            waited_ns += int((task / "schedstat").read_text().split()[1])
    return waited_ns / 1e9


def stolen_seconds() -> float:
    """Time that the host of this virtual machine gave to others while one of our cores had work, so far; 0 on bare metal.

    proc(5), stat: steal, the eighth column of all cores together, in clock ticks.
    """
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return int(fields[8]) / os.sysconf("SC_CLK_TCK")


def difference(before: float | None, after: float | None) -> float | None:
    """None where one is not known."""
    return None if before is None or after is None else after - before


def cpu_name() -> str:
    """As the kernel calls it."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.machine()
    for line in text.splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def device_name(device: BlockDevice) -> str:
    """Name and, where the kernel has one, model."""
    model = Path(f"/sys/block/{device.name}/device/model")
    try:
        return f"{device.name} ({model.read_text().strip()})"
    except OSError:
        return device.name
