"""What a process that runs the daemon's core sees come and go."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import halfstep
from halfstep import _shard

pytestmark = pytest.mark.integration

BLOCK_BYTES = 4096


@pytest.fixture
def server(tmp_path: Path) -> Iterator[_shard.Server]:
    config = _shard.Config()
    config.store_path = str(tmp_path / "store.hs")
    config.store_bytes = 140 << 20
    config.arena_bytes = 64 << 20
    config.huge_pages = False
    config.listen = ["127.0.0.1:0"]
    config.scrub_bytes_per_s = _shard.SCRUB_AUTO
    started = _shard.Server(config)
    yield started
    started.stop(0)


@pytest.fixture
def client(server: _shard.Server) -> Iterator[halfstep.Client]:
    layout = halfstep.Layout.opaque("events", process=os.getpid())
    url = f"halfstep://{server.facts()['listening'][0]}/default"
    with halfstep.connect(url, layout=layout, required=True, deadline_ms=30_000) as client:
        yield client


def put(client: halfstep.Client, *keys: bytes) -> None:
    assert client.put(keys, [np.full(BLOCK_BYTES, 7, np.uint8) for _ in keys], parents=[-1, *range(len(keys) - 1)]).ok.all()


def test_a_follower_sees_puts_deletes_and_clears_with_their_keys(server: _shard.Server, client: halfstep.Client) -> None:
    put(client, b"root-key-of-this-chain", b"leaf")
    client.delete([b"leaf"])
    client.clear()
    polled = server.poll_events(0)
    told = [(event["number"], event["kind"], event["reason"], event.get("key")) for event in polled["events"]]
    assert told == [
        (1, "stored", "put", b"root-key-of-this-chain"),
        (2, "stored", "put", b"leaf"),
        (3, "removed", "deleted", b"leaf"),
        (4, "cleared", "layout_cleared", None),
    ]
    assert (polled["last"], polled["lost"], polled["foreign"]) == (4, 0, False)
    first, second = polled["events"][:2]
    assert first["root"]
    assert first["parent"] is None
    assert first["block_bytes"] == BLOCK_BYTES
    assert second["parent"] == b"root-key-of-this-chain"[-8:]
    assert {event["layout_id"] for event in polled["events"]} == {client.layout.id}
    assert {event["namespace"] for event in polled["events"]} == {"default"}


def test_a_follower_goes_on_where_it_was(server: _shard.Server, client: halfstep.Client) -> None:
    put(client, b"a")
    last = server.poll_events(0)["last"]
    put(client, b"b")
    page: dict[str, Any] = server.poll_events(last, 10)
    assert [event["key"] for event in page["events"]] == [b"b"]
    assert server.poll_events(page["last"])["events"] == []
    assert server.poll_events(10**6)["foreign"]


def test_the_metrics_count_events_and_the_scrub(server: _shard.Server, client: halfstep.Client) -> None:
    put(client, b"a")
    metrics = server.metrics()
    counted = {labels["reason"]: value for name, labels, value in metrics["counters"] if name == "halfstep_store_events_total"}
    assert counted["put"] == 1
    assert counted["deleted"] == 0
    gauges = {name: value for name, _, value in metrics["gauges"]}
    assert gauges["halfstep_store_scrub_bytes_per_second"] == server.facts()["scrub_bytes_per_s"] == 256 << 10
