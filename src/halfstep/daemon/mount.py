"""Start, watch and end a mount: `halfstep mount` after its options are read.

The main thread only waits for signals; all other threads are native and never take the interpreter's lock.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any, TextIO

from halfstep import _shard
from halfstep.daemon.log import Log
from halfstep.daemon.metrics import check_address, serve_metrics
from halfstep.daemon.mount_config import MountConfig
from halfstep.daemon.notify import notify
from halfstep.daemon.refusals import error_of
from halfstep.daemon.report import pages_of, placed_on
from halfstep.daemon.serve import EXIT_INTERRUPTED, WATCH_S, make_directories, sockets_of
from halfstep.daemon.signals import StopSignals
from halfstep.daemon.units import format_bytes, format_micros
from halfstep.errors import DeviceError


def start(config: MountConfig) -> _shard.Server:
    """Serves what the upstream has, also while that is away. `config` is validated.

    Errors: ConfigError (a value, a busy port, a namespace that is refused), Unavailable, DeviceError: whole sentences.
    """
    make_directories(*sockets_of(config.addresses))
    try:
        return _shard.Server(_native(config), mount=_upstream(config))
    except _shard.StartError as error:
        raise error_of(error) from None


def _native(config: MountConfig) -> _shard.Config:
    native = _shard.Config()
    native.arena_bytes = config.memory_bytes
    native.shards = config.shards
    native.huge_pages = config.huge_pages
    native.numa_auto = config.numa is None
    native.numa_nodes = config.numa or ()
    native.listen = [os.fsencode(address) for address in config.addresses]
    native.insecure_listen = config.insecure_listen
    native.connections_max = config.connections_max
    native.shm_ring_bytes = config.shm_ring_bytes
    native.shm_memory_bytes = config.shm_memory_bytes
    return native


def _upstream(config: MountConfig) -> _shard.MountOptions:
    options = _shard.MountOptions()
    options.upstream = os.fsencode(config.upstream)
    options.namespaces = list(config.namespaces)
    options.max_age_us = config.max_age_us
    options.connections = config.upstream_connections
    options.upstream_deadline_us = config.upstream_deadline_us
    return options


def run(config: MountConfig, *, as_json: bool = False, out: TextIO | None = None) -> int:
    """Serves until SIGTERM or SIGINT; returns the process's exit status. out: where the lines go, stdout if left out."""
    with StopSignals() as stop:
        out = sys.stdout if out is None else out
        try:
            config = config.validated()
            if config.metrics:
                check_address(config.metrics, beyond_loopback=config.insecure_listen)
            return _serve(start(config), config, stop, as_json=as_json, out=out)
        except KeyboardInterrupt:
            return EXIT_INTERRUPTED


def _serve(server: _shard.Server, config: MountConfig, stop: StopSignals, *, as_json: bool, out: TextIO) -> int:
    # With --json stdout has one line, the first.
    first, log = Log(out), Log(sys.stderr if as_json else out)
    with ExitStack() as ends:
        ends.callback(server.stop, config.stop_grace_ms)
        facts = server.facts() | {"upstream": config.upstream, "namespaces": list(config.namespaces)}
        if config.metrics:
            end_metrics, facts["metrics"] = serve_metrics(
                config.metrics, server.metrics, beyond_loopback=config.insecure_listen
            )
            ends.callback(end_metrics)
        if as_json:
            first.say(json.dumps(facts, default=lambda value: value.hex() if isinstance(value, bytes) else str(value)))
        else:
            for line in lines(facts, config):
                first.say(line)
        notify(READY="1", STATUS=f"mounting {config.upstream}")
        while not stop.wait(WATCH_S):
            if why := server.why_stopped():
                raise DeviceError(f"the mount stopped by itself: {why}")
        notify(STOPPING="1")
        if not as_json:
            log.say(f"stopping   {stop.received[0].name}: passing on what was put")
    if not as_json:
        log.say("stopped    clean: what the upstream took is there")
    return 0


def lines(facts: Mapping[str, Any], config: MountConfig) -> Iterator[str]:
    """One line per thing that an operator would ask for."""
    shards = facts["shards"]
    yield f"halfstep {_shard.build_info()['version']} mounting {config.upstream}; stop with Ctrl-C or SIGTERM"
    yield f"namespaces {', '.join(config.namespaces)}"
    yield f"memory     {format_bytes(facts['arena']['bytes'])} {pages_of(facts['arena'])}"
    for place in dict.fromkeys(placed_on(shard["memory"]) for shard in shards):
        yield f"numa       {place}"
    yield f"blocks     up to {format_bytes(facts['geometry']['block_bytes_max'])}"
    yield f"max age    {format_micros(config.max_age_us)}: a delete made elsewhere holds here by then"
    if len(shards) > 1:
        yield f"shards     {len(shards)}, each with its share of the memory"
    for address in (address for shard in shards for address in shard["listening"]):
        yield f"listening  {address}"
    if metrics := facts.get("metrics"):
        yield f"metrics    http://{metrics}/metrics"
