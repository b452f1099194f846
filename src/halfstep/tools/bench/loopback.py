"""The raw loopback limit: two processes, plain sockets, nothing of ours; for shared memory a plain copy.

One process sends blocks from a set of the same size as the daemon's, the other receives them into buffers of the size that the
client's targets have, over as many connections and with the same congestion control. Nobody asks, answers, frames, checks or
stores anything: it is a limit of the stream. ping_pong() is the limit of a question and its answer: a few bytes there and back.
Run as a program this file is the other process, and imports the standard library alone.
"""

from __future__ import annotations

import mmap
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TCP_CONGESTION = 13  # linux/tcp.h; socket.TCP_CONGESTION is there only where the interpreter's headers had it
START_S = 20.0
WARM_UP_S = 0.1
# The pieces in which sockets are fed: the chunk of the protocol.
SEND_BYTES = 256 << 10


def measure(
    *,
    set_bytes: int,
    target_bytes: int,
    connections: int,
    congestion: str,
    seconds: float,
    sender_core: int | None,
    unix: str = "",
    piece_bytes: int = SEND_BYTES,
) -> float:
    """Bytes a second from a sending process into `target_bytes` of memory here. `unix`: over a unix socket of that path.

    sender_core: where the sender is pinned; the caller pins itself. piece_bytes: what the sender gives to one call.
    Errors: OSError, subprocess.TimeoutExpired.
    """
    numbers = connections, set_bytes, piece_bytes
    with _other_process("send", numbers, connections, congestion, sender_core, unix) as accepted:
        return _receive(accepted, target_bytes, seconds)


def ping_pong(*, message_bytes: int, congestion: str, seconds: float, other_core: int | None, unix: str = "") -> list[int]:
    """Nanoseconds of each round trip of a message to another process, which sends it back, one after the other.

    Errors as of measure().
    """
    with _other_process("echo", (message_bytes,), 1, congestion, other_core, unix) as (connection,):
        connection.settimeout(None)
        if not unix:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        message = bytes(message_bytes)
        answer = memoryview(bytearray(message_bytes))
        took: list[int] = []
        began = time.perf_counter_ns()
        begin, end = began + int(WARM_UP_S * 1e9), began + int((WARM_UP_S + seconds) * 1e9)
        while began < end or not took:
            connection.sendall(message)
            _receive_all(connection, answer)
            ended = time.perf_counter_ns()
            if began >= begin:
                took.append(ended - began)
            began = ended
        return took


@contextmanager
def _other_process(
    what: str, numbers: tuple[int, ...], connections: int, congestion: str, core: int | None, unix: str
) -> Iterator[list[socket.socket]]:
    """Connections from a process that runs this file, which ends when they are closed. Ctrl-C at a terminal is not for it."""
    with socket.socket(socket.AF_UNIX if unix else socket.AF_INET) as listener:
        if congestion and not unix:
            listener.setsockopt(socket.IPPROTO_TCP, TCP_CONGESTION, congestion.encode())  # and so what it accepts
        listener.bind(unix or ("127.0.0.1", 0))
        listener.listen(connections)
        listener.settimeout(START_S)
        where = unix or str(listener.getsockname()[1])
        command = [sys.executable, "-P", str(Path(__file__)), what, "" if core is None else str(core), where, congestion]
        command += map(str, numbers)
        with subprocess.Popen(command, start_new_session=True) as other:
            accepted: list[socket.socket] = []
            try:
                accepted += [listener.accept()[0] for _ in range(connections)]
                yield accepted
            finally:
                for connection in accepted:
                    connection.close()
                if len(accepted) < connections:
                    other.kill()
                try:
                    other.wait(START_S)
                except subprocess.TimeoutExpired:
                    other.kill()


def _receive_all(connection: socket.socket, target: memoryview) -> None:
    at = 0
    while at < len(target):
        got = connection.recv_into(target[at:])
        if got == 0:
            raise ConnectionError("the other process ended before its time")
        at += got


def copy(*, set_bytes: int, target_bytes: int, piece_bytes: int, seconds: float) -> float:
    """Bytes a second of copies of `piece_bytes`, from a set that is walked through into `target_bytes`: whole pieces both."""
    source, target = memoryview(mmap.mmap(-1, set_bytes)), memoryview(mmap.mmap(-1, target_bytes))
    for memory in (source, target):
        for at in range(0, len(memory), mmap.PAGESIZE):
            memory[at] = 1
    copied = at = to = 0
    started = now = time.perf_counter()
    while now < started + seconds or not copied:
        target[to : to + piece_bytes] = source[at : at + piece_bytes]
        copied += piece_bytes
        at, to = (at + piece_bytes) % set_bytes, (to + piece_bytes) % target_bytes
        now = time.perf_counter()
    return copied / (now - started)


def _receive(connections: list[socket.socket], target_bytes: int, seconds: float) -> float:
    started = time.perf_counter()
    begin, end = started + WARM_UP_S, started + WARM_UP_S + seconds
    moved = [0] * len(connections)
    spans = [0.0] * len(connections)
    failures: list[OSError] = []
    stopped = False

    def receive(index: int) -> None:
        connection = connections[index]
        connection.settimeout(None)
        target = memoryview(mmap.mmap(-1, max(SEND_BYTES, target_bytes // len(connections))))
        at, first, now, count = 0, 0.0, time.perf_counter(), 0
        while (now < end or count == 0) and not stopped:  # a machine that is too busy still gets one transfer timed
            got = connection.recv_into(target[at:])
            if got == 0:
                raise ConnectionError("the sending process ended before its time")
            at = (at + got) % len(target)
            now = time.perf_counter()
            if first:
                count += got
            elif now >= begin:
                first = now
        moved[index], spans[index] = count, now - first

    def receive_beside(index: int) -> None:
        try:
            receive(index)
        except OSError as error:
            failures.append(error)

    threads = [threading.Thread(target=receive_beside, args=(index,)) for index in range(1, len(connections))]
    for thread in threads:
        thread.start()
    try:
        receive(0)
    except BaseException:
        stopped = True
        raise
    finally:
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]
    return sum(count / span for count, span in zip(moved, spans, strict=True))


def _connected(connection: socket.socket, where: str, congestion: str) -> None:
    tcp = where.isdigit()
    if tcp and congestion:
        connection.setsockopt(socket.IPPROTO_TCP, TCP_CONGESTION, congestion.encode())
    connection.connect(("127.0.0.1", int(where)) if tcp else where)


def _socket(where: str) -> socket.socket:
    return socket.socket(socket.AF_INET if where.isdigit() else socket.AF_UNIX)


def echo(where: str, congestion: str, message_bytes: int) -> None:
    """The answering process: until the other one closes."""
    message = memoryview(bytearray(message_bytes))
    with _socket(where) as connection, suppress(ConnectionError):
        _connected(connection, where, congestion)
        if where.isdigit():
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            _receive_all(connection, message)
            connection.sendall(message)


def send(where: str, congestion: str, connections: int, set_bytes: int, piece_bytes: int) -> None:
    """The sending process: until the receiver closes."""
    source = memoryview(mmap.mmap(-1, max(piece_bytes, set_bytes)))
    for at in range(0, len(source), mmap.PAGESIZE):
        source[at] = 1

    def stream(offset: int) -> None:
        with _socket(where) as connection, suppress(ConnectionError):
            _connected(connection, where, congestion)
            at = offset
            while True:
                piece = source[at : at + piece_bytes]
                connection.sendall(piece)
                at = at + len(piece) if at + len(piece) < len(source) else 0

    threads = [threading.Thread(target=stream, args=(index * len(source) // connections,)) for index in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    import os

    _what, _core, _where, _congestion, *_numbers = sys.argv[1:]
    if _core:
        os.sched_setaffinity(0, {int(_core)})
    if _what == "echo":
        echo(_where, _congestion, int(_numbers[0]))
    else:
        send(_where, _congestion, *(int(number) for number in _numbers))
