"""The settings of a daemon: one frozen struct, each field beside its description (daemon.setting), checked once.

Options, refusals and the tables of docs/configure.md follow from the descriptions.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from halfstep.daemon.setting import (
    SHARDS_MAX,
    Bytes,
    Kind,
    Micros,
    Number,
    Numbers,
    Setting,
    Switch,
    Word,
    setting,
    settings_of,
)
from halfstep.daemon.units import GIB, KIB, MIB, TIB, format_bytes
from halfstep.errors import ConfigError

PORT = 7350
# 64 segments of 2 MiB, and the headers, logs and touch maps around them.
STORE_BYTES_MIN = 132 * MIB
# Without --size: a quarter of what is free, so that a trial on a laptop never fills its disk, and never above this.
DEFAULT_STORE_SHARE = 0.25
DEFAULT_STORE_BYTES_MAX = 64 * GIB
VHOST_USER = "vhost-user:"  # before the socket of a target that has the store
NOOP = "noop:"  # bytes in the daemon's memory, to measure the software alone
_NAMESPACE = re.compile(r"ng(\d+n\d+)")
SOCKET_PATH_BYTES_MAX = 107  # sockaddr_un has 108, with the NUL at the end
CORES_MAX = 4096
NODES_MAX = 1024  # of memory; a kernel can be built for as many


def state_directory() -> Path:
    """Where the store lives by default: systemd's StateDirectory=, else the XDG state directory.

    Errors: ConfigError where neither is named and this user has no home.
    """
    if given := os.environ.get("STATE_DIRECTORY"):
        return Path(given.split(":")[0])
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else _home() / ".local" / "state") / "halfstep"


def _home() -> Path:
    if home := os.environ.get("HOME"):
        return Path(home)
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        raise ConfigError(
            f"store: HOME is not set and uid {os.getuid()} has no home directory; name the store's path with --store, or set "
            "XDG_STATE_HOME"
        ) from None


def temporary_directory() -> Path:
    """Where the unix socket lives if nothing says better. Anybody may have made it before us: see `daemon.serve`.

    Errors: ConfigError where no temporary directory can be written to.
    """
    try:
        return Path(tempfile.gettempdir()) / f"halfstep-{os.getuid()}"
    except OSError as error:
        raise ConfigError(f"unix: {error.strerror}; name the socket's path with --unix, or none") from None


def runtime_directory() -> Path:
    """Where the unix socket lives by default: systemd's RuntimeDirectory=, the XDG runtime directory, else a temporary one.

    Errors: ConfigError where there is none of them.
    """
    if given := os.environ.get("RUNTIME_DIRECTORY"):
        return Path(given.split(":")[0])
    if base := os.environ.get("XDG_RUNTIME_DIR"):
        return Path(base) / "halfstep"
    return temporary_directory()


def default_socket() -> str:
    """Where local clients come in without --unix. Errors: ConfigError where its path is longer than a socket's may be."""
    path = str(runtime_directory() / "halfstep.sock")
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
        said_by = next(filter(os.environ.get, ("RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR")), "the temporary directory")
        raise ConfigError(
            f"unix={path}: has {len(os.fsencode(path))} bytes, a socket's path at most {SOCKET_PATH_BYTES_MAX}; it comes from "
            f"{said_by}: name another with --unix, or none"
        )
    return path


def default_store_bytes(directory: Path) -> int:
    """A quarter of the free space of `directory`'s file system, at most 64 GiB, in whole MiB."""
    probe = directory
    while not probe.exists():
        probe = probe.parent
    share = int(shutil.disk_usage(probe).free * DEFAULT_STORE_SHARE)
    return min(share, DEFAULT_STORE_BYTES_MAX) // MIB * MIB


def is_vhost_user(store: str | Path | None) -> bool:
    """Whether a store is the device of a vhost-user target: `vhost-user:` and the path of its socket."""
    return str(store).startswith(VHOST_USER)


def is_path(store: str | Path) -> bool:
    """Whether a store is a file or a device, which has a place; not a vhost-user target, nor a no-op device."""
    return not is_vhost_user(store) and str(store) != NOOP


def block_device_of(store: str | Path) -> str:
    """The block device of an NVMe namespace that is named by its character device; any other path as it is."""
    path = Path(store)
    named = _NAMESPACE.fullmatch(path.name)
    return str(store) if named is None else str(path.with_name(f"nvme{named[1]}"))


def store_path(given: str | Path | None) -> Path:
    """The store's file: that of the state directory where none is given, the one within for a directory.

    A path that ends in a slash is a directory, also one that has to be made. `vhost-user:SOCKET` stays as it is.
    Errors: ConfigError when nobody may look there, or when it is empty.
    """
    if given == "":
        raise ConfigError("store='': is empty; name a path, or leave it out for the default")
    if is_vhost_user(given):
        return Path(str(given))
    store = state_directory() / "store.hs" if given is None else Path(given)
    try:
        return store / "store.hs" if str(given).endswith("/") or store.is_dir() else store
    except OSError as error:
        raise ConfigError(f"store={store}: {error.strerror}; run as the user that made it, or name another path") from None


@dataclass(frozen=True)
class ServeConfig:
    """Everything `serve` needs. Zero, empty or None means: choose the default, or as the field's description says.

    store: path of the store's file, as of store_path(), or a block device or vhost-user target that is blank or a store.
    cores, numa: shard n has item n of the list, which is gone round; no cores: any, no nodes: none is preferred.
    unix: "none" for no socket.
    scrub_bytes_per_s: 0 = none, None = all within two weeks.
    """

    store: Path = setting(
        option="store",
        section="store",
        kind=Kind(unit="PATH"),
        without="`store.hs` in the state directory",
        bound="a file, a directory, a block device, an NVMe namespace `/dev/ngXnY`, `vhost-user:SOCKET`, or `noop:`",
        help="Where the store lies. A directory that is still to be made ends in a slash. `noop:` is memory that is gone when "
        "the daemon ends, to measure the software alone.",
    )
    size_bytes: int = setting(
        0,
        option="size",
        section="store",
        kind=Bytes(least=STORE_BYTES_MIN, most=64 * TIB, given=True),
        without="a quarter of the free space, at most 64 GiB",
        remedy="a store has at least 64 segments of 2 MiB",
        help="Bytes of a new file. A block device is taken whole: leave it out there.",
    )
    spdk: str = setting(
        "",
        option="spdk",
        section="store",
        kind=Kind(unit="FILE"),
        without="none",
        bound="a file of TOML, beside `--store vhost-user:SOCKET`",
        help="Bdev and controller of the SPDK target that has the drive: made at the start, and when it comes back.",
    )
    segment_bytes: int = setting(
        0,
        option="segment",
        section="store",
        kind=Bytes(least=2 * MIB, most=16 * GIB, multiple=MIB, given=True),
        without="the largest of which 64 fit for each shard, 1 GiB at most",
        help="The unit of reclaim, of a new store. A quarter of it bounds a block.",
    )
    shards: int = setting(
        0,
        option="shards",
        section="store",
        kind=Number(least=1, most=SHARDS_MAX),
        without="1",
        help="Independent slices of a new store, for good. Each has a thread, memory, an index, a record log and a port.",
    )
    arena_bytes: int = setting(
        256 * MIB,
        option="arena",
        section="memory",
        kind=Bytes(least=32 * MIB, most=8 * GIB, for_each_shard=True),
        help="Blocks in flight and hot blocks, of all shards together. Writes may hold half, prefetched blocks a quarter.",
    )
    index_bytes: int = setting(
        0,
        option="index",
        section="memory",
        kind=Bytes(least=MIB, for_each_shard=True, given=True),
        without="room for blocks of 256 KiB, or what smaller ones need up to 16 MiB",
        remedy="1 MiB is for some 36,000 blocks; leave it out for an index that fits the store",
        help="29 bytes a block, of all shards together. Sized at the start, never grown.",
    )
    huge_pages: bool = setting(
        True,
        option="huge-pages",
        section="memory",
        kind=Switch(off="no-huge-pages"),
        help="Try 2 MiB pages for arena and index.",
    )
    shm_ring_bytes: int = setting(
        MIB,
        option="shm-ring",
        section="memory",
        kind=Bytes(least=64 * KIB, most=64 * MIB, power_of_two=True),
        remedy="every connection over shared memory has two",
        help="Each of the two rings of a connection through the unix socket.",
    )
    shm_memory_bytes: int = setting(
        GIB,
        option="shm-memory",
        section="memory",
        kind=Bytes(),
        bound="two rings for each shard, or 0 for none",
        help="Rings of all connections, over all shards. A client for which there is no more is served through the socket.",
    )
    decode_bytes: int = setting(
        0,
        option="decode",
        section="memory",
        kind=Bytes(least=8 * MIB, most=8 * GIB, for_each_shard=True, given=True),
        without="coded blocks are refused to clients without their codec",
        remedy="a block of a get stays in it until it has left",
        help="Decode blocks for clients without their codec, into so much memory beside the arena, of all shards together.",
    )
    cores: tuple[int, ...] = setting(
        (),
        option="cores",
        section="cores",
        kind=Numbers(below=CORES_MAX),
        without="any",
        bound="cores that this process may use, such as `0-3,8`",
        help="Shard *n* runs on core *n* of the list, which is gone round.",
    )
    numa: tuple[int, ...] | None = setting(
        None,
        option="numa",
        section="cores",
        kind=Numbers(unit="NODES", below=NODES_MAX, words={"auto": None, "off": ()}),
        bound="nodes with memory, such as `0,1`, or `auto`, or `off`",
        remedy="one node for each shard in turn",
        help="The memory node of each shard's arena, index and rings. `auto`: that of its core, where `--cores` binds it.",
    )
    listen: tuple[str, ...] = setting(
        (f"127.0.0.1:{PORT}",),
        option="listen",
        section="network",
        kind=Kind(unit="HOST:PORT"),
        several=True,
        bound="may be given again; it replaces the default",
        help="Where TCP clients come in. Shard *n* listens *n* ports above.",
    )
    insecure_listen: bool = setting(
        False,
        option="insecure-listen",
        section="network",
        kind=Switch(),
        help="Allow `--listen` and `--metrics` beyond loopback, though nobody who comes in is authenticated.",
    )
    unix: str = setting(
        "",
        option="unix",
        section="network",
        kind=Kind(unit="PATH"),
        without="`halfstep.sock` in the runtime directory",
        bound=f"{SOCKET_PATH_BYTES_MAX} bytes; `none` for no socket",
        help="The socket of local clients, with shared memory. Shard *n* has `.n` behind the path.",
    )
    connections_max: int = setting(
        4096,
        option="connections",
        section="network",
        kind=Number(least=16, most=65_536),
        remedy="every connection is a descriptor, three over shared memory",
        help="Connections of one shard. A sixteenth of them is for the unix socket alone. Idle ones give way.",
    )
    zero_copy: str = setting(
        "off",
        option="zero-copy",
        section="network",
        kind=Word(choices=("auto", "off")),
        help="`auto`: send payload of 64 KiB and more to other machines without a copy by the kernel.",
    )
    rdma: str = setting(
        "off",
        option="rdma",
        section="network",
        kind=Word(choices=("auto", "off")),
        help="Rings over RDMA for clients that offer them. `auto`: where a RoCE v2 device has the address they come to.",
    )
    rdma_memory_bytes: int = setting(
        256 * MIB,
        option="rdma-memory",
        section="network",
        kind=Bytes(least=4 * MIB, most=64 * GIB),
        help="Pinned for those rings, of all connections: 2 MiB each. Beyond it a connection stays on TCP.",
    )
    engine: str = setting(
        "auto",
        option="engine",
        section="device",
        kind=Word(choices=("auto", "uring", "uring_cmd", "pread")),
        help="NVMe commands by io_uring where the store is an NVMe namespace, io_uring, or a pool of threads. `auto` takes the "
        "first that it gets, and says why not the one before.",
    )
    completions: str = setting(
        "interrupt",
        option="completions",
        section="device",
        kind=Word(choices=("interrupt", "polled")),
        help="How an NVMe namespace tells that it is done. `polled` takes a whole core of each shard while requests are out, "
        "and queues of the driver for it (`nvme.poll_queues`).",
    )
    queue_depth: int = setting(
        128,
        option="queue-depth",
        section="device",
        kind=Number(least=1, most=1024),
        help="Requests at the device at once. Gets may fill all of it. All other classes together may fill half.",
    )
    require_direct: bool = setting(
        False,
        option="require-direct",
        section="device",
        kind=Switch(),
        help="Refuse to start without O_DIRECT.",
    )
    latency_goal_us: int = setting(
        2_000,
        option="latency-goal",
        section="device",
        kind=Micros(least=1, most=10_000_000, words={"off": 0}),
        help="How long a get's read may take before other traffic gives way.",
    )
    discard_rate_bytes: int = setting(
        GIB,
        option="discard-rate",
        section="device",
        kind=Bytes(),
        bound="0 for none",
        help="Block devices: how much reclaimed flash the drive is told in a second to be empty.",
    )
    eviction: str = setting(
        "seg-adapt10",
        option="eviction",
        section="eviction",
        kind=Word(unit="POLICY", choices=("seg-adapt10", "seg-low", "seg-fifo")),
        help="What gives way when the store is full. `seg-adapt10` keeps what is used; the others are for comparison.",
    )
    rewrite_share: float = setting(
        0.10,
        option="rewrite-share",
        section="eviction",
        kind=Number(unit="F", least=0.0, most=1.0),
        help="Of what users write, how much reclaim may write again to keep used blocks.",
    )
    daily_writes_bytes: int = setting(
        0,
        option="daily-writes",
        section="eviction",
        kind=Bytes(),
        without="none",
        help="What the drives may be written in a day, users' writes included, such as 1.9TB. Quiet days may then keep more "
        "than `--rewrite-share` allows.",
    )
    scrub_bytes_per_s: int | None = setting(
        None,
        option="scrub",
        section="eviction",
        # Slower, a pass over anything takes years; faster, it is no background work any more.
        kind=Bytes(unit="RATE", least=4 * KIB, most=16 * GIB, rate=True, words={"auto": None, "off": 0}),
        help="Background verification of stored blocks. `auto`: all within two weeks, 256 KiB/s to 64 MiB/s.",
    )
    metrics: str = setting(
        "",
        option="metrics",
        section="observation",
        kind=Kind(unit="HOST:PORT"),
        without="none",
        help="Prometheus text over HTTP. Beyond loopback with `--insecure-listen` alone; an empty host is every interface.",
    )
    stop_grace_ms: int = 5000

    def validated(self) -> ServeConfig:
        """The configuration with every default filled in. Errors: ConfigError with value, bound and remedy."""
        size = self.size_bytes
        if str(self.store) == VHOST_USER:
            raise ConfigError(
                f"store='{VHOST_USER}': names no socket; write {VHOST_USER}/run/drive.sock, as the target listens"
            )
        if self.spdk and not is_vhost_user(self.store):
            raise ConfigError(
                f"spdk={self.spdk}: the store is {self.store}, which no SPDK target has; name one: --store {VHOST_USER}SOCKET"
            )
        self._check_device()
        if size == 0 and is_path(self.store) and not self.store.exists():
            size = default_store_bytes(self.store.parent)
            if size < STORE_BYTES_MIN:
                raise ConfigError(
                    f"size: a quarter of the free space of {self.store.parent} is {format_bytes(size)}, the smallest store is "
                    f"{format_bytes(STORE_BYTES_MIN)}; free some space or give --store a path on a larger file system"
                )
        for one in SETTINGS:
            one.check(getattr(self, one.field), self.shards)
        return replace(self, size_bytes=size, unix=self.unix or default_socket())

    def _check_device(self) -> None:
        """What only an NVMe namespace has, and a no-op device has not. Errors: ConfigError."""
        demanded = "completions=polled" if self.completions == "polled" else f"engine={self.engine}"
        if demanded in ("completions=polled", "engine=uring_cmd") and block_device_of(self.store) == str(self.store):
            raise ConfigError(
                f"{demanded}: {self.store} is no NVMe namespace; name one by its character device, /dev/ngXnY, or leave it out"
            )
        if self.size_bytes == 0 and str(self.store) == NOOP:
            raise ConfigError(f"store={NOOP}: has no size of its own; give --size, which is taken from memory")

    @property
    def addresses(self) -> list[str]:
        """What the shard listens on, in its own notation."""
        unix = [] if self.unix in ("", "none") else [f"unix:{self.unix}"]
        return [*self.listen, *unix]


SETTINGS: tuple[Setting, ...] = settings_of(ServeConfig)
DEFAULT_ARENA_BYTES: int = ServeConfig.arena_bytes


def setting_named(option: str) -> Setting:
    """By its option, without the dashes."""
    return next(one for one in SETTINGS if one.option == option)
