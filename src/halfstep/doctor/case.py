"""What is asked: the daemon that runs here, or would run here, with its settings; the one behind a URL; whether GPUs count."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import quote

from halfstep.daemon.config import SETTINGS, ServeConfig, block_device_of, store_path
from halfstep.daemon.setting import Switch
from halfstep.daemon.units import MIB, TIB, format_bytes
from halfstep.doctor.finding import SkipCheck
from halfstep.doctor.host import Host
from halfstep.doctor.sockets import inodes_of, listeners
from halfstep.doctor.unit import UNIT, Unit, unit_of
from halfstep.errors import ConfigError

# As docs/configure.md adds the daemon's memory up: of each shard its requests; Python, libraries and events.
REQUEST_BYTES, PROCESS_BYTES = 64 * MIB, 256 * MIB
REMEMBERED_SHARE = 0.012
OPEN_FILES_BESIDE = 64
NO_DAEMON_HERE = "no daemon is here or is to be, for the URL names another host's; --store PATH looks for one"
UNIT_STORE = "/var/lib/halfstep/store.hs"
LOOPBACK = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 -- nothing is bound to it
INDEX_BYTES_MIN, INDEX_BYTES_PER_TIB = 16 * MIB, 116 * MIB


@dataclass(frozen=True)
class Daemon:
    """A daemon that runs on this host. arguments: behind `serve`."""

    pid: int
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Answer:
    """What the daemon behind a URL said. address: "host:port" or "unix:/path". why_not: the client's words, where it did not.

    counters: as of `halfstep stat`, of all shards. shards: their counters apart. facts: of the client. by_user: whether the
    URL was given, and is what clients use; else the doctor took an address of the daemon of this host.
    """

    url: str
    address: str = ""
    why_not: str = ""
    path: str = ""
    counters: Mapping[str, float] = field(default_factory=dict)
    shards: int = 0
    facts: Any = None
    by_user: bool = True


@dataclass(frozen=True)
class Case:
    """config: of the daemon that runs here, or that would. source: where that comes from, as a clause.

    answer: None where no daemon was asked, and why_no_answer says why. gpu: whether targets in GPU memory are meant.
    serves: whether this host has a daemon, or is to have one; if not, what only a daemon needs is not looked at.
    why_no_daemon: why it does not.
    by_unit: whether the unit will start it, so that limits of this process are nobody's.
    """

    config: ServeConfig
    source: str = "the defaults"
    daemon: Daemon | None = None
    answer: Answer | None = None
    why_no_answer: str = "no URL was given, and no daemon runs here"
    gpu: bool = False
    serves: bool = True
    why_no_daemon: str = NO_DAEMON_HERE
    by_unit: bool = False

    @property
    def index_bytes(self) -> int:
        """Of the index, as it is set or follows from the store's size."""
        return self.config.index_bytes or max(INDEX_BYTES_MIN, INDEX_BYTES_PER_TIB * self.config.size_bytes // TIB)

    @property
    def memory_bytes(self) -> int:
        """What the daemon takes, without rings of local clients."""
        config = self.config
        remembered = round(REMEMBERED_SHARE * config.arena_bytes)
        rings = config.rdma_memory_bytes if config.rdma != "off" else 0
        blocks = config.arena_bytes + remembered + config.decode_bytes
        return blocks + self.index_bytes + max(config.shards, 1) * REQUEST_BYTES + PROCESS_BYTES + rings

    @property
    def local_rings(self) -> int:
        """Connections over shared memory that there may be at once."""
        return self.config.shm_memory_bytes // (2 * self.config.shm_ring_bytes)

    @property
    def local_clients(self) -> int:
        """Connections over shared memory that there may be at once, by memory and by number."""
        return min(self.local_rings, self.config.connections_max * max(self.config.shards, 1))

    @property
    def files_wanted(self) -> int:
        """Descriptors: of each connection one, over shared memory three; of the process the rest."""
        return self.config.connections_max * max(self.config.shards, 1) + 2 * self.local_clients + OPEN_FILES_BESIDE

    @property
    def limited(self) -> tuple[str, str]:
        """Whose limits a daemon has: (of /proc, as people call it): its own, or this process's, from which it would get them.

        Errors: SkipCheck where it would not.
        """
        if self.daemon is not None:
            return str(self.daemon.pid), f"the daemon, pid {self.daemon.pid}"
        if self.by_unit:
            raise SkipCheck("no daemon runs, and the next one gets the limits of the unit")
        return "self", "this process"

    @property
    def wants_rdma(self) -> bool:
        """Whether the daemon here or the URL says so."""
        return self.config.rdma != "off" or (self.answer is not None and "transport=rdma" in self.answer.url)

    def with_answer(self, answer: Answer) -> Case:
        """The same, and what the daemon behind a URL said."""
        return replace(self, answer=answer)

    def answered(self) -> Answer:
        """What the daemon behind the URL said. Errors: SkipCheck where nobody was asked, or nobody answered."""
        if self.answer is None:
            raise SkipCheck(self.why_no_answer)
        if self.answer.why_not:
            raise SkipCheck("the daemon did not answer")
        return self.answer


def _daemons(host: Host) -> Iterator[tuple[Daemon, bool]]:
    """Every `halfstep serve` that this user may see, lowest number first; whether it sees the same processes as this one.

    One that does not runs in a container: paths, limits and addresses are others there.
    """
    own = _namespace(host, "self")
    for pid in sorted(int(name) for name in host.names("/proc") if name.isdecimal()):
        try:
            words = [os.fsdecode(word) for word in host.read_bytes(f"/proc/{pid}/cmdline").removesuffix(b"\0").split(b"\0")]
        except OSError:  # it has ended, or is somebody else's secret
            continue
        if (arguments := _arguments_of(words)) is not None:
            its = _namespace(host, str(pid))
            yield Daemon(pid, arguments), not own or not its or own == its


def _namespace(host: Host, pid: str) -> str:
    """Of a process's numbers; "" where this user may not see it."""
    with suppress(OSError):
        return host.link(f"/proc/{pid}/ns/pid")
    return ""


def local_daemons(host: Host) -> list[Daemon]:
    """`halfstep serve` as a process of this host, however it was started; those that this user may see."""
    return [daemon for daemon, here in _daemons(host) if here]


def contained_daemons(host: Host) -> list[Daemon]:
    """Those that run in containers of this host."""
    return [daemon for daemon, here in _daemons(host) if not here]


def _arguments_of(words: Sequence[str]) -> tuple[str, ...] | None:
    """Behind `serve`; None where this is no daemon: what starts one, such as sudo or docker, has its words further behind."""
    at = 0
    if re.fullmatch(r"(python|pypy)[\w.]*", PurePath(words[0]).name):
        at = 1
        while at < len(words) and words[at].startswith("-"):
            at += 2 if words[at] in ("-X", "-W") else 1
    if at + 1 < len(words) and _is_command(words[at]) and words[at + 1] == "serve":
        return tuple(words[at + 2 :])
    return None


def _is_command(word: str) -> bool:
    return PurePath(word).name == "halfstep" or word == "halfstep.tools.cli"


def config_of(words: Sequence[str]) -> ServeConfig:
    """The settings that options of `serve` make. What cannot be read is the daemon's to refuse, and left out."""
    named = {f"--{one.option}": one for one in SETTINGS}
    off = {f"--{one.kind.off}": one for one in SETTINGS if isinstance(one.kind, Switch) and one.kind.off}
    fields: dict[str, Any] = {}
    waiting = list(words)
    while waiting:
        option, equals, value = waiting.pop(0).partition("=")
        if (one := off.get(option)) is not None:
            fields[one.field] = False
            continue
        if (one := named.get(option)) is None:
            continue
        if isinstance(one.kind, Switch):
            fields[one.field] = True
            continue
        text = value if equals else waiting.pop(0) if waiting else ""
        try:
            read = one.read(text)
        except ConfigError:
            continue
        fields[one.field] = (*fields.get(one.field, ()), read) if one.several else read
    try:
        fields["store"] = store_path(fields.get("store"))
    except ConfigError:  # nobody's home, or a directory that this user may not enter
        store = str(fields.get("store") or UNIT_STORE)
        fields["store"] = Path(store) / "store.hs" if store.endswith("/") else Path(store)
    return ServeConfig(**fields)


def case_of(host: Host, words: Sequence[str], address: str | None = None, *, gpu: bool = False) -> Case:
    """Of the daemon that runs here, else of the unit, else of the defaults; options of `serve` in `words` replace those.

    address: the daemon that is meant, "host:port" or "unix:/path", which counts where it is on this host. None: the first one.
    """
    daemons = local_daemons(host)
    if address is not None:
        here = address.startswith("unix:") or _is_here(host, address)
        daemons = [daemon for daemon in daemons if here and _listens(host, daemon, address)]
    contained = _told_of_containers(host)
    why_default = "the defaults"
    try:
        unit = unit_of(host)
    except OSError as error:  # there is one, which starts the daemon with settings that nobody knows
        unit, why_default = Unit("", {}), f"the defaults, for the unit cannot be read ({error.strerror})"
    if daemons:
        others = f"; others run here: pid {', '.join(str(one.pid) for one in daemons[1:])}" if daemons[1:] else ""
        given, source = daemons[0].arguments, f"the daemon, pid {daemons[0].pid}{others}"
    elif unit is not None and unit.path:
        given, source = unit.arguments, f"the unit {unit.path}"
    else:
        given, source = (), why_default
    source += contained and f"; {contained}"
    config = _config_on(host, [*given, *words], daemons[0] if daemons else None, unit)
    meant = bool(daemons) or unit is not None or any(word.startswith("--store") for word in words)
    serves = meant or (address is None and not contained)
    by_unit = unit is not None and not daemons
    case = Case(config, source, daemons[0] if daemons else None, gpu=gpu, serves=serves, by_unit=by_unit)
    if contained:
        why_no_answer = f"no URL was given, and {contained}"
        case = replace(case, why_no_daemon=contained, why_no_answer=why_no_answer)
    hidden = "no URL was given, and this user may not see where the daemon listens"
    return replace(case, why_no_answer=hidden) if daemons else case


def _config_on(host: Host, words: Sequence[str], daemon: Daemon | None, unit: Unit | None) -> ServeConfig:
    """As config_of(), with the place of the store where they name none, and the size of one that is there."""
    config = config_of(words)
    if not any(word.partition("=")[0] == "--store" for word in words):
        config = replace(config, store=_default_store(host, daemon, unit))
    # Of an NVMe namespace the kernel tells by its block device.
    config = replace(config, store=Path(block_device_of(config.store)))
    with suppress(OSError):  # one that this user may not see is looked at as a new one
        if (found := host.kernel.place(str(config.store))) is not None:
            config = replace(config, size_bytes=_device_bytes(host, found.device) if found.is_block_device else found.bytes)
    return config


def _device_bytes(host: Host, device: tuple[int, int]) -> int:
    """Of a block device; 0 where /sys does not tell. The kernel counts sectors of 512 bytes, whatever the drive has."""
    return (host.number(f"/sys/dev/block/{device[0]}:{device[1]}/size") or 0) * 512


def case_of_unit(host: Host, case: Case, unit: Unit) -> Case:
    """Of what the unit starts next: the case itself, unless the daemon that it is of was started by somebody else."""
    if case.daemon is None:
        return case
    with suppress(OSError):
        if UNIT in host.read(f"/proc/{case.daemon.pid}/cgroup"):
            return case
    return replace(case, config=_config_on(host, unit.arguments, None, unit), daemon=None, by_unit=True)


def _told_of_containers(host: Host) -> str:
    """Of daemons that cannot be looked at from here; "" where there is none."""
    pids = ", ".join(str(daemon.pid) for daemon in contained_daemons(host))
    return pids and f"pid {pids} serves in a container: run halfstep doctor inside it"


def _default_store(host: Host, daemon: Daemon | None, unit: Unit | None) -> Path:
    """Where a daemon has its store that names none: below the state directory of its environment, else of its unit."""
    environment: dict[str, str] = {}
    under_unit = unit is not None
    if daemon is not None:
        with suppress(OSError):
            pairs = host.read_bytes(f"/proc/{daemon.pid}/environ").split(b"\0")
            environment = dict(os.fsdecode(pair).split("=", 1) for pair in pairs if b"=" in pair)
        with suppress(OSError):
            under_unit = UNIT in host.read(f"/proc/{daemon.pid}/cgroup")
    if directory := environment.get("STATE_DIRECTORY"):
        return Path(directory.split(":")[0]) / "store.hs"
    if directory := environment.get("XDG_STATE_HOME"):
        return Path(directory) / "halfstep" / "store.hs"
    if under_unit:
        return Path(UNIT_STORE)
    if home := environment.get("HOME"):
        return Path(home) / ".local" / "state" / "halfstep" / "store.hs"
    return store_path(None)


def _is_here(host: Host, address: str) -> bool:
    """Whether a "host:port" leads to this machine: then packets to it come from the address that they go to."""
    name, _, port = address.rpartition(":")
    try:
        route = host.kernel.route(name.strip("[]"), int(port))
    except OSError:  # a name that does not resolve, or no route
        return False
    return route.source == route.peer


def _listens(host: Host, daemon: Daemon, address: str) -> bool:
    """Whether that is one of a daemon's addresses, as its sockets say or, where they are hidden, its arguments."""
    name, _, port = address.rpartition(":")
    inodes = inodes_of(host, daemon.pid)
    if inodes:
        mine = [one for one in listeners(host) if one.inode in inodes]
        # By the port alone: the name of a host may stand for any address of it.
        return any((f"unix:{one.address}" if not one.port else f"{name}:{one.port}") == address for one in mine)
    config = config_of(daemon.arguments)
    return address == f"unix:{config.unix}" or any(one.rpartition(":")[2] == port for one in config.listen)


def url_of(host: Host, case: Case) -> str | None:
    """Where the daemon of this host is: its socket, where this user may see it, else its first address. None: there is none."""
    if case.daemon is None:
        return None
    inodes = inodes_of(host, case.daemon.pid)
    mine = [one for one in listeners(host) if one.inode in inodes]
    sockets = [one.address for one in mine if not one.port] if inodes else [case.config.unix]
    for path in sockets:
        if path not in ("", "none") and host.kernel.may_write(path):
            return f"halfstep+unix://{quote(path)}"
    if inodes:
        addresses = [(f"[{one.address}]" if ":" in one.address else one.address, one.port) for one in mine if one.port]
    else:
        addresses = [
            (name, int(port)) for name, _, port in (one.rpartition(":") for one in case.config.listen) if port.isdecimal()
        ]
    # Where it listens everywhere, loopback is one of its addresses.
    return next((f"halfstep://{LOOPBACK.get(name, name)}:{port}" for name, port in addresses if port), None)


def text_of(limit: int | None) -> str:
    """A limit as it is shown."""
    return "unlimited" if limit is None else format_bytes(limit)
