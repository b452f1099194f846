#!/usr/bin/env python3
"""Question: are hot gets faster than those of memcached and Redis, and is a match cheaper than asking them for the values?

The same blocks in all three, over TCP on loopback, server on one core and client on another, in turns: every round runs each of
them once, and a ratio is that of one round. 16 blocks a call, of 64 KiB to 4 MiB; and a match of 256 keys beside a multi-get of
as many values of 64 bytes, which is the least that memcached can be asked for presence. memcached and Redis are driven as well
as they can be: multi-get and MGET in one message that is made once, answers received with recv_into straight into the caller's
buffer, no copy and no check of their bytes; Halfstep verifies every byte, as ever. All three send with the same congestion
control. For all of them one page of every block is compared after each call, outside of the clock of that call. A round is
made again while the host of a virtual machine has the two cores apart (cores.py). Exit status 1 when a median ratio of a get is
under 1.0, when a match takes more than 0.65 of memcached's multi-get, or a byte was wrong.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from cores import DISTANCE_PROGRAM, Cores
from script import add_programs, call_times_us, header, positive, run, run_seconds

import halfstep
from halfstep.daemon.units import GIB, KIB, MIB, format_bytes
from halfstep.tools.bench.content import PAGE_WORDS, Content, Numbers, Words
from halfstep.tools.bench.loopback import TCP_CONGESTION
from halfstep.tools.bench.place import cores, own_daemon, pinned
from halfstep.tools.bench.workload import DEADLINE_MS, populate

SIZES = (64 * KIB, 256 * KIB, MIB, 4 * MIB)
BATCH = 16
MATCH_KEYS = 256
MATCH_VALUE_BYTES = 64
GET_RATIO_MIN = 1.0
MATCH_TIME_MAX = 0.65
SET_BYTES = 128 * MIB
SERVER_MEMORY = 2 * GIB
START_S = 20.0
SYS_PIDFD_GETFD = 438  # the same number on every architecture
# Program, and the package of the same name.
PROGRAMS = {"memcached": "memcached", "redis": "redis-server"}
# What an answer's lines are read into; longer than any line of the answers that are asked for here.
LINE_BYTES = 512


class Store(Protocol):
    """One of the three, with blocks of one size."""

    def fill(self, content: Content, count: int) -> None:
        """Numbers 0 to count."""
        ...

    def ask(self, content: Content, numbers: Numbers) -> Callable[[Words], None]:
        """A call that brings the blocks of these numbers into the rows of its argument; what can be made before is."""
        ...


class Wire:
    """One TCP connection whose answers are lines and values. Values land in the caller's memory; nothing is copied but lines.

    A line is received with what follows it up to the end of a small buffer; what belongs to a value there is moved.
    """

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), START_S)
        self._socket.settimeout(START_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(LINE_BYTES)
        self._view = memoryview(self._buffer)
        self._at = self._end = 0

    def send(self, message: bytes | memoryview) -> None:
        """All of it."""
        self._socket.sendall(message)

    def line(self) -> bytes:
        """Without its end."""
        while True:
            found = self._buffer.find(b"\r\n", self._at, self._end)
            if found >= 0:
                line = bytes(self._view[self._at : found])
                self._at = found + 2
                return line
            self._fill()

    def value(self, target: memoryview) -> None:
        """As many bytes as the target has, and the end of a line behind them."""
        kept = min(self._end - self._at, len(target))
        target[:kept] = self._view[self._at : self._at + kept]
        self._at += kept
        while kept < len(target):
            got = self._socket.recv_into(target[kept:])
            if got == 0:
                raise SystemExit("a server closed its connection in the middle of a value")
            kept += got
        while self._end - self._at < 2:
            self._fill()
        if self._buffer[self._at : self._at + 2] != b"\r\n":
            raise SystemExit("a server's value has another length than was asked for")
        self._at += 2

    def close(self) -> None:
        """Idempotent."""
        self._socket.close()

    def _fill(self) -> None:
        kept = self._end - self._at
        self._buffer[:kept] = self._buffer[self._at : self._end]
        self._at, self._end = 0, kept
        got = self._socket.recv_into(self._view[kept:])
        if got == 0:
            raise SystemExit("a server closed its connection")
        self._end += got


def names(content: Content, numbers: Numbers) -> list[bytes]:
    """Text without spaces, as memcached wants it, as long as twice our keys."""
    return [bytes(key).hex().encode() for key in content.keys(numbers)]


def flat(row: Any) -> memoryview:
    return memoryview(row).cast("B")


def fill(wire: Wire, content: Content, count: int, empty: bytes, emptied: bytes, stored: bytes, head: bytes) -> None:
    """Empties a server and sets numbers 0 to count. head: what comes before a value, with its name and size to be filled in."""
    told_by(wire, empty + b"\r\n", emptied)
    for number in range(count):
        numbers = content.numbers(number, 1)
        row = np.empty((1, content.words), np.uint64)
        content.fill(numbers, row)
        (name,) = names(content, numbers)
        wire.send(head % {b"name": name, b"name_bytes": len(name), b"bytes": content.block_bytes})
        wire.send(flat(row))
        told_by(wire, b"\r\n", stored)


def told_by(wire: Wire, message: bytes, expected: bytes) -> None:
    """Sends the end of a request whose answer can only be one."""
    wire.send(message)
    if (said := wire.line()) != expected:
        raise SystemExit(f"a server said {said!r} instead of {expected!r}; it may need more memory")


@dataclass(frozen=True)
class Memcached:
    """The classic text protocol: `get` with many keys is one request and one stream of values."""

    wire: Wire

    def fill(self, content: Content, count: int) -> None:
        fill(self.wire, content, count, b"flush_all", b"OK", b"STORED", b"set %(name)b 0 0 %(bytes)d\r\n")

    def ask(self, content: Content, numbers: Numbers) -> Callable[[Words], None]:
        expected = names(content, numbers)
        message = b"get " + b" ".join(expected) + b"\r\n"
        heads = [b"VALUE %b 0 %d" % (name, content.block_bytes) for name in expected]

        def call(target: Words) -> None:
            self.wire.send(message)
            for head, row in zip(heads, target, strict=True):
                if (said := self.wire.line()) != head:
                    raise SystemExit(f"memcached: {said!r} instead of {head!r}: it has forgotten a block; give it more memory")
                self.wire.value(flat(row))
            if self.wire.line() != b"END":
                raise SystemExit("memcached: more came than was asked for")

        return call


@dataclass(frozen=True)
class Redis:
    """RESP: MGET with many keys."""

    wire: Wire

    def fill(self, content: Content, count: int) -> None:
        head = b"*3\r\n$3\r\nSET\r\n$%(name_bytes)d\r\n%(name)b\r\n$%(bytes)d\r\n"
        fill(self.wire, content, count, b"FLUSHALL", b"+OK", b"+OK", head)

    def ask(self, content: Content, numbers: Numbers) -> Callable[[Words], None]:
        expected = names(content, numbers)
        message = b"*%d\r\n$4\r\nMGET\r\n" % (len(expected) + 1)
        message += b"".join(b"$%d\r\n%b\r\n" % (len(name), name) for name in expected)
        heads = b"*%d" % len(expected), b"$%d" % content.block_bytes

        def call(target: Words) -> None:
            self.wire.send(message)
            if (said := self.wire.line()) != heads[0]:
                raise SystemExit(f"redis: {said!r} instead of {heads[0]!r}")
            for row in target:
                if (said := self.wire.line()) != heads[1]:
                    raise SystemExit(f"redis: {said!r} instead of {heads[1]!r}: it has forgotten a block; give it more memory")
                self.wire.value(flat(row))

        return call


@dataclass(frozen=True)
class Ours:
    """Halfstep's own client, everything verified."""

    client: halfstep.Client

    def fill(self, content: Content, count: int) -> None:
        populate(self.client, content, count)

    def ask(self, content: Content, numbers: Numbers) -> Callable[[Words], None]:
        keys = content.keys(numbers)

        def call(target: Words) -> None:
            result = self.client.get(keys, target, deadline_ms=DEADLINE_MS)
            if not result.ok.all():
                raise SystemExit(f"halfstep: {result.reason(int(np.argmin(result.ok)))}: the set does not fit into its memory")

        return call

    def match(self, content: Content, numbers: Numbers) -> Callable[[], None]:
        keys = content.keys(numbers)

        def call() -> None:
            if self.client.match(keys, deadline_ms=DEADLINE_MS).prefix != len(keys):
                raise SystemExit("halfstep: a block that was put is not there")

        return call


@dataclass(frozen=True)
class Rounds:
    """How often, for how long each store in each, and on which cores."""

    count: int
    seconds: float
    near: Cores


@dataclass
class Speeds:
    """Of one question: what each store took in each round, as the median time of a call."""

    what: str
    block_bytes: int
    blocks: int
    call_us: dict[str, list[float]] = field(default_factory=dict)

    def ratios(self, other: str) -> list[float]:
        """How much faster ours was, round by round."""
        return [theirs / ours for ours, theirs in zip(self.call_us["halfstep"], self.call_us[other], strict=True)]

    def judged(self) -> dict[str, bool]:
        """Whether the goal was reached, against each of the others."""
        others = [name for name in self.call_us if name != "halfstep"]
        if self.what == "match":
            return {name: statistics.median(self.ratios(name)) >= 1 / MATCH_TIME_MAX for name in others if name == "memcached"}
        return {name: statistics.median(self.ratios(name)) >= GET_RATIO_MIN for name in others}

    def as_json(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "block_bytes": self.block_bytes,
            "blocks_a_call": self.blocks,
            "call_us": self.call_us,
            "gigabytes_per_s": {
                name: self.block_bytes * self.blocks / statistics.median(times) / 1e3 for name, times in self.call_us.items()
            },
            "ratio": {
                name: {"median": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)}
                for name in self.call_us
                if name != "halfstep"
                for ratios in [self.ratios(name)]
            },
            "reached": self.judged(),
        }

    def line(self) -> str:
        told = self.as_json()
        judged = self.judged()
        parts = []
        for name, times in self.call_us.items():
            part = f"{name} {statistics.median(times):,.0f} us"
            if self.what == "get":
                part += f" ({told['gigabytes_per_s'][name]:.2f} GB/s)"
            if name != "halfstep":
                ratio = told["ratio"][name]
                part += f", ours is {ratio['median']:.2f} x as fast ({ratio['lowest']:.2f} to {ratio['highest']:.2f})"
                part += {True: " reached", False: " MISSED"}[judged[name]] if name in judged else ""
            parts.append(part)
        return f"{self.what} {format_bytes(self.block_bytes)} x {self.blocks}: " + "; ".join(parts)


def batches(content: Content, count: int, batch: int) -> list[Numbers]:
    starts = np.random.default_rng(1).permutation(count // batch) * batch
    return [content.numbers(int(start), batch) for start in starts]


def timed(calls: Sequence[Callable[[], None]], after: Callable[[int], None], seconds: float) -> float:
    """Microseconds of a call at the median: once through all of them unmeasured, then over and over."""
    for number, call in enumerate(calls):
        call()
        after(number)
    return statistics.median(call_times_us(calls, lambda number, _: after(number), seconds))


def bound(call: Callable[[Words], None], target: Words) -> Callable[[], None]:
    return lambda: call(target)


def measure_gets(stores: dict[str, Store], block_bytes: int, rounds: Rounds) -> Speeds:
    content = Content(block_bytes, seed=block_bytes)  # so that no two sizes share a key
    count = max(BATCH, SET_BYTES // (block_bytes * BATCH) * BATCH)
    speeds = Speeds("get", block_bytes, BATCH)
    target = np.full((BATCH, content.words), 0xA5, np.uint64)
    asked = batches(content, count, BATCH)
    calls = {}
    for name, store in stores.items():
        store.fill(content, count)
        calls[name] = [bound(store.ask(content, numbers), target) for numbers in asked]
    rng = np.random.default_rng(1)

    def check(number: int) -> None:
        wrong = content.wrong_heads(asked[number], target, int(rng.integers(content.pages)))
        if wrong.any():
            raise SystemExit(f"{int(wrong.sum())} blocks of {format_bytes(block_bytes)} are not what was put")
        target[:, ::PAGE_WORDS] = 0  # so that what stays from the last call is noticed

    take_turns(speeds, calls, check, rounds)
    return speeds


def measure_match(stores: dict[str, Store], rounds: Rounds) -> Speeds:
    content = Content(MATCH_VALUE_BYTES, seed=2)
    small = Content(4 * KIB, seed=2)
    speeds = Speeds("match", MATCH_VALUE_BYTES, MATCH_KEYS)
    asked = batches(content, 32 * MATCH_KEYS, MATCH_KEYS)
    target = np.zeros((MATCH_KEYS, content.words), np.uint64)
    calls = {}
    for name, store in stores.items():
        if isinstance(store, Ours):
            store.fill(small, 32 * MATCH_KEYS)
            calls[name] = [store.match(small, numbers) for numbers in asked]
        else:
            store.fill(content, 32 * MATCH_KEYS)
            calls[name] = [bound(store.ask(content, numbers), target) for numbers in asked]
    take_turns(speeds, calls, lambda _number: None, rounds)
    return speeds


def take_turns(
    speeds: Speeds, calls: dict[str, list[Callable[[], None]]], check: Callable[[int], None], rounds: Rounds
) -> None:
    def turn(number: int) -> dict[str, float]:
        order = list(calls)
        order = order[number % len(order) :] + order[: number % len(order)]
        return {name: timed(calls[name], check, rounds.seconds) for name in order}

    for number in range(rounds.count):
        for name, took_us in rounds.near.steadily(partial(turn, number)).items():
            speeds.call_us.setdefault(name, []).append(took_us)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def server(command: list[str], port: int, core: int | None, congestion: str) -> Iterator[Wire]:
    """A process that listens at the port and sends with this congestion control; ended with us."""
    with pinned(*(() if core is None else (core,))):
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, start_new_session=True
        )
    try:
        connected(process, port, command[0]).close()
        use_congestion(process.pid, port, command[0], congestion)
        wire = connected(process, port, command[0])
        try:
            yield wire
        finally:
            wire.close()
    finally:
        process.terminate()
        try:
            process.wait(START_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def connected(process: subprocess.Popen[bytes], port: int, name: str) -> Wire:
    until = time.monotonic() + START_S
    while True:
        try:
            return Wire(port)
        except ConnectionRefusedError:
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit(
                    f"{name}: did not listen on port {port} within {START_S:.0f} s; start it by hand to see why"
                ) from None
            time.sleep(0.02)


def use_congestion(pid: int, port: int, name: str, congestion: str) -> None:
    """Gives our child's listening socket, and so what it accepts from now on, a congestion control.

    Neither server can be told one, the system's is often bbr, which paces itself to half the speed over loopback, and Halfstep
    asks for cubic there: without this the comparison would be one of congestion controls.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    process = os.pidfd_open(pid)
    given = 0
    try:
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            if not str(entry.readlink()).startswith("socket:"):
                continue
            copy = libc.syscall(SYS_PIDFD_GETFD, process, int(entry.name), 0)
            if copy < 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
            with socket.socket(fileno=copy) as one:
                if one.family != socket.AF_INET or not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    continue
                if one.getsockname()[1] == port:
                    one.setsockopt(socket.IPPROTO_TCP, TCP_CONGESTION, congestion.encode())
                    given += 1
    except OSError as error:
        why = error.strerror
    else:
        why = "" if given else "it has no listening socket there"
    finally:
        os.close(process)
    if why:
        raise SystemExit(
            f"{name}: cannot be made to send with {congestion}, as Halfstep does: {why}; run this as root, or set "
            f"net.ipv4.tcp_congestion_control={congestion}"
        )


def memcached_command(port: int) -> list[str]:
    command = ["memcached", "-l", "127.0.0.1", "-p", str(port), "-U", "0", "-t", "1", "-I", "8m"]
    # Values of many megabytes are cut into chunks of half a megabyte; slabs of the largest kind take them all.
    return [*command, "-m", str(SERVER_MEMORY // MIB), *(["-u", "root"] if os.geteuid() == 0 else [])]


def redis_command(port: int, directory: str) -> list[str]:
    command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no"]
    return [*command, "--dir", directory, "--maxmemory", str(SERVER_MEMORY), "--maxmemory-policy", "noeviction"]


@contextmanager
def all_stores(directory: Path | None, core: int | None) -> Iterator[tuple[dict[str, Store], dict[str, str], str]]:
    """(stores, what each of the others says it is, congestion control); one that is not installed is named and left out."""
    kinds: dict[str, Callable[[Wire], Store]] = {"memcached": Memcached, "redis": Redis}
    layout = halfstep.Layout.opaque("bench/beside")
    with (
        own_daemon("--size", str(2 * GIB), "--arena", str(512 * MIB), directory=directory, core=core) as daemon,
        halfstep.connect(daemon.url, layout=layout, required=True, deadline_ms=DEADLINE_MS, mode="on") as client,
        ExitStack() as stack,
    ):
        congestion = client.facts().congestion
        stores: dict[str, Store] = {"halfstep": Ours(client)}
        versions = {}
        for name, program in PROGRAMS.items():
            if shutil.which(program) is None:
                print(f"{name}: {program} is not installed, so it is left out; apt-get install {program}", file=sys.stderr)
                continue
            said = subprocess.run([program, "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout
            versions[name] = " ".join(said.split()[:3])
            port = free_port()
            command = memcached_command(port) if name == "memcached" else redis_command(port, str(daemon.store.parent))
            stores[name] = kinds[name](stack.enter_context(server(command, port, core, congestion)))
        yield stores, versions, congestion


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=positive, default=5, help="each runs every store once; the median ratio counts")
    parser.add_argument("--runtime", type=run_seconds, default=1.0, help="seconds of one store in one round")
    parser.add_argument("--directory", type=Path, default=None, help="where our store lies")
    add_programs(parser, DISTANCE_PROGRAM)
    parser.add_argument("--json", action="store_true", help="one document on stdout")
    options = parser.parse_args()
    client_cores, server_core = cores(pin=True)
    rounds = Rounds(options.rounds, options.runtime, Cores.of_pinned(options.programs))
    head = header(
        rounds=options.rounds,
        seconds=options.runtime,
        goals={"get_ratio_min": GET_RATIO_MIN, "match_time_max": MATCH_TIME_MAX},
    )
    told: list[Speeds] = []
    with pinned(*client_cores[:1]), all_stores(options.directory, server_core) as (stores, versions, congestion):
        for block_bytes in SIZES:
            told.append(measure_gets(stores, block_bytes, rounds))
            print(told[-1].line(), file=sys.stderr, flush=True)
        told.append(measure_match(stores, rounds))
        print(told[-1].line(), file=sys.stderr, flush=True)
    head |= {
        "congestion_control": congestion,
        "others": versions,
        "cores_near": rounds.near.as_json(),
        "missing": [name for name in PROGRAMS if name not in versions],
    }
    if options.json:
        print(json.dumps({"header": head, "results": [speeds.as_json() for speeds in told]}))
    print(f"load {os.getloadavg()[0]:.1f} at the end; {rounds.near.text()}", file=sys.stderr)
    if not versions:
        print("neither memcached nor Redis is here: nothing was compared", file=sys.stderr)
        return 1
    return 0 if all(all(speeds.judged().values()) for speeds in told) else 1


if __name__ == "__main__":
    run(main)
