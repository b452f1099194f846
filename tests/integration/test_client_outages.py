"""A daemon that is not there, dies, comes back or says nothing: a miss with a reason, within the deadline, and no exception."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import halfstep
from halfstep import ConfigError, Layout, Unavailable

pytestmark = pytest.mark.integration

Blocks = Callable[..., Any]
KEYS = [b"a", b"b", b"c"]
# Bounds are generous: they tell an answer from a hang.
PATIENCE_S = 30


@pytest.fixture
def nobody() -> Iterator[str]:
    """The URL of a port where nobody listens, and nobody will."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield f"halfstep://127.0.0.1:{reserved.getsockname()[1]}"


@pytest.fixture
def mute() -> Iterator[str]:
    """The URL of a server that accepts and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"halfstep://127.0.0.1:{server.getsockname()[1]}"


def hits_within(client: halfstep.Client, seconds: float, source: Any) -> Any:
    """Get until it hits, or the time is over."""
    until = time.monotonic() + seconds
    while True:
        target = np.zeros_like(source)
        result = client.get(KEYS, target)
        if result.ok.all() or time.monotonic() > until:
            return result, target


@pytest.mark.parametrize("who", ["nobody", "mute"])
def test_without_a_daemon_everything_is_a_miss_with_a_reason(request: pytest.FixtureRequest, who: str) -> None:
    url = request.getfixturevalue(who)
    started = time.monotonic()
    with halfstep.connect(url, deadline_ms=200, match_deadline_ms=20) as client:
        results = [
            client.get(KEYS, bytearray(3)),
            client.put(KEYS, b"xyz"),
            client.delete(KEYS),
            client.release(5),
        ]
        for result in results:
            assert not result.ok.any()
            assert result.reason(0).split()[0] in {"unavailable", "late"}, result
        found = client.match(KEYS)
        assert (found.prefix, found.answered) == (0, False)
        assert found.reason.split()[0] in {"unavailable", "late"}
        assert "not connected" in client.path
        with pytest.raises(Unavailable, match="stat"):
            client.stat()
        with pytest.raises(Unavailable, match="list"):
            next(client.list())
    assert time.monotonic() - started < PATIENCE_S


def test_required_raises_with_the_reason(nobody: str, mute: str) -> None:
    with pytest.raises(Unavailable, match=r"ECONNREFUSED|refused"):
        halfstep.connect(nobody, required=True, deadline_ms=3000)
    with pytest.raises(Unavailable, match="300 ms"):
        halfstep.connect(mute, required=True, deadline_ms=300)


def test_closing_ends_whoever_waits_for_a_daemon(mute: str) -> None:
    client = halfstep.connect(mute)
    waits = threading.Barrier(5)
    heard: list[str] = []

    def wait() -> None:
        waits.wait()
        try:
            client.wait_ready(600_000)
        except ConfigError as error:
            heard.append(str(error))

    threads = [threading.Thread(target=wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    waits.wait()
    # Takes its whole deadline, in which the others have begun to wait.
    client.match(KEYS, deadline_ms=100)
    client.close()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(heard) == 4
    assert all("client is closed" in said for said in heard)


def test_a_server_of_another_kind_is_a_miss(request: pytest.FixtureRequest) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        stop = threading.Event()

        def talk() -> None:
            server.settimeout(0.1)
            while not stop.is_set():
                try:
                    peer, _ = server.accept()
                except TimeoutError:
                    continue
                with peer:
                    peer.sendall(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")

        thread = threading.Thread(target=talk)
        thread.start()
        try:
            with halfstep.connect(f"halfstep://127.0.0.1:{server.getsockname()[1]}", deadline_ms=300) as client:
                assert not client.get(KEYS, bytearray(3)).ok.any()
        finally:
            stop.set()
            thread.join()


def test_a_daemon_that_comes_later_is_found(own_daemon: Any, layout: Layout, blocks: Blocks) -> None:
    url = own_daemon.url
    own_daemon.kill()
    source = blocks(3, 10_000)
    with halfstep.connect(url, layout=layout, deadline_ms=2000, match_deadline_ms=2000) as client:
        assert not client.match(KEYS).answered
        own_daemon.restart()
        until = time.monotonic() + PATIENCE_S
        while not client.put(KEYS, source).ok.all():
            assert time.monotonic() < until
        result, target = hits_within(client, PATIENCE_S, source)
        assert result.ok.all()
        assert (target == source).all()


def test_a_daemon_killed_in_mid_use_is_misses_until_it_is_back(own_daemon: Any, layout: Layout, blocks: Blocks) -> None:
    source = blocks(3, 200_000)
    with halfstep.connect(
        own_daemon.url, layout=layout, required=True, deadline_ms=5000, match_deadline_ms=5000, connections=2
    ) as client:
        assert client.put(KEYS, source, durability="persist").ok.all()
        boot = client.facts().boot_id
        stop = threading.Event()
        wrong: list[str] = []

        def use() -> None:
            while not stop.is_set():
                target = np.zeros_like(source)
                result = client.get(KEYS, target, deadline_ms=1000)
                if not (target[result.ok] == source[result.ok]).all():
                    wrong.append(repr(result))

        threads = [threading.Thread(target=use) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(3):
                own_daemon.kill()
                result = client.get(KEYS, np.zeros_like(source), deadline_ms=500)
                assert not result.ok.any()
                assert result.reason(0).split()[0] in {"unavailable", "late"}
                own_daemon.restart()
                result, target = hits_within(client, PATIENCE_S, source)
                assert result.ok.all(), result
                assert (target == source).all()
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert not wrong
        assert client.facts().boot_id != boot


def test_what_was_in_flight_when_it_died_is_not_resent(own_daemon: Any, layout: Layout, blocks: Blocks) -> None:
    source = blocks(3, 1000)
    with halfstep.connect(own_daemon.url, layout=layout, required=True, deadline_ms=20_000) as client, client.queue() as queue:
        client.match(KEYS)
        own_daemon.pause()
        ticket = queue.put(KEYS, source)
        # The request is with the kernel, or nothing of it is: either way this client does not repeat it.
        assert queue.poll() == []
        own_daemon.kill()
        result = ticket.result(PATIENCE_S)
        assert not result.ok.any()
        assert result.reason(0).startswith("unavailable")


def test_stopping_in_order_is_as_good_as_dying(own_daemon: Any, layout: Layout, blocks: Blocks) -> None:
    source = blocks(3, 50_000)
    with halfstep.connect(own_daemon.url, layout=layout, required=True, deadline_ms=3000) as client:
        assert client.put(KEYS, source).ok.all()
        assert own_daemon.stop() == 0
        assert not client.get(KEYS, np.zeros_like(source), deadline_ms=200).ok.any()
        own_daemon.restart()
        result, target = hits_within(client, PATIENCE_S, source)
        assert result.ok.all(), "a clean stop keeps what was readable"
        assert (target == source).all()


def test_a_namespace_that_was_deleted_and_made_again_serves_its_old_client(daemon: Any, layout: Layout) -> None:
    url = f"{daemon.url}/again"
    with halfstep.connect(daemon.url, required=True) as admin:
        admin.create_namespace("again")
        with halfstep.connect(url, layout=layout, required=True, deadline_ms=30_000, match_deadline_ms=30_000) as client:
            assert client.put(KEYS, b"xyz").ok.all()
            admin.delete_namespace("again")
            gone = client.put(KEYS, b"xyz")
            assert not gone.ok.any()
            assert "rejected" in gone.reason(0), gone
            admin.create_namespace("again")
            until = time.monotonic() + PATIENCE_S
            while not client.put(KEYS, b"xyz").ok.all():
                assert time.monotonic() < until, client.path
            assert client.put(KEYS, b"xyz", layout=Layout.opaque("another")).ok.all()
            admin.delete_namespace("again")
            admin.create_namespace("again")
            # Without a call in between: the layouts that the client knows are of the namespace that is gone.
            assert client.put(KEYS, b"xyz").ok.all()
            assert client.match(KEYS).present.all()


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_a_frozen_daemon_costs_a_few_deadlines_and_is_found_again(daemon: Any, layout: Layout, transport: str) -> None:
    url = daemon.url if transport == "tcp" else daemon.unix_url
    with halfstep.connect(url, layout=layout, required=True, deadline_ms=30_000, match_deadline_ms=20) as client:
        assert client.put(KEYS, b"xyz").ok.all()
        daemon.pause()
        until = time.monotonic() + PATIENCE_S
        while (reason := client.match(KEYS).reason) != "unavailable (unresponsive)":
            assert reason == "late (deadline)"
            assert time.monotonic() < until, client.path
        # These would take their whole deadlines.
        assert client.get(KEYS, bytearray(3), deadline_ms=3_600_000).reason(0) == "unavailable (unresponsive)"
        assert client.put(KEYS, b"xyz", deadline_ms=3_600_000).reason(0) == "unavailable (unresponsive)"
        assert client.path.startswith("not connected"), client.path
        assert "hangs, or is stopped" in client.path
        daemon.resume()
        while not client.match(KEYS, deadline_ms=5_000).present.all():
            assert time.monotonic() < until, client.path
        assert client.path.startswith(transport), client.path
