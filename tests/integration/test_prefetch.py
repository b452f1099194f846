"""Blocks that are brought into the daemon's memory ahead of their get."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import halfstep
from halfstep.client.ahead import KINDS
from halfstep.client.results import Answer

pytestmark = pytest.mark.integration

BLOCK_BYTES = 256 << 10
Blocks = Callable[..., npt.NDArray[np.uint8]]


def names(count: int) -> list[bytes]:
    return [f"block {number}".encode() for number in range(count)]


@pytest.fixture
def cold(own_daemon: Any, layout: halfstep.Layout, blocks: Blocks) -> Iterator[Callable[[int], halfstep.Client]]:
    """cold(count): a client of a daemon that has so many blocks on flash and none of them in memory."""
    clients = []

    def make(count: int) -> halfstep.Client:
        terms = {"layout": layout, "required": True, "deadline_ms": 30_000, "match_deadline_ms": 30_000}
        with halfstep.connect(own_daemon.url, **terms) as writer:
            for at in range(0, count, 20):
                keys = names(count)[at : at + 20]
                assert writer.put(keys, blocks(len(keys), BLOCK_BYTES, seed=at), durability="persist").ok.all()
        own_daemon.kill()
        own_daemon.start()
        clients.append(halfstep.connect(own_daemon.url, **terms))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def ended(client: halfstep.Client) -> dict[str, int]:
    stat = client.stat()
    return {as_: int(stat[f'halfstep_store_staged_ended_total{{as="{as_}"}}']) for as_ in ("used", "late", "unused")}


def by_kind(client: halfstep.Client) -> dict[str, dict[str, int]]:
    """Blocks brought for each kind that had any, and how they ended."""
    stat = client.stat()
    kinds: dict[str, dict[str, int]] = {}
    for kind in ("other", *KINDS):
        name = f'halfstep_store_prefetched_bytes_total{{kind="{kind}",as='
        blocks = {how: int(stat[f'{name}"{how}"}}']) // BLOCK_BYTES for how in ("brought", "used", "late", "unused")}
        if any(blocks.values()):
            kinds[kind] = blocks
    return kinds


def wait_until_unused(client: halfstep.Client, count: int) -> None:
    """Until so many that nobody got were given up."""
    end = time.monotonic() + 30
    while ended(client)["unused"] < count:
        assert time.monotonic() < end, "they are kept for ever"
        time.sleep(0.02)


def from_flash(client: halfstep.Client) -> int:
    return int(client.stat()['halfstep_store_hits_total{from="flash"}'])


def test_what_was_prefetched_is_got_from_memory(cold: Callable[[int], halfstep.Client], blocks: Blocks) -> None:
    client = cold(20)
    result = client.prefetch([*names(10), b"absent"])
    assert result.ok.tolist() == [True] * 10 + [False]
    assert result.reason(10) == "miss (absent)"
    assert from_flash(client) == 0
    target = np.zeros((10, BLOCK_BYTES), np.uint8)
    assert client.get(names(10), target).ok.all()
    assert np.array_equal(target, blocks(20, BLOCK_BYTES)[:10])
    assert from_flash(client) == 0
    assert ended(client) == {"used": 10, "late": 0, "unused": 0}
    again = client.prefetch(names(10))
    assert again.reason(0) == "ok (present)"


def test_bytes_are_counted_by_what_they_are_for(cold: Callable[[int], halfstep.Client]) -> None:
    client = cold(10)
    target = np.zeros((1, BLOCK_BYTES), np.uint8)
    for number, kind in enumerate((None, *KINDS)):
        assert client.prefetch(names(10)[2 * number : 2 * number + 2], kind=kind).ok.all()
        assert client.get([names(10)[2 * number]], target).ok.all()
    wait_until_unused(client, 5)
    assert by_kind(client) == {kind: {"brought": 2, "used": 1, "late": 0, "unused": 1} for kind in ("other", *KINDS)}


def test_what_nobody_gets_is_given_up(cold: Callable[[int], halfstep.Client]) -> None:
    client = cold(5)
    assert client.prefetch(names(5), seconds=0.05).ok.all()
    wait_until_unused(client, 5)


def test_a_chain_that_is_longer_than_its_room_is_followed(cold: Callable[[int], halfstep.Client], blocks: Blocks) -> None:
    count = 100  # 25 MiB; the room is a quarter of 64 MiB
    client = cold(count)
    throttled = client.prefetch(names(count), seconds=8)  # a drive that takes as long to fill the room finds it free again
    assert 0 < throttled.ok.sum() < count
    assert throttled.reason(count - 1) == "throttled (budget)"
    wait_until_unused(client, int(throttled.ok.sum()))

    expected = np.concatenate([blocks(20, BLOCK_BYTES, seed=at) for at in range(0, count, 20)])
    target = np.zeros((1, BLOCK_BYTES), np.uint8)
    with client.queue() as queue:
        ticket = queue.prefetch(names(count), follow=True, seconds=30)
        for number, key in enumerate(names(count)):
            assert client.get([key], target).ok.all()
            assert np.array_equal(target[0], expected[number])
        assert ticket.result().ok.all()
    assert from_flash(client) == ended(client)["late"], "a get met what was still coming, or found it"


def test_a_prefetch_is_cancelled(cold: Callable[[int], halfstep.Client]) -> None:
    count = 100
    client = cold(count)
    with client.queue() as queue:
        ticket = queue.prefetch(names(count), follow=True, seconds=30)
        ticket.cancel()
        result = ticket.result()
    answers = set(result.answers.tolist())
    assert answers <= {Answer.OK, Answer.CANCELLED}
    assert Answer.CANCELLED in answers, "the room for all of them is not there"


def test_a_prefetch_that_cannot_be_done_in_time_is_late(cold: Callable[[int], halfstep.Client]) -> None:
    client = cold(100)
    result = client.prefetch(names(100), follow=True, seconds=30, deadline_ms=500)
    answers = set(result.answers.tolist())
    assert answers <= {Answer.OK, Answer.LATE}
    assert Answer.LATE in answers, "the room for all of them is not there"


def test_asyncio_prefetches_too(cold: Callable[[int], halfstep.Client]) -> None:
    client = cold(3)
    assert asyncio.run(client.aio.prefetch(names(3))).ok.all()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"seconds": 0}, "seconds=0"),
        ({"seconds": float("nan")}, "seconds=nan"),
        ({"seconds": float("inf")}, "seconds=inf: must be over 0 and at most"),
        ({"priority": 256}, "priority=256"),
    ],
)
def test_a_wrong_option_is_named(client: halfstep.Client, options: dict[str, Any], said: str) -> None:
    with pytest.raises(halfstep.ConfigError, match=said):
        client.prefetch(names(1), **options)
