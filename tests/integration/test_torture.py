"""Short runs of the long ones in tests/torture; `make torture` runs them for hours. A failure prints its seed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.torture import churn, flips, hostile, kills, malformed, power_cuts

pytestmark = pytest.mark.integration

SEED = 20261
# Of the hostile ones, one of each kind; `make hostile` has them all.
HOSTILE = ("explains", "changes", "stats", "leases", "layouts", "mutations", "cancels", "storms")


def test_kills_under_full_load_break_no_rule(tmp_path: Path) -> None:
    tally = kills.run(4, SEED, tmp_path)
    assert not tally.broken, tally
    assert tally.rounds == 4
    assert tally.verified > 0, "no block was read back: the run showed nothing"


def test_power_cuts_that_lose_what_was_not_flushed_break_no_rule(tmp_path: Path) -> None:
    if why := power_cuts.why_not():
        pytest.skip(why)
    tally = power_cuts.run(3, SEED, tmp_path)
    assert not tally.broken, tally
    assert tally.rounds == 3
    assert tally.verified > 0, "no block was read back: the run showed nothing"


def test_an_hour_of_churn_leaves_the_books_in_order(tmp_path: Path) -> None:
    tally = churn.run(1.5, SEED, tmp_path)
    assert not tally.broken, tally
    assert tally.counters["segments_reclaimed"] > 0, "the store never wrapped: the run showed nothing"
    assert tally.counters["blocks_evicted_age"] > 0
    assert tally.counters["blocks_evicted_expired"] > 0


def test_malformed_frames_cost_a_good_client_nothing(tmp_path: Path) -> None:
    tally = malformed.run(5000, SEED, tmp_path)
    assert tally.good_failures == 0, tally
    assert tally.frames >= 5000
    assert tally.good_calls > 0, "the good client never had its turn"
    assert tally.descriptors_growth <= 0, tally
    assert tally.rss_growth_bytes < malformed.GROWTH_BYTES_MAX, tally


def test_hostile_clients_cost_others_neither_blocks_nor_their_turn(tmp_path: Path) -> None:
    result = hostile.run(0.4, SEED, tmp_path, names=HOSTILE, timed=False)
    assert [phase.scenario for phase in result.phases] == list(HOSTILE)
    assert not result.breaches, [(each.scenario, each.rule.name, each.seen) for each in result.breaches]


def test_a_flipped_byte_is_a_counted_miss_and_never_a_wrong_byte(tmp_path: Path) -> None:
    tally = flips.run(40, SEED, tmp_path)
    assert (tally.wrong, tally.refused_starts) == (0, 0), tally
    assert (tally.too_many_lost, tally.uncounted_misses) == (0, 0), tally
    assert tally.flips == 40
    assert any(lost > 0 for lost in tally.lost), "no flip cost a block: they did not reach any"
