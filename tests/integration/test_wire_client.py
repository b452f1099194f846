"""A client written from docs/wire-protocol.md alone, against a running daemon: each operation over every transport."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from tests.torture.content import noise_of
from tests.wire import gets, puts
from tests.wire.layouts import Layout
from tests.wire.requests import PERSIST, Batch, Section
from tests.wire.session import Session

pytestmark = pytest.mark.integration

Connect = Callable[..., Session]
SIZES = (1, 64, 4095, 65_536, 65_537, 262_143, 262_144, 262_145, 786_432, 1_500_001)


@pytest.fixture
def values(request: pytest.FixtureRequest) -> Layout:
    """A layout of values of unknown make that no other test has."""
    return Layout({"name": request.node.nodeid[-200:], "process": os.getpid()})


def texts(statuses: Any) -> list[str]:
    return [str(status) for status in statuses]


def data_of(keys: list[bytes], sizes: Any) -> list[bytes]:
    return [noise_of(key, size).tobytes() for key, size in zip(keys, sizes, strict=True)]


@pytest.mark.parametrize("early", [True, False])
def test_blocks_of_every_size_are_put_matched_and_got(wire: Connect, values: Layout, early: bool) -> None:
    keys = [b"size %d" % size for size in SIZES]
    data = data_of(keys, SIZES)
    section = Section(values, keys)
    session = wire()
    assert gets.match(session, [section]).present == [[False] * len(keys)]
    rows = [[puts.plain(section, each) for each in data]]
    assert texts(puts.put(session, [section], rows, Batch(durability=PERSIST), early)[0]) == ["ok(stored)"] * len(keys)
    other = wire()
    matched = gets.match(other, [section], with_lengths=True)
    assert matched.present == [[True] * len(keys)]
    assert matched.lengths == {0: dict(enumerate(SIZES))}
    assert gets.get(other, [section]).blocks() == data
    assert session.early_bytes == session.server.early_credit_bytes
