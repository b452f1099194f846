"""`halfstep mount`: two clients of one host, one copy of a block, and the daemon behind them away and back."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.integration.commands import PATIENCE_S
from tests.integration.mounting import Mount

import halfstep
from halfstep.errors import ConfigError

pytestmark = pytest.mark.integration

BLOCK_BYTES = 50_000
# Of calls: what bounds a hang, not a speed.
PATIENT: dict[str, Any] = {"required": True, "deadline_ms": 30_000, "match_deadline_ms": 30_000}
Blocks = Callable[..., npt.NDArray[np.uint8]]


def until(true: Callable[[], bool], what: str) -> None:
    """Waits for it; a hang is a failure."""
    end_s = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end_s, what
        time.sleep(0.02)


@pytest.fixture
def mounted(own_daemon: Any) -> Iterator[Callable[..., Mount]]:
    """mounted(*arguments): a mount of `own_daemon`."""
    started: list[Mount] = []

    def mount(*arguments: str) -> Mount:
        started.append(Mount(Path(own_daemon.unix_url.removeprefix("halfstep+unix://")).parent, own_daemon.url, *arguments))
        started[-1].start()
        return started[-1]

    yield mount
    for one in started:
        if one.process.poll() is None:
            one.end(signal.SIGKILL)


def moved(client: halfstep.Client) -> dict[str, float]:
    """What of a daemon's counters tells that blocks were moved, or asked for."""
    told = client.stat()
    return {
        name: told.get(name, 0.0)
        for name in (
            'halfstep_payload_bytes_total{command="get"}',
            'halfstep_payload_bytes_total{command="put"}',
            'halfstep_requests_total{command="get"}',
            'halfstep_requests_total{command="match"}',
        )
    }


def got(client: halfstep.Client, keys: list[bytes]) -> tuple[list[bool], npt.NDArray[np.uint8]]:
    """Which of them came, and the bytes."""
    back = np.zeros((len(keys), BLOCK_BYTES), np.uint8)
    return client.get(keys, back).ok.tolist(), back


def test_hits_of_a_second_client_move_nothing_at_the_upstream(
    own_daemon: Any, mounted: Callable[..., Mount], blocks: Blocks, run_script: Any
) -> None:
    keys, sent = [b"block %d" % i for i in range(8)], blocks(8, BLOCK_BYTES)
    mount = mounted("--max-age", "3600s")
    with halfstep.connect(own_daemon.url, **PATIENT) as upstream:
        assert upstream.put(keys, sent).ok.all()
        with halfstep.connect(mount.url, **PATIENT) as first:
            assert first.path.startswith("shm")
            assert first.match([*keys, b"never put"]).prefix == 8
            there, back = got(first, keys)
            assert all(there)
            assert (back == sent).all()
        before = moved(upstream)
        assert before['halfstep_payload_bytes_total{command="get"}'] == sent.nbytes
        script = """
import sys, numpy as np, halfstep
keys = [b"block %d" % i for i in range(8)]
back = np.zeros((8, 50_000), np.uint8)
with halfstep.connect(sys.argv[1], required=True, deadline_ms=30_000, match_deadline_ms=30_000) as client:
    print(client.match(keys).prefix, client.get(keys, back).ok.all(), int(back.astype(np.uint64).sum()))
"""
        done = run_script(script, mount.url, timeout_s=PATIENCE_S)
        assert done.stdout.split() == ["8", "True", str(int(sent.astype(np.uint64).sum()))], done.stderr
        assert moved(upstream) == before
    assert mount.end() == 0


def test_sixteen_waiters_of_a_block_are_one_get(own_daemon: Any, mounted: Callable[..., Mount], blocks: Blocks) -> None:
    sent = blocks(1, BLOCK_BYTES)
    mount = mounted("--max-age", "3600s", "--upstream-deadline", "60s")
    clients = [halfstep.connect(mount.url, **PATIENT) for _ in range(16)]
    try:
        with halfstep.connect(own_daemon.url, **PATIENT) as upstream:
            assert upstream.put([b"one"], sent[0]).ok.all()
            assert clients[0].match([b"one"]).prefix == 1
            before = moved(upstream)
            own_daemon.pause()
            answers: list[Any] = [None] * 16
            threads = [
                threading.Thread(target=lambda i=i: answers.__setitem__(i, got(clients[i], [b"one"]))) for i in range(16)
            ]
            for thread in threads:
                thread.start()
            until(lambda: mount.metric("halfstep_mount_fetches_shared_total") == 15, "not all of them wait for one fetch")
            own_daemon.resume()
            for thread in threads:
                thread.join(PATIENCE_S)
            for there, back in answers:
                assert there == [True]
                assert (back == sent).all()
            after = moved(upstream)
            get = 'halfstep_requests_total{command="get"}'
            assert after[get] == before[get] + 1
            size = 'halfstep_payload_bytes_total{command="get"}'
            assert after[size] == before[size] + BLOCK_BYTES
    finally:
        for client in clients:
            client.close()


@pytest.mark.parametrize("durability", ["cache", "persist"])
def test_a_put_is_there_and_behind(own_daemon: Any, mounted: Callable[..., Mount], blocks: Blocks, durability: Any) -> None:
    keys, sent = [b"put %d" % i for i in range(4)], blocks(4, BLOCK_BYTES)
    layout = halfstep.Layout.opaque("only the mount's client registers it", of=durability)
    mount = mounted()
    with (
        halfstep.connect(mount.url, layout=layout, **PATIENT) as client,
        halfstep.connect(own_daemon.url, layout=layout, **PATIENT) as upstream,
    ):
        assert client.put(keys, sent, durability=durability).ok.all()
        there, back = got(client, keys)
        assert all(there)
        assert (back == sent).all()
        if durability == "cache":
            until(lambda: upstream.match(keys).prefix == 4, "the puts did not reach the upstream")
        there, back = got(upstream, keys)
        assert all(there)
        assert (back == sent).all()
        if durability == "persist":  # what was acknowledged survives both
            own_daemon.restart()
            mount.end(signal.SIGKILL)
            mount.start()
            until(lambda: client.match(keys).prefix == 4, "the persisted blocks are gone")
            there, back = got(client, keys)
            assert all(there)
            assert (back == sent).all()


def test_without_an_upstream_it_serves_what_it_has(own_daemon: Any, mounted: Callable[..., Mount], blocks: Blocks) -> None:
    sent = blocks(2, BLOCK_BYTES)
    mount = mounted("--max-age", "3600s")
    with halfstep.connect(mount.url, **PATIENT) as client, halfstep.connect(own_daemon.url, **PATIENT) as upstream:
        assert upstream.put([b"here", b"behind"], sent, durability="persist").ok.all()
        assert got(client, [b"here"])[0] == [True]
        own_daemon.kill()
        there, back = got(client, [b"here", b"behind"])
        assert there == [True, False]
        assert (back[0] == sent[0]).all()
        matched = client.match([b"here", b"behind"])
        assert matched.prefix == 1
        assert client.put([b"later"], sent[1]).ok.all(), "a cache put needs no upstream"
        # Nobody has said that it is not there.
        one = [b"behind"]
        asked: dict[str, halfstep.Result] = {
            "get": client.get(one, np.zeros((1, BLOCK_BYTES), np.uint8)),
            "put": client.put([b"surely"], sent[1], durability="persist"),
            "delete": client.delete(one),
            "touch": client.touch(one),
            "hold": client.hold(one, owner=7, seconds=60),
            "prefetch": client.prefetch(one),
        }
        assert matched.reason == "unavailable (upstream)"
        assert {what: result.reason(0) for what, result in asked.items()} == dict.fromkeys(asked, "unavailable (upstream)")
        assert not matched.answered, "a match that was not answered is no honest miss"
        own_daemon.start()
        until(lambda: got(client, [b"behind"])[0] == [True], "it did not find its upstream again")
        there, back = got(client, [b"here", b"behind"])
        assert all(there)
        assert (back == sent).all()


def test_a_silent_upstream_costs_no_more_than_the_deadline(
    own_daemon: Any, mounted: Callable[..., Mount], blocks: Blocks
) -> None:
    sent = blocks(2, BLOCK_BYTES)
    mount = mounted("--max-age", "3600s", "--upstream-deadline", "5s")
    with halfstep.connect(mount.url, **PATIENT) as client, halfstep.connect(own_daemon.url, **PATIENT) as upstream:
        assert upstream.put([b"here", b"behind"], sent).ok.all()
        assert client.match([b"here", b"behind"]).prefix == 2
        assert got(client, [b"here"])[0] == [True]
        own_daemon.pause()
        there, back = got(client, [b"here", b"behind"])
        assert there == [True, False]
        assert client.get([b"behind"], back[1:]).reason(0) == "unavailable (upstream)"
        assert (back[0] == sent[0]).all()
        own_daemon.resume()
        until(lambda: got(client, [b"behind"])[0] == [True], "it did not hear its upstream again")


def test_a_delete_through_it_holds_at_once(own_daemon: Any, mounted: Callable[..., Mount], blocks: Blocks) -> None:
    keys, sent = [b"stays", b"goes"], blocks(2, BLOCK_BYTES)
    mount = mounted("--max-age", "3600s")
    with (
        halfstep.connect(mount.url, **PATIENT) as one,
        halfstep.connect(mount.url, **PATIENT) as other,
        halfstep.connect(own_daemon.url, **PATIENT) as upstream,
    ):
        assert one.put(keys, sent).ok.all()
        assert got(other, keys)[0] == [True, True]
        # The put may still be on its way: the delete comes behind it.
        assert one.delete([b"goes"]).ok.all()
        for client in (one, other, upstream):
            assert got(client, [b"goes"])[0] == [False]
        assert got(other, [b"stays"])[0] == [True]
        assert one.delete([b"never there"]).ok.tolist() == [False]


def test_a_clear_through_it_holds_at_once(own_daemon: Any, mounted: Callable[..., Mount], blocks: Blocks) -> None:
    layout = halfstep.Layout.opaque("to be cleared")
    mount = mounted("--max-age", "3600s")
    with (
        halfstep.connect(mount.url, layout=layout, **PATIENT) as client,
        halfstep.connect(own_daemon.url, layout=layout, **PATIENT) as upstream,
    ):
        sent = blocks(1, BLOCK_BYTES)
        assert client.put([b"k"], sent).ok.all()
        client.clear(layout)
        assert got(client, [b"k"])[0] == [False]
        assert got(upstream, [b"k"])[0] == [False]
        assert client.put([b"k"], sent).ok.all()
        assert got(client, [b"k"])[0] == [True]


def test_a_clear_reaches_what_only_the_upstream_has(own_daemon: Any, mounted: Callable[..., Mount], blocks: Blocks) -> None:
    layout = halfstep.Layout.opaque("never named at the mount")
    mount = mounted()
    with halfstep.connect(own_daemon.url, layout=layout, **PATIENT) as upstream:
        assert upstream.put([b"k"], blocks(1, BLOCK_BYTES)).ok.all()
        with halfstep.connect(mount.url, **PATIENT) as client:
            client.clear(layout)
        assert got(upstream, [b"k"])[0] == [False]


def test_a_delete_made_elsewhere_holds_after_the_age(own_daemon: Any, mounted: Callable[..., Mount], blocks: Blocks) -> None:
    sent = blocks(2, BLOCK_BYTES)
    age_s = 0.3
    mount = mounted("--max-age", f"{age_s}s")
    with halfstep.connect(mount.url, **PATIENT) as client, halfstep.connect(own_daemon.url, **PATIENT) as upstream:
        assert upstream.put([b"stays", b"goes"], sent).ok.all()
        assert got(client, [b"stays", b"goes"])[0] == [True, True]
        assert upstream.delete([b"goes"]).ok.all()
        time.sleep(age_s)
        assert client.match([b"goes"]).prefix == 0
        before = moved(upstream)
        there, back = got(client, [b"stays", b"goes"])
        assert there == [True, False]
        assert (back[0] == sent[0]).all()
        # What is there still is asked for by name, and its bytes are those of memory.
        bytes_got = 'halfstep_payload_bytes_total{command="get"}'
        assert moved(upstream)[bytes_got] == before[bytes_got]


def test_memory_that_is_full_gives_way(own_daemon: Any, mounted: Callable[..., Mount], blocks: Blocks) -> None:
    """Twice as many bytes as there is memory: all of them come, from here or from behind."""
    mount = mounted("--memory", "32MiB", "--max-age", "3600s")
    keys = [b"many %d" % i for i in range(320)]
    sent = blocks(320, 200_000)
    with halfstep.connect(mount.url, **PATIENT) as client:
        for at in range(0, 320, 16):
            put = client.put(keys[at : at + 16], sent[at : at + 16], durability="persist")
            assert put.ok.all(), put
        back = np.zeros((320, 200_000), np.uint8)
        for at in range(0, 320, 16):
            assert client.get(keys[at : at + 16], back[at : at + 16]).ok.all()
        assert (back == sent).all()
    assert mount.metric("halfstep_mount_fetch_bytes_total") > 0
    assert mount.end() == 0


def leases(upstream: halfstep.Client) -> float:
    return upstream.stat()['halfstep_store_holds{kind="lease"}']


def test_leases_travel_to_the_upstream_and_back(own_daemon: Any, mounted: Callable[..., Mount], blocks: Blocks) -> None:
    keys, sent = [b"held %d" % i for i in range(6)], blocks(6, BLOCK_BYTES)
    mount = mounted("--max-age", "3600s")
    with halfstep.connect(mount.url, **PATIENT) as client, halfstep.connect(own_daemon.url, **PATIENT) as upstream:
        assert client.put(keys, sent).ok.all()
        with client.session(60) as session:
            # Behind the puts, which may still be on their way.
            assert session.hold(keys).ok.all()
            until(lambda: leases(upstream) == 6, "the leases did not arrive")
            assert client.renew(session.owner, 60).ok.all()
        until(lambda: leases(upstream) == 0, "the leases were not released")
        assert client.match(keys, owner=7, hold_ms=60_000).prefix == 6
        until(lambda: leases(upstream) == 6, "the leases of the match did not arrive")
        assert client.hold([b"never put"], owner=7, seconds=60).ok.tolist() == [False]


def test_pins_and_expiry_are_the_upstreams_word(own_daemon: Any, mounted: Callable[..., Mount], blocks: Blocks) -> None:
    age_s = 0.2
    mount = mounted("--max-age", f"{age_s}s")
    with halfstep.connect(mount.url, **PATIENT) as client, halfstep.connect(own_daemon.url, **PATIENT) as upstream:
        assert client.put([b"k", b"goes"], blocks(2, BLOCK_BYTES)).ok.all()
        # A namespace without a pin budget takes no pins.
        assert client.pin([b"k"], owner=7).ok.tolist() == [False]
        upstream.limit_namespace("default", pin_budget_bytes=1 << 20)
        assert client.pin([b"k"], owner=7).ok.all()
        assert upstream.stat()['halfstep_store_holds{kind="pin"}'] == 1
        client.release(7, [b"k"])
        assert upstream.stat()['halfstep_store_holds{kind="pin"}'] == 0
        assert client.expire([b"goes"], 1).ok.all()
        until(lambda: got(upstream, [b"goes"])[0] == [False], "it did not expire at the upstream")
        time.sleep(age_s)
        assert got(client, [b"goes", b"k"])[0] == [False, True]


def test_a_prefetch_brings_blocks_to_the_host(own_daemon: Any, mounted: Callable[..., Mount], blocks: Blocks) -> None:
    keys, sent = [b"ahead %d" % i for i in range(8)], blocks(8, BLOCK_BYTES)
    mount = mounted("--max-age", "3600s")
    with halfstep.connect(mount.url, **PATIENT) as client, halfstep.connect(own_daemon.url, **PATIENT) as upstream:
        assert upstream.put(keys, sent).ok.all()
        assert client.prefetch([*keys, b"never put"]).ok.tolist() == [True] * 8 + [False]
        before = moved(upstream)
        there, back = got(client, keys)
        assert all(there)
        assert (back == sent).all()
        assert moved(upstream) == before


# What a block of BLOCK_BYTES takes of memory.
SLOT_BYTES = 64 * 1024


def prefetched(mount: Mount) -> dict[tuple[str, str], float]:
    """Blocks by kind and how they ended, without those of which there are none: their memory is counted, in whole slots."""
    counted = {
        (kind, how): mount.metric(f'halfstep_store_prefetched_bytes_total{{as="{how}",kind="{kind}"}}') / SLOT_BYTES
        for kind in ("other", "window", "layers", "turn", "named")
        for how in ("brought", "used", "late", "unused")
    }
    return {which: count for which, count in counted.items() if count}


def test_prefetched_bytes_are_counted_by_kind_and_end(own_daemon: Any, mounted: Callable[..., Mount], blocks: Blocks) -> None:
    keys, sent = [b"ahead %d" % i for i in range(6)], blocks(6, BLOCK_BYTES)
    mount = mounted("--max-age", "3600s")
    with halfstep.connect(mount.url, **PATIENT) as client, halfstep.connect(own_daemon.url, **PATIENT) as upstream:
        assert upstream.put(keys, sent).ok.all()
        assert client.prefetch(keys[:4], kind="turn").ok.all()
        assert client.prefetch(keys[2:], kind="window").ok.all(), "of which two are there already"
        assert all(got(client, keys[1:5])[0])
        brought = {("turn", "brought"): 4, ("window", "brought"): 2}
        used = {("turn", "used"): 3, ("window", "used"): 1}
        assert prefetched(mount) == brought | used
        assert all(got(client, keys[1:5])[0]), "what is read once more is no news"
        assert prefetched(mount) == brought | used
        # What nobody has read is unused once it gives way.
        assert client.delete([keys[0]]).ok.all()
        assert prefetched(mount) == brought | used | {("turn", "unused"): 1}


def test_what_it_does_not_pass_on_is_refused_by_name(own_daemon: Any, mounted: Callable[..., Mount]) -> None:
    mount = mounted()
    with halfstep.connect(mount.url, **PATIENT) as client:
        with pytest.raises(ConfigError, match=r"rejected \(unsupported\)"):
            client.create_namespace("another")
        with pytest.raises(ConfigError, match=r"rejected \(unsupported\)"):
            list(client.list())
        explain = [sys.executable, "-m", "halfstep.tools.cli", "explain", "k", "--url", mount.url]
        done = subprocess.run(explain, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert (done.returncode, done.stdout) == (3, ""), "what it does not know was not never there"
        assert "a mount keeps no history; ask the daemon behind it" in done.stderr
        target = np.zeros((1, BLOCK_BYTES), np.uint8)
        assert client.get([b"nobody stores it"], target, wait=True).reason(0) == "miss (absent)"
        assert client.facts().not_waited == 1


def test_a_namespace_is_served_where_it_was_named(own_daemon: Any, mounted: Callable[..., Mount], blocks: Blocks) -> None:
    sent = blocks(1, BLOCK_BYTES)
    with halfstep.connect(own_daemon.url, **PATIENT) as admin:
        admin.create_namespace("tenant")
    mount = mounted("--namespace", "tenant")
    with (
        halfstep.connect(mount.url, **PATIENT) as default,
        halfstep.connect(f"{mount.url}?namespace=tenant", **PATIENT) as tenant,
        halfstep.connect(f"{own_daemon.url}/tenant", **PATIENT) as behind,
    ):
        assert tenant.put([b"k"], sent, durability="persist").ok.all()
        assert got(default, [b"k"])[0] == [False]
        assert got(behind, [b"k"])[0] == [True]
    with pytest.raises(ConfigError, match="does not exist"):
        halfstep.connect(f"{mount.url}?namespace=nobody", **PATIENT)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--namespace", "nobody"), 'namespace=nobody: the upstream refuses it: .*"nobody" does not exist'),
        (("--memory", "1MiB"), "memory=1 MiB: must be 32 MiB to 8 GiB"),
        (("--unix", "none"), "unix=none: nobody could come in"),
        (("--numa", "near"), "numa='near': must be .*auto"),
        (
            ("--numa", "1023"),
            "numa=1023: (there is no such node; .*name some of these|.* tells of no memory nodes; leave)",
        ),
        (("--namespace", ""), "namespace='': has 0 bytes; must be 1 to 255"),
        (("--namespace", "a/b"), "namespace='a/b': has a slash"),
    ],
)
def test_a_start_that_cannot_be_is_refused_in_one_line(own_daemon: Any, arguments: tuple[str, ...], told: str) -> None:
    command = [sys.executable, "-m", "halfstep.tools.cli", "mount", own_daemon.url, "--unix", f"/tmp/never.{os.getpid()}"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 3, done
    assert done.stderr.count("\n") == 1
    assert re.search(told, done.stderr), done.stderr


def test_its_memory_is_on_the_node_that_is_named(mounted: Callable[..., Mount]) -> None:
    """Memory behind CXL is a node without cores: nothing but its number is looked at."""
    nodes = sorted(int(path.name[4:]) for path in Path("/sys/devices/system/node").glob("node[0-9]*"))
    if not nodes:
        pytest.skip("the kernel tells of no memory nodes")
    (shard,) = mounted("--numa", str(nodes[-1])).facts["shards"]
    told = shard["memory"]
    if "EPERM" in told["why_no_node"]:
        pytest.skip(told["why_no_node"])
    assert (told["node"], told["why_no_node"], told["why_no_pages"]) == (nodes[-1], "", "")
    assert sum(told["arena"]["by_node"].values()) > 0
    assert told["arena"]["absent"] == 0


def engine(role: str, url: str) -> dict[str, Any]:
    """A process with a model of transformers and its prompt cache at `url`; what it did, its tokens among it."""
    command = [sys.executable, "-m", "halfstep.tools.demo.worker", role, "mla", url, "192", "8"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=5 * PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_engines_of_a_host_share_a_prompt_and_its_tokens(own_daemon: Any, mounted: Callable[..., Mount]) -> None:
    """Two transformers processes; then the mount is killed, and then the daemon."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    mount = mounted("--max-age", "3600s")
    with halfstep.connect(own_daemon.url, **PATIENT) as upstream:
        saved = engine("save", mount.url)
        assert saved["refused_blocks"] == 0
        before = moved(upstream)
        restored = engine("restore", mount.url)
        assert restored["tokens"] == saved["tokens"]
        assert restored["hit_blocks"] > 0
        assert moved(upstream) == before
        mount.end(signal.SIGKILL)
        mount.start()
        assert engine("restore", mount.url)["tokens"] == saved["tokens"]
        assert moved(upstream) != before, "a new mount has to fetch"
        own_daemon.kill()
        alone = engine("restore", mount.url)
        assert (alone["tokens"], alone["hit_blocks"]) == (saved["tokens"], restored["hit_blocks"])
