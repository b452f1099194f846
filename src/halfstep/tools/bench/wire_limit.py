"""`halfstep bench wire`: the speed of plain sockets between two processes: a stream, and small messages there and back."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from halfstep.daemon.units import GIB, MIB, format_bytes
from halfstep.errors import ConfigError, Unavailable
from halfstep.tools.bench import loopback
from halfstep.tools.bench.machine import machine_facts, machine_text
from halfstep.tools.bench.place import cores, own_directory, pinned
from halfstep.tools.bench.plan import CONNECTIONS_MAX, chosen_from, within
from halfstep.tools.bench.terminal import Tell
from halfstep.tools.bench.workload import median_run, percentiles_us

OVER = ("tcp", "unix")
_AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")


@dataclass(frozen=True)
class WirePlan:
    """block_bytes: what a sender gives to one call; the receiver has memory for `batch` of them.

    ping_bytes: of a small message. congestion: of tcp; "" = the system's.
    """

    over: tuple[str, ...]
    block_bytes: tuple[int, ...]
    batch: int
    connections: tuple[int, ...]
    ping_bytes: tuple[int, ...]
    set_bytes: int
    congestion: str
    seconds: float
    repeat: int
    pin: bool

    def validated(self) -> WirePlan:
        """Itself. Errors: ConfigError with value, bound and remedy."""
        chosen_from("over", self.over, OVER)
        for name, values in (("bs", self.block_bytes), ("connections", self.connections), ("ping", self.ping_bytes)):
            within(f"values of {name}", len(values), 1, 16)
        for block_bytes in self.block_bytes:
            within("bs", block_bytes, 1, 64 * MIB)
            within(f"bs={block_bytes} x batch", block_bytes * self.batch, 1, GIB)
        for connections in self.connections:
            within("connections", connections, 1, CONNECTIONS_MAX)
        for ping_bytes in self.ping_bytes:
            within("ping", ping_bytes, 1, MIB)
        within("batch", self.batch, 1, 1024)
        within("size", self.set_bytes, MIB, 8 * GIB)
        within("runtime", self.seconds, 0.05, 3600.0)
        within("repeat", self.repeat, 1, 99)
        available = _AVAILABLE.read_text().split() if _AVAILABLE.exists() else []
        if self.congestion and available and self.congestion not in available:
            raise ConfigError(
                f"congestion={self.congestion}: this kernel has {', '.join(available)}; choose one or load its module"
            )
        return self

    @property
    def steps(self) -> int:
        """Announced ones."""
        return len(self.over) * (len(self.block_bytes) * len(self.connections) + len(self.ping_bytes)) * self.repeat


@dataclass(frozen=True)
class StreamResult:
    """The median of the runs."""

    over: str
    block_bytes: int
    connections: int
    bytes_per_s: float
    runs_bytes_per_s: tuple[float, ...]


@dataclass(frozen=True)
class PingResult:
    """The run with the median p50."""

    over: str
    message_bytes: int
    p50_us: float
    p99_us: float
    p999_us: float
    round_trips: int
    round_trips_per_s: float


STREAM_COLUMNS: tuple[str | tuple[str, str], ...] = ("stream", ("block", "right"), ("connections", "right"), ("GB/s", "right"))
PING_COLUMNS: tuple[str | tuple[str, str], ...] = (
    "there and back",
    *((title, "right") for title in ("bytes", "p50 us", "p99 us", "p99.9 us", "round trips/s")),
)


def measure_wire(plan: WirePlan, tell: Tell, command: str) -> tuple[dict[str, Any], list[StreamResult], list[PingResult]]:
    """(header, streams, pings). Errors: ConfigError, Unavailable."""
    plan = plan.validated()
    client_cores, other_core = cores(pin=plan.pin)
    client_cores = client_cores[:1]
    header = {
        **machine_facts(command),
        "pinned": "no" if not client_cores else f"receiver on core {client_cores[0]}, sender on core {other_core}",
        "congestion_control": plan.congestion or "the system's",
        "batch": plan.batch,
        "set_bytes": plan.set_bytes,
        "seconds": plan.seconds,
        "repeat": plan.repeat,
    }
    streams: list[StreamResult] = []
    pings: list[PingResult] = []
    try:
        with pinned(*client_cores), own_directory() as directory:
            for over in plan.over:
                unix = str(directory / "wire.sock") if over == "unix" else ""
                streams += [
                    _stream(plan, over, unix, block_bytes, connections, other_core, tell)
                    for block_bytes in plan.block_bytes
                    for connections in plan.connections
                ]
                pings += [_ping(plan, over, unix, ping_bytes, other_core, tell) for ping_bytes in plan.ping_bytes]
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"plain sockets failed: {error}; run it again, or with another --over or --congestion") from None
    return header, streams, pings


def document(header: dict[str, Any], streams: list[StreamResult], pings: list[PingResult]) -> dict[str, Any]:
    """Speeds in GB/s, times in microseconds."""
    return {
        "header": header,
        "streams": [
            {
                "over": one.over,
                "block_bytes": one.block_bytes,
                "connections": one.connections,
                "gigabytes_per_s": one.bytes_per_s / 1e9,
                "runs_gigabytes_per_s": [speed / 1e9 for speed in one.runs_bytes_per_s],
            }
            for one in streams
        ],
        "pings": [asdict(one) for one in pings],
    }


def stream_row(one: StreamResult) -> list[str]:
    """Of the table."""
    return [one.over, format_bytes(one.block_bytes), str(one.connections), f"{one.bytes_per_s / 1e9:.2f}"]


def ping_row(one: PingResult) -> list[str]:
    """Of the table."""
    times = (f"{us:,.1f}" for us in (one.p50_us, one.p99_us, one.p999_us))
    return [one.over, str(one.message_bytes), *times, f"{one.round_trips_per_s:,.0f}"]


def remarks(header: dict[str, Any]) -> Iterator[str]:
    """What a reader has to know to read the tables rightly."""
    yield machine_text(header)
    yield f"pinned: {header['pinned']}; congestion control: {header['congestion_control']}; over loopback"
    yield (
        f"two processes: one sends from {format_bytes(header['set_bytes'])}, one receives into memory for {header['batch']} "
        f"blocks; nothing is asked, framed or checked; the median of {header['repeat']} runs"
    )
    yield "there and back: one message at a time between two Python processes, whose own work is in it"


def _stream(
    plan: WirePlan, over: str, unix: str, block_bytes: int, connections: int, other_core: int | None, tell: Tell
) -> StreamResult:
    speeds = []
    for number in range(plan.repeat):
        tell(f"{over} {format_bytes(block_bytes)}, {connections} connections: run {number + 1} of {plan.repeat}")
        speeds.append(
            loopback.measure(
                set_bytes=plan.set_bytes,
                target_bytes=plan.batch * block_bytes,
                connections=connections,
                congestion=plan.congestion,
                seconds=plan.seconds,
                sender_core=other_core,
                unix=unix,
                piece_bytes=block_bytes,
            )
        )
        _remove(unix)
    return StreamResult(over, block_bytes, connections, median_run(speeds, float), tuple(speeds))


def _ping(plan: WirePlan, over: str, unix: str, message_bytes: int, other_core: int | None, tell: Tell) -> PingResult:
    runs = []
    for number in range(plan.repeat):
        tell(f"{over} there and back, {message_bytes} bytes: run {number + 1} of {plan.repeat}")
        took = loopback.ping_pong(
            message_bytes=message_bytes, congestion=plan.congestion, seconds=plan.seconds, other_core=other_core, unix=unix
        )
        times_us = np.array(took, np.float64) / 1e3
        runs.append(PingResult(over, message_bytes, *percentiles_us(times_us), len(took), len(took) / (sum(took) / 1e9)))
        _remove(unix)
    return median_run(runs, lambda run: run.p50_us)


def _remove(unix: str) -> None:
    """A socket's path can be bound once."""
    if unix:
        Path(unix).unlink(missing_ok=True)
