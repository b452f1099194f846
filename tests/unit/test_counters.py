"""What a daemon counts, of one shard or several."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

from halfstep.client import entries
from halfstep.errors import ProtocolError


def records(*counters: tuple[str, int]) -> list[tuple[bytes, bytes]]:
    return [(struct.pack("<Q", value), name.encode()) for name, value in counters]


def test_counters_of_one_shard_need_no_number() -> None:
    assert entries.counters_by_shard(records(("a", 1), ("b", 2))) == {0: {"a": 1, "b": 2}}
    assert entries.counters_by_shard([]) == {}


def test_counters_of_several_shards_are_told_apart_and_added_up() -> None:
    of_two = records(("halfstep_shard", 1), ("a", 5), ("halfstep_recovery_us", 7), ("halfstep_shard", 0), ("a", 2))
    shards = entries.counters_by_shard([*of_two, *records(("halfstep_recovery_us", 9))])
    assert list(shards) == [0, 1]
    assert shards == {0: {"a": 2, "halfstep_recovery_us": 9}, 1: {"a": 5, "halfstep_recovery_us": 7}}
    assert entries.totals_of(shards.values()) == {"a": 7, "halfstep_recovery_us": 9}, "they recover at the same time"


def test_a_counter_that_cannot_be_is_the_peers_fault() -> None:
    for record, name in ((b"1234567", b"a"), (b"12345678", b"\xff")):
        with pytest.raises(ProtocolError, match=re.escape(repr(name))):
            entries.counters_by_shard([(record, name)])


def test_daemon_client_and_document_agree_on_what_is_not_added_up(repository: Path) -> None:
    native = (repository / "native" / "shard" / "metrics.cc").read_text()
    (names,) = re.findall(r"kNames\[\] = \{(.*?)\};", native, re.DOTALL)
    assert set(re.findall(r'"(\w+)"', names)) == entries._OF_THE_WORST_SHARD
    document = (repository / "docs" / "wire-protocol.md").read_text()
    (said,) = re.findall(r"up, but for (.*?), of which the largest counts", document, re.DOTALL)
    assert set(re.findall(r"`(\w+)`", said)) == entries._OF_THE_WORST_SHARD
