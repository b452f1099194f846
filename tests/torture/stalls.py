"""Attacks that begin something and wait: slow puts, idle connections, half of a frame, answers that nobody reads.

Each is a scenario of its own, see scenarios.py.
"""

from __future__ import annotations

import contextlib
import resource
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator

from tests.torture.attack import GONE, SHORT_S, VALUES, Attack
from tests.wire import puts
from tests.wire.catalog import question_tlv
from tests.wire.chunks import Run, runs_tlv
from tests.wire.frames import Kind, Op, frame, tlv
from tests.wire.requests import Batch, Offer, Section
from tests.wire.session import Session, hello_body
from tests.wire.streams import SocketStream


def slow_puts(attack: Attack) -> None:
    """24 connections that offer as much as they can and send a byte of it every few seconds."""
    slow = [_SlowPut(attack) for _ in range(24)]
    while attack.going():
        for one in slow:
            one.turn()
        attack.rest(0.25)
    for one in slow:
        one.close()


class _SlowPut:
    """One connection; a put that the daemon ends is begun anew."""

    PACE_S = (1.0, 4.5)
    BLOCKS = 12

    def __init__(self, attack: Attack) -> None:
        self._attack = attack
        self._session: Session | None = None
        self._put: puts.Put | None = None
        self._next = 0.0
        self._at = 0

    def turn(self) -> None:
        try:
            self._step()
        except GONE:
            self._attack.tally["closed_by_daemon"] += 1
            self.close()

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
        self._session = self._put = None

    def _step(self) -> None:
        if self._session is None:
            self._session = self._attack.session()
        if self._put is None:
            self._begin(self._session)
        assert self._put is not None
        with contextlib.suppress(TimeoutError):
            came = self._session.frame_of(self._put.request_id, 0.001)
            self._put.take(came)
            if came.op == Op.FINAL:
                self._attack.tally["ended_by_daemon"] += 1
                self._put = None
                return
        if self._put.wants and time.monotonic() > self._next:
            self._next = time.monotonic() + self._attack.rng.uniform(*self.PACE_S)
            run = Run(0, 0, self._put.wants[0][0][1], 0, 1, self._at, 1, self._bytes, 0)
            self._session.send(Op.CHUNK, runs_tlv([run], []), b"x", self._put.request_id)
            self._at += 1
            self._attack.tally["acts"] += 1

    def _begin(self, session: Session) -> None:
        self._bytes = session.server.block_bytes_max
        section = Section(VALUES, [self._attack.name() for _ in range(self.BLOCKS)])
        block = puts.Block([], Offer(self._bytes, self._bytes))
        self._put = puts.begin(session, [section], [[block] * self.BLOCKS])
        self._at = 0


def idle(attack: Attack) -> None:
    """Connections up to the daemon's limit, half of them past Hello, that do nothing."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    hello = frame(Op.HELLO, 1, hello_body(attack.target.namespace, 1, (1, 1), 1))
    opened: list[socket.socket] = []
    try:
        while attack.going():
            if len(opened) >= min(hard - 100, 6000):
                attack.rest(0.5)
                continue
            with contextlib.suppress(OSError):
                one = socket.create_connection(attack.target.address, SHORT_S)
                opened.append(one)
                if len(opened) % 2:
                    one.sendall(hello)
                attack.tally["acts"] += 1
    finally:
        for one in opened:
            one.close()


def _part_of_a_frame(attack: Attack, connect: Callable[[], socket.socket], data: Callable[[], bytes], count: int) -> None:
    """Connections that send the beginning of a frame and wait; those that the daemon ends are made anew."""
    waiting: list[socket.socket] = []
    try:
        while attack.going():
            while len(waiting) < count and attack.going():
                try:
                    one = connect()
                except GONE:
                    attack.tally["refused"] += 1
                    break
                waiting.append(one)
                one.settimeout(SHORT_S)
                with contextlib.suppress(OSError):
                    one.sendall(data())
                attack.tally["acts"] += 1
                one.setblocking(False)
            waiting = [one for one in waiting if not _ended(one, attack.tally)]
            attack.rest()
    finally:
        for one in waiting:
            one.close()


def _ended(one: socket.socket, tally: Counter[str]) -> bool:
    try:
        while one.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    tally["closed_by_daemon"] += 1
    one.close()
    return True


def long_hellos(attack: Attack) -> None:
    """128 connections whose first frame announces 2 MiB of body and sends nearly all of it."""
    start = frame(Op.HELLO, 1, body_bytes=2 << 20) + bytes((2 << 20) - 16)
    _part_of_a_frame(attack, lambda: socket.create_connection(attack.target.address, SHORT_S), lambda: start, 128)


def half_bodies(attack: Attack) -> None:
    """200 connections past Hello that leave requests of 2 MiB 16 bytes short."""
    starts = [frame(op, 9, body_bytes=2 << 20) + bytes((2 << 20) - 16) for op in (Op.MATCH, Op.PUT, Op.STAT)]

    def connect() -> socket.socket:
        stream = attack.session().stream
        assert isinstance(stream, SocketStream)
        return stream.socket

    _part_of_a_frame(attack, connect, lambda: attack.rng.choice(starts), 200)


def trickles(attack: Attack) -> None:
    """64 connections that send good frames a byte at a time, Hello included."""
    hello = frame(Op.HELLO, 1, hello_body(attack.target.namespace, 1, (1, 1), 1))
    data = hello + b"".join(frame(Op.STAT, 2 + number) for number in range(1000))
    open_ones: list[tuple[socket.socket, Iterator[int]]] = []
    while attack.going():
        while len(open_ones) < 64:
            try:
                one = socket.create_connection(attack.target.address, SHORT_S)
            except OSError:
                attack.tally["refused"] += 1
                break
            one.setblocking(False)
            open_ones.append((one, iter(data)))
        kept = []
        for one, rest in open_ones:
            with contextlib.suppress(OSError):
                one.send(bytes([next(rest)]))
                attack.tally["acts"] += 1
            if not _ended(one, attack.tally):
                kept.append((one, rest))
        open_ones = kept
        attack.rest(0.05)
    for one, _ in open_ones:
        one.close()


def deaf(attack: Attack) -> None:
    """64 connections that ask for all they can, through small buffers, and never read."""
    asked = [b"deaf %d" % number for number in range(16)]
    with contextlib.suppress(*GONE), attack.session() as session:
        section = Section(VALUES, asked)
        puts.put_bytes(session, section, [bytes(400_000)] * 16)

    def connect() -> socket.socket:
        session = attack.session()
        assert isinstance(session.stream, SocketStream)
        handle[0] = session.register(VALUES)
        session.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        return session.stream.socket

    def requests() -> bytes:
        body = Batch().tlv() + Section(VALUES, asked).tlv(handle[0])
        cursor = tlv(Kind.CURSOR, struct.pack("<QII", 0, 0, 0))
        kinds = [(Op.GET, body), (Op.STAT, b""), (Op.LIST, cursor), (Op.STAT, question_tlv(b"deaf 1"))]
        return b"".join(frame(*_at(kinds, number)) for number in range(10, 240))

    def _at(kinds: list[tuple[Op, bytes]], number: int) -> tuple[int, int, bytes]:
        op, body = kinds[number % len(kinds)]
        return op, number, body

    handle = [0]
    waiting: list[socket.socket] = []
    while attack.going():
        with contextlib.suppress(*GONE):
            if len(waiting) < 64:
                one = connect()
                waiting.append(one)
                one.setblocking(False)
                one.send(requests())
                attack.tally["acts"] += 1
                continue
        attack.rest()
        for one in list(waiting):
            # Only an end is looked at: what there is to read stays where it is.
            if one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                waiting.remove(one)
                one.close()
                attack.tally["closed_by_daemon"] += 1
    for one in waiting:
        one.close()
