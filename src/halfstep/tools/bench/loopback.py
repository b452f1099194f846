"""The raw loopback limit: two processes, plain sockets, nothing of ours; for shared memory a plain copy.

One process sends blocks from a set of the same size as the daemon's, the other receives them into buffers of the size that the
client's targets have, over as many connections and with the same congestion control. Nobody asks, answers, frames, checks or
stores anything: it is a limit of the stream. Run as a program this file is the sending process, and imports the standard
library alone.
"""

from __future__ import annotations

import mmap
import socket
import subprocess
import sys
import threading
import time
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
) -> float:
    """Bytes a second from a sending process into `target_bytes` of memory here.

    sender_core: where the sender is pinned; the caller pins itself. Errors: OSError, subprocess.TimeoutExpired.
    """
    with socket.socket(socket.AF_INET) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(connections)
        listener.settimeout(START_S)
        port = str(listener.getsockname()[1])
        core = "" if sender_core is None else str(sender_core)
        command = [sys.executable, "-P", str(Path(__file__)), port, congestion, str(connections), str(set_bytes), core]
        with subprocess.Popen(command) as sender:
            accepted: list[socket.socket] = []
            try:
                accepted += [listener.accept()[0] for _ in range(connections)]
                return _receive(accepted, target_bytes, seconds)
            finally:
                for connection in accepted:
                    connection.close()
                if not accepted:
                    sender.kill()
                sender.wait(START_S)


def copy(*, set_bytes: int, target_bytes: int, block_bytes: int, seconds: float) -> float:
    """Bytes a second of copies of `block_bytes`, from a set that is walked through into `target_bytes` of memory."""
    source, target = memoryview(mmap.mmap(-1, set_bytes)), memoryview(mmap.mmap(-1, target_bytes))
    for memory in (source, target):
        for at in range(0, len(memory), mmap.PAGESIZE):
            memory[at] = 1
    copied = at = to = 0
    started = now = time.perf_counter()
    while now < started + seconds or not copied:
        target[to : to + block_bytes] = source[at : at + block_bytes]
        copied += block_bytes
        at, to = (at + block_bytes) % set_bytes, (to + block_bytes) % target_bytes
        now = time.perf_counter()
    return copied / (now - started)


def _receive(connections: list[socket.socket], target_bytes: int, seconds: float) -> float:
    started = time.perf_counter()
    begin, end = started + WARM_UP_S, started + WARM_UP_S + seconds
    moved = [0] * len(connections)
    spans = [0.0] * len(connections)

    def receive(index: int) -> None:
        connection = connections[index]
        connection.settimeout(None)
        target = memoryview(mmap.mmap(-1, max(SEND_BYTES, target_bytes // len(connections))))
        at, first, now, count = 0, 0.0, time.perf_counter(), 0
        while now < end or count == 0:  # a machine that is too busy still gets one transfer timed
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

    threads = [threading.Thread(target=receive, args=(index,)) for index in range(1, len(connections))]
    for thread in threads:
        thread.start()
    receive(0)
    for thread in threads:
        thread.join()
    return sum(count / span for count, span in zip(moved, spans, strict=True))


def send(port: int, congestion: str, connections: int, set_bytes: int) -> None:
    """The sending process: until the receiver closes."""
    source = memoryview(mmap.mmap(-1, max(SEND_BYTES, set_bytes)))
    for at in range(0, len(source), mmap.PAGESIZE):
        source[at] = 1

    def stream(offset: int) -> None:
        with socket.socket(socket.AF_INET) as connection:
            if congestion:
                connection.setsockopt(socket.IPPROTO_TCP, TCP_CONGESTION, congestion.encode())
            connection.connect(("127.0.0.1", port))
            at = offset
            try:
                while True:
                    piece = source[at : at + SEND_BYTES]
                    connection.sendall(piece)
                    at = at + len(piece) if at + len(piece) < len(source) else 0
            except (BrokenPipeError, ConnectionResetError):
                return

    threads = [threading.Thread(target=stream, args=(index * len(source) // connections,)) for index in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    import os

    if sys.argv[5]:
        os.sched_setaffinity(0, {int(sys.argv[5])})
    send(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
