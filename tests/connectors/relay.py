"""A relay in front of a daemon that lets so many bytes a second through, in each direction of each connection."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Self

CHUNK = 4096


class Relay:
    """Listens on a port of loopback and connects to `host:port` for each that comes. Ends with its context."""

    def __init__(self, host: str, port: int, bytes_per_s: int) -> None:
        self._there = host, port
        self._bytes_per_s = bytes_per_s
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
                for source, sink in ((ours, theirs), (theirs, ours)):
                    threading.Thread(target=self._copy, args=(source, sink), daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK):
                sink.sendall(data)
                time.sleep(len(data) / self._bytes_per_s)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
