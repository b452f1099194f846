"""Targets and sources as two arrays of numbers: addresses and lengths within registered memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import halfstep
from halfstep import Addresses, ConfigError, Section

pytestmark = pytest.mark.integration

ITEMS, PIECES, BYTES = 5, 4, 1000
KEYS = [b"key %d" % number for number in range(ITEMS)]


def pools(seed: int | None) -> list[Any]:
    """Two pools, K and V: a page's pieces are two of each."""
    shape = (2 * ITEMS, 2, BYTES)
    if seed is None:
        return [np.zeros(shape, np.uint8) for _ in range(2)]
    return [np.random.default_rng(seed + n).integers(0, 256, shape, dtype=np.uint8) for n in range(2)]


def addresses_of(of: list[Any], pages: list[int]) -> Any:
    return np.array([[pool[page, half].ctypes.data for pool in of for half in range(2)] for page in pages])


def blocks_of(of: list[Any], pages: list[int]) -> Any:
    return np.concatenate([of[0][pages], of[1][pages]], axis=1)


def test_pieces_come_from_addresses_and_go_to_addresses(client: halfstep.Client) -> None:
    saved, into = pools(1), pools(None)
    regions = [client.register(pool) for pool in saved]
    pages = [9, 0, 4, 2, 7]
    stored = client.put(KEYS, Addresses(regions, addresses_of(saved, pages), BYTES))
    assert stored.stored == ITEMS
    plain = np.zeros((ITEMS, PIECES, BYTES), np.uint8)
    assert client.get(KEYS, plain).ok.all()
    assert (plain == blocks_of(saved, pages)).all()
    targets = [client.register(pool) for pool in into]
    others = [1, 3, 5, 6, 8]
    lengths = np.full((ITEMS, PIECES), BYTES, np.int32)
    got = client.get(KEYS, Addresses(targets, addresses_of(into, others), lengths))
    assert got.ok.all()
    assert (blocks_of(into, others) == plain).all()
    assert not blocks_of(into, [0, 2, 4, 7, 9]).any()
    section = Section(KEYS[:2], Addresses(targets, addresses_of(into, [0, 2]).reshape(-1).tolist(), BYTES))
    assert client.get_sections([section])[0].ok.all()
    assert (blocks_of(into, [0, 2]) == plain[:2]).all()


def test_a_region_waits_for_the_batches_that_name_it(client: halfstep.Client) -> None:
    with client.queue() as queue:
        memory = np.zeros((1, BYTES), np.uint8)
        region = client.register(memory)
        # Nobody stores it: the batch is under way until it is cancelled.
        ticket = queue.get(KEYS[:1], Addresses([region], memory.ctypes.data, BYTES), wait=True, deadline_ms=600_000)
        region.close()
        assert ticket.done, "it was cancelled and waited for"
        with pytest.raises(ConfigError, match="closed"):
            queue.get(KEYS[:1], Addresses([region], memory.ctypes.data, BYTES))


def test_what_lies_outside_is_refused_and_nothing_lands(client: halfstep.Client) -> None:
    pool = np.zeros((4, BYTES), np.uint8)
    region, other = client.register(pool[:2]), client.register(pool[2:3])
    first = pool.ctypes.data
    read_only = client.register(bytes(BYTES))
    end = 1 << 64
    for regions, addresses, lengths, said in (
        ([region], [first - 1], BYTES, "address 0 .* is not within one of the 1 regions"),
        ([region], [first + 1], 2 * BYTES, "is not within one of the 1 regions"),
        ([region, other], [first + BYTES], 2 * BYTES, "is not within one of the 2 regions"),
        ([region], [end - 1], BYTES, "is not within"),
        ([], [first], BYTES, "is not within one of the 0 regions"),
        ([region], [first] * 3, BYTES, "3 addresses do not divide evenly over 2 blocks"),
        ([region], [-1, 0], BYTES, "addresses: -1 to 0; must be 0 to"),
        ([region], [first] * 2, 1 << 32, "lengths: 4294967296"),
        ([region], [1.5, 2], BYTES, "addresses: must be whole numbers"),
        ([read_only], [read_only.address] * 2, BYTES, "read-only"),
        ([pool], [first] * 2, BYTES, r"regions \(ndarray\)"),
        (region, [first] * 2, BYTES, r"regions \(Region\)"),
        ([region], [[first]] * 4, BYTES, r"addresses: shape \(4, 1\); must be \[items=2"),
        ([region], [first] * 2, [BYTES] * 3, r"lengths: shape \(3,\)"),
    ):
        keys = KEYS[: 1 if len(addresses) == 1 else 2]
        with pytest.raises(ConfigError, match=said):
            client.get(keys, Addresses(regions, np.array(addresses), lengths))  # type: ignore[arg-type]
    assert not pool.any()
    with pytest.raises(ConfigError, match="block_bytes"):
        client.put(KEYS[:1], Addresses([region], [first], BYTES), block_bytes=10)
    assert client.get([], Addresses([region], np.array([], np.uint64), BYTES)).keys == 0
