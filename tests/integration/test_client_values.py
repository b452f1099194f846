"""Single values: get and put of one key, exists, ping, async with."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import halfstep

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("length", [1, 7, 4096, 300_001])
def test_a_value_is_put_and_got(client: halfstep.Client, length: int) -> None:
    value = np.random.default_rng(length).bytes(length)
    assert client.get(b"key") is None
    assert not client.exists(b"key")
    assert client.put(b"key", value).ok.all()
    assert client.get(b"key") == value
    assert client.exists(b"key")


def test_a_value_is_in_the_layout_that_is_named(client: halfstep.Client, layout: halfstep.Layout) -> None:
    other = halfstep.Layout.opaque("another", of=layout.id.hex())
    assert client.put(b"key", b"value", layout=other).ok.all()
    assert client.get(b"key") is None
    assert client.get(b"key", layout=other) == b"value"


def test_a_value_is_one_block(client: halfstep.Client) -> None:
    with pytest.raises(halfstep.ConfigError, match="components=2"):
        client.get(b"key", components=2)


def test_text_is_no_key(client: halfstep.Client) -> None:
    with pytest.raises(halfstep.ConfigError, match=r"key\.encode"):
        client.get("key")  # type: ignore[call-overload]


def test_a_stopped_daemon_has_no_value_and_no_ping(client: halfstep.Client, daemon: Any) -> None:
    assert client.put(b"key", b"value").ok.all()
    assert client.ping() > 0
    daemon.pause()
    assert client.get(b"key", deadline_ms=50) is None
    assert not client.exists(b"key", deadline_ms=50)
    with pytest.raises(halfstep.Unavailable, match="late"):
        client.ping(deadline_ms=50)
    daemon.resume()
    assert client.ping() > 0


def test_a_ping_without_a_daemon_says_why() -> None:
    with halfstep.connect("halfstep://127.0.0.1:1", deadline_ms=100) as client, pytest.raises(halfstep.Unavailable) as told:
        client.ping()
    assert "halfstep://127.0.0.1:1" in str(told.value)


def test_a_client_is_closed_at_the_end_of_async_with(daemon: Any, layout: halfstep.Layout) -> None:
    async def main() -> halfstep.Client:
        async with halfstep.connect(daemon.url, layout=layout, match_deadline_ms=30_000) as client:
            assert (await client.aio.match([b"key"])).prefix == 0
        return client

    assert asyncio.run(main()).closed
