"""A relay in front of a daemon: so many bytes a second in each direction of each connection, or with flipped bits."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Self

CHUNK = 4096


class Relay:
    """Listens on a port of loopback and connects to `host:port` for each that comes. Ends with its context.

    bytes_per_s: None = as they come. to_daemon: also what the client sends. flips: a bit of every full buffer that the daemon
    sends, which is payload.
    """

    def __init__(
        self, host: str, port: int, bytes_per_s: int | None = None, *, to_daemon: bool = True, flips: bool = False
    ) -> None:
        self._there = host, port
        self._bytes_per_s = bytes_per_s
        self._to_daemon, self._flips = to_daemon, flips
        self.flipped = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.url = f"halfstep://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for one in [self._listening, *self._open]:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                ours, _ = self._listening.accept()
                theirs = socket.create_connection(self._there)
                self._open += [ours, theirs]
                sending = self._bytes_per_s if self._to_daemon else None
                for source, sink, rate, flips in (
                    (ours, theirs, sending, False),
                    (theirs, ours, self._bytes_per_s, self._flips),
                ):
                    threading.Thread(target=self._copy, args=(source, sink, rate, flips), daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket, bytes_per_s: int | None, flips: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK):
                if flips and len(data) == CHUNK:
                    data = data[: CHUNK // 2] + bytes([data[CHUNK // 2] ^ 1]) + data[CHUNK // 2 + 1 :]
                    self.flipped += 1
                sink.sendall(data)
                if bytes_per_s is not None:
                    time.sleep(len(data) / bytes_per_s)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
