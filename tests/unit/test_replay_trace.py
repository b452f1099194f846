"""Traces: both formats, numbering, and what is said of a line that is wrong."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from halfstep import ConfigError
from halfstep.tools.replay.trace import ROOT, Trace, load


def written(tmp_path: Path, *lines: object) -> Path:
    path = tmp_path / "trace.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def chains(trace: Trace) -> list[list[int]]:
    return [trace.request(index).tolist() for index in range(trace.requests)]


def test_mooncake_blocks_are_numbered_as_they_first_appear(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        {"timestamp": 1000, "input_length": 900, "output_length": 5, "hash_ids": [70, 5]},
        {"timestamp": 3500, "hash_ids": [70, 5, 9]},
        {"timestamp": 3500, "hash_ids": [70, 6]},
    )
    trace = load(path)
    assert chains(trace) == [[0, 1], [0, 1, 2], [0, 3]]
    assert trace.parents.tolist() == [ROOT, 0, 1, 0]
    assert trace.times_us.tolist() == [0, 2_500_000, 2_500_000]
    assert trace.unique_blocks == 4
    assert trace.hit_ratio_max == pytest.approx(3 / 7)
    assert trace.keys[0].tobytes() == hashlib.blake2b((70).to_bytes(8, "little"), digest_size=16).digest()


def test_own_format_has_texts_times_to_live_and_blocks_without_a_chain(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        {"timestamp_ms": 0.5, "blocks": ["a", "b"], "ttl_s": 60},
        "",
        {"timestamp_ms": 2, "blocks": ["b", "c", 7], "chained": False},
    )
    trace = load(path)
    assert chains(trace) == [[0, 1], [1, 2, 3]]
    assert trace.parents.tolist() == [ROOT, 0, ROOT, ROOT]
    assert trace.ttl_s.tolist() == [60, 0]
    assert trace.chained.tolist() == [True, False]
    assert trace.times_us.tolist() == [0, 1500]


def test_a_text_is_another_block_than_the_number_it_shows(tmp_path: Path) -> None:
    same_bytes = (0x3132333435363738).to_bytes(8, "little").decode()
    trace = load(written(tmp_path, {"timestamp_ms": 0, "blocks": ["7", 7, same_bytes, 0x3132333435363738]}))
    assert trace.unique_blocks == 4


def test_requests_are_sorted_by_time_and_ties_stay(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        *({"timestamp": time, "hash_ids": [block]} for time, block in ((9, 1), (3, 2), (9, 3), (3, 4))),
        {"timestamp": 0, "hash_ids": []},
    )
    trace = load(path)
    keys = [trace.keys[chain[0]].tobytes() for chain in chains(trace)]
    wanted = [hashlib.blake2b(block.to_bytes(8, "little"), digest_size=16).digest() for block in (2, 4, 1, 3)]
    assert keys == wanted
    assert load(path, limit=2).requests == 2


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "not JSON"),
        ("[1]", "line: must be an object, not [1]"),
        ({"timestamp": 1}, "neither hash_ids (Mooncake) nor blocks (Halfstep) is among its fields timestamp"),
        ({"hash_ids": [1]}, "timestamp: missing"),
        ({"timestamp": -1, "hash_ids": [1]}, "timestamp: must be milliseconds, 0 or more, not -1"),
        ({"timestamp": True, "hash_ids": [1]}, "timestamp: must be milliseconds"),
        ('{"timestamp": NaN, "hash_ids": [1]}', "timestamp: must be milliseconds"),
        ({"timestamp": 1, "hash_ids": 5}, "hash_ids: must be a list, not 5"),
        ({"timestamp": 1, "hash_ids": [1, 2.5]}, "hash_ids: must be a list of whole numbers"),
        ({"timestamp": 1, "hash_ids": [1 << 64]}, "hash_ids: must be a list of whole numbers"),
        ({"timestamp_ms": 1, "blocks": [""]}, "blocks: must be a list of whole numbers"),
        ({"timestamp_ms": 1, "blocks": [[]]}, "blocks: must be a list of whole numbers"),
        ({"timestamp_ms": 1, "blocks": ["a"], "ttl_s": 1.5}, "ttl_s: must be a whole number"),
        ({"timestamp_ms": 1, "blocks": ["a"], "chained": 1}, "chained: must be true or false, not 1"),
    ],
)
def test_a_wrong_line_is_named_with_its_field(tmp_path: Path, line: Any, complaint: str) -> None:
    path = written(tmp_path, {"timestamp": 0, "hash_ids": [1]}, "", line)
    with pytest.raises(ConfigError) as raised:
        load(path)
    assert str(raised.value).startswith(f"trace.jsonl:3: {complaint}")


def test_an_empty_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no request asks for a block"):
        load(written(tmp_path, {"timestamp": 0, "hash_ids": []}))


def test_a_compressed_trace_is_the_same(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    path = written(tmp_path, *({"timestamp": n, "hash_ids": [n, n + 1]} for n in range(1000)))
    compressed = tmp_path / "trace.jsonl.zst"
    compressed.write_bytes(zstandard.ZstdCompressor().compress(path.read_bytes()))
    whole = compressed.read_bytes()
    assert chains(load(compressed)) == chains(load(path))
    compressed.write_bytes(whole + whole)
    assert load(compressed).requests == 2 * load(path).requests
    for broken in (whole[:-20], b"?" * 40, whole + b"?" * 40):
        compressed.write_bytes(broken)
        with pytest.raises(ConfigError, match="not to be decompressed"):
            load(compressed)


def test_without_zstandard_the_remedy_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    path = tmp_path / "trace.jsonl.zst"
    path.write_bytes(b"")
    with pytest.raises(ConfigError, match=r"pip install '\.\[traces\]', or decompress it: zstd -d"):
        load(path)
