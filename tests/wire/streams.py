"""The byte stream over a socket: TCP and unix."""

from __future__ import annotations

import socket
import time
from typing import Protocol, Self

from tests.wire.frames import Closed

SEND_TIMEOUT_S = 30.0
Address = tuple[str, int] | str


class Stream(Protocol):
    """Where bytes come from and go to."""

    def send(self, data: bytes) -> None:
        """All of them. Errors: Closed, TimeoutError."""

    def receive(self, count: int, timeout_s: float) -> bytes:
        """Exactly so many. Errors: Closed, TimeoutError."""

    def close(self) -> None:
        """Ends it; nothing of it stays."""


class SocketStream:
    """Bytes over a connected socket."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self._pending = bytearray()

    @classmethod
    def connect(cls, address: Address, timeout_s: float = SEND_TIMEOUT_S) -> Self:
        """address: host and port, or the path of a unix socket. Errors: OSError."""
        if isinstance(address, tuple):
            connected = socket.create_connection(address, timeout_s)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        else:
            connected = socket.socket(socket.AF_UNIX)
            try:
                connected.settimeout(timeout_s)
                connected.connect(address)
            except OSError:
                connected.close()
                raise
        return cls(connected)

    def send(self, data: bytes) -> None:
        """All of them. Errors: Closed, TimeoutError."""
        self.socket.settimeout(SEND_TIMEOUT_S)
        try:
            self.socket.sendall(data)
        except ConnectionError as error:
            raise Closed(str(error)) from error

    def receive(self, count: int, timeout_s: float) -> bytes:
        """Exactly so many; what came of them before a timeout stays for the next call. Errors: Closed, TimeoutError."""
        until = time.monotonic() + timeout_s
        while len(self._pending) < count:
            self.socket.settimeout(max(until - time.monotonic(), 0.001))
            try:
                data = self.socket.recv(1 << 20)
            except ConnectionError as error:
                raise Closed(str(error)) from error
            if not data:
                raise Closed(f"the stream ended, {len(self._pending)} of {count} bytes had come")
            self._pending += data
        taken = bytes(self._pending[:count])
        del self._pending[:count]
        return taken

    def close(self) -> None:
        """Ends it."""
        self.socket.close()
