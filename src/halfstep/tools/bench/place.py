"""The place of a benchmark: its own daemon or another one, its own namespace, a core for each side.

Invariants: whatever happens, Ctrl-C included, the namespace is deleted, a daemon of our own has ended and its store is gone.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

import halfstep
from halfstep.client.url import Endpoint
from halfstep.daemon.config import NOOP as NOOP_STORE
from halfstep.daemon.units import GIB, KIB, MIB
from halfstep.errors import ConfigError, HalfstepError, Unavailable
from halfstep.tools.bench.plan import COLD_MEMORIES, NOOP, Plan
from halfstep.tools.daemon_process import LOOPBACK, DaemonProcess
from halfstep.tools.options import connected


@dataclass(frozen=True)
class Place:
    """url: with the daemon's default namespace. facts: what a daemon of our own says of itself, else empty; daemon_pid: its.

    client_cores: where clients are pinned, one after the other; none where they are not. daemon_core: likewise.
    """

    url: str
    facts: dict[str, Any]
    client_cores: tuple[int, ...] = ()
    daemon_core: int | None = None
    daemon_pid: int | None = None

    @property
    def store(self) -> Path | None:
        """The file of a daemon of our own; None where it has none."""
        return Path(self.facts["backing"]["path"]) if self.facts and not self.facts["backing"]["noop"] else None

    @property
    def loopback(self) -> str | None:
        """Either "tcp" or "shm", with both ends on this machine; None where a stream limit cannot be measured from here."""
        endpoint = Endpoint.parse(self.url)
        address = endpoint.first_address
        if address.startswith("unix:"):
            return "shm"
        if endpoint.transport == "rdma":
            return None
        host = address.rsplit(":", 1)[0].strip("[]")
        try:
            return "tcp" if ipaddress.ip_address(host).is_loopback else None
        except ValueError:
            return "tcp" if host == "localhost" else None


@contextmanager
def place_of(plan: Plan) -> Iterator[Place]:
    """The daemon that the plan names, or one of our own in a temporary directory."""
    apart, daemon_core = cores(pin=plan.pin)
    client_cores = apart[: plan.numjobs]
    with pinned(*client_cores):
        if plan.url:
            yield Place(plan.url, {}, client_cores)
            return
        arguments = ["--size", str(store_bytes(plan)), "--arena", str(plan.arena_bytes)]
        arguments += ["--store", NOOP_STORE] if plan.engine == NOOP else ["--engine", plan.engine]
        shared, listen, query = plan.transport == "shm", LOOPBACK, ""
        if plan.transport == "rdma":
            # Over loopback there is no device: only who comes to a device's own address can have rings on it.
            listen, query = f"{device_address()}:0", "?transport=rdma"
            arguments += ["--rdma", "auto", "--insecure-listen"]
        with own_daemon(*arguments, directory=plan.directory, core=daemon_core, unix=shared, listen=listen) as process:
            url = process.shared_url if shared else process.url + query
            yield Place(url, process.facts, client_cores, daemon_core, process.pid)


@contextmanager
def own_daemon(
    *arguments: str, directory: Path | None = None, core: int | None = None, unix: bool = False, listen: str = LOOPBACK
) -> Iterator[DaemonProcess]:
    """`halfstep serve` with these flags as a process of its own, on a core. directory: where it has a directory of its own.

    unix: with a socket there. listen: where else it is reached.
    Errors: ConfigError (the directory), Unavailable, also where it ended by itself.
    """
    with own_directory(directory) as own:
        process = DaemonProcess(own, *arguments, unix=str(own / "h.sock") if unix else "none", listen=listen, own_session=True)
        try:
            with pinned(*(() if core is None else (core,))):
                process.start()
            try:
                yield process
            except HalfstepError:
                if process.running:
                    raise
            # Whatever else failed for it: this is why.
            if not process.running:
                raise Unavailable(
                    f"the daemon of its own ended {process.how_ended}; {process.log_end() or 'it said nothing'}; start again"
                )
        finally:
            process.close()


def device_address(sysfs: Path = Path("/sys/class/infiniband")) -> str:
    """The IPv4 address of the first RDMA device that has one. Errors: Unavailable."""
    for gid in sorted(sysfs.glob("*/ports/*/gids/*")):
        try:
            mapped = ipaddress.IPv6Address(gid.read_text().strip()).ipv4_mapped
        except (OSError, ValueError):  # what has no GID cannot be read
            continue
        if mapped is not None:
            return str(mapped)
    raise Unavailable(
        "transport=rdma: this machine has no RDMA device with an IPv4 address; measure a daemon elsewhere by its URL "
        "with ?transport=rdma (`halfstep doctor` looks at devices)"
    )


@contextmanager
def own_directory(within: Path | None = None) -> Iterator[Path]:
    """A new one in `within`, or in the temporary directory; it is removed afterwards. Errors: ConfigError."""
    try:
        directory = tempfile.TemporaryDirectory(prefix="halfstep-bench-", dir=within)
    except OSError as error:
        raise ConfigError(
            f"{error.filename}: cannot be made: {error.strerror}; name another --directory, or set TMPDIR"
        ) from None
    with directory as own:
        yield Path(own)


@contextmanager
def own_namespace(url: str) -> Iterator[str]:
    """The URL of a new namespace, which is removed afterwards. Errors: Unavailable, ConfigError."""
    name = f"bench-{secrets.token_hex(8)}"
    with connected(url) as operator:
        operator.create_namespace(name)
        try:
            yield with_namespace(url, name)
        except HalfstepError as failure:
            # What went wrong first is what has to be known: a daemon that is gone fails the deletion, too.
            if left := _left_behind(operator, name):
                raise type(failure)(f"{failure}; {left}") from None
            raise
        except BaseException:
            if left := _left_behind(operator, name):
                click.echo(f"halfstep: {left}", err=True)
            raise
        operator.delete_namespace(name)


def _left_behind(operator: halfstep.Client, name: str) -> str:
    """Deletes the namespace; what to say when that fails, else ""."""
    try:
        operator.delete_namespace(name)
    except HalfstepError:
        return f"its namespace is left there: `halfstep namespace delete {name} --url {operator.url}`, once the daemon is back"
    return ""


def with_namespace(url: str, name: str) -> str:
    """The same daemon by the same transport, another namespace."""
    return replace(Endpoint.parse(url), namespace=name).url


def cores(*, pin: bool) -> tuple[tuple[int, ...], int | None]:
    """(those for clients, the daemon's): apart where there are two cores, and nowhere in particular where there is one."""
    allowed = sorted(os.sched_getaffinity(0))
    if not pin or len(allowed) < 2:
        return (), None
    return tuple(allowed[1:]), allowed[0]


@contextmanager
def pinned(*cores: int) -> Iterator[None]:
    """Puts this thread, and every thread and process that it starts, on these cores, if there are any."""
    before = os.sched_getaffinity(0)
    if cores:
        os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def store_bytes(plan: Plan) -> int:
    """Of its own daemon's store: twice what is walked through, room for puts, segments that take the largest block."""
    cold = plan.cold_bytes or COLD_MEMORIES * plan.arena_bytes
    walked = 2 * (cold + plan.hot_bytes) + (GIB if {"put", "mixed"} & set(plan.scenarios) else 64 * MIB)
    if "coldmixed" in plan.scenarios:
        # Reclaim chooses among the oldest quarter: what is read does not reach as far. Each process takes its own puts for a
        # share of all: where there are several, one may put twice as much as another.
        _, _, farthest = plan.trail_bytes(plan.arena_bytes)
        walked = max(farthest * (3 if plan.numjobs == 1 else 4) // 2, walked if len(plan.scenarios) > 1 else 0)
    # A store has 64 segments at least, and a segment is four times the largest block at least.
    return max(walked, 64 * 8 * (max(plan.block_bytes) + 256 * KIB))
