"""The metrics port: what it answers, and that nobody who connects to it costs more than a place among few."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from halfstep.daemon import metrics_server
from halfstep.daemon.metrics import address_text, check_address, parse_address, serve_metrics
from halfstep.daemon.metrics_server import CONNECTIONS_MAX, PAUSE_S, REQUEST_BYTES_MAX, REQUEST_S, MetricsServer
from halfstep.errors import ConfigError

REQUEST = b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: text/plain\r\n\r\n"


class Driven:
    """A server without a thread: this one turns it, at times of its own."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.accepts: list[str] = []
        self.clients: list[socket.socket] = []
        self.server = MetricsServer("127.0.0.1", 0, self.render, clock=lambda: self.now_s)

    def render(self, accept: str) -> tuple[str, bytes]:
        self.accepts.append(accept)
        return "text/plain; version=0.0.4", b"a 1\n"

    def connect(self, request: bytes = b"") -> socket.socket:
        """A client that has been accepted."""
        client = self.unaccepted()
        self.server.turn()
        client.sendall(request)
        return client

    def unaccepted(self) -> socket.socket:
        """One that waits in the backlog."""
        self.clients.append(socket.create_connection(("127.0.0.1", self.server.port), timeout=10))
        return self.clients[-1]

    def close(self) -> None:
        """All of it."""
        for client in self.clients:
            client.close()
        self.server.end()

    def answer(self, client: socket.socket) -> bytes:
        """All that it gets, until it is closed."""
        client.setblocking(False)
        got = b""
        for _ in range(100):
            try:
                if not (piece := client.recv(1 << 16)):
                    return got
                got += piece
            except BlockingIOError:
                self.server.turn()
        raise AssertionError(f"neither more nor the end after {got!r}")


@pytest.fixture
def driven() -> Iterator[Driven]:
    one = Driven()
    yield one
    one.close()


def test_a_scrape_gets_the_text_and_the_end(driven: Driven) -> None:
    head, _, body = driven.answer(driven.connect(REQUEST)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Content-Length: 4" in head
    assert b"Connection: close" in head
    assert body == b"a 1\n"
    assert driven.accepts == ["text/plain"]
    assert driven.server.open_connections == 0


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.0\r\n\r\n", b"200"),
        (b"GET /metrics?x=y HTTP/1.1\n\n", b"200"),
        (b"GET /elsewhere HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"\xff\xfe\r\n\r\n", b"400"),
        (b"\r\n\r\n", b"400"),
    ],
)
def test_other_requests_are_answered_as_http_asks(driven: Driven, request_bytes: bytes, status: bytes) -> None:
    assert driven.answer(driven.connect(request_bytes)).startswith(b"HTTP/1.1 " + status)


def test_a_head_has_no_body(driven: Driven) -> None:
    answer = driven.answer(driven.connect(REQUEST.replace(b"GET", b"HEAD")))
    assert answer.endswith(b"\r\n\r\n")
    assert b"Content-Length: 4" in answer


def test_a_request_in_pieces_is_one(driven: Driven) -> None:
    client = driven.connect()
    for byte in REQUEST[:-1]:
        client.sendall(bytes([byte]))
        driven.server.turn()
    client.sendall(REQUEST[-1:])
    assert driven.answer(client).startswith(b"HTTP/1.1 200")


def test_numbers_that_are_not_to_be_had_are_said_to_be(driven: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(_accept: str) -> tuple[str, bytes]:
        raise RuntimeError("the shards have ended")

    monkeypatch.setattr(driven.server, "_render", ended)
    assert driven.answer(driven.connect(REQUEST)).startswith(b"HTTP/1.1 503")


def test_a_silent_connection_is_closed_when_its_time_is_over(driven: Driven) -> None:
    silent = driven.connect()
    slow = driven.connect(b"GET /met")
    driven.now_s += REQUEST_S - 0.5
    driven.connect()
    assert driven.server.open_connections == 3
    driven.now_s += 0.5
    driven.connect()
    assert driven.server.open_connections == 2, "those that came later have their own time"
    for client in (silent, slow):
        assert driven.answer(client) == b""


def test_silent_connections_have_few_places_and_a_scrape_is_served_beside_them(driven: Driven) -> None:
    for _ in range(500):
        driven.connect()
    assert driven.server.open_connections == CONNECTIONS_MAX
    assert driven.answer(driven.connect(REQUEST)).startswith(b"HTTP/1.1 200")
    assert driven.server.open_connections == CONNECTIONS_MAX - 1


def test_a_request_without_an_end_is_closed(driven: Driven) -> None:
    client = driven.connect()
    sent = 0
    while driven.server.open_connections:
        client.sendall(b"x" * 1024)
        sent += 1024
        driven.server.turn()
    assert sent <= REQUEST_BYTES_MAX + 4096


def test_a_client_that_goes_away_gives_its_place_up(driven: Driven) -> None:
    client = driven.connect()
    client.close()
    driven.server.turn()
    assert driven.server.open_connections == 0


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """As in a process that has as many as it may."""
    lowest = os.dup(0)
    os.close(lowest)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_without_descriptors_the_listener_rests_and_asks_again(driven: Driven, monkeypatch: pytest.MonkeyPatch) -> None:
    selector = driven.server._selector
    select, waits = selector.select, []

    def at_once(timeout_s: float | None) -> object:
        waits.append(timeout_s)
        return select(0)

    monkeypatch.setattr(selector, "select", at_once)
    client = driven.unaccepted()
    with no_descriptor_left():
        for _ in range(10):
            driven.server.turn()
        assert driven.server.open_connections == 0
        assert waits == [None] + [PAUSE_S] * 9, "it was found out once, and then it rests"
        driven.now_s += PAUSE_S
        driven.server.turn()
        driven.server.turn()
        assert waits[-2:] == [0, None], "asked again"
        assert driven.server.open_connections == 0
    driven.now_s += PAUSE_S
    driven.server.turn()
    driven.server.turn()
    assert driven.server.open_connections == 1
    client.sendall(REQUEST)
    assert driven.answer(client).startswith(b"HTTP/1.1 200")


def test_begin_and_end_leave_no_thread_and_no_descriptor() -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = descriptors()
    for begun in (False, True):
        server = MetricsServer("127.0.0.1", 0, lambda _accept: ("text/plain", b""))
        client = None
        if begun:
            server.begin()
            client = socket.create_connection(("127.0.0.1", server.port), timeout=10)
        server.end()
        assert not server._thread.is_alive()
        if client is not None:
            client.close()
    assert descriptors() == before


def test_an_address_of_version_6_stands_in_brackets() -> None:
    assert parse_address("::1:9350") == parse_address("[::1]:9350") == ("::1", 9350)
    assert address_text("::1", 9350) == "[::1]:9350"
    assert address_text("127.0.0.1", 9350) == "127.0.0.1:9350"


@pytest.mark.parametrize("text", ["nowhere", "h:", "h:-1", "h:65536", "h:²", "h:" + "9" * 5000, "h:٣"])
def test_an_address_that_is_none_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="write host:port"):
        parse_address(text)


def test_an_address_that_leads_beyond_loopback_since_it_was_checked_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[MetricsServer] = []
    monkeypatch.setattr(MetricsServer, "begin", lambda server: begun.append(server))
    monkeypatch.setattr(MetricsServer, "host", property(lambda _server: "192.0.2.1"))
    check_address("127.0.0.1:0")
    with pytest.raises(ConfigError, match="allow it with --insecure-listen"):
        serve_metrics("127.0.0.1:0", dict)
    assert begun == []
    end, _ = serve_metrics("127.0.0.1:0", dict, beyond_loopback=True)
    end()
    assert len(begun) == 1


def test_no_thread_is_a_refusal_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_server: MetricsServer) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(metrics_server.MetricsServer, "begin", none)
    with pytest.raises(ConfigError, match="ulimit -u"):
        serve_metrics("127.0.0.1:0", dict)
