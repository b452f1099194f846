"""Starting, watching and ending a daemon: what `halfstep serve` does once its flags are read.

The main thread only waits for signals; the shard's threads are native and never take the interpreter's lock.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from halfstep import _shard
from halfstep.daemon.config import ServeConfig, format_bytes, temporary_directory
from halfstep.daemon.metrics import check_address, serve_metrics
from halfstep.daemon.notify import notify
from halfstep.daemon.refusals import error_of
from halfstep.daemon.report import lines, recovered
from halfstep.daemon.signals import StopSignals
from halfstep.errors import ConfigError, DeviceError

# How often the main thread looks whether a shard has stopped by itself.
WATCH_S = 0.5
EXIT_INTERRUPTED = 130


def start(config: ServeConfig, progress: Callable[[str, int, int], bool] | None = None) -> _shard.Server:
    """Opens or makes the store and serves it. `config` is validated.

    Errors: ConfigError (a value, no space, a busy port), Unavailable (a locked store), DeviceError (the disk): whole sentences.
    """
    try:
        # Before its directories are made: below a link to a drive that is away, or below /dev, there are to be none.
        _shard.look_at_place(os.fsencode(config.store))
        _make_directories(config)
        return _shard.Server(_native(config), progress)
    except _shard.StartError as error:
        raise error_of(error, config.store) from None


def _native(config: ServeConfig) -> _shard.Config:
    native = _shard.Config()
    native.store_path = str(config.store)
    # A blank device may become a store, and then a size that was asked for has to be its own.
    found = config.store.exists() and not config.store.is_block_device()
    native.store_bytes = 0 if found else config.size_bytes
    native.segment_bytes = config.segment_bytes
    native.shards = config.shards
    native.cores = config.cores
    native.numa_auto = config.numa is None
    native.numa_nodes = config.numa or ()
    native.arena_bytes = config.arena_bytes
    native.index_bytes = config.index_bytes
    native.huge_pages = config.huge_pages
    native.allow_buffered = not config.require_direct
    native.engine = config.engine
    native.queue_depth = config.queue_depth
    native.latency_goal_us = config.latency_goal_us
    native.listen = config.addresses
    native.insecure_listen = config.insecure_listen
    native.shm_ring_bytes = config.shm_ring_bytes
    native.zero_copy = config.zero_copy
    native.connections_max = config.connections_max
    native.policy = config.eviction
    native.rewrite_share = config.rewrite_share
    native.rewrite_bytes_per_day = config.daily_writes_bytes
    native.discard_bytes_per_s = config.discard_rate_bytes
    native.scrub_bytes_per_s = _shard.SCRUB_AUTO if config.scrub_bytes_per_s is None else config.scrub_bytes_per_s
    return native


def _make_directories(config: ServeConfig) -> None:
    sockets = [Path(address.removeprefix("unix:")) for address in config.addresses if address.startswith("unix:")]
    for name, path, mode in (("store", config.store, 0o700), *(("unix", path, 0o755) for path in sockets)):
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=mode)
            owner = path.parent.stat().st_uid
        except FileExistsError as error:
            raise ConfigError(f"{name}={path}: {error.filename} is no directory; choose another path") from None
        except OSError as error:
            raise ConfigError(f"{name}={path}: {error.filename}: {error.strerror}; choose another path") from None
        if path.parent == temporary_directory() and owner != os.getuid():
            raise ConfigError(
                f"{name}={path}: {path.parent} belongs to uid {owner}, who could answer our clients; "
                "remove it or choose another path"
            )


def run(config: ServeConfig, *, as_json: bool = False, out: TextIO = sys.stdout) -> int:
    """Serves until SIGTERM or SIGINT; returns the process's exit status. Further signals change nothing: only SIGKILL does."""
    with StopSignals() as stop:
        try:
            config = config.validated()
            if config.metrics:
                check_address(config.metrics)
            server = start(config, _progress(stop, as_json=as_json, out=out))
            return _serve(server, config, stop, as_json=as_json, out=out)
        except KeyboardInterrupt:
            if not as_json:
                print("stopped before the store was ready; nothing was left behind", file=out, flush=True)
            return EXIT_INTERRUPTED


def _serve(server: _shard.Server, config: ServeConfig, stop: StopSignals, *, as_json: bool, out: TextIO) -> int:
    end_metrics: Callable[[], None] | None = None
    flushed = False
    try:
        facts = server.facts()
        facts["recovery"]["notes"] += _without_effect(config, facts)
        if config.metrics:
            end_metrics, facts["metrics"] = serve_metrics(config.metrics, server.metrics)
        _say_started(facts, as_json=as_json, out=out)
        serving, recovering = f"serving {', '.join(facts['listening'])}", facts["recovery"]["segments_left"] > 0
        notify(READY="1", STATUS=f"{serving}, still recovering" if recovering else serving)
        while not stop.wait(WATCH_S):
            if why := server.why_stopped():
                raise DeviceError(f"a shard stopped by itself: {why}")
            if recovering and (told := recovered(server.metrics())):
                recovering = False
                notify(STATUS=serving)
                if not as_json:
                    print(told, file=out, flush=True)
        notify(STOPPING="1")
        if not as_json:
            print(f"stopping   {stop.received[0].name}: sealing and flushing", file=out, flush=True)
    finally:
        if end_metrics is not None:
            end_metrics()
        flushed = server.stop(config.stop_grace_ms)
    if not flushed:
        raise DeviceError(
            f"{config.store}: {server.why_stopped()}; blocks that were put with durability=cache may be lost; "
            "look at `halfstep fsck` and at the device"
        )
    if not as_json:
        print("stopped    clean: everything acknowledged is on media", file=out, flush=True)
    return 0


def _without_effect(config: ServeConfig, facts: Mapping[str, Any]) -> Iterator[str]:
    """What was asked of a new store, and the one that is there has otherwise."""
    if facts["created"]:
        return
    kept = facts["geometry"]
    # A size is cut to whole segments when a store is made.
    asked = (
        ("size", config.size_bytes, kept["device_bytes"], kept["segment_bytes"]),
        ("segment", config.segment_bytes, kept["segment_bytes"], 1),
    )
    for name, wanted, has, tolerance in asked:
        if wanted and abs(wanted - has) >= tolerance:
            yield f"--{name} {format_bytes(wanted)} has no effect: the store was made with {format_bytes(has)}, for good"


def _say_started(facts: dict[str, Any], *, as_json: bool, out: TextIO) -> None:
    if as_json:
        print(json.dumps(facts, default=_plain), file=out, flush=True)
        return
    print(f"halfstep {_shard.build_info()['version']} serving; stop with Ctrl-C or SIGTERM", file=out)
    for line in lines(facts):
        print(line, file=out)
    if metrics := facts.get("metrics"):
        print(f"metrics    http://{metrics}/metrics", file=out)
    out.flush()


def _plain(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _progress(stop: StopSignals, *, as_json: bool, out: TextIO) -> Callable[[str, int, int], bool]:
    """Says each step once, and how far a long one is at every tenth; False as soon as a signal came."""
    said: dict[str, int] = {}

    def progress(step: str, done: int, total: int) -> bool:
        tenth = 10 if total == 0 else done * 10 // total
        if said.get(step) != tenth:
            said[step] = tenth
            if not as_json:
                how_far = f": {format_bytes(done)} of {format_bytes(total)}" if total else ""
                print(f"{step}{how_far}", file=out, flush=True)
            notify(STATUS=step, EXTEND_TIMEOUT_USEC="30000000")
        return not stop.received

    return progress
