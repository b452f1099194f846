"""A mount of several shards, and one of an upstream of several: what a client does reaches all of them."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.integration.mounting import Mount
from tests.integration.test_mount import BLOCK_BYTES, PATIENT, got, moved, until
from tests.integration.test_shards import KEYS, ShardedDaemon, names

import halfstep

pytestmark = pytest.mark.integration

SHARDS = 2
Blocks = Callable[..., npt.NDArray[np.uint8]]


@pytest.fixture(params=[1, SHARDS], ids=["upstream of 1", f"upstream of {SHARDS}"])
def upstream(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ShardedDaemon]:
    started = ShardedDaemon(tmp_path, request.param)
    try:
        started.start()
        yield started
    finally:
        started.close()


@pytest.fixture
def mount(request: pytest.FixtureRequest, upstream: ShardedDaemon, tmp_path: Path) -> Iterator[Mount]:
    one = Mount(tmp_path, upstream.url, "--shards", str(getattr(request, "param", SHARDS)), "--max-age", "3600s")
    one.start()
    yield one
    if one.running:
        one.end(signal.SIGKILL)


def layout_of(request: pytest.FixtureRequest) -> halfstep.Layout:
    return halfstep.Layout.opaque(request.node.nodeid[-200:])


@pytest.mark.parametrize("mount", [1, SHARDS], ids=["mount of 1", f"mount of {SHARDS}"], indirect=True)
def test_hits_of_a_second_client_move_nothing(
    request: pytest.FixtureRequest, upstream: ShardedDaemon, mount: Mount, blocks: Blocks
) -> None:
    if (upstream.shards, len(mount.facts["shards"])) == (1, 1):
        pytest.skip("one shard each is what test_mount.py has")
    layout, keys, sent = layout_of(request), names(), blocks(KEYS, BLOCK_BYTES)
    with halfstep.connect(upstream.url, layout=layout, **PATIENT) as behind:
        assert behind.put(keys, sent).ok.all()
        with halfstep.connect(mount.url, layout=layout, **PATIENT) as first:
            assert len(first.facts().shards) == len(mount.facts["shards"])
            assert first.match([*keys, b"never put"]).prefix == KEYS
            there, back = got(first, keys)
            assert all(there)
            assert (back == sent).all()
        before = moved(behind)
        assert before['halfstep_payload_bytes_total{command="get"}'] == sent.nbytes
        with halfstep.connect(mount.url, layout=layout, **PATIENT) as second:
            there, back = got(second, keys)
            assert all(there)
            assert (back == sent).all()
        assert moved(behind) == before
    assert mount.metric("halfstep_mount_fetch_bytes_total") == sent.nbytes, "numbers are those of all shards"
    assert mount.end() == 0


def test_puts_deletes_and_holds_reach_every_shard(
    request: pytest.FixtureRequest, upstream: ShardedDaemon, mount: Mount, blocks: Blocks
) -> None:
    layout, keys, sent = layout_of(request), names(), blocks(KEYS, BLOCK_BYTES)
    with (
        halfstep.connect(mount.url, layout=layout, **PATIENT) as client,
        halfstep.connect(upstream.url, layout=layout, **PATIENT) as behind,
    ):
        assert client.put(keys, sent, durability="persist").ok.all()
        there, back = got(behind, keys)
        assert all(there)
        assert (back == sent).all()
        with client.session(60) as session:
            assert session.hold(keys).ok.all()
            until(lambda: behind.stat()['halfstep_store_holds{kind="lease"}'] == KEYS, "the leases did not arrive")
        until(lambda: behind.stat()['halfstep_store_holds{kind="lease"}'] == 0, "the leases were not released")
        assert client.delete(keys[::2]).ok.all()
        for one in (client, behind):
            assert got(one, keys)[0] == [number % 2 == 1 for number in range(KEYS)]


def test_a_clear_holds_in_every_shard_when_it_is_answered(
    request: pytest.FixtureRequest, upstream: ShardedDaemon, mount: Mount, blocks: Blocks
) -> None:
    """A client tells one shard of it."""
    layout, keys, sent = layout_of(request), names(), blocks(KEYS, BLOCK_BYTES)
    with (
        halfstep.connect(mount.url, layout=layout, **PATIENT) as client,
        halfstep.connect(mount.url, layout=layout, **PATIENT) as other,
        halfstep.connect(upstream.url, layout=layout, **PATIENT) as behind,
    ):
        for _ in range(4):
            # Cache: some are still on their way, from either shard, when the clear comes.
            assert client.put(keys, sent).ok.all()
            assert all(got(other, keys)[0])
            client.clear(layout)
            for one in (client, other, behind):
                assert not any(got(one, keys)[0])


def test_both_are_killed_and_come_back(
    request: pytest.FixtureRequest, upstream: ShardedDaemon, mount: Mount, blocks: Blocks
) -> None:
    layout, keys, sent = layout_of(request), names(), blocks(KEYS, BLOCK_BYTES)
    with halfstep.connect(mount.url, layout=layout, **PATIENT) as client:
        assert client.put(keys, sent, durability="persist").ok.all()
        mount.end(signal.SIGKILL)
        mount.start()
        until(lambda: client.match(keys).prefix == KEYS, "the mount did not come back")
        there, back = got(client, keys)
        assert all(there)
        assert (back == sent).all()
        upstream.kill()
        there, back = got(client, keys)
        assert all(there), "it has them all in memory"
        assert (back == sent).all()


def test_a_share_of_memory_that_is_too_small_is_refused(upstream: ShardedDaemon, tmp_path: Path) -> None:
    one: Any = Mount(tmp_path, upstream.url, "--shards", "3")
    with pytest.raises(AssertionError, match="memory=64 MiB: must be 96 MiB to 24 GiB for 3 shards"):
        one.start()
