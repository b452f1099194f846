"""What a match has promised is there when its get comes, whatever the daemon evicts between the two."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.connectors.outages import requests_of
from tests.integration.commands import PATIENT, wait_until
from tests.integration.conftest import Daemon
from tests.integration.test_paged import Asking, Engine

import halfstep
from halfstep import ConfigError
from halfstep.connectors.lmcache import HalfstepClient
from halfstep.layout import Layout
from halfstep.tier import Answer, Counts, Grid, Kind, KVLayout, Lookups

pytestmark = pytest.mark.integration

HOLD_MS = 60_000
BLOCKS, BLOCK_BYTES = 32, 1 << 17
KEYS = [b"promised %d" % number for number in range(BLOCKS)]
LAYOUT = Layout.opaque("promised")
KIND = Kind("full", (0, 1, 2, 3), 2, (2048,))


@pytest.fixture
def small(own_daemon: Daemon) -> Iterator[halfstep.Client]:
    """A client of a daemon whose store is 256 MiB."""
    with halfstep.connect(own_daemon.unix_url, required=True, **PATIENT) as client:
        yield client


def _is_taken(client: halfstep.Client, keys: list[bytes], blocks: Any, layout: Layout) -> bool:
    return not client.put(keys, blocks, layout=layout).throttled


def flood(client: halfstep.Client) -> None:
    """Three stores full of blocks that others ask for: what nobody holds, and nobody has asked for lately, leaves."""
    noise = np.random.default_rng(9).integers(0, 256, (64, BLOCK_BYTES), np.uint8)
    layout = Layout.opaque("flood")
    for number in range(96):
        keys = [b"flood %d %d" % (number, at) for at in range(64)]
        taken = partial(_is_taken, client, keys, noise, layout)
        wait_until(taken, "the store takes no more")
        client.touch(keys, layout=layout)


def payload(seed: int) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (BLOCKS, BLOCK_BYTES), np.uint8)


@pytest.mark.parametrize("hold_ms", [0, HOLD_MS])
def test_values_that_were_found_survive_until_their_get_if_they_are_held(small: halfstep.Client, hold_ms: int) -> None:
    logical, into = payload(1), np.zeros((BLOCKS, BLOCK_BYTES), np.uint8)
    values = small.values(LAYOUT)
    with values.rows(logical, BLOCK_BYTES) as rows:
        assert values.put(KEYS, rows).ok.all()
    found = values.match([*KEYS, b"nothing"], hold_ms=hold_ms)
    assert (found.prefix, found.held.tolist()) == (BLOCKS, [hold_ms > 0] * BLOCKS + [False])
    flood(small)
    with values.rows(into, BLOCK_BYTES) as rows:
        got = values.get(KEYS, rows)
    if hold_ms:
        assert got.ok.all()
        np.testing.assert_array_equal(into, logical)
    else:
        assert not got.ok.any(), "that what is asked here can fail: without a hold they are gone"


@pytest.mark.parametrize("hold_ms", [0, HOLD_MS])
def test_a_prefix_that_was_promised_to_a_scheduler_is_loaded_however_late(small: halfstep.Client, hold_ms: int) -> None:
    """As vLLM does it: the answer in one step, the load in a later one, when the request has blocks."""
    layout = KVLayout("m", "1", "bfloat16", 16, (KIND,), Grid(layers=2))
    memory = np.zeros((4, 24, 2, 16, 1024), np.uint16)
    engine = Engine(small, layout, memory=memory, hold_ms=hold_ms)
    prompt = Asking([b"block %d" % number for number in range(6)])
    engine.compute("a", prompt, [0, 1, 2, 3, 4, 5], seed=1)
    engine.until_idle()
    before = requests_of(small)
    again = Asking([*prompt.block_hashes, b"another"])
    assert engine.ask("b", again) == 6
    assert requests_of(small) - before == {"match": 1}, "a hold is no request of its own"
    flood(small)
    engine.admit("b", again, [10, 11, 12, 13, 14, 15, 16], 6)
    before = requests_of(small)
    engine.step({})
    _, loaded, bad = engine.until_idle()
    assert requests_of(small) - before == {"get": 1}, "nor is its end"
    assert loaded == {"b"}
    if hold_ms:
        assert bad == set()
        np.testing.assert_array_equal(memory[:, 10:16], memory[:, 0:6])
    else:
        assert 10 in bad, "that what is asked here can fail: without a hold they are gone"
    engine.close()


def test_lookups_of_a_step_hold_what_they_find_in_the_same_match(small: halfstep.Client) -> None:
    values = small.values(LAYOUT)
    with values.rows(payload(2), BLOCK_BYTES) as rows:
        assert values.put(KEYS[:3], rows, rows=[0, 1, 2]).ok.all()
    counts = Counts()
    lookups = Lookups(values, counts, hold_ms=HOLD_MS)
    before = requests_of(small)
    for key in KEYS[:5]:
        assert lookups.ask(key, "request") is None
    lookups.flush()
    while lookups.ask(KEYS[0], "request") is None:
        lookups.look()
        time.sleep(0.001)
    assert [lookups.ask(key, "request") for key in KEYS[:5]] == [True] * 3 + [False] * 2
    assert requests_of(small) - before == {"match": 1}
    assert small.stat()['halfstep_store_holds{kind="lease"}'] == 3


def test_lmcache_locks_what_it_finds(small: halfstep.Client, own_daemon: Daemon) -> None:
    client = HalfstepClient(own_daemon.unix_url, "contents", **PATIENT)
    names = [f"model@1@0@{number:064x}" for number in range(3)]

    def run(submit: Callable[..., int], *arguments: Any) -> list[bool]:
        submit(*arguments)
        assert select.select([client.event_fd()], [], [], 60)[0], "nothing became readable"
        ((_, _, _, each),) = client.drain_completions()
        return each

    assert all(run(client.submit_batch_set, names, [memoryview(bytearray(10_000)) for _ in names]))
    assert small.stat()['halfstep_store_holds{kind="lease"}'] == 0
    assert run(client.submit_batch_exists, [*names, "another"]) == [True] * 3 + [False]
    assert small.stat()['halfstep_store_holds{kind="lease"}'] == 3
    client.close()
    for wrong in (-1, "10", 1 << 40):
        with pytest.raises(ConfigError, match="hold_ms"):
            HalfstepClient(own_daemon.unix_url, "contents", hold_ms=wrong)  # type: ignore[arg-type]


def test_what_is_there_and_may_not_be_held_is_there_all_the_same(small: halfstep.Client) -> None:
    """A share of the store is all that leases may take: beyond it a match promises nothing, and is no miss."""
    logical = np.random.default_rng(3).integers(0, 256, (64, BLOCK_BYTES), np.uint8)
    keys = [b"much %d" % number for number in range(1280)]
    values = small.values(LAYOUT)
    with values.rows(logical, BLOCK_BYTES) as rows:
        for at in range(0, len(keys), 64):
            assert values.put(keys[at : at + 64], rows).ok.all()
    found = values.match(keys, hold_ms=HOLD_MS)
    there = int(found.there.sum())
    assert there == values.match(keys).there.sum()
    assert 0 < found.held.sum() < there, "160 MiB are more than half of 256"
    assert (found.why, found.reason) == (Answer.OK, ""), "everybody has answered: no failure to write of"
    layout = KVLayout("m", "1", "bfloat16", 16, (Kind("full", (0,), 1, (BLOCK_BYTES // 16,)),))
    tier = small.tier(layout)
    block = logical.view(np.uint16).reshape(64, 1, 16, -1)
    with tier.memory([[block]]) as memory:
        prefix = tier.prefix_of([b"prefix %d" % number for number in range(4)])
        assert prefix.put(memory).stored == 4
    matched = prefix.match(hold_ms=HOLD_MS)
    assert (matched.blocks, matched.held, matched.reason) == (4, 0, ""), "the values have all of it"


def test_without_a_daemon_nothing_is_held_and_nothing_is_raised(nobody: str) -> None:
    for mode in ("on", "off", "shadow"):
        with halfstep.connect(nobody, mode=mode, deadline_ms=100, match_deadline_ms=100) as client:
            values = client.values(LAYOUT)
            found = values.match(KEYS, hold_ms=1000)
            assert not found.there.any()
            assert not found.held.any()
            tier = client.tier(KVLayout("m", "1", "bfloat16", 16, (KIND,)))
            matched = tier.prefix_of(KEYS).match(hold_ms=1000)
            assert (matched.blocks, matched.held) == (0, 0)
            for refused in (-1, 1.5, 1 << 32):
                with pytest.raises(ConfigError, match="hold_ms"):
                    values.match(KEYS, hold_ms=refused)
