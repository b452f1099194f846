"""A short run of client processes that something enters from the side; `make torture-client` runs it for long."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.torture.client.__main__ import run
from tests.torture.client.sides import DRAWN, PASSING

import halfstep

pytestmark = [pytest.mark.integration, pytest.mark.slow]

SEED = 20262
# A sanitizer makes an interpreter some ten times slower.
PATIENCE = 1.0 if halfstep.build_info()["build"] == "release" else 6.0


@pytest.mark.timeout(1200)
def test_every_process_ends_as_it_should_and_memory_stays_its_owners(tmp_path: Path) -> None:
    tally = run(tmp_path, seed=SEED, rounds=32, patience=PATIENCE)
    assert not tally.broken, "\n".join(tally.broken)
    assert tally.rounds == 32
    assert set(tally.ends) == set(DRAWN)
    assert set(tally.passing) == set(PASSING)
    assert tally.answers["ok"] > 0
    assert tally.checked > 0, "no memory was lent twice: late bytes would not have been seen"


@pytest.mark.timeout(1200)
def test_through_a_mount_it_is_the_same(tmp_path: Path) -> None:
    tally = run(tmp_path, seed=SEED, rounds=8, patience=PATIENCE, mount=True)
    assert not tally.broken, "\n".join(tally.broken)
    assert tally.rounds == 8
    assert tally.answers["ok"] > 0


def test_a_process_that_does_not_end_is_seen(tmp_path: Path) -> None:
    tally = run(tmp_path, seed=SEED, rounds=1, patience=0.1, end="hang")
    assert len(tally.broken) == 1
    assert "did not end within" in tally.broken[0]
    assert "in hang" in tally.broken[0], "it says where the process stood"


def test_a_byte_that_lands_late_is_seen(tmp_path: Path) -> None:
    tally = run(tmp_path, seed=SEED, rounds=1, patience=PATIENCE, end="spill")
    assert len(tally.broken) == 1
    assert "1 of 4096 bytes landed in memory that was handed back" in tally.broken[0]
