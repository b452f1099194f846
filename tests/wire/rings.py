"""The byte stream through shared memory: section 14 of the page.

A position and a flag are aligned words of the mapping, read and written whole; the lock's acquire and release stand for the
page's seq_cst: CPython has no other fence.
"""

from __future__ import annotations

import array
import ctypes
import fcntl
import mmap
import os
import select
import socket
import struct
import threading
import time
from typing import Self

from tests.wire.frames import Closed, need

SEND_TIMEOUT_S = 30.0
CONTROL_BYTES = 4096
RING_BYTES_MIN, RING_BYTES_MAX = 4 << 10, 64 << 20
HEAD_AT, READER_WAITS_AT, WRITER_WAITS_AT, NEXT_RING_AT = 128, 256, 384, 512
F_GET_SEALS = 1034
SEALED = 7  # F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW
MAGIC = b"HSM1"


class ShmRefused(Exception):
    """The server has no memory for this connection. Carries ShmAnswer's refusal."""


class _Words:
    """The four words of one ring."""

    def __init__(self, base: int) -> None:
        self.tail = ctypes.c_uint64.from_address(base)
        self.head = ctypes.c_uint64.from_address(base + HEAD_AT)
        self.reader_waits = ctypes.c_uint32.from_address(base + READER_WAITS_AT)
        self.writer_waits = ctypes.c_uint32.from_address(base + WRITER_WAITS_AT)


class SharedMemoryStream:
    """A connection's two rings."""

    def __init__(self, connected: socket.socket, memory: int, wake: int, woken: int, up_bytes: int, down_bytes: int) -> None:
        self._socket = connected
        self._descriptors = (memory, wake, woken)
        self.up_bytes, self.down_bytes = up_bytes, down_bytes
        self.memory = mmap.mmap(memory, CONTROL_BYTES + up_bytes + down_bytes)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.up, self.down = _Words(base), _Words(base + NEXT_RING_AT)
        self._written = self._read = 0
        self._pending = bytearray()
        self._ended = False
        self._lock = threading.Lock()
        self._poll = select.epoll()
        self._poll.register(woken, select.EPOLLIN | select.EPOLLET)
        self._poll.register(connected.fileno(), select.EPOLLIN | select.EPOLLRDHUP)

    @classmethod
    def connect(cls, path: str, versions: tuple[int, int] = (1, 1), timeout_s: float = SEND_TIMEOUT_S) -> Self:
        """path: of the unix socket. Errors: OSError, ShmRefused, WireFault."""
        connected = socket.socket(socket.AF_UNIX)
        descriptors: list[int] = []
        try:
            connected.settimeout(timeout_s)
            connected.connect(path)
            connected.sendall(MAGIC + struct.pack("<HHQ", *versions, 0))
            data, passed, _, _ = connected.recvmsg(32, socket.CMSG_SPACE(3 * array.array("i").itemsize))
            for level, kind, content in passed:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    descriptors += array.array("i", content)
            need(len(data) == 32 and data[:4] == MAGIC, f"ShmAnswer {data!r}")
            version, refusal, memory_bytes, up_bytes, down_bytes, zero = struct.unpack_from("<HHQIIQ", data, 4)
            if version == 0:
                raise ShmRefused(refusal)
            need((version, refusal, zero) == (1, 0, 0), f"ShmAnswer: version {version}, refusal {refusal}, zero {zero}")
            for ring_bytes in (up_bytes, down_bytes):
                need(
                    RING_BYTES_MIN <= ring_bytes <= RING_BYTES_MAX and ring_bytes & ring_bytes - 1 == 0,
                    f"a ring of {ring_bytes}",
                )
            need(len(descriptors) == 3, f"{len(descriptors)} descriptors")
            need(fcntl.fcntl(descriptors[0], F_GET_SEALS) & SEALED == SEALED, "the memory is not sealed")
            size = os.fstat(descriptors[0]).st_size
            need(size == memory_bytes == CONTROL_BYTES + up_bytes + down_bytes, f"memory of {size} bytes, said {memory_bytes}")
            return cls(connected, *descriptors, up_bytes, down_bytes)
        except BaseException:
            for descriptor in descriptors:
                os.close(descriptor)
            connected.close()
            raise

    def send(self, data: bytes) -> None:
        """All of them. Errors: TimeoutError, Closed, WireFault."""
        until = time.monotonic() + SEND_TIMEOUT_S
        rest = memoryview(data)
        while rest:
            room = self._room()
            if not room:
                self.up.writer_waits.value = 1
                self._fence()
                if not self._room():
                    self._wait(until)
                continue
            count = min(room, len(rest))
            self._write(rest[:count])
            rest = rest[count:]

    def receive(self, count: int, timeout_s: float) -> bytes:
        """Exactly so many. Errors: TimeoutError, Closed, WireFault."""
        until = time.monotonic() + timeout_s
        while len(self._pending) < count:
            if self._take():
                continue
            ended = self._ended
            self.down.reader_waits.value = 1
            self._fence()
            if self._take():
                continue
            if ended:
                raise Closed(f"the socket ended, {len(self._pending)} of {count} bytes had come")
            self._wait(until)
        taken = bytes(self._pending[:count])
        del self._pending[:count]
        return taken

    def wake(self) -> None:
        """Has the server look at the rings."""
        os.write(self._descriptors[1], struct.pack("<Q", 1))

    def close(self) -> None:
        """Ends it: the socket's end is the connection's."""
        if self._poll.closed:
            return
        self._poll.close()
        del self.up, self.down  # nothing points into the mapping any more
        self._socket.close()
        for descriptor in self._descriptors:
            os.close(descriptor)

    def _room(self) -> int:
        used = self._written - self.up.head.value
        need(0 <= used <= self.up_bytes, f"the server took {self.up.head.value} of {self._written} bytes")
        return self.up_bytes - used

    def _write(self, data: memoryview) -> None:
        at = self._written % self.up_bytes
        first = min(len(data), self.up_bytes - at)
        self.memory[CONTROL_BYTES + at : CONTROL_BYTES + at + first] = data[:first]
        self.memory[CONTROL_BYTES : CONTROL_BYTES + len(data) - first] = data[first:]
        self._written += len(data)
        self._fence()
        self.up.tail.value = self._written
        self._fence()
        if self.up.reader_waits.value:
            self.up.reader_waits.value = 0
            self.wake()

    def _take(self) -> bool:
        tail = self.down.tail.value
        there = tail - self._read
        need(0 <= there <= self.down_bytes, f"the server put {tail} bytes in, {self._read} were taken")
        if not there:
            return False
        base = CONTROL_BYTES + self.up_bytes
        at = self._read % self.down_bytes
        first = min(there, self.down_bytes - at)
        self._pending += self.memory[base + at : base + at + first]
        self._pending += self.memory[base : base + there - first]
        self._read = tail
        self.down.head.value = tail
        self._fence()
        if self.down.writer_waits.value and self.down_bytes - (self.down.tail.value - tail) >= self.down_bytes // 2:
            self.down.writer_waits.value = 0
            self.wake()
        return True

    def _wait(self, until: float) -> None:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the server moved neither bytes nor the socket")
        if self._ended:
            raise Closed("the socket ended")
        for descriptor, _ in self._poll.poll(left):
            if descriptor != self._socket.fileno():
                continue
            try:
                need(not self._socket.recv(1, socket.MSG_DONTWAIT), "the socket spoke")
            except BlockingIOError:
                continue
            except ConnectionError:
                pass
            self._ended = True
            self._poll.unregister(descriptor)

    def _fence(self) -> None:
        with self._lock:
            pass
