#!/usr/bin/env python3
"""Question: do many clients share a daemon fairly, and can those that do not read, or do nothing, take its memory?

Three parts, each with a daemon of its own and 32 MiB of memory for blocks:

stalled  256 connections: 192 clients that get over and over, 32 connections that ask for 64 gets and never read, 32 that read
         at 64 KiB/s; in turns with the 192 alone. Its memory for blocks all in use before, the daemon grows by at most 64 KiB a
         connection; each good one has at least 0.9 of a fair share, and all together at least 0.9 of what they have alone.
         The good ones are one thread of a program (halfstep_crowd_bench; `make native` makes it).
idle     4,096 connections that said hello and nothing since: at most 16 KiB of the daemon's memory for each.
flood    64 clients whose concurrent gets together take 16 times the memory for blocks: all finish, every byte right.

A stalled or idle connection is a plain socket that sends what a real client has sent, with its own client id. Exit status 1 on
a miss.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import selectors
import socket
import statistics
import struct
import sys
import threading
import time
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from script import add_programs, built, header, positive, run, run_seconds, said_by

import halfstep
from halfstep.daemon.units import KIB, MIB, format_bytes
from halfstep.tools.bench.content import Content
from halfstep.tools.bench.machine import cpu_seconds
from halfstep.tools.bench.place import cores, own_daemon, pinned
from halfstep.tools.bench.workload import DEADLINE_MS, GetLane, Outcome, endless, populate, verify
from halfstep.tools.daemon_process import DaemonProcess

CROWD_PROGRAM = "halfstep_crowd_bench"
GOOD, STALLED, SLOW, IDLE, FLOOD = 192, 32, 32, 4096, 64
ARENA_BYTES = 32 * MIB
BLOCK_BYTES, BATCH = 64 * KIB, 4
HOT_BLOCKS = 128
# Going through these touches all of the memory for blocks.
MEMORY_BLOCKS = 1024
# More than a socket's buffers hold, of which a sender's may be 4 MiB: what is less the kernel takes, and nothing waits at the
# daemon for those that do not read.
GETS_OF_BAD = 64
SLOW_BYTES_PER_S, SLOW_TICK_S = 64 * KIB, 0.25
FLOOD_BATCH, FLOOD_DEPTH, FLOOD_TIMES = 64, 2, 16
FLOOD_BLOCKS = 2048
SHARE_MIN = 0.9
CONNECTION_BYTES_MAX, IDLE_BYTES_MAX = 64 * KIB, 16 * KIB
FLOOD_S = 120.0
START_S = 30.0
SETTLE_S = 0.5
LAYOUT = halfstep.Layout.opaque("bench/many-clients")
# docs/wire-protocol.md, sections 1 and 2.
HEADER_BYTES, HELLO_CLIENT_ID = 32, 32 + 8 + 16
HELLO, GET = 1, 4
assert MEMORY_BLOCKS * BLOCK_BYTES >= 2 * ARENA_BYTES
assert FLOOD * FLOOD_DEPTH * FLOOD_BATCH * BLOCK_BYTES == FLOOD_TIMES * ARENA_BYTES


def crc32c(data: bytes | bytearray) -> int:
    """Of a few bytes."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def sealed(frame: bytearray) -> bytes:
    """A frame whose header or body was changed, its checksums made good."""
    struct.pack_into("<I", frame, 24, crc32c(frame[HEADER_BYTES:]))
    struct.pack_into("<I", frame, 28, crc32c(frame[:28]))
    return bytes(frame)


def frames_of(said: bytes) -> list[bytes]:
    """What a client said, frame by frame; it sent no payload."""
    frames = []
    while len(said) >= HEADER_BYTES:
        length = HEADER_BYTES + struct.unpack_from("<I", said, 16)[0]
        frames.append(said[:length])
        said = said[length:]
    return frames


class Recording:
    """What a real client says in a session with one get."""

    def __init__(self, daemon: DaemonProcess, content: Content) -> None:
        self._said = bytearray()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            relay = threading.Thread(target=self._relay, args=(listener, daemon.address))
            relay.start()
            url = f"halfstep://127.0.0.1:{listener.getsockname()[1]}"
            with halfstep.connect(url, layout=LAYOUT, required=True, deadline_ms=DEADLINE_MS, mode="on") as client:
                target = np.zeros((BATCH, content.words), np.uint64)
                got = client.get(content.keys(content.numbers(0, BATCH)), target, deadline_ms=DEADLINE_MS)
                if not got.ok.all():
                    raise SystemExit(f"the client to be recorded got {got!r}")
            relay.join()
        self._frames = frames_of(bytes(self._said))
        if self._frames[0][4] != HELLO or not any(frame[4] == GET for frame in self._frames):
            raise SystemExit(f"no hello and get in what a client said: opcodes {[frame[4] for frame in self._frames]}")

    def hello(self, client_id: int) -> bytes:
        """As another client."""
        frame = bytearray(self._frames[0])
        struct.pack_into("<Q", frame, HELLO_CLIENT_ID, client_id)
        return sealed(frame)

    def session(self, client_id: int, gets: int) -> bytes:
        """Hello, what comes before the get, and the get so many times."""
        at = next(number for number, frame in enumerate(self._frames) if frame[4] == GET)
        said = [self.hello(client_id), *self._frames[1:at]]
        for number in range(gets):
            frame = bytearray(self._frames[at])
            struct.pack_into("<Q", frame, 8, struct.unpack_from("<Q", frame, 8)[0] + number)
            said.append(sealed(frame))
        return b"".join(said)

    def _relay(self, listener: socket.socket, address: tuple[str, int]) -> None:
        """One connection, until either end closes it."""
        near, _ = listener.accept()
        with near, socket.create_connection(address) as far, selectors.DefaultSelector() as selector:
            for one, other in ((near, far), (far, near)):
                selector.register(one, selectors.EVENT_READ, other)
            while True:
                for key, _ in selector.select():
                    assert isinstance(key.fileobj, socket.socket)
                    data = key.fileobj.recv(1 << 20)
                    if not data:
                        return
                    if key.fileobj is near:
                        self._said += data
                    key.data.sendall(data)


def resident_bytes(pid: int, what: str = "VmRSS") -> int:
    """Now, or with VmHWM the most since clear_peak()."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) * KIB
    raise SystemExit(f"the daemon (process {pid}) has no {what}: it has ended")


def clear_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def daemon_of(directory: Path, core: int | None) -> AbstractContextManager[DaemonProcess]:
    """Empty, with little memory."""
    return own_daemon("--size", "1GiB", "--arena", str(ARENA_BYTES), directory=directory, core=core)


def connected(daemon: DaemonProcess) -> halfstep.Client:
    terms: dict[str, Any] = {"layout": LAYOUT, "required": True, "deadline_ms": FLOOD_S * 1000, "mode": "on"}
    return halfstep.connect(daemon.url, **terms)


class Crowd:
    """Clients that keep `depth` gets each at the daemon, all from this thread."""

    def __init__(self, clients: list[halfstep.Client], content: Content, blocks: int, batch: int, depth: int) -> None:
        self._queues = [client.queue() for client in clients]
        rngs = [np.random.default_rng(number) for number in range(len(clients))]
        self._lanes = [
            [GetLane(content, endless(content, blocks, batch, rng), batch, rng) for _ in range(depth)] for rng in rngs
        ]

    def run(self, gets_each: int) -> tuple[float, Outcome]:
        """(seconds, what came): so many gets of each lane, however long they take."""
        outcome = Outcome()
        running: dict[Any, tuple[GetLane, int]] = {}
        with selectors.DefaultSelector() as selector:
            for number, queue in enumerate(self._queues):
                selector.register(queue.fileno(), selectors.EVENT_READ, number)
            started = time.perf_counter()

            def submit(number: int, lane: GetLane, left: int) -> None:
                lane.prepare()
                running[lane.submit(self._queues[number])] = lane, left

            for number, lanes in enumerate(self._lanes):
                for lane in lanes:
                    submit(number, lane, gets_each - 1)
            while running:
                if time.perf_counter() > started + 2 * FLOOD_S:
                    raise SystemExit(f"{len(running)} gets did not end within {2 * FLOOD_S:.0f} s")
                for key, _ in selector.select(1.0):
                    number = key.data
                    for event in self._queues[number].poll():
                        if not event.done:
                            continue
                        lane, left = running.pop(event.ticket)
                        outcome.add(lane.check(event.ticket.result()))
                        if left > 0:
                            submit(number, lane, left - 1)
        return time.perf_counter() - started, outcome

    def close(self) -> None:
        for queue in self._queues:
            queue.close()


class Bad:
    """Connections that ask and do not read, and such that read slowly."""

    def __init__(self, daemon: DaemonProcess, recording: Recording) -> None:
        self._sockets = [socket.create_connection(daemon.address, START_S) for _ in range(STALLED + SLOW)]
        self._ended = threading.Event()
        self.read_bytes = 0
        for number, one in enumerate(self._sockets):
            one.sendall(recording.session(1 + number, GETS_OF_BAD))
            one.setblocking(False)
        self._reader = threading.Thread(target=self._read_slowly)
        self._reader.start()

    def _read_slowly(self) -> None:
        while not self._ended.wait(SLOW_TICK_S):
            for one in self._sockets[STALLED:]:
                try:
                    self.read_bytes += len(one.recv(int(SLOW_BYTES_PER_S * SLOW_TICK_S)))
                except (BlockingIOError, ConnectionError):
                    continue

    def close(self) -> int:
        """How many of them the daemon had not ended."""
        self._ended.set()
        self._reader.join()
        still_there = sum(is_open(one) for one in self._sockets)
        for one in self._sockets:
            one.close()
        return still_there


def filled(daemon: DaemonProcess, content: Content, blocks: int) -> None:
    with connected(daemon) as client:
        populate(client, content, blocks)
        told = verify(client, content, content.numbers(0, blocks))
        if told.ok != blocks:
            raise SystemExit(f"{told.ok} of {blocks} blocks are there and right")


def stalled(directory: Path, core: int | None, program: Path, seconds: float, rounds: int) -> dict[str, Any]:
    content = Content(BLOCK_BYTES, seed=1)
    with daemon_of(directory, core) as daemon:
        filled(daemon, content, MEMORY_BLOCKS)
        recording = Recording(daemon, content)
        before = resident_bytes(daemon.pid)

        def good() -> dict[str, Any]:
            daemon_before = cpu_seconds(daemon.pid), time.monotonic()
            said = said_by(
                program,
                {
                    "address": ":".join(map(str, daemon.address)),
                    "clients": GOOD,
                    "bs": BLOCK_BYTES,
                    "batch": BATCH,
                    "size": HOT_BLOCKS * BLOCK_BYTES,
                    "runtime": max(1, round(seconds * 1000)),
                },
            )
            said["daemon_busy"] = (cpu_seconds(daemon.pid) - daemon_before[0]) / (time.monotonic() - daemon_before[1])
            return said

        alone: list[dict[str, Any]] = []
        beside: list[dict[str, Any]] = []
        growth: list[int] = []
        waiting: list[int] = []
        for _ in range(rounds):
            alone.append(good())
            clear_peak(daemon.pid)
            bad = Bad(daemon, recording)
            try:
                time.sleep(SETTLE_S)
                with connected(daemon) as client:
                    waiting.append(int(client.stat()["halfstep_requests_open"]))
                beside.append(good())
                growth.append(resident_bytes(daemon.pid, "VmHWM") - before)
            finally:
                still_there = bad.close()
            if bad.read_bytes == 0:
                raise SystemExit("the slow readers got nothing: what was recorded is no longer what the daemon takes")
            if waiting[-1] < STALLED + SLOW:
                raise SystemExit(
                    f"{waiting[-1]} gets wait at the daemon, and {STALLED + SLOW} clients are to have one each that does: the "
                    "kernel's buffers (tcp_wmem, tcp_rmem) hold what they asked for"
                )
            if still_there < STALLED + SLOW:
                raise SystemExit(
                    f"{STALLED + SLOW - still_there} of {STALLED + SLOW} connections that stall or read slowly were ended "
                    "before the others were done: the daemon waits 10 to 20 s for one that takes nothing; "
                    "give a shorter --runtime"
                )
    ratios = [one["bytes_per_s"] / other["bytes_per_s"] for one, other in zip(beside, alone, strict=True)]
    lowest = [lowest_share(one) for one in beside]
    bound = CONNECTION_BYTES_MAX * (GOOD + STALLED + SLOW)
    return {
        "connections": GOOD + STALLED + SLOW,
        "stalled": STALLED,
        "slow": SLOW,
        "gets_of_bad_waiting": waiting,
        "growth_bytes": max(growth),
        "growth_bytes_max": bound,
        "bytes_per_s_alone": [one["bytes_per_s"] for one in alone],
        "throughput_of_alone": ratios,
        "lowest_share": lowest,
        "lowest_share_alone": [lowest_share(one) for one in alone],
        "blocks_each": beside[-1]["blocks_each"],
        "share_min": SHARE_MIN,
        "p99_us": [one["latency_us"]["p99"] for one in beside],
        "slowest_us": [one["slowest_us"] for one in beside],
        "client_core_busy": [one["core_busy"] for one in beside],
        "daemon_core_busy": [one["daemon_busy"] for one in beside],
        "reached": max(growth) <= bound and statistics.median(ratios) >= SHARE_MIN and statistics.median(lowest) >= SHARE_MIN,
    }


def lowest_share(said: dict[str, Any]) -> float:
    """What came to the client that got least, of a fair share."""
    each: list[int] = said["blocks_each"]
    return min(each) / statistics.mean(each)


def is_open(one: socket.socket) -> bool:
    """Whether the other end has not ended it; reads what is there."""
    one.setblocking(False)
    try:
        while one.recv(64 * KIB):
            pass
    except BlockingIOError:
        return True
    except ConnectionError:
        pass
    return False


def idle(directory: Path, core: int | None) -> dict[str, Any]:
    content = Content(BLOCK_BYTES, seed=1)
    with daemon_of(directory, core) as daemon, ExitStack() as stack:
        filled(daemon, content, MEMORY_BLOCKS)
        recording = Recording(daemon, content)
        time.sleep(SETTLE_S)
        before = resident_bytes(daemon.pid)
        answers: set[int] = set()
        idlers = []
        for number in range(IDLE):
            one = stack.enter_context(socket.create_connection(daemon.address, START_S))
            one.sendall(recording.hello(1 + number))
            answers.update(one.recv(64 * KIB)[4:5])
            idlers.append(one)
        time.sleep(SETTLE_S)
        each = (resident_bytes(daemon.pid) - before) / IDLE
        still_open = sum(is_open(one) for one in idlers)
    if still_open < IDLE:
        raise SystemExit(f"{still_open} of {IDLE} idle connections are still there: what was measured is not theirs")
    if answers != {35}:
        raise SystemExit(f"hello was answered with opcodes {answers}, not with a Final (35)")
    return {"connections": IDLE, "bytes_each": each, "bytes_each_max": IDLE_BYTES_MAX, "reached": each <= IDLE_BYTES_MAX}


def flood(directory: Path, core: int | None) -> dict[str, Any]:
    content = Content(BLOCK_BYTES, seed=1)
    with daemon_of(directory, core) as daemon, ExitStack() as stack:
        filled(daemon, content, FLOOD_BLOCKS)
        before = resident_bytes(daemon.pid)
        clear_peak(daemon.pid)
        clients = [stack.enter_context(connected(daemon)) for _ in range(FLOOD)]
        crowd = Crowd(clients, content, FLOOD_BLOCKS, FLOOD_BATCH, FLOOD_DEPTH)
        stack.callback(crowd.close)
        seconds, outcome = crowd.run(gets_each=2)
        growth = resident_bytes(daemon.pid, "VmHWM") - before
    bound = CONNECTION_BYTES_MAX * FLOOD
    return {
        "gets_at_once": FLOOD * FLOOD_DEPTH,
        "times_the_memory": FLOOD_TIMES,
        "blocks": outcome.blocks,
        "blocks_right": outcome.ok,
        "answers_not_ok": outcome.reasons,
        "growth_bytes": growth,
        "growth_bytes_max": bound,
        "seconds": seconds,
        "reached": outcome.ok == outcome.blocks and growth <= bound,
    }


def line(name: str, told: dict[str, Any]) -> str:
    grew = ""
    if "growth_bytes" in told:
        grew = f"grew by {told['growth_bytes'] / MIB:.1f} MiB (at most {format_bytes(told['growth_bytes_max'])})"
    if name == "stalled":
        said = (
            f"{told['connections']} connections, {told['stalled']} stalled, {told['slow']} slow, for whom "
            f"{min(told['gets_of_bad_waiting'])} gets wait: the daemon {grew}; "
            f"the good ones have {statistics.median(told['throughput_of_alone']):.2f} of what they have alone, the last "
            f"of them {statistics.median(told['lowest_share']):.2f} of a fair share (at least {SHARE_MIN}; alone "
            f"{statistics.median(told['lowest_share_alone']):.2f}); slowest get {max(told['slowest_us']) / 1e3:,.0f} ms; the "
            f"good ones took {statistics.median(told['client_core_busy']):.2f} of their core, the daemon "
            f"{statistics.median(told['daemon_core_busy']):.2f} of its own"
        )
    elif name == "idle":
        said = f"{told['connections']} connections: {told['bytes_each'] / KIB:.1f} KiB each (at most {IDLE_BYTES_MAX // KIB})"
    else:
        said = (
            f"{told['gets_at_once']} gets at once, {told['times_the_memory']} times the memory: {told['blocks_right']} of "
            f"{told['blocks']} blocks right in {told['seconds']:.1f} s, "
            f"{told['answers_not_ok'] or 'no other answer'}; the daemon {grew}"
        )
    return f"{name}: {said}: {'reached' if told['reached'] else 'MISSED'}"


def raise_descriptors(needed: int) -> None:
    """For the daemon, too: it inherits the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, needed))
        except (OSError, ValueError):
            raise SystemExit(f"RLIMIT_NOFILE={hard}: {needed} are needed; raise it with ulimit -Hn {needed}") from None
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed if hard == resource.RLIM_INFINITY else hard, hard))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("stalled", "idle", "flood"), action="append", help="these parts alone")
    parser.add_argument("--runtime", type=run_seconds, default=5.0, help="seconds of one run of the good clients")
    parser.add_argument(
        "--rounds", type=positive, default=5, help="of the good clients alone and beside the bad ones; the median counts"
    )
    parser.add_argument("--directory", type=Path, default=None, help="where the stores lie")
    parser.add_argument("--json", action="store_true", help="one document on stdout")
    add_programs(parser, CROWD_PROGRAM)
    options = parser.parse_args()
    parts = options.only or ("stalled", "idle", "flood")
    if "stalled" in parts:
        built(options.programs, CROWD_PROGRAM)
    raise_descriptors(IDLE + 1024)
    client_cores, core = cores(pin=True)
    told: dict[str, dict[str, Any]] = {}
    head = header(rounds=options.rounds, seconds=options.runtime)
    with pinned(*client_cores):
        for name in parts:
            if name == "stalled":
                program = options.programs / CROWD_PROGRAM
                told[name] = stalled(options.directory, core, program, options.runtime, options.rounds)
            else:
                told[name] = (idle if name == "idle" else flood)(options.directory, core)
            print(line(name, told[name]), file=sys.stderr, flush=True)
    print(f"load {os.getloadavg()[0]:.1f} at the end", file=sys.stderr)
    if options.json:
        print(json.dumps({"header": head, **told}))
    return 0 if all(one["reached"] for one in told.values()) else 1


if __name__ == "__main__":
    run(main)
