"""Start, watch and end a daemon: `halfstep serve` after its options are read.

The main thread only waits for signals; the shard's threads are native and never take the interpreter's lock.
"""

from __future__ import annotations

import json
import mmap
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

from halfstep import _shard
from halfstep.daemon.config import ServeConfig, is_path, temporary_directory
from halfstep.daemon.log import Log
from halfstep.daemon.metrics import check_address, serve_metrics
from halfstep.daemon.notify import notify
from halfstep.daemon.refusals import error_of
from halfstep.daemon.report import lines
from halfstep.daemon.served_file import ServedFile
from halfstep.daemon.signals import StopSignals
from halfstep.daemon.spdk import Keeper, ready_target
from halfstep.daemon.units import MIB, format_bytes
from halfstep.daemon.watch import Watch
from halfstep.errors import ConfigError, DeviceError
from halfstep.io.spdk.target import Target

# How often the main thread looks whether a shard has stopped by itself.
WATCH_S = 0.5
EXIT_INTERRUPTED = 130
# Addresses beside arena and index: threads' stacks, what the C library keeps for each, buffers of connections.
BESIDE_ARENA_BYTES, BESIDE_SHARD_BYTES = 48 * MIB, 16 * MIB
# While a start goes on, systemd hears of it so often, and waits for so long after the last word (sd_notify(3)).
TELL_EVERY_S, EXTEND_S = 5.0, 60


def start(config: ServeConfig, progress: Callable[[str, int, int], bool] | None = None) -> _shard.Server:
    """Opens or makes the store and serves it. `config` is validated.

    Errors: ConfigError (a value, no space, a busy port), Unavailable (a locked store), DeviceError (the disk): whole sentences.
    """
    _check_room(config)
    try:
        # Before its directories are made: below a link to a drive that is away, or below /dev, there are to be none.
        if is_path(config.store):
            _shard.look_at_place(os.fsencode(config.store))
        _make_directories(config)
        return _shard.Server(native_config(config), progress)
    except _shard.StartError as error:
        raise error_of(error, config.store) from None


def _check_room(config: ServeConfig) -> None:
    """Under a limit of addresses a daemon that just fits ends by a signal when it needs a little more. Errors: ConfigError."""
    limit_bytes, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit_bytes == resource.RLIM_INFINITY:
        return
    wanted = config.arena_bytes + config.index_bytes + BESIDE_ARENA_BYTES + max(config.shards, 1) * BESIDE_SHARD_BYTES
    try:
        mmap.mmap(-1, wanted, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ).close()
    except OSError:
        raise ConfigError(
            f"arena={format_bytes(config.arena_bytes)}: with all that belongs to it, {format_bytes(wanted)} of memory; the "
            f"process's limit (ulimit -v), {format_bytes(limit_bytes)}, leaves less; raise it, or lower --arena and --index"
        ) from None


def native_config(config: ServeConfig) -> _shard.Config:
    """As the core takes it."""
    native = _shard.Config()
    native.store_path = os.fsencode(config.store)
    # A blank device may become a store, and then a size that was asked for has to be its own.
    found = config.store.exists() and not config.store.is_block_device() and not config.store.is_char_device()
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
    native.polled = config.completions == "polled"
    native.queue_depth = config.queue_depth
    native.latency_goal_us = config.latency_goal_us
    native.listen = [os.fsencode(address) for address in config.addresses]
    native.insecure_listen = config.insecure_listen
    native.shm_ring_bytes = config.shm_ring_bytes
    native.shm_memory_bytes = config.shm_memory_bytes
    native.decode_bytes = config.decode_bytes
    native.zero_copy = config.zero_copy
    native.rdma = config.rdma
    native.rdma_memory_bytes = config.rdma_memory_bytes
    native.connections_max = config.connections_max
    native.policy = config.eviction.encode("ascii", "backslashreplace").decode()  # what is no name is refused as it was typed
    native.rewrite_share = config.rewrite_share
    native.rewrite_bytes_per_day = config.daily_writes_bytes
    native.discard_bytes_per_s = config.discard_rate_bytes
    native.scrub_bytes_per_s = _shard.SCRUB_AUTO if config.scrub_bytes_per_s is None else config.scrub_bytes_per_s
    return native


def _make_directories(config: ServeConfig) -> None:
    store = [("store", config.store, 0o700)] if is_path(config.store) else []
    make_directories(*store, *sockets_of(config.addresses))


def sockets_of(addresses: Sequence[str]) -> list[tuple[str, Path, int]]:
    """For make_directories(): those of the unix sockets among the addresses."""
    return [("unix", Path(one.removeprefix("unix:")), 0o755) for one in addresses if one.startswith("unix:")]


def make_directories(*places: tuple[str, Path, int]) -> None:
    """Makes what files are to lie in: of each the setting, the file's path, and a new directory's mode. Errors: ConfigError."""
    for name, path, mode in places:
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=mode)
            owner = path.parent.stat().st_uid
        except FileExistsError as error:
            raise ConfigError(f"{name}={path}: {error.filename} is no directory; choose another path") from None
        except OSError as error:
            raise ConfigError(f"{name}={path}: {error.filename}: {error.strerror}; choose another path") from None
        if _is_temporary(path.parent) and owner != os.getuid():
            raise ConfigError(
                f"{name}={path}: {path.parent} belongs to uid {owner}, who could answer our clients; "
                "remove it or choose another path"
            )


def _is_temporary(directory: Path) -> bool:
    try:
        return directory == temporary_directory()
    except ConfigError:  # there is none
        return False


def run(config: ServeConfig, *, as_json: bool = False, out: TextIO | None = None) -> int:
    """Serves until SIGTERM or SIGINT; returns the process's exit status. Further signals change nothing: only SIGKILL does.

    out: where the lines go, stdout if left out. What it does not take is lost, and serving goes on.
    """
    with StopSignals() as stop:
        out = sys.stdout if out is None else out
        try:
            config = config.validated()
            if config.metrics:
                check_address(config.metrics, beyond_loopback=config.insecure_listen)
            target = ready_target(config)
            server = start(config, _progress(stop, None if as_json else Log(out)))
            return _serve(server, config, stop, target, as_json=as_json, out=out)
        except KeyboardInterrupt:
            if not as_json:
                Log(out).say("stopped before the store was ready; nothing was left behind")
            return EXIT_INTERRUPTED


def _serve(
    server: _shard.Server, config: ServeConfig, stop: StopSignals, target: Target | None, *, as_json: bool, out: TextIO
) -> int:
    # With --json stdout has one line, the first.
    first, log = Log(out), Log(sys.stderr if as_json else out)
    flushed = False

    def end() -> None:
        nonlocal flushed
        flushed = server.stop(config.stop_grace_ms)

    def when_recovered(told: str) -> None:
        notify(STATUS=serving)
        if not as_json:
            log.say(told)

    with ExitStack() as ends:
        ends.callback(end)
        file = ServedFile(config.store)
        ends.callback(file.close)
        facts = server.facts()
        facts["recovery"]["notes"] = [*_notes(config, facts), *facts["recovery"]["notes"]]
        keeper = None if target is None else Keeper(target, log)
        if config.metrics:
            snapshot = server.metrics if keeper is None else keeper.beside(server.metrics)
            end_metrics, facts["metrics"] = serve_metrics(config.metrics, snapshot, beyond_loopback=config.insecure_listen)
            ends.callback(end_metrics)
        _say_started(facts, first, as_json=as_json)
        serving, recovering = f"serving {', '.join(facts['listening'])}", facts["recovery"]["segments_left"] > 0
        watch = Watch(server, file, log, recovering=recovering, when_recovered=when_recovered)
        ends.callback(watch.end)
        watch.begin()
        if keeper is not None:
            ends.callback(keeper.end)
            keeper.begin()
        notify(READY="1", STATUS=f"{serving}, still recovering" if recovering else serving)
        _wait(server, stop, watch, log)
        notify(STOPPING="1")
        if not as_json:
            log.say(f"stopping   {stop.received[0].name}: sealing and flushing")
        gone = file.why_gone()
    if not flushed:
        raise DeviceError(
            f"{config.store}: {server.why_stopped()}; blocks that were put with durability=cache may be lost; "
            "look at `halfstep fsck` and at the device"
        )
    if gone:
        raise DeviceError(f"{gone} while it was served: what was in it is not at its path for the next start")
    if not as_json:
        log.say("stopped    clean: everything acknowledged is on media")
    return 0


def _wait(server: _shard.Server, stop: StopSignals, watch: Watch, log: Log) -> None:
    """Until a signal asks for the end. Errors: DeviceError when a shard ended by itself."""
    hangups = 0
    while not stop.wait(WATCH_S):
        if why := server.why_stopped():
            raise DeviceError(f"a shard stopped by itself: {why}")
        watch.look()
        if stop.hangups > hangups:
            hangups = stop.hangups
            log.say("note       SIGHUP changes nothing: settings are those of the start, and a closed terminal ends no daemon")


def _notes(config: ServeConfig, facts: Mapping[str, Any]) -> Iterator[str]:
    """What is not as it was made, or as it was asked for."""
    if facts["created"]:
        return
    kept, backing = facts["geometry"], facts["backing"]
    if backing["bytes"] < kept["device_bytes"]:
        there, whole = format_bytes(backing["bytes"]), format_bytes(kept["device_bytes"])
        yield f"{backing['path']} was cut: {there} of the store's {whole} are there, and what lay behind is gone"
    # A size is cut to whole segments when a store is made.
    asked = (
        ("size", config.size_bytes, kept["device_bytes"], kept["segment_bytes"]),
        ("segment", config.segment_bytes, kept["segment_bytes"], 1),
    )
    for name, wanted, has, tolerance in asked:
        if wanted and abs(wanted - has) >= tolerance:
            yield f"--{name} {format_bytes(wanted)} has no effect: the store was made with {format_bytes(has)}, for good"


def _say_started(facts: dict[str, Any], log: Log, *, as_json: bool) -> None:
    if as_json:
        log.say(json.dumps(facts, default=_plain))
        return
    log.say(f"halfstep {_shard.build_info()['version']} serving; stop with Ctrl-C or SIGTERM")
    for line in lines(facts):
        log.say(line)
    if metrics := facts.get("metrics"):
        log.say(f"metrics    http://{metrics}/metrics")


def _plain(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def _progress(
    stop: StopSignals, log: Log | None, clock: Callable[[], float] = time.monotonic
) -> Callable[[str, int, int], bool]:
    """Says each step once, and how far a long one is at every tenth; False as soon as a signal came.

    systemd hears of it at the same times, and every TELL_EVERY_S besides: else it would end a start that takes its time.
    """
    said: dict[str, int] = {}
    told_s = clock()

    def progress(step: str, done: int, total: int) -> bool:
        nonlocal told_s
        tenth = 10 if total == 0 else done * 10 // total
        news = said.get(step) != tenth
        how_far = f": {format_bytes(done)} of {format_bytes(total)}" if total else ""
        if news:
            said[step] = tenth
            if log is not None:
                log.say(f"{step}{how_far}")
        if news or clock() - told_s >= TELL_EVERY_S:
            told_s = clock()
            notify(STATUS=f"{step}{how_far}", EXTEND_TIMEOUT_USEC=str(EXTEND_S * 1_000_000))
        return not stop.received

    return progress
