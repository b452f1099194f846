"""The systemd unit as its files say it: installed, enabled, running; limits; hardening that is missing or in the way."""

from __future__ import annotations

import re
from collections.abc import Iterator

from halfstep.daemon.config import is_path
from halfstep.daemon.units import GIB, KIB, MIB, TIB, format_bytes
from halfstep.doctor.areas.memory import pinned_bytes, pooled_bytes
from halfstep.doctor.case import Case, case_of_unit, local_daemons
from halfstep.doctor.finding import Area, Check, Finding, Rule, Severity, SkipCheck
from halfstep.doctor.host import Host
from halfstep.doctor.unit import DIRECTORIES, UNIT, Unit, unit_of

RUN_DIRECTORY = "/run/halfstep"
# Sets of system calls that hold those of io_uring (systemd-analyze syscall-filter).
IO_URING_SETS = frozenset({"@aio", "@system-service", "@known"})
HARDENING = {"NoNewPrivileges": "yes", "ProtectSystem": "strict", "ProtectHome": "yes", "PrivateTmp": "yes"}
NOT_ENABLED = Rule(
    "unit-not-enabled",
    Severity.WARNING,
    "enabled",
    "The daemon does not come back after a reboot.",
    "`sudo systemctl enable halfstepd`",
)
NOT_RUNNING = Rule(
    "unit-not-running",
    Severity.ERROR,
    "a daemon that runs",
    "The unit is enabled, and no daemon is here: every look-up of its clients misses.",
    "`systemctl status halfstepd; journalctl -u halfstepd -b -n 50`; after five failures `systemctl reset-failed halfstepd`",
)
LIMITS_LOW = Rule(
    "unit-limits",
    Severity.WARNING,
    "`LimitMEMLOCK=infinity` and `LimitNOFILE=` of at least {files}",
    "The next start gets these limits: the arena is not registered with the ring, or clients are refused.",
    "take the unit of this version (systemd/halfstepd.service), or set them by `sudo systemctl edit halfstepd`",
)
MEMORY_LOW = Rule(
    "unit-memory-max",
    Severity.ERROR,
    "at least {wanted}: arena and index outside reserved huge pages, requests and the process",
    "The next start is refused, or the kernel kills the daemon when its arena is full.",
    "raise `MemoryMax=` by `sudo systemctl edit halfstepd`, or lower `--arena` and `--index`",
)
FILTER = Rule(
    "unit-filters-io-uring",
    Severity.WARNING,
    "no filter, or one that leaves `@aio` in, which holds the calls of io_uring",
    "The daemon falls back to its pool of threads.",
    "`SystemCallFilter=@system-service` or an empty one, by `sudo systemctl edit halfstepd`",
)
HIDDEN = Rule(
    "unit-hides-store",
    Severity.ERROR,
    "a place that the unit lets the daemon write",
    "The daemon does not start: EROFS, or there is no such device.",
    "`ReadWritePaths=DIRECTORY` by `sudo systemctl edit halfstepd`; for a device no `PrivateDevices=`; nothing below /home",
)
SOFT = Rule(
    "unit-hardening",
    Severity.WARNING,
    "all that systemd/halfstepd.service has",
    "Whoever takes over the daemon has more of the machine than it needs.",
    "take the unit of this version: `sudo install -m 644 systemd/halfstepd.service /etc/systemd/system/`",
)
_UNITS = {"": 1, "K": KIB, "M": MIB, "G": GIB, "T": TIB}


def _unit(host: Host) -> Unit:
    unit = unit_of(host)
    if unit is None:
        where = "systemd does not run here" if not host.exists("/run/systemd/system") else f"{UNIT} is not installed"
        raise SkipCheck(where)
    return unit


def installed(host: Host, case: Case) -> Iterator[Finding | str]:  # noqa: ARG001 -- every check has one signature
    """Whether it starts with the machine, and has started."""
    unit = _unit(host)
    wanted = any(
        UNIT in host.names(f"{directory}/{name}")
        for directory in DIRECTORIES
        for name in host.names(directory)
        if name.endswith((".wants", ".requires"))
    )
    if not wanted:
        yield NOT_ENABLED.found(unit.path)
    elif host.exists("/run/systemd/system") and not local_daemons(host):
        yield NOT_RUNNING.found("none that this user may see")
    else:
        yield f"{unit.path}, enabled"


def limits(host: Host, case: Case) -> Iterator[Finding | str]:
    """What the unit gives to the next start."""
    unit = _unit(host)
    case = case_of_unit(host, case, unit)
    locked, files = unit.last("LimitMEMLOCK"), unit.last("LimitNOFILE")
    wanted = case.files_wanted
    low = []
    if (size := _bytes_of(locked)) is not None and size < pinned_bytes(host, case):
        low.append(f"LimitMEMLOCK={locked or 'the default, 8 MiB'}")
    if (count := _count_of(files)) is not None and count < wanted:
        low.append(f"LimitNOFILE={files or 'the default, 1024'}")
    if low:
        yield LIMITS_LOW.found(", ".join(low), files=wanted)
    else:
        yield f"LimitMEMLOCK={locked}, LimitNOFILE={files}"


def _bytes_of(text: str | None) -> int | None:
    """Of a limit; None: infinite. Where it is not set it is systemd's default."""
    if text is None:
        return 8 * MIB
    found = re.fullmatch(r"(\d+)([KMGT]?)B?(?::.*)?", text)
    return int(found[1]) * _UNITS[found[2]] if found else None


def _count_of(text: str | None) -> int | None:
    found = re.match(r"\d+", text or "1024")
    return int(found[0]) if found else None


def memory(host: Host, case: Case) -> Iterator[Finding | str]:
    """MemoryMax= against what the daemon takes."""
    unit = _unit(host)
    case = case_of_unit(host, case, unit)
    text = unit.last("MemoryMax")
    wanted = case.memory_bytes - pooled_bytes(host, case)
    limit = _bytes_of(text) if text is not None else None
    if limit is not None and limit < wanted:
        yield MEMORY_LOW.found(f"MemoryMax={text}", wanted=format_bytes(wanted))
    else:
        yield f"MemoryMax={text or 'infinity'}, for {format_bytes(wanted)} and rings of local clients"


def in_the_way(host: Host, case: Case) -> Iterator[Finding | str]:
    """Hardening that the daemon cannot live with."""
    unit = _unit(host)
    filters = unit.settings.get("SystemCallFilter", ())
    well = True
    if not _lets_io_uring_pass(filters):
        well = False
        yield FILTER.found(f"SystemCallFilter={' '.join(filters)}")
    store = str(case_of_unit(host, case, unit).config.store)
    if is_path(store) and (why := _hidden(unit, store)) is not None:
        well = False
        yield HIDDEN.found(f"{store}: {why}")
    if well:
        yield "nothing of it keeps the daemon from io_uring or its store"


def _lets_io_uring_pass(filters: tuple[str, ...]) -> bool:
    """systemd.exec(5): the first line says whether the list is of what is allowed or, after ~, of what is not."""
    passes: bool | None = None
    for line in filters:
        takes_away = line.startswith("~")
        named = any(word.startswith("io_uring") or word in IO_URING_SETS for word in line.removeprefix("~").split())
        if passes is None:
            passes = named != takes_away
        elif named:
            passes = not takes_away
    return passes is not False


def _on(text: str | None) -> bool:
    """systemd.syntax(7)."""
    return (text or "no").lower() in ("yes", "y", "true", "t", "1", "on")


def _state_directories(unit: Unit) -> Iterator[str]:
    """Where StateDirectory= lets it write: each word's directory, the one that DynamicUser= has behind it, and its link."""
    for word in " ".join(unit.settings.get("StateDirectory", ())).split():
        for name in word.split(":")[:2]:
            yield from (f"/var/lib/{name}", f"/var/lib/private/{name}")


def _hidden(unit: Unit, store: str) -> str | None:
    def on(name: str) -> bool:
        return _on(unit.last(name))

    if store.startswith("/dev/"):
        return "PrivateDevices=yes" if on("PrivateDevices") else None
    if on("ProtectHome") and re.match(r"/(home|root|run/user)/", store):
        return "ProtectHome=yes"
    if (unit.last("ProtectSystem") or "").lower() != "strict":
        return None
    open_paths = [word.lstrip("-+") for line in unit.settings.get("ReadWritePaths", ()) for word in line.split()]
    if any(
        store == place or store.startswith(place.rstrip("/") + "/")
        for place in (*_state_directories(unit), RUN_DIRECTORY, *open_paths)
    ):
        return None
    return "ProtectSystem=strict, and no ReadWritePaths= above it"


def hardening(host: Host, case: Case) -> Iterator[Finding | str]:  # noqa: ARG001
    """What the unit of the package has, and this one has not."""
    unit = _unit(host)
    missing = [f"{name}={value}" for name, value in HARDENING.items() if not _is_set(unit.last(name), value)]
    if missing:
        yield SOFT.found(f"without {', '.join(missing)}")
    else:
        yield ", ".join(f"{name}={value}" for name, value in HARDENING.items())


def _is_set(text: str | None, value: str) -> bool:
    return _on(text) if value == "yes" else (text or "").lower() == value


AREA = Area(
    "service",
    "systemd unit",
    (
        Check("unit", installed, (NOT_ENABLED, NOT_RUNNING)),
        Check("unit's limits", limits, (LIMITS_LOW,)),
        Check("unit's memory", memory, (MEMORY_LOW,)),
        Check("unit and daemon", in_the_way, (FILTER, HIDDEN)),
        Check("unit's hardening", hardening, (SOFT,)),
    ),
    of_daemon=True,
)
