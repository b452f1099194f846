"""The settings of a mount: those of a daemon without a store, and what it needs to know of the one behind it."""

from __future__ import annotations

import dataclasses
import os
import socket
from dataclasses import dataclass, replace
from typing import Any

from halfstep.daemon.config import SOCKET_PATH_BYTES_MAX, ServeConfig, default_socket
from halfstep.daemon.setting import SHARDS_MAX, Bytes, Kind, Micros, Number, Setting, setting, settings_of
from halfstep.daemon.units import GIB, MIB
from halfstep.errors import ConfigError

MICROS_A_DAY = 86_400_000_000


def _as_served(field: str) -> Any:
    """The setting of `serve` by this field, described there."""
    (found,) = (one for one in dataclasses.fields(ServeConfig) if one.name == field)
    return dataclasses.field(default=found.default, metadata=found.metadata)


@dataclass(frozen=True)
class MountConfig:
    """Everything `mount` needs.

    upstream: "host:port" or "unix:/path" of the daemon behind it. namespaces: for whose clients it speaks, each named once.
    """

    upstream: str
    namespaces: tuple[str, ...] = setting(
        ("default",),
        option="namespace",
        section="mount",
        kind=Kind(unit="NAME"),
        several=True,
        without="the URL's",
        bound="may be given again; at most 64",
        help="A namespace whose clients may come in, beside the URL's. The upstream has to have it.",
    )
    memory_bytes: int = setting(
        2 * GIB,
        option="memory",
        section="mount",
        kind=Bytes(least=32 * MIB, most=8 * GIB, for_each_shard=True),
        help="For blocks, of all shards together. Puts on their way to the upstream may hold half.",
    )
    shards: int = setting(
        1,
        option="shards",
        section="mount",
        kind=Number(least=1, most=SHARDS_MAX),
        help="Threads that serve, each with its share of memory and connections of its own. One is enough for a few engines.",
    )
    max_age_us: int = setting(
        60_000_000,
        option="max-age",
        section="mount",
        kind=Micros(least=1_000, most=MICROS_A_DAY),
        help="How long a block is served without asking the upstream again. A delete made elsewhere holds here by then.",
    )
    upstream_deadline_us: int = setting(
        2_000_000,
        option="upstream-deadline",
        section="mount",
        kind=Micros(least=1_000, most=60_000_000),
        help="How long a fetch, a put or a delete may take at the upstream.",
    )
    upstream_connections: int = setting(
        1,
        option="upstream-connections",
        section="mount",
        kind=Number(least=1, most=16),
        help="Connections to each shard of the upstream, for each namespace.",
    )
    listen: tuple[str, ...] = setting(
        (),
        option="listen",
        section="mount",
        kind=Kind(unit="HOST:PORT"),
        several=True,
        without="none",
        bound="may be given again",
        help="Where TCP clients come in, beside the unix socket.",
    )
    unix: str = setting(
        "",
        option="unix",
        section="mount",
        kind=Kind(unit="PATH"),
        without="`halfstep.sock` in the runtime directory",
        bound=f"{SOCKET_PATH_BYTES_MAX} bytes; `none` for no socket",
        help="The socket of local clients, with shared memory.",
    )
    insecure_listen: bool = _as_served("insecure_listen")
    connections_max: int = _as_served("connections_max")
    shm_ring_bytes: int = _as_served("shm_ring_bytes")
    shm_memory_bytes: int = _as_served("shm_memory_bytes")
    huge_pages: bool = _as_served("huge_pages")
    numa: tuple[int, ...] | None = _as_served("numa")
    metrics: str = _as_served("metrics")
    stop_grace_ms: int = 5000

    def validated(self) -> MountConfig:
        """With every default filled in. Errors: ConfigError with value, bound and remedy."""
        for one in MOUNT_SETTINGS:
            one.check(getattr(self, one.field), self.shards)
        if not 1 <= len(self.namespaces) <= 64:
            raise ConfigError(f"namespace: {len(self.namespaces)} of them; must be 1 to 64: each has connections of its own")
        mount = replace(self, unix=self.unix or default_socket())
        if not mount.addresses:
            raise ConfigError("unix=none: nobody could come in; name a socket, or an address with --listen")
        if any(_meet(mount.upstream, address) for address in mount.addresses):
            raise ConfigError(f"upstream={mount.upstream}: is the mount's own address; name another with --unix or --listen")
        return mount

    @property
    def addresses(self) -> list[str]:
        """What it listens on, in the native core's notation."""
        unix = [] if self.unix in ("", "none") else [f"unix:{self.unix}"]
        return [*self.listen, *unix]


def _meet(upstream: str, address: str) -> bool:
    """Whether who connects to `upstream` comes to who listens on `address`, both in the native core's notation.

    A mount before itself would ask itself for all that it has not, and never end.
    """
    if upstream.startswith("unix:") or address.startswith("unix:"):
        paths = [one.removeprefix("unix:") for one in (upstream, address) if one.startswith("unix:")]
        return len(paths) == 2 and os.path.realpath(paths[0]) == os.path.realpath(paths[1])
    (wanted, _, port), (own, _, own_port) = upstream.rpartition(":"), address.rpartition(":")
    if port != own_port:
        return False
    wanted, own = wanted.strip("[]"), own.strip("[]")
    if own in wanted.split(","):
        return True
    hosts, owns = set().union(*map(_resolved, wanted.split(","))), _resolved(own)
    if {"0.0.0.0", "::"} & owns:  # noqa: S104 -- nothing is bound to it here
        return any(map(_is_of_this_machine, hosts))
    return not hosts.isdisjoint(owns)


def _resolved(host: str) -> set[str]:
    """Addresses of a host; none where nobody knows it, which is for others to say."""
    try:
        return {str(each[4][0]) for each in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError):
        return set()


def _is_of_this_machine(ip: str) -> bool:
    try:
        with socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET, socket.SOCK_STREAM) as one:
            one.bind((ip, 0))
    except OSError:
        return False
    return True


MOUNT_SETTINGS: tuple[Setting, ...] = settings_of(MountConfig)
