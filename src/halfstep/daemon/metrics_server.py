"""A small HTTP server for Prometheus text: one thread, few connections.

Invariants: one thread and at most CONNECTIONS_MAX connections, whoever connects and however slowly; a newcomer takes the place
of the one that has been there longest. A connection has REQUEST_S from its acceptance to its last byte. When descriptors run
out the listener rests for PAUSE_S instead of being asked over and over. Nothing that a client sends or does is an error here.
Thread: its own; `end` may be called from any other.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from collections.abc import Callable

CONNECTIONS_MAX = 32
REQUEST_S, PAUSE_S = 10.0, 1.0
REQUEST_BYTES_MAX = 16 << 10
_READ_BYTES, _BACKLOG = 4096, 64

# Of a request's Accept header: (content type, body).
Render = Callable[[str], tuple[str, bytes]]


class _Connection:
    """One client: what came of its request, or what is left of its answer."""

    def __init__(self, channel: socket.socket, ends_s: float) -> None:
        self.channel = channel
        self.ends_s = ends_s
        self.request = b""
        self.answer = memoryview(b"")


class MetricsServer:
    """Serves what `render` gives, between begin() and end(). Errors: OSError when the address is taken."""

    def __init__(self, host: str, port: int, render: Render, clock: Callable[[], float] = time.monotonic) -> None:
        self._render = render
        self._clock = clock
        self._connections: dict[int, _Connection] = {}  # by descriptor, the oldest first
        self._resting_until_s: float | None = None
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        self._listener = socket.socket(family, kind, protocol)
        try:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.bind(where)
            self._listener.listen(_BACKLOG)
            self._listener.setblocking(False)
            self._ended, self._end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            self._listener.close()
            raise
        self._selector = selectors.PollSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._ended, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="halfstep-metrics", daemon=True)

    @property
    def host(self) -> str:
        """The numeric address that it is bound to."""
        return str(self._listener.getsockname()[0])

    @property
    def port(self) -> int:
        """The one that it has, where any was asked for."""
        return int(self._listener.getsockname()[1])

    @property
    def open_connections(self) -> int:
        """Right now."""
        return len(self._connections)

    def begin(self) -> None:
        """Errors: RuntimeError when there is no thread to be had."""
        self._thread.start()

    def end(self) -> None:
        """Closes everything. A thread that waits for a stuck shard's numbers is left to it."""
        os.write(self._end, b"\0")
        if self._thread.ident is None:
            self._clean()
        else:
            self._thread.join(1.0)
        self._listener.close()
        if not self._thread.is_alive():
            os.close(self._end)

    def _run(self) -> None:
        while self.turn():
            pass
        self._clean()

    def _clean(self) -> None:
        for connection in list(self._connections.values()):
            self._close(connection)
        self._selector.close()
        os.close(self._ended)

    def turn(self) -> bool:
        """Waits for something to do and does it; False when it was ended."""
        for key, _ in self._selector.select(self._patience_s()):
            if key.fd == self._ended:
                return False
            if key.fileobj is self._listener:
                self._accept()
            elif (connection := self._connections.get(key.fd)) is not None:
                self._serve(connection)
        now_s = self._clock()
        for connection in list(self._connections.values()):
            if connection.ends_s <= now_s:
                self._close(connection)
        if self._resting_until_s is not None and self._resting_until_s <= now_s:
            self._resting_until_s = None
            self._selector.register(self._listener, selectors.EVENT_READ)
        return True

    def _patience_s(self) -> float | None:
        ends = [connection.ends_s for connection in self._connections.values()]
        if self._resting_until_s is not None:
            ends.append(self._resting_until_s)
        return max(min(ends) - self._clock(), 0) if ends else None

    def _accept(self) -> None:
        try:
            channel, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError:
            # No descriptor, no memory: whoever waits stays in the backlog, and the listener would be ready all the time.
            self._selector.unregister(self._listener)
            self._resting_until_s = self._clock() + PAUSE_S
            return
        if len(self._connections) == CONNECTIONS_MAX:
            self._close(next(iter(self._connections.values())))
        channel.setblocking(False)
        self._connections[channel.fileno()] = _Connection(channel, self._clock() + REQUEST_S)
        self._selector.register(channel, selectors.EVENT_READ)

    def _serve(self, connection: _Connection) -> None:
        try:
            if connection.answer:
                self._send(connection)
            else:
                self._receive(connection)
        except BlockingIOError:
            return
        except OSError:
            self._close(connection)

    def _receive(self, connection: _Connection) -> None:
        more = connection.channel.recv(_READ_BYTES)
        connection.request += more
        if b"\r\n\r\n" in connection.request or b"\n\n" in connection.request:
            connection.answer = memoryview(self._answer(connection.request))
            self._selector.modify(connection.channel, selectors.EVENT_WRITE)
        elif not more or len(connection.request) > REQUEST_BYTES_MAX:
            self._close(connection)

    def _send(self, connection: _Connection) -> None:
        connection.answer = connection.answer[connection.channel.send(connection.answer) :]
        if not connection.answer:
            self._close(connection)

    def _close(self, connection: _Connection) -> None:
        self._selector.unregister(connection.channel)
        del self._connections[connection.channel.fileno()]
        connection.channel.close()

    def _answer(self, request: bytes) -> bytes:
        lines = request.decode("latin-1").splitlines()
        words = lines[0].split() if lines else []
        if len(words) != 3 or not words[2].startswith("HTTP/"):
            return _response("400 Bad Request", "text/plain", b"this is no HTTP request\n")
        if words[0] not in ("GET", "HEAD"):
            return _response("405 Method Not Allowed", "text/plain", b"GET or HEAD\n", "Allow: GET, HEAD")
        if words[1].partition("?")[0] not in ("/", "/metrics"):
            return _response("404 Not Found", "text/plain", b"the metrics are at /metrics\n")
        accept = [line.partition(":")[2].strip() for line in lines[1:] if line.lower().startswith("accept:")]
        try:
            kind, body = self._render(",".join(accept))
        except Exception as error:  # the shards have ended, perhaps; this thread goes on
            return _response("503 Service Unavailable", "text/plain", f"no metrics: {error}\n".encode(errors="replace"))
        answer = _response("200 OK", kind, body)
        return answer if words[0] == "GET" else answer.removesuffix(body)


def _response(status: str, kind: str, body: bytes, *headers: str) -> bytes:
    head = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join([*head, "", ""]).encode("latin-1") + body
