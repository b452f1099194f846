"""A block's life through the client and the command line: touch, leases, pins, expiry, clear, namespaces and their limits."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import halfstep
from halfstep.client.results import Answer

pytestmark = pytest.mark.integration

BLOCK_BYTES = 64 << 10
Blocks = Callable[..., npt.NDArray[np.uint8]]


def names(count: int, prefix: str = "block") -> list[bytes]:
    return [f"{prefix} {number}".encode() for number in range(count)]


def until(is_true: Callable[[], bool], timeout_s: float = 30) -> None:
    end = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.02)


def account(client: halfstep.Client, name: str) -> halfstep.Namespace:
    return next(space for space in client.namespaces() if space.name == name)


@pytest.fixture
def own_client(own_daemon: Any, layout: halfstep.Layout) -> Iterator[halfstep.Client]:
    """A client of a daemon that may be killed."""
    with halfstep.connect(own_daemon.url, layout=layout, required=True, deadline_ms=30_000, match_deadline_ms=30_000) as client:
        yield client


# ---- touch, leases, sessions ----


def test_touch_answers_what_is_there(client: halfstep.Client, blocks: Blocks) -> None:
    keys = names(3)
    assert client.put(keys, blocks(3, BLOCK_BYTES)).ok.all()
    touched = client.touch([keys[2], b"absent", keys[0]])
    assert touched.ok.tolist() == [True, False, True]
    assert touched.reason(1) == "miss (absent)"


def test_a_lease_ends_by_itself_or_with_its_owner(client: halfstep.Client, blocks: Blocks) -> None:
    keys = names(4)
    assert client.put(keys, blocks(4, BLOCK_BYTES)).ok.all()
    before = client.stat()['halfstep_store_holds{kind="lease"}']

    def leases() -> float:
        return client.stat()['halfstep_store_holds{kind="lease"}'] - before

    assert client.lease(keys, owner=11, seconds=30).ok.all()
    assert client.hold([b"absent"], owner=11, seconds=30).reason(0) == "miss (absent)"
    assert leases() == 4
    assert client.renew(11, 0.1).ok.all()
    until(lambda: leases() == 0)
    assert client.renew(11, 30).reason(0) == "miss (absent)"
    assert client.lease(keys, owner=12, seconds=30).ok.all()
    assert client.release(12, keys[:1]).ok.all()
    assert leases() == 3
    assert client.release(12).ok.all()
    assert leases() == 0


def test_a_session_holds_while_it_lives(client: halfstep.Client, blocks: Blocks) -> None:
    keys = names(2)
    assert client.put(keys, blocks(2, BLOCK_BYTES)).ok.all()
    before = client.stat()['halfstep_store_holds{kind="lease"}']
    with client.session(seconds=6) as session:
        assert session.hold(keys).ok.all()
        time.sleep(8)
        assert client.stat()['halfstep_store_holds{kind="lease"}'] == before + 2
    assert client.stat()['halfstep_store_holds{kind="lease"}'] == before


def test_every_face_has_the_same_calls(client: halfstep.Client, blocks: Blocks) -> None:
    keys = names(2)
    assert client.put(keys, blocks(2, BLOCK_BYTES)).ok.all()

    async def awaited() -> list[bool]:
        return [
            bool(result.ok.all())
            for result in (
                await client.aio.touch(keys),
                await client.aio.hold(keys, owner=5, seconds=10),
                await client.aio.renew(5, 10),
                await client.aio.expire(keys, 1000),
                await client.aio.release(5),
            )
        ]

    assert asyncio.run(awaited()) == [True] * 5
    with client.queue() as queue:
        tickets = [queue.touch(keys), queue.hold(keys, owner=6, seconds=10), queue.expire(keys, 1000)]
        assert [bool(ticket.result().ok.all()) for ticket in tickets] == [True] * 3
        assert queue.renew(6, 10).result().ok.all()
        assert queue.release(6).result().ok.all()


def test_what_cannot_be_meant_is_refused_in_a_sentence(client: halfstep.Client) -> None:
    with pytest.raises(halfstep.ConfigError, match="only a persistent hold has no end"):
        client.hold([b"key"], owner=1)
    with pytest.raises(halfstep.ConfigError, match="owner=0"):
        client.hold([b"key"], owner=0, seconds=1)
    with pytest.raises(halfstep.ConfigError, match="seconds=-1"):
        client.renew(1, -1)
    with pytest.raises(halfstep.ConfigError, match="ttl_s=-1"):
        client.expire([b"key"], -1)
    with pytest.raises(halfstep.ConfigError, match="it has 16"):
        client.clear(b"short")


# ---- pins, expiry ----


def test_pins_survive_kill_9_within_their_budget(own_daemon: Any, own_client: halfstep.Client, blocks: Blocks) -> None:
    keys = names(4)
    content = blocks(4, BLOCK_BYTES)
    assert own_client.put(keys, content, durability="persist").ok.all()
    refused = own_client.pin(keys[:1], owner=7)
    assert refused.answers.tolist() == [Answer.THROTTLED], "no budget, no pins"
    assert refused.reason(0) == "throttled (budget)"
    own_client.limit_namespace("default", pin_budget_bytes=2 * BLOCK_BYTES)
    assert own_client.pin(keys[:3], owner=7).ok.tolist() == [True, True, False]
    assert account(own_client, "default").pinned_bytes == 2 * BLOCK_BYTES
    own_daemon.kill()
    own_daemon.start()
    own_client.wait_ready(30_000)
    assert account(own_client, "default").pinned_bytes == 2 * BLOCK_BYTES
    assert own_client.stat()["halfstep_recovery_pins"] == 2
    # The store is written over and over; what is pinned stays.
    filler = blocks(16, BLOCK_BYTES, seed=1)
    written = 0
    store_bytes = own_client.stat()["halfstep_store_bytes_live"]
    for batch in range(400):
        result = own_client.put(names(16, f"filler {batch}"), filler)
        written += int(result.ok.sum())
        if own_client.stat()['halfstep_store_blocks_evicted_total{reason="age"}'] > 500:
            break
    assert own_client.stat()['halfstep_store_blocks_evicted_total{reason="age"}'] > 500, (written, store_bytes)
    target = np.zeros_like(content)
    read = own_client.get(keys, target)
    assert read.ok.tolist()[:2] == [True, True]
    assert (target[:2] == content[:2]).all()
    assert own_client.release(7).ok.all()
    assert account(own_client, "default").pinned_bytes == 0
    own_daemon.kill()
    own_daemon.start()
    own_client.wait_ready(30_000)
    assert account(own_client, "default").pinned_bytes == 0, "a release that was answered stays"


def test_an_expiry_survives_kill_9(own_daemon: Any, own_client: halfstep.Client, blocks: Blocks) -> None:
    keys = names(3)
    assert own_client.put(keys, blocks(3, BLOCK_BYTES), durability="persist").ok.all()
    assert own_client.expire(keys[:1], 1).ok.all()
    assert own_client.expire([b"absent"], 1).reason(0) == "miss (absent)"
    assert own_client.expire(keys[1:2], 3600).ok.all()
    assert own_client.expire(keys[1:2], 0).ok.all()
    own_daemon.kill()
    own_daemon.start()
    own_client.wait_ready(30_000)
    until(lambda: own_client.match(keys).present.tolist() == [False, True, True])
    own_daemon.kill()
    own_daemon.start()
    own_client.wait_ready(30_000)
    assert own_client.match(keys).present.tolist() == [False, True, True]
    until(lambda: {entry.key: entry.expiry_s for entry in own_client.list()} == {keys[1]: 0, keys[2]: 0})


# ---- clear ----


def test_clear_empties_one_layout_for_good(own_daemon: Any, own_client: halfstep.Client, blocks: Blocks) -> None:
    keys = names(3)
    content = blocks(3, BLOCK_BYTES)
    other_layout = halfstep.Layout.opaque("another")
    assert own_client.put(keys, content, durability="persist").ok.all()
    assert own_client.put(keys, content, layout=other_layout, durability="persist").ok.all()
    with halfstep.connect(own_daemon.url, layout=own_client.layout, required=True, deadline_ms=30_000) as second:
        assert second.match(keys, deadline_ms=30_000).present.all()
        own_client.clear()
        assert not second.match(keys, deadline_ms=30_000).present.any(), "without reconnecting"
        assert second.put(keys[:1], content[:1], durability="persist").ok.all()
    assert own_client.match(keys).present.tolist() == [True, False, False]
    own_daemon.kill()
    own_daemon.start()
    own_client.wait_ready(30_000)
    assert own_client.match(keys).present.tolist() == [True, False, False]
    assert own_client.match(keys, layout=other_layout).present.all()
    with pytest.raises(halfstep.ConfigError, match="absent"):
        own_client.clear(halfstep.Layout.opaque("never seen"))


# ---- namespaces ----


def test_a_quota_is_kept_to_the_byte_by_dropping_the_oldest(daemon: Any, client: halfstep.Client, blocks: Blocks) -> None:
    quota = 32 * BLOCK_BYTES
    client.create_namespace("quota", quota)
    content = blocks(8, BLOCK_BYTES)
    try:
        with halfstep.connect(daemon.url + "/quota", required=True, deadline_ms=30_000) as tenant:
            assert tenant.namespace == "quota"
            for batch in range(32):
                keys = names(8, f"batch {batch}")
                while not tenant.put(keys, content).ok.all():
                    time.sleep(0.01)
                assert account(client, "quota").used_bytes <= quota
            assert tenant.match(names(8, "batch 31"), deadline_ms=30_000).present.all()
            assert not tenant.match(names(8, "batch 0"), deadline_ms=30_000).present.any()
            assert client.stat()['halfstep_store_blocks_evicted_total{reason="quota"}'] > 0
            client.limit_namespace("quota", quota_bytes=4 * BLOCK_BYTES)
            until(lambda: account(client, "quota").used_bytes <= 4 * BLOCK_BYTES)
            listed = sum(entry.block_bytes for entry in tenant.list())
            assert account(client, "quota").used_bytes == listed
    finally:
        client.delete_namespace("quota")


def test_a_default_ttl_ends_blocks_that_name_none(daemon: Any, client: halfstep.Client, blocks: Blocks) -> None:
    client.create_namespace("short", default_ttl_s=1)
    try:
        with halfstep.connect(daemon.url + "/short", required=True, deadline_ms=30_000) as tenant:
            assert tenant.put(names(2), blocks(2, BLOCK_BYTES)).ok.all()
            until(lambda: account(client, "short").used_bytes == 0)
            assert not tenant.match(names(2), deadline_ms=30_000).present.any()
    finally:
        client.delete_namespace("short")


def test_a_sliding_ttl_counts_from_the_last_use(daemon: Any, client: halfstep.Client, blocks: Blocks) -> None:
    client.create_namespace("sliding", default_ttl_s=3, sliding_ttl=True)
    try:
        assert account(client, "sliding").sliding_ttl
        with halfstep.connect(daemon.url + "/sliding", required=True, deadline_ms=30_000) as tenant:
            assert tenant.put(names(2), blocks(2, BLOCK_BYTES)).ok.all()
            until(lambda: tenant.touch(names(1)).ok.all() and account(client, "sliding").used_bytes == BLOCK_BYTES)
            assert tenant.match(names(2), deadline_ms=30_000).present.tolist() == [True, False]
            tenant.expire(names(1), 1)
            until(lambda: not tenant.touch(names(1)).ok.any())
    finally:
        client.delete_namespace("sliding")


# ---- the command line ----


def run(*arguments: str, answer: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "halfstep.tools.cli", *arguments]
    return subprocess.run(command, input=answer, capture_output=True, text=True, timeout=60, check=False)


def test_namespaces_on_the_command_line(daemon: Any) -> None:
    made = run("namespace", "create", "cli", "--quota", "10MiB", "--pin-budget", "1MiB", "--url", daemon.url, "--json")
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["quota_bytes"] == 10 << 20
    again = run("namespace", "create", "cli", "--quota", "10MiB", "--url", daemon.url)
    assert again.returncode == 0, again.stderr
    other = run("namespace", "create", "cli", "--quota", "20MiB", "--url", daemon.url)
    assert other.returncode == 3
    assert "quota=20971520: namespace 'cli' was there already with 10485760" in other.stderr
    assert "halfstep namespace limit cli --quota 20971520" in other.stderr
    assert run("namespace", "limit", "cli", "--url", daemon.url).returncode == 2
    limited = run("namespace", "limit", "cli", "--ttl", "60", "--url", daemon.url)
    assert limited.returncode == 0, limited.stderr
    sliding = run("namespace", "limit", "cli", "--sliding", "--url", daemon.url)
    assert "default ttl 60 s from the last use" in sliding.stdout, sliding.stderr
    endless = run("namespace", "create", "endless", "--sliding", "--url", daemon.url)
    assert endless.returncode == 2
    assert "give --ttl" in endless.stderr
    fixed = run("namespace", "create", "cli", "--fixed", "--url", daemon.url)
    assert fixed.returncode == 3
    assert "halfstep namespace limit cli --fixed" in fixed.stderr
    listed = json.loads(run("namespace", "ls", "--url", daemon.url, "--json").stdout)
    space = next(space for space in listed if space["name"] == "cli")
    assert (space["quota_bytes"], space["pin_budget_bytes"], space["default_ttl_s"]) == (10 << 20, 1 << 20, 60)
    assert "cli" in run("namespace", "ls", "--url", daemon.url).stdout
    kept = run("namespace", "delete", "cli", "--url", daemon.url, answer="n\n")
    assert kept.returncode != 0
    assert run("namespace", "delete", "cli", "--yes", "--url", daemon.url).returncode == 0
    gone = run("namespace", "limit", "cli", "--ttl", "1", "--url", daemon.url)
    assert gone.returncode == 3
    assert "does not exist" in gone.stderr
    wrong = run("namespace", "create", "cli", "--quota", "much", "--url", daemon.url)
    assert wrong.returncode == 2
    assert "not a size" in wrong.stderr


def test_clear_on_the_command_line_asks_first(daemon: Any, client: halfstep.Client, blocks: Blocks) -> None:
    assert client.put(names(2), blocks(2, BLOCK_BYTES)).ok.all()
    short = client.layout.id.hex()[:12]
    assert run("clear", short, "--url", daemon.url, answer="n\n").returncode != 0
    assert client.match(names(2)).present.all()
    cleared = run("clear", short, "--yes", "--url", daemon.url, "--json")
    assert cleared.returncode == 0, cleared.stderr
    assert json.loads(cleared.stdout) == {"layout_id": client.layout.id.hex(), "cleared": True}
    assert not client.match(names(2)).present.any()
    assert run("clear", "0000000000", "--yes", "--url", daemon.url).returncode == 1
    assert run("clear", "xyz", "--yes", "--url", daemon.url).returncode == 3
