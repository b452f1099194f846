"""Prefixes that a session expects are in the daemon's memory before their get, within a budget, and counted as they end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.integration.commands import PATIENT
from tests.integration.conftest import Daemon

import halfstep
from halfstep import ConfigError
from halfstep.client.ahead import Counts
from halfstep.tier import Grid, Kind, KVLayout, Prefix, Tier

pytestmark = pytest.mark.integration

BLOCK_TOKENS, VALUES, LAYERS, HEADS, BLOCKS = 16, 64, 4, 8, 12
KIND = Kind("full", tuple(range(LAYERS)), HEADS, (2 * VALUES, 2 * VALUES))
LAYOUT = KVLayout("ahead", "1", "bfloat16", BLOCK_TOKENS, (KIND,), grid=Grid(heads=2))
BLOCK_BYTES = LAYOUT.block_bytes
CELL_BYTES = BLOCK_BYTES // 2
ROOMY = 64 << 20


def cache_of(seed: int | None) -> Any:
    shape = (LAYERS, 2, BLOCKS, HEADS, BLOCK_TOKENS, VALUES)
    return np.zeros(shape, np.uint16) if seed is None else np.random.default_rng(seed).integers(0, 1 << 16, shape, np.uint16)


def tokens_of(number: int) -> Any:
    return np.arange(BLOCKS * BLOCK_TOKENS) + 10_000 * number


class Cold:
    """Prefixes that a daemon has on flash, and none of them in its memory."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        with halfstep.connect(daemon.unix_url, required=True, **PATIENT) as writer:
            tier = writer.tier(LAYOUT, durability="persist")
            for number in range(3):
                with tier.memory([list(layer) for layer in cache_of(number)]) as memory:
                    assert tier.prefix(tokens_of(number)).put(memory).refused == 0
        daemon.restart()
        self.client = halfstep.connect(daemon.unix_url, required=True, **PATIENT)

    def tier(self, ahead_bytes: int = ROOMY) -> tuple[Tier, list[Prefix]]:
        tier = self.client.tier(LAYOUT, ahead_bytes=ahead_bytes)
        return tier, [tier.prefix(tokens_of(number)) for number in range(3)]

    def hits(self, whence: str) -> int:
        return int(self.client.stat()[f'halfstep_store_hits_total{{from="{whence}"}}'])

    def staged_bytes(self) -> int:
        return int(self.client.stat()["halfstep_store_staged_bytes_total"])

    def ended(self) -> dict[str, int]:
        stat = self.client.stat()
        return {as_: int(stat[f'halfstep_store_staged_ended_total{{as="{as_}"}}']) for as_ in ("used", "late", "unused")}


@pytest.fixture
def cold(own_daemon: Daemon) -> Iterator[Cold]:
    made = Cold(own_daemon)
    yield made
    made.client.close()


def until(true: Callable[[], bool], why: str) -> None:
    end_s = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end_s, why
        time.sleep(0.02)


def sums(tier: Tier) -> Counts:
    """Over all kinds."""
    assert tier.ahead is not None
    total = Counts()
    for counts in tier.ahead.counts().values():
        for name in Counts.__dataclass_fields__:
            setattr(total, name, getattr(total, name) + getattr(counts, name))
    return total


def landed(tier: Tier) -> int:
    assert tier.ahead is not None
    return tier.ahead.landed


def test_an_expected_prefix_is_read_from_flash_before_it_is_asked_for(cold: Cold) -> None:
    tier, (prefix, *_) = cold.tier()
    into = cache_of(None)
    with tier, tier.session() as session, tier.memory([list(layer) for layer in into]) as memory:
        session.expect(prefix)
        until(lambda: cold.staged_bytes() >= BLOCKS * BLOCK_BYTES, "nothing was read ahead")
        assert cold.hits("flash") == cold.hits("memory") == 0, "nobody has asked for it yet"
        until(lambda: landed(tier) == 2 * BLOCKS, "on its way")
        assert prefix.get(memory, session=session).blocks == BLOCKS
        assert (into == cache_of(0)).all()
        assert (cold.hits("memory"), cold.hits("flash")) == (2 * BLOCKS, 0)
        assert cold.ended() == {"used": 2 * BLOCKS, "late": 0, "unused": 0}
        counts = sums(tier)
        assert (counts.asked, counts.used, counts.used_bytes) == (2 * BLOCKS, 2 * BLOCKS, BLOCKS * BLOCK_BYTES)
        assert tier.ahead is not None
        assert tier.ahead.bytes == 0


def test_what_nobody_reads_is_unused_when_its_session_ends(cold: Cold) -> None:
    tier, (prefix, *_) = cold.tier()
    with tier:
        session = tier.session()
        session.expect(prefix, seconds=6)
        until(lambda: cold.staged_bytes() >= BLOCKS * BLOCK_BYTES, "nothing was read ahead")
        until(lambda: sums(tier).asked == 2 * BLOCKS and landed(tier) == 2 * BLOCKS, "on its way")
        session.end("final")
        counts = sums(tier)
        assert (counts.asked, counts.used, counts.late, counts.unused) == (2 * BLOCKS, 0, 0, 2 * BLOCKS)
        until(lambda: cold.ended()["unused"] == 2 * BLOCKS, "the daemon keeps it for ever")
        with pytest.raises(ConfigError, match="session: has ended"):
            session.expect(prefix)


def test_who_does_not_come_in_time_is_given_up(cold: Cold) -> None:
    tier, (prefix, *_) = cold.tier()
    with tier:
        prefix.expect(seconds=5)
        until(lambda: sums(tier).unused + sums(tier).absent == 2 * BLOCKS, "it is expected for ever")
        assert tier.ahead is not None
        until(lambda: tier.ahead is not None and tier.ahead.bytes == 0, "something stays in the budget")


def test_the_budget_holds_and_the_next_is_brought_when_there_is_room(cold: Cold) -> None:
    tier, (first, second, _third) = cold.tier(ahead_bytes=BLOCKS * BLOCK_BYTES)
    into = cache_of(None)
    with tier, tier.memory([list(layer) for layer in into]) as memory:
        first.expect(seconds=60)
        second.expect(seconds=60)
        assert tier.ahead is not None
        until(lambda: sums(tier).asked == 2 * BLOCKS and landed(tier) == 2 * BLOCKS, "on its way")
        assert cold.staged_bytes() == BLOCKS * BLOCK_BYTES, "no more than the budget"
        assert tier.ahead.bytes == BLOCKS * BLOCK_BYTES
        assert first.get(memory).blocks == BLOCKS
        until(lambda: sums(tier).asked == 4 * BLOCKS and landed(tier) == 2 * BLOCKS, "no room")
        assert cold.staged_bytes() == 2 * BLOCKS * BLOCK_BYTES
        assert second.get(memory).blocks == BLOCKS
        assert (into == cache_of(1)).all()
        assert cold.hits("flash") == 0


def test_a_rank_expects_its_own_cells(cold: Cold) -> None:
    tier, (prefix, *_) = cold.tier()
    heads = cache_of(None)[:, :, :, : HEADS // 2]
    with tier, tier.memory([list(layer) for layer in heads], heads=range(HEADS // 2)) as memory:
        prefix.expect(into=memory, blocks=5)
        until(lambda: sums(tier).asked == 5 and landed(tier) == 5, "on its way")
        assert cold.staged_bytes() == 5 * CELL_BYTES
        assert prefix.get(memory, blocks=5).blocks == 5
        assert sums(tier).used == 5


def test_a_dead_daemon_brings_nothing_and_is_no_error(own_daemon: Daemon) -> None:
    with halfstep.connect(own_daemon.unix_url, **PATIENT) as client, client.tier(LAYOUT) as tier:
        own_daemon.kill()
        prefix = tier.prefix(tokens_of(0))
        expected = prefix.expect(seconds=0.2)
        until(lambda: sums(tier).used == 0 and tier.ahead is not None and tier.ahead.bytes == 0, "it waits for a dead daemon")
        expected.end()


def test_what_makes_no_expectation_is_refused(client: halfstep.Client) -> None:
    with pytest.raises(ConfigError, match="ahead_bytes=0"):
        client.tier(LAYOUT, ahead_bytes=0)
    tier = client.tier(LAYOUT)
    prefix = tier.prefix(tokens_of(0))
    for seconds in (0, -1, 1e9, float("inf")):
        with pytest.raises(ConfigError, match="seconds="):
            prefix.expect(seconds=seconds)
    with pytest.raises(ConfigError, match="blocks=13"):
        prefix.expect(blocks=BLOCKS + 1)
    tier.close()
    with pytest.raises(ConfigError, match="closed"):
        prefix.expect()
