"""What `halfstep serve` can be told, with its defaults and its limits.

One frozen struct, validated once. Sizes are bytes; texts such as "64GiB" are parsed by `parse_bytes` at the edge.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from halfstep.errors import ConfigError

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40

PORT = 7350
# 64 segments of 2 MiB, and the headers, logs and touch maps around them.
STORE_BYTES_MIN = 132 * MIB
# Without --size: a quarter of what is free, so that a trial on a laptop never fills its disk, and never above this.
DEFAULT_STORE_SHARE = 0.25
DEFAULT_STORE_BYTES_MAX = 64 * GIB
DEFAULT_ARENA_BYTES = 256 * MIB
ARENA_BYTES_MIN, ARENA_BYTES_MAX = 32 * MIB, 8 * GIB
SHM_RING_BYTES_MIN, SHM_RING_BYTES_MAX = 64 * KIB, 64 * MIB
INDEX_BYTES_MIN = 1 << 20  # of a shard; a block takes 29 bytes
CONNECTIONS_MIN, CONNECTIONS_MAX = 16, 65_536
SHARDS_MAX = 16
SOCKET_PATH_BYTES_MAX = 107  # sockaddr_un has 108, with the NUL at the end
CORES_MAX = 4096
NODES_MAX = 1024  # of memory; a kernel can be built for as many

# Slower, a pass over anything takes years; faster, it is no background work any more.
SCRUB_RATE_MIN = 4 * KIB
SCRUB_RATE_MAX = 16 * GIB

LATENCY_GOAL_US_MAX = 10_000_000
_MICROS = {"us": 1.0, "ms": 1e3, "s": 1e6}

# The native core counts bytes in 64 bits; what comes near their end is a slip of the finger.
BYTES_MAX = 1 << 60
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": KIB, "mi": MIB, "gi": GIB, "ti": TIB}


def parse_bytes(text: str, name: str = "size") -> int:
    """Bytes of "4096", "64k", "64KiB", "1.5GiB"; decimal units without the i, binary ones with it.

    Errors: ConfigError that names `name` and what would do; more than BYTES_MAX is refused, too.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?\s*", text, re.IGNORECASE)
    if match is None:
        raise ConfigError(f"{name}={text!r}: not a size; write for example 512MiB, 64GiB or 1.5TiB")
    unit = _UNITS[(match[2] or "").lower()]
    if float(match[1]) * unit > BYTES_MAX:
        raise ConfigError(f"{name}={text[:40]!r}: must be at most {BYTES_MAX // TIB}TiB; write for example 512MiB or 64GiB")
    return int(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit


def parse_size(text: str, name: str) -> int:
    """As parse_bytes, of what may be left out: 0 would mean the default, and nobody who writes it means that."""
    size = parse_bytes(text, name)
    if size == 0:
        raise ConfigError(f"{name}={text.strip()[:40]!r}: must be above 0; leave it out for the default")
    return size


def parse_micros(given: object, name: str) -> float:
    """Microseconds of "500us", "2ms", "0.1s". Errors: ConfigError, which calls the value by `name`."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(us|ms|s)\s*", str(given))
    if match is None:
        raise ConfigError(f"{name}={given!r}: not a time; write for example 500us, 2ms or 0.1s")
    return float(match[1]) * _MICROS[match[2]]


def parse_latency_goal(text: str) -> int:
    """Microseconds, of "2ms"; 0 for "off". Errors: ConfigError."""
    if text.strip().lower() == "off":
        return 0
    goal_us = round(min(parse_micros(text, "latency_goal"), 2.0 * LATENCY_GOAL_US_MAX))
    if not 1 <= goal_us <= LATENCY_GOAL_US_MAX:
        raise ConfigError(f"latency_goal={text!r}: must be 1us to {LATENCY_GOAL_US_MAX // 1_000_000}s, or off")
    return goal_us


def parse_scrub(text: str) -> int | None:
    """Bytes per second of "8MiB/s", "8MiB"; 0 for "off"; None, the store's own choice, for "auto". Errors: ConfigError."""
    word = text.strip().lower()
    if word == "auto":
        return None
    if word == "off":
        return 0
    try:
        rate = parse_bytes(word.removesuffix("/s"), "scrub")
    except ConfigError:
        rate = -1
    if rate != 0 and not SCRUB_RATE_MIN <= rate <= SCRUB_RATE_MAX:
        raise ConfigError(
            f"scrub={text!r}: must be auto, off, or a rate of {format_bytes(SCRUB_RATE_MIN)}/s to "
            f"{format_bytes(SCRUB_RATE_MAX)}/s, for example 8MiB/s"
        )
    return rate


def format_bytes(count: float) -> str:
    """Three digits with a binary unit, such as 1.5 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} TiB"


def parse_cores(text: str) -> tuple[int, ...]:
    """Core numbers of "0-3,8". Errors: ConfigError."""
    cores: list[int] = []
    for item in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", item)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if last < first or last - first >= CORES_MAX:
            raise ConfigError(f"cores={text!r}: write numbers and ranges of up to {CORES_MAX} cores, for example 0-3,8")
        cores.extend(range(first, last + 1))
    return tuple(cores)


def parse_numa(text: str) -> tuple[int, ...] | None:
    """Memory nodes of "0,1" or "0-3"; none for "off"; None, those of the shards' cores, for "auto". Errors: ConfigError."""
    word = text.strip().lower()
    if word == "auto":
        return None
    if word == "off":
        return ()
    try:
        nodes = parse_cores(word)
    except ConfigError:
        nodes = (NODES_MAX,)
    if max(nodes) >= NODES_MAX:
        raise ConfigError(
            f"numa={text!r}: must be auto, off, or memory nodes from 0 to {NODES_MAX - 1}, one for each shard in turn, "
            "for example 0,1"
        )
    return nodes


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


def _default_socket() -> str:
    """Errors: ConfigError where its path is longer than a socket's may be."""
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


def store_path(given: str | Path | None) -> Path:
    """The store's file: that of the state directory where none is given, the one within for a directory.

    A path that ends in a slash is a directory, also one that has to be made. Errors: ConfigError when nobody may look there, or
    when it is empty.
    """
    if given == "":
        raise ConfigError("store='': is empty; name a path, or leave it out for the default")
    store = state_directory() / "store.hs" if given is None else Path(given)
    try:
        return store / "store.hs" if str(given).endswith("/") or store.is_dir() else store
    except OSError as error:
        raise ConfigError(f"store={store}: {error.strerror}; run as the user that made it, or name another path") from None


@dataclass(frozen=True)
class ServeConfig:
    """Everything `serve` needs. Zero or empty means: choose the default.

    store: path of the store's file, as of store_path(), or a block device that is blank or a store. size_bytes: of a store that
    has to be made; an existing one keeps its size, and a device's is its own.
    shards: into how many a new store is divided, 0 = one; an existing one has what it has. cores: on which the shards run, one
    after the other and round again; empty = any. numa: the memory nodes of the shards, likewise; empty = none is preferred,
    None = that of each shard's core, where they are bound and there are several. arena_bytes, index_bytes and the rates are
    those of all shards together.
    listen: "host:port" texts. unix: path of the unix socket, "none" for no socket. engine: "auto", "uring" or "pread".
    connections_max: of one shard; a sixteenth of them is for the unix socket alone, where there is one.
    shm_ring_bytes: of each of the two rings of every connection through that socket.
    zero_copy: "auto" sends large payload to other machines without a copy by the kernel where that is to be had, "off" copies.
    eviction: the name of a reclaim policy. rewrite_share: of what users write, what reclaim may write again, 0 to 1.
    daily_writes_bytes: what the drives may be written in a day, users' writes included; reclaim may use what they leave of it.
    discard_rate_bytes: what a block device is told in a second to be empty; 0: it is told nothing.
    scrub_bytes_per_s: what background verification may read; 0 = none, None = all within two weeks.
    """

    store: Path
    size_bytes: int = 0
    segment_bytes: int = 0
    shards: int = 0
    cores: tuple[int, ...] = ()
    numa: tuple[int, ...] | None = None
    arena_bytes: int = DEFAULT_ARENA_BYTES
    index_bytes: int = 0
    listen: tuple[str, ...] = (f"127.0.0.1:{PORT}",)
    unix: str = ""
    shm_ring_bytes: int = MIB
    zero_copy: str = "auto"
    insecure_listen: bool = False
    engine: str = "auto"
    queue_depth: int = 128
    latency_goal_us: int = 2_000
    huge_pages: bool = True
    require_direct: bool = False
    eviction: str = "seg-adapt10"
    rewrite_share: float = 0.10
    daily_writes_bytes: int = 0
    discard_rate_bytes: int = GIB
    metrics: str = ""
    scrub_bytes_per_s: int | None = None
    stop_grace_ms: int = 5000
    connections_max: int = 4096

    def validated(self) -> ServeConfig:
        """The configuration with every default filled in. Errors: ConfigError with value, bound and remedy."""
        size = self.size_bytes
        if size == 0 and not self.store.exists():
            size = default_store_bytes(self.store.parent)
            if size < STORE_BYTES_MIN:
                raise ConfigError(
                    f"size: a quarter of the free space of {self.store.parent} is {format_bytes(size)}, the smallest store is "
                    f"{format_bytes(STORE_BYTES_MIN)}; free some space or give --store a path on a larger file system"
                )
        if size != 0 and size < STORE_BYTES_MIN:
            raise ConfigError(
                f"size={format_bytes(size)}: the smallest store is {format_bytes(STORE_BYTES_MIN)} (64 segments of 2 MiB)"
            )
        if not 0 <= self.shards <= SHARDS_MAX:
            raise ConfigError(f"shards={self.shards}: must be 1 to {SHARDS_MAX}, or left out")
        # Without a number an existing store may have as many as there can be: then the native core looks again.
        fewest, most = max(self.shards, 1), self.shards or SHARDS_MAX
        if not ARENA_BYTES_MIN * fewest <= self.arena_bytes <= ARENA_BYTES_MAX * most:
            of_them = f" for {self.shards} shards" if self.shards > 1 else "" if self.shards else " for each shard"
            raise ConfigError(
                f"arena={format_bytes(self.arena_bytes)}: must be {format_bytes(ARENA_BYTES_MIN * fewest)} to "
                f"{format_bytes(ARENA_BYTES_MAX * fewest)}{of_them}"
            )
        if self.index_bytes != 0 and self.index_bytes < INDEX_BYTES_MIN * fewest:
            raise ConfigError(
                f"index={format_bytes(self.index_bytes)}: the smallest index is {format_bytes(INDEX_BYTES_MIN)} a shard, for "
                f"some 36,000 blocks; leave it out for one that fits the store"
            )
        if self.engine not in ("auto", "uring", "pread"):
            raise ConfigError(f"engine={self.engine!r}: must be auto, uring or pread")
        ring = self.shm_ring_bytes
        if not SHM_RING_BYTES_MIN <= ring <= SHM_RING_BYTES_MAX or ring & (ring - 1):
            raise ConfigError(
                f"shm_ring={format_bytes(ring)}: must be a power of two from {format_bytes(SHM_RING_BYTES_MIN)} to "
                f"{format_bytes(SHM_RING_BYTES_MAX)}; every connection over shared memory has two"
            )
        if self.zero_copy not in ("auto", "off"):
            raise ConfigError(f"zero_copy={self.zero_copy!r}: must be auto or off")
        if not CONNECTIONS_MIN <= self.connections_max <= CONNECTIONS_MAX:
            raise ConfigError(
                f"connections={self.connections_max}: must be {CONNECTIONS_MIN} to {CONNECTIONS_MAX}, of each shard; every "
                f"connection is a descriptor, three over shared memory"
            )
        if not 1 <= self.queue_depth <= 1024:
            raise ConfigError(f"queue_depth={self.queue_depth}: must be 1 to 1024")
        if not 0 <= self.rewrite_share <= 1:
            raise ConfigError(
                f"rewrite_share={self.rewrite_share}: must be 0 (write nothing again) to 1 (as much as users write)"
            )
        return replace(self, size_bytes=size, unix=self.unix or _default_socket())

    @property
    def addresses(self) -> list[str]:
        """What the shard listens on, in its own notation."""
        unix = [] if self.unix in ("", "none") else [f"unix:{self.unix}"]
        return [*self.listen, *unix]
