"""LMCache's native_plugin contract, as its adapter calls it, without LMCache."""

from __future__ import annotations

import logging
import os
import re
import select
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import halfstep
from halfstep.connectors import lmcache as connector
from halfstep.connectors.lmcache import HalfstepClient

pytestmark = pytest.mark.integration

# Longer than a key of ours may be.
KEYS = [f"an-organisation/{'a-model-' * 40}@01000100@0@{number:064x}" for number in range(4)]


@pytest.fixture(params=["tcp", "shm"])
def url(request: pytest.FixtureRequest, daemon: Any) -> str:
    return str(daemon.url if request.param == "tcp" else daemon.unix_url)


@pytest.fixture
def lmcache(request: pytest.FixtureRequest, url: str) -> Iterator[HalfstepClient]:
    made = HalfstepClient(url, f"{request.node.nodeid[-100:]} {os.getpid()}", match_deadline_ms=30_000, deadline_ms=30_000)
    yield made
    made.close()


def drained(client: HalfstepClient, count: int = 1) -> dict[int, tuple[bool, str, list[bool] | None]]:
    """As LMCache does it: when the descriptor is readable."""
    found: dict[int, tuple[bool, str, list[bool] | None]] = {}
    while len(found) < count:
        assert select.select([client.event_fd()], [], [], 60)[0], "nothing became readable"
        for number, *rest in client.drain_completions():
            assert number not in found, "told twice"
            found[number] = (rest[0], rest[1], rest[2])
    return found


def objects(count: int, length: int = 100_000) -> list[np.ndarray[Any, np.dtype[np.float32]]]:
    draw = np.random.default_rng(3)
    return [draw.random(length // 4, np.float32) for _ in range(count)]


def test_objects_are_set_found_and_got_again(lmcache: HalfstepClient) -> None:
    before = objects(3)
    number = lmcache.submit_batch_set(KEYS[:3], [memoryview(one) for one in before])
    assert drained(lmcache)[number] == (True, "", [True] * 3)
    number = lmcache.submit_batch_exists(KEYS)
    assert drained(lmcache)[number] == (True, "", [True, True, True, False])
    after = [np.zeros_like(one) for one in before]
    number = lmcache.submit_batch_get(KEYS[:3], [memoryview(one) for one in after])
    assert drained(lmcache)[number] == (True, "", [True] * 3)
    assert all((one == other).all() for one, other in zip(before, after, strict=True))


def test_what_is_missing_or_of_another_length_is_no_success(lmcache: HalfstepClient) -> None:
    lmcache.submit_batch_set(KEYS[:2], [memoryview(one) for one in objects(2)])
    drained(lmcache)
    targets = [bytearray(100_000), bytearray(50_000), bytearray(100_000)]
    number = lmcache.submit_batch_get([*KEYS[:2], KEYS[3]], [memoryview(one) for one in targets])
    ok, _, each = drained(lmcache)[number]
    assert (ok, each) == (False, [True, False, False])
    larger = bytearray(100_004)
    number = lmcache.submit_batch_get(KEYS[:1], [memoryview(larger)])
    assert drained(lmcache)[number][2] == [False], "a shorter object is not the one that was asked for"


def test_a_batch_of_nothing_is_told_as_any_other(lmcache: HalfstepClient) -> None:
    submits: list[Callable[[], int]] = [
        lambda: lmcache.submit_batch_set([], []),
        lambda: lmcache.submit_batch_get([], []),
        lambda: lmcache.submit_batch_exists([]),
        lambda: lmcache.submit_batch_delete([]),
    ]
    for submit in submits:
        number = submit()
        assert drained(lmcache) == {number: (True, "", [])}


def test_deleted_objects_are_gone(lmcache: HalfstepClient) -> None:
    lmcache.submit_batch_set(KEYS[:2], [memoryview(one) for one in objects(2)])
    drained(lmcache)
    number = lmcache.submit_batch_delete([KEYS[0], KEYS[3]])
    assert drained(lmcache)[number] == (True, "", [True, True]), "gone is gone, whoever dropped it"
    number = lmcache.submit_batch_exists(KEYS[:2])
    assert drained(lmcache)[number][2] == [False, True]


def test_threads_submit_beside_one_that_drains(lmcache: HalfstepClient) -> None:
    numbers: list[int] = []

    def work(thread: int) -> None:
        numbers.extend(lmcache.submit_batch_exists([f"model@1@0@{thread}{at}"]) for at in range(50))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    told = drained(lmcache, 200)
    for thread in threads:
        thread.join()
    assert sorted(told) == sorted(numbers)


def test_a_stopped_daemon_costs_misses_and_one_warning(
    url: str, daemon: Any, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    caplog.set_level(logging.WARNING, "halfstep.connectors")
    client = HalfstepClient(url, request.node.nodeid[-100:], deadline_ms=100, match_deadline_ms=100)
    with halfstep.connect(url, required=True, deadline_ms=30_000):
        pass
    daemon.pause()
    for _ in range(2):
        number = client.submit_batch_exists(KEYS)
        assert drained(client)[number][2] == [False] * 4
        number = client.submit_batch_get(KEYS[:1], [memoryview(bytearray(1000))])
        assert drained(client)[number][2] == [False]
    assert len(caplog.records) == 1
    daemon.resume()
    client.close()


def test_other_contents_have_other_objects(url: str) -> None:
    clients = [HalfstepClient(url, f"{contents} {os.getpid()}", match_deadline_ms=30_000) for contents in ("bf16", "fp8")]
    clients[0].submit_batch_set(KEYS[:1], [memoryview(objects(1)[0])])
    drained(clients[0])
    number = clients[1].submit_batch_exists(KEYS[:1])
    assert drained(clients[1])[number][2] == [False]
    for client in clients:
        client.close()
    for wrong, said in (
        ({"url": url}, 'contents="": must say'),
        ({"contents": "x"}, '"url" is missing in adapter_params'),
        ({"url": url, "contents": "x", "codecs": "bfx"}, "codecs: unknown in adapter_params; did you mean codec?"),
        ({"url": url, "contents": "x", "namespace": "n"}, "namespace: unknown in adapter_params; there are codec, "),
    ):
        with pytest.raises(halfstep.ConfigError, match=re.escape(said)):
            HalfstepClient(**wrong)


def test_a_policy_stands_in_place_of_a_codec_and_a_lossy_one_is_refused() -> None:
    client = HalfstepClient("halfstep://127.0.0.1:1", "x", policy="exact")
    try:
        fields = client.layout.fields
        assert (fields["policy"], fields["codec"]) == ("exact", "bfx")
    finally:
        client.close()
    for policy, said in (("high", "tells planes or layers apart"), ("exat", "did you mean exact")):
        with pytest.raises(halfstep.ConfigError, match=said):
            HalfstepClient("halfstep://127.0.0.1:1", "x", policy=policy)


def test_a_tier_that_is_switched_off_is_no_failure_of_a_store(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """LMCache warns of each batch that was not stored."""
    monkeypatch.setenv("HALFSTEP_MODE", "off")
    client = HalfstepClient(url, "switched off")
    number = client.submit_batch_set(KEYS[:2], [memoryview(one) for one in objects(2)])
    assert drained(client)[number] == (True, "", [True, True])
    number = client.submit_batch_exists(KEYS[:2])
    assert drained(client)[number] == (True, "", [False, False])
    number = client.submit_batch_get(KEYS[:2], [memoryview(one) for one in objects(2)])
    assert drained(client)[number][2] == [False, False]
    monkeypatch.setattr(connector, "BLOCK_BYTES_MAX", 1000)
    number = client.submit_batch_set(KEYS[:2], [memoryview(one) for one in objects(2)])
    assert drained(client)[number] == (True, "", [True, True]), "whatever it is that is not stored"
    assert (client.counts.stores, client.counts.stores_failed) == (0, 0)
    client.close()


def test_an_object_that_no_block_holds_is_answered_and_the_others_are_stored(
    lmcache: HalfstepClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connector, "BLOCK_BYTES_MAX", 100_000)
    before = [*objects(1), np.zeros(25_001, np.float32), *objects(1)]
    number = lmcache.submit_batch_set(KEYS[:3], [memoryview(one) for one in before])
    ok, reason, each = drained(lmcache)[number]
    assert (ok, each) == (False, [True, False, True])
    assert "lower LMCache's chunk_size" in reason
    number = lmcache.submit_batch_set(KEYS[:1], [memoryview(before[1])])
    assert drained(lmcache)[number][2] == [False]
    assert (lmcache.counts.stores, lmcache.counts.stores_failed) == (2, 2)
    number = lmcache.submit_batch_exists(KEYS[:3])
    assert drained(lmcache)[number][2] == [True, False, True]
