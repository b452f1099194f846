"""Prometheus text of a running server. Each scrape reads the shards' own counters."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from halfstep.daemon.metric_help import HELP
from halfstep.daemon.metrics_server import MetricsServer
from halfstep.errors import ConfigError

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

Snapshot = Callable[[], Mapping[str, Any]]


class ServerCollector:
    """A prometheus_client collector over `_shard.Server.metrics()`."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """One family per name; label names are those of the family's first sample."""
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        snapshot = self._snapshot()
        for kind, make in (("counters", CounterMetricFamily), ("gauges", GaugeMetricFamily)):
            families: dict[str, list[tuple[dict[str, str], float]]] = defaultdict(list)
            for name, labels, value in snapshot[kind]:
                families[name].append((dict(labels), value))
            for name, samples in families.items():
                plain = name.removesuffix("_total")
                family = make(name, HELP.get(plain, ""), labels=list(samples[0][0]))
                for labels, value in samples:
                    family.add_metric(list(labels.values()), value)
                yield family
        name = "halfstep_request_latency_seconds"
        latencies = HistogramMetricFamily(name, HELP[name], labels=["command"])
        bounds = [f"{us / 1e6:g}" for us in snapshot["latency_bounds_us"]] + ["+Inf"]
        for histogram in snapshot["latencies"]:
            total, buckets = 0, []
            for bound, count in zip(bounds, histogram["counts"], strict=True):
                total += count
                buckets.append((bound, float(total)))
            latencies.add_metric([histogram["command"]], buckets, sum_value=histogram["sum_us"] / 1e6)
        yield latencies


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of "host:port" or "[v6]:port"; ":port" is every interface. Errors: ConfigError."""
    host, colon, port = text.rpartition(":")
    if not colon or re.fullmatch("[0-9]{1,5}", port) is None or int(port) > 65535:
        raise ConfigError(f"metrics={text!r}: write host:port, for example 127.0.0.1:9350")
    try:
        host.encode("idna")  # as whoever looks it up will
    except UnicodeError:
        raise ConfigError(f"metrics={text!r}: {host} is no host's name; write host:port, for example 127.0.0.1:9350") from None
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104 -- an empty host asks for it


def address_text(host: str, port: int) -> str:
    """As it stands in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _check_reach(address: str, bound: str, *, beyond_loopback: bool) -> None:
    """bound: the numeric address that `address` came to. Errors: ConfigError."""
    if not beyond_loopback and not ipaddress.ip_address(bound).is_loopback:
        raise ConfigError(
            f"metrics={address}: anybody who reaches it could read all numbers and the names of namespaces, since nobody is "
            "authenticated; listen on 127.0.0.1, or allow it with --insecure-listen"
        )


def check_address(address: str, *, beyond_loopback: bool = False) -> None:
    """What is quick to find wrong, before a large file is allocated. Errors: ConfigError."""
    host, port = parse_address(address)
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        _check_reach(address, str(where[0]), beyond_loopback=beyond_loopback)
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
    except OSError as error:
        raise ConfigError(f"metrics={address}: {error.strerror}; choose another address with --metrics") from None


def serve_metrics(address: str, snapshot: Snapshot, *, beyond_loopback: bool = False) -> tuple[Callable[[], None], str]:
    """Serves /metrics on a thread of its own. Returns a function that ends it, and the address with its real port.

    Errors: ConfigError when the address is taken, or beyond loopback though that is not allowed; when no thread is to be
    had, or the `daemon` extra is not installed.
    """
    try:
        from prometheus_client import CollectorRegistry
        from prometheus_client.exposition import choose_encoder
    except ModuleNotFoundError as error:
        raise ConfigError(
            "metrics: prometheus-client is not installed; in the checkout of Halfstep: pip install '.[cli]'"
        ) from error
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ServerCollector(snapshot))

    def render(accept: str) -> tuple[str, bytes]:
        encode, kind = choose_encoder(accept)
        return kind, encode(registry)

    host, port = parse_address(address)
    try:
        server = MetricsServer(host, port, render)
    except OSError as error:
        raise ConfigError(f"metrics={address}: {error.strerror}; choose another address with --metrics") from error
    try:
        # Again, of what it came to: a name may have led elsewhere since it was checked.
        _check_reach(address, server.host, beyond_loopback=beyond_loopback)
        server.begin()
    except ConfigError:
        server.end()
        raise
    except RuntimeError as error:
        server.end()
        raise ConfigError(f"metrics={address}: {error}; raise the limit of processes (ulimit -u, TasksMax=)") from error
    return server.end, address_text(host, server.port)
