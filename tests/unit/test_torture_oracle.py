"""What the oracle of the kills says of pins: they hold the bytes on which they were taken, and no others of the name."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tests.torture.oracle import Block, Broken, Log, Oracle, Rule

SEGMENT_BYTES = 1 << 20
OLD, NEW = np.full(5000, 1, np.uint8), np.full(5000, 2, np.uint8)


def pinned() -> tuple[Oracle, Block]:
    """A block that was persisted and pinned, and is as old as the whole store."""
    oracle, block = Oracle(Log(8, SEGMENT_BYTES)), Block("name")
    oracle.put_stored(block, oracle.put_begins(block, OLD), persist=True)
    block.hold(3, math.inf, persistent=True)
    for _ in range(8):
        oracle.log.offered(SEGMENT_BYTES)
    return oracle, block


def test_what_is_pinned_must_not_be_evicted() -> None:
    oracle, block = pinned()
    oracle.died(block)
    oracle.read(block, OLD)
    with pytest.raises(Broken) as broken:
        oracle.read(block, None)
    assert broken.value.rule is Rule.HELD_EVICTED


def test_a_put_that_a_cut_left_unanswered_takes_the_pin_with_what_it_replaced() -> None:
    oracle, block = pinned()
    oracle.put_begins(block, NEW)
    oracle.put_unanswered(block)
    oracle.died(block)
    block.puts[0].expiry_low_s = 0  # which it did before: it need not be there
    block.must_from = None
    oracle.read(block, NEW)
    assert not block.holds
    for _ in range(8):
        oracle.log.offered(SEGMENT_BYTES)
    oracle.read(block, None)
    assert oracle.evicted == 1


def test_a_put_does_not_replace_what_is_pinned_and_has_not_expired() -> None:
    oracle, block = pinned()
    oracle.put_begins(block, NEW)
    oracle.put_unanswered(block)
    oracle.died(block)
    with pytest.raises(Broken) as broken:
        oracle.read(block, NEW)
    assert broken.value.rule is Rule.HELD_EVICTED


def test_a_pin_that_was_taken_after_the_put_stays() -> None:
    oracle, block = pinned()
    oracle.delete_begins(block)
    oracle.delete_ended(block)
    oracle.put_stored(block, oracle.put_begins(block, NEW), persist=False)
    block.hold(3, math.inf, persistent=True)
    oracle.died(block)
    oracle.read(block, NEW)
    assert list(block.holds) == [3]
