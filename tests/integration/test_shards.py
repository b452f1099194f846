"""A store of several shards behind one daemon: what a client does reaches all of them, and a restart finds all of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from tests.integration.commands import wait_until
from tests.integration.conftest import Daemon

import halfstep
from halfstep import _shard
from halfstep.tools.daemon_process import DaemonProcess

pytestmark = pytest.mark.integration

BLOCK_BYTES = 64 << 10
KEYS = 48  # enough for every shard to have some, whatever their names
STORE = "420MiB"  # of 2 MiB segments, for three shards
Blocks = Callable[..., npt.NDArray[np.uint8]]


class ShardedDaemon(Daemon):
    """One whose store has several shards, on ports that are free at each start: those behind a port may have been taken."""

    def __init__(self, directory: Path, shards: int) -> None:
        super().__init__(directory, STORE, "--shards", str(shards), arena="128MiB")
        self.shards = shards

    def start(self) -> None:
        """See DaemonProcess."""
        self._listen = "127.0.0.1:0"
        super().start()
        assert len(self.facts["shards"]) == self.facts["geometry"]["shards"] == self.shards


@pytest.fixture(params=[2, 3])
def sharded(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ShardedDaemon]:
    started = ShardedDaemon(tmp_path, request.param)
    try:
        started.start()
        yield started
    finally:
        started.close()


def connect(url: str, layout: halfstep.Layout) -> halfstep.Client:
    return halfstep.connect(url, layout=layout, required=True, deadline_ms=30_000, match_deadline_ms=30_000)


def names(count: int = KEYS, prefix: str = "block") -> list[bytes]:
    return [f"{prefix} {number}".encode() for number in range(count)]


def account(client: halfstep.Client, name: str) -> halfstep.Namespace:
    return next(space for space in client.namespaces() if space.name == name)


def cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "halfstep.tools.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_batch_goes_to_all_shards_over_tcp_and_the_unix_socket(
    sharded: ShardedDaemon, layout: halfstep.Layout, blocks: Blocks
) -> None:
    keys, data = names(), blocks(KEYS, BLOCK_BYTES)
    for url in (sharded.url, sharded.unix_url):
        with connect(url, layout) as client:
            assert client.put(keys, data, durability="persist").ok.all()
            assert client.match([*keys, b"absent"]).present.tolist() == [True] * KEYS + [False]
            back = np.zeros_like(data)
            assert client.get(keys, back).ok.all()
            assert (back == data).all()
            assert client.path.startswith("shm" if url == sharded.unix_url else "tcp")
            by_shard = client.stat_by_shard()
            assert list(by_shard) == list(range(sharded.shards))
            assert all(counters["halfstep_store_blocks"] > 0 for counters in by_shard.values())
            assert client.stat()["halfstep_store_blocks"] == KEYS
            assert sorted(entry.key for entry in client.list()) == sorted(keys)
            assert client.touch(keys).ok.all()
    with connect(sharded.url, layout) as client:
        assert client.delete(keys[:10]).ok.all()
        assert client.match(keys).present.tolist() == [False] * 10 + [True] * (KEYS - 10)


def test_every_shard_comes_back_after_a_kill_and_after_a_stop(
    sharded: ShardedDaemon, layout: halfstep.Layout, blocks: Blocks
) -> None:
    keys, data = names(), blocks(KEYS, BLOCK_BYTES)
    with connect(sharded.url, layout) as client:
        assert client.put(keys, data, durability="persist").ok.all()
        assert client.delete(keys[:8]).ok.all()
    for end in (signal.SIGKILL, signal.SIGTERM):
        sharded.end(end)
        sharded.start()
        with connect(sharded.url, layout) as client:
            wait_until(lambda: client.stat()["halfstep_recovery_segments_left"] == 0, "it is not recovered")
            assert client.stat()["halfstep_recovery_blocks"] == KEYS - 8
            back = np.zeros_like(data)
            got = client.get(keys, back)
            assert got.ok.tolist() == [False] * 8 + [True] * (KEYS - 8)
            assert (back[8:] == data[8:]).all()
    assert sharded.end() == 0
    told = json.loads(cli("fsck", "--json", str(sharded.store)).stdout)
    assert (told["findings"], told["header"]["shards"], told["header"]["clean_stop"]) == ([], sharded.shards, True)
    assert told["blocks"]["payloads_checked"] == KEYS - 8
    assert {segment["shard"] for segment in told["segments"]} == set(range(sharded.shards))


def test_names_and_clears_reach_all_shards_and_survive_a_kill(
    sharded: ShardedDaemon, layout: halfstep.Layout, blocks: Blocks
) -> None:
    keys, data = names(), blocks(KEYS, BLOCK_BYTES)
    quota = 64 * BLOCK_BYTES * sharded.shards
    with connect(sharded.url, layout) as client:
        client.create_namespace("tenant", quota, pin_budget_bytes=1 << 20, default_ttl_s=500)
        # At once, on every shard: a client that is told of it connects to all of them.
        with connect(f"{sharded.url}/tenant", layout) as tenant:
            assert tenant.put(keys, data).ok.all()
            assert client.match(keys).present.sum() == 0
        told = account(client, "tenant")
        assert (told.quota_bytes, told.pin_budget_bytes, told.default_ttl_s) == (quota, 1 << 20, 500)
        assert told.used_bytes >= KEYS * BLOCK_BYTES
        assert client.put(keys, data, durability="persist").ok.all()
        client.clear()
        assert client.match(keys).present.sum() == 0
    sharded.end(signal.SIGKILL)
    sharded.start()
    with connect(sharded.url, layout) as client:
        assert client.match(keys).present.sum() == 0
        assert account(client, "tenant").quota_bytes == quota
        client.delete_namespace("tenant")
        assert [space.name for space in client.namespaces()] == ["default"]
    with pytest.raises(halfstep.errors.ConfigError, match="tenant"), connect(f"{sharded.url}/tenant", layout) as client:
        client.wait_ready(30_000)


def test_a_quota_holds_over_all_shards(sharded: ShardedDaemon, layout: halfstep.Layout, blocks: Blocks) -> None:
    quota = 6 * BLOCK_BYTES * sharded.shards
    with connect(sharded.url, layout) as client:
        client.create_namespace("small", quota)
        with connect(f"{sharded.url}/small", layout) as small:
            for number in range(4):
                small.put(names(prefix=f"round {number}"), blocks(KEYS, BLOCK_BYTES, number))
                assert account(client, "small").used_bytes <= quota
            assert account(client, "small").used_bytes > quota // 2


def test_holds_are_taken_and_released_on_all_shards(sharded: ShardedDaemon, layout: halfstep.Layout, blocks: Blocks) -> None:
    keys = names()
    with connect(sharded.url, layout) as client:
        client.limit_namespace("default", pin_budget_bytes=100 << 20)
        assert client.put(keys, blocks(KEYS, BLOCK_BYTES)).ok.all()
        assert client.pin(keys, owner=7).ok.all()
        assert account(client, "default").pinned_bytes >= KEYS * BLOCK_BYTES
        client.release(owner=7)
        assert account(client, "default").pinned_bytes == 0
        assert client.expire(keys, 1).ok.all()
        end = time.monotonic() + 30
        while client.match(keys).present.any():
            assert time.monotonic() < end
            time.sleep(0.05)


def test_the_command_line_shows_each_shard(sharded: ShardedDaemon, layout: halfstep.Layout, blocks: Blocks) -> None:
    keys = names()
    with connect(sharded.url, layout) as client:
        assert client.put(keys, blocks(KEYS, BLOCK_BYTES)).ok.all()
        for key in keys[:8]:
            assert [block["block_bytes"] for block in client.explain(key)["blocks"]] == [BLOCK_BYTES], "its shard was asked"
    told = json.loads(cli("stat", "--json", sharded.url).stdout)
    assert len(told["shards"]) == sharded.shards
    name = 'halfstep_store_writes_total{outcome="committed"}'
    assert sum(shard[name] for shard in told["shards"]) == told["counters"][name] == KEYS
    text = cli("stat", sharded.url).stdout
    assert f"shard {sharded.shards - 1}" in text
    assert cli("check", sharded.url).returncode == 0


def test_a_store_keeps_its_number_of_shards(tmp_path: Path) -> None:
    daemon = ShardedDaemon(tmp_path, 2)
    try:
        daemon.start()
        assert daemon.end() == 0
        command = ("serve", "--store", str(daemon.store), "--unix", "none", "--listen", "127.0.0.1:0")
        refused = cli(*command, "--shards", "3")
        assert refused.returncode != 0
        assert "shards=3" in refused.stderr
        assert "was made with 2" in refused.stderr
        for cores, said in (("4000", "cores=4000"), ("nine", "cores='nine'")):
            refused = cli(*command, "--cores", cores)
            assert refused.returncode != 0
            assert said in refused.stderr
        # Without a number it is what it is; on a core of ours.
        core = min(os.sched_getaffinity(0))
        unnumbered = DaemonProcess(tmp_path, "--arena", "64MiB", "--cores", str(core))
        with unnumbered:
            assert [shard["core"] for shard in unnumbered.facts["shards"]] == [core, core]
    finally:
        daemon.close()


def test_shards_are_on_the_memory_nodes_that_are_named(tmp_path: Path) -> None:
    nodes = sorted(int(path.name[4:]) for path in Path("/sys/devices/system/node").glob("node[0-9]*"))
    if not nodes:
        pytest.skip("the kernel tells of no memory nodes")
    daemon = ShardedDaemon(tmp_path, 2)
    try:
        daemon.start()
        memories = [shard["memory"] for shard in daemon.facts["shards"]]
        if len(nodes) == 1:
            assert [one["why_no_node"] for one in memories] == ["this machine has one memory node"] * 2
        assert daemon.end() == 0
        command = ("serve", "--store", str(daemon.store), "--unix", "none", "--listen", "127.0.0.1:0")
        for numa, said in (
            ("1023", "numa=1023: there is no such node; nodes with memory are "),
            ("near", "numa='near': must be"),
        ):
            refused = cli(*command, "--numa", numa)
            assert refused.returncode != 0
            assert said in refused.stderr
        with DaemonProcess(tmp_path, "--arena", "64MiB", "--numa", str(nodes[0])) as named:
            for shard in named.facts["shards"]:
                told = shard["memory"]
                if "EPERM" in told["why_no_node"]:
                    pytest.skip(told["why_no_node"])
                assert (told["node"], told["why_no_node"], told["why_no_pages"]) == (nodes[0], "", "")
                assert sum(told["arena"]["by_node"].values()) == 64
                assert told["arena"]["absent"] == told["index"]["absent"] == 0
            counted = json.loads(cli("stat", "--json", named.url).stdout)
            name = f'halfstep_memory_sampled_pages{{of="arena",node="{nodes[0]}"}}'
            if len(nodes) == 1:
                assert [shard[name] for shard in counted["shards"]] == [64, 64]
                assert "memory_sampled_pages" in cli("stat", named.url).stdout
    finally:
        daemon.close()


def test_too_small_a_store_or_too_little_memory_is_refused(tmp_path: Path) -> None:
    command = ("serve", "--store", str(tmp_path / "s.hs"), "--unix", "none", "--listen", "127.0.0.1:0", "--shards", "4")
    refused = cli(*command, "--size", "300MiB")
    assert refused.returncode != 0
    assert "each of 4 shards" in refused.stderr
    refused = cli(*command, "--size", "1GiB", "--arena", "40MiB")
    assert refused.returncode != 0
    assert "arena=40" in refused.stderr
    assert list(tmp_path.iterdir()) == []


def test_events_and_metrics_are_there_for_every_shard(tmp_path: Path, layout: halfstep.Layout, blocks: Blocks) -> None:
    config = _shard.Config()
    config.store_path = str(tmp_path / "store.hs")
    config.store_bytes = 280 << 20
    config.arena_bytes = 64 << 20
    config.shards = 2
    config.huge_pages = False
    config.listen = ["127.0.0.1:0"]
    server = _shard.Server(config)
    try:
        keys = names()
        with connect(f"halfstep://{server.facts()['listening'][0]}", layout) as client:
            assert client.put(keys, blocks(KEYS, BLOCK_BYTES)).ok.all()
            client.clear()
        polled = [server.poll_events(0, shard=number)["events"] for number in range(2)]
        stored = [[event["key"] for event in events if event["kind"] == "stored"] for events in polled]
        assert sorted(stored[0] + stored[1]) == sorted(keys)
        assert all(stored)
        assert all(events[-1]["kind"] == "cleared" for events in polled), "a clear is told by every shard"
        assert server.poll_events(3, shard=2)["events"] == []
        totals = {(name, *labels.values()): value for name, labels, value in server.metrics()["counters"]}
        assert totals["halfstep_store_writes_total", "committed"] == KEYS
    finally:
        server.stop(0)
