"""What clients of a real daemon count, and what `halfstep effect` makes of it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.integration.commands import COMMAND, PATIENCE_S

import halfstep
from halfstep.record import VARIABLE
from halfstep.tier import Kind, KVLayout

pytestmark = pytest.mark.integration

PATIENT: Any = {"required": True, "deadline_ms": 240_000, "match_deadline_ms": 240_000}


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that clients of this process write to."""
    folder = tmp_path / "records"
    folder.mkdir()
    monkeypatch.setenv(VARIABLE, str(folder))
    monkeypatch.delenv("HALFSTEP_MODE", raising=False)
    return folder


def effect(*arguments: str) -> Any:
    """What `halfstep effect … --json` prints."""
    done = subprocess.run(
        [*COMMAND, "effect", *arguments, "--json"], capture_output=True, timeout=PATIENCE_S, check=False, env=os.environ
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def keys_of(first: int, last: int) -> list[bytes]:
    return [f"effect-{number}".encode() for number in range(first, last)]


def test_plain_calls_make_the_hit_ratio_that_they_had(daemon: Any, records: Path, layout: halfstep.Layout) -> None:
    with halfstep.connect(daemon.url, layout=layout, **PATIENT) as client:
        source = np.arange(8 * 1000, dtype=np.uint8).reshape(8, 1000)
        assert client.put(keys_of(0, 8), source).stored == 8
        assert client.put(keys_of(6, 8), source[6:]).present == 2
        assert client.match(keys_of(0, 10)).prefix == 8  # 8 of 10
        assert client.match(keys_of(20, 30)).prefix == 0  # 0 of 10
        assert client.exists(b"effect-1")  # 1 of 1
        target = np.zeros((4, 1000), np.uint8)
        assert client.get(keys_of(4, 8), target).ok.all()  # 4 of 4
        assert client.get(keys_of(7, 11), target).hits == 1  # 1 of 4
        with client.queue() as queue:
            ticket = queue.get(keys_of(0, 4), target)
            assert [ticket.result().hits for _ in range(3)] == [4] * 3, "looked at thrice, counted once: 4 of 4"
        assert client.get_sections([halfstep.Section(keys_of(0, 2), target[:2])])[0].hits == 2  # 2 of 2
        assert client.prefetch(keys_of(0, 3)).hits == 3
    span = effect()["spans"]["span"]
    figures = span["namespaces"]["default"]
    assert (span["modes"], span["processes"]) == (["on"], 1)
    expected = {
        "lookups": 3,
        "hit_ratio_requests": 0.666667,  # 2 of 3
        "hit_ratio_blocks": 0.428571,  # 9 of 21
        "lookups_unanswered": 0,
        "load_ratio_blocks": 0.785714,  # 11 of 14
        "load_bytes": 11_000,
        "blocks_stored": 8,
        "prefetch_blocks": 3,
    }
    assert {name: figures[name] for name in expected} == expected
    assert figures["not_known"] == {
        "hit_ratio_tokens": "no tokens known",
        "tokens_found": "no tokens known",
        "tokens_restored": "no tokens known",
        "prefill_s_found": "no tokens known",
        "prefill_s_not_spent": "no tokens known",
        "circuit_openings": "not counted",
    }
    assert figures["wait_s"] > 0


@pytest.mark.parametrize("mode", ["on", "shadow"])
def test_a_tier_counts_tokens_in_either_mode(daemon: Any, records: Path, request: pytest.FixtureRequest, mode: str) -> None:
    kinds = (Kind("full", (0, 1), heads=2, planes=(32, 32), dtype="float16"),)
    layout = KVLayout("effect", f"{os.getpid()} {request.node.name}", "float16", 4, kinds)
    arrays = [[np.ones((10, 2, 4, 16), np.float16) for _ in range(2)] for _ in range(2)]
    with halfstep.connect(daemon.url, mode=mode, **PATIENT) as client:
        tier = client.tier(layout)
        with tier.memory(arrays) as memory:
            prefix = tier.prefix(np.arange(40))
            assert prefix.put(memory, blocks=6).stored == 6
            found = prefix.match()
            assert found.blocks == (6 if mode == "on" else 0)
            loaded = prefix.get(memory, blocks=found.blocks)
            assert loaded.blocks == found.blocks
            for seconds in (9.0, 0.5, float("nan"), float("inf"), 0.5):  # the first one compiles; two are no times
                tier.computed(100, seconds)
    figures = effect()["spans"]["span"]["namespaces"]["default"]
    used = mode == "on"
    expected = {
        "lookups": 1,
        "hit_ratio_requests": 1,  # in shadow mode, too: what would have been
        "hit_ratio_tokens": 0.6,  # 24 of 40
        "tokens_found": 24,
        "tokens_restored": 24 if used else 0,
        "prefill_s_found": 0.12,  # 24 at 200 tokens in 1 s
        "prefill_s_not_spent": 0.12 if used else 0,
        "load_bytes": 6 * layout.block_bytes if used else 0,
        "blocks_stored": 6,
    }
    assert {name: figures[name] for name in expected} == expected


def test_ranks_count_a_request_once_together(daemon: Any, records: Path, request: pytest.FixtureRequest) -> None:
    """Two ranks with a head each, and a third that has what the second has."""
    kinds = (Kind("full", (0, 1), heads=2, planes=(32, 32), dtype="float16"),)
    layout = KVLayout("effect", f"{os.getpid()} {request.node.name}", "float16", 4, kinds)
    with halfstep.connect(daemon.url, **PATIENT) as client:
        whole = client.tier(layout)
        with whole.memory([[np.ones((10, 2, 4, 16), np.float16) for _ in range(2)] for _ in range(2)]) as memory:
            assert whole.prefix(np.arange(40)).put(memory).stored == 10
        for heads, share in ((range(1), 1), (range(1, 2), 1), (range(1, 2), 0)):
            rank = client.tier(layout)
            rank.counted_share = share
            own = [[np.zeros((10, 1, 4, 16), np.float16) for _ in range(2)] for _ in range(2)]
            with rank.memory(own, heads=heads) as memory:
                assert rank.prefix(np.arange(40)).get(memory).blocks == 10
    figures = effect()["spans"]["span"]["namespaces"]["default"]
    assert (figures["tokens_restored"], figures["load_ratio_blocks"]) == (40, 1)
    assert figures["load_bytes"] == layout.block_bytes * 10 * 3 // 2, "what moved, moved"


def test_values_count_blocks(daemon: Any, records: Path, layout: halfstep.Layout) -> None:
    with halfstep.connect(daemon.url, **PATIENT) as client:
        values = client.values(layout)
        with values.rows(bytearray(4 * 500), 500) as rows:
            assert values.put(keys_of(0, 3), rows).ok.all()
            assert values.match(keys_of(0, 4)).prefix == 3
            assert values.get(keys_of(0, 4), rows).ok.sum() == 3
    figures = effect()["spans"]["span"]["namespaces"]["default"]
    assert (figures["lookups"], figures["hit_ratio_blocks"], figures["load_bytes"]) == (1, 0.75, 1500)
    assert (figures["load_ratio_blocks"], figures["blocks_stored"]) == (0.75, 3)


def test_operators_commands_count_nothing(daemon: Any, records: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "match", "--url", daemon.url, "there"], capture_output=True, timeout=PATIENCE_S, check=False, env=os.environ
    )
    assert done.returncode == 1, done.stderr.decode()
    assert list(records.iterdir()) == []


def test_a_client_that_is_off_and_one_without_the_variable_count_nothing(
    daemon: Any, records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with halfstep.connect(daemon.url, mode="off") as client:
        assert client.tally is None
        assert client.match([b"k"]).prefix == 0
    monkeypatch.delenv(VARIABLE)
    with halfstep.connect(daemon.url) as client:
        assert client.tally is None
    assert list(records.iterdir()) == []


def test_a_daemons_counters_are_recorded_across_its_restart(own_daemon: Any, records: Path) -> None:
    """A sample, 4 prefetched blocks, a sample; killed and started anew, 2 blocks more, a sample."""
    from halfstep.client.recording import unrecorded
    from halfstep.tools.effect.sampling import Sampler

    with unrecorded():
        client = halfstep.connect(own_daemon.url, **PATIENT)
    with client:
        sampler = Sampler(client, records)
        source = np.zeros((6, 4096), np.uint8)
        assert client.put(keys_of(0, 6), source, durability="persist").ok.all()
        sampler.sample()
        target = np.zeros((4, 4096), np.uint8)
        assert client.get(keys_of(0, 4), target).ok.all()
        sampler.sample()
        own_daemon.restart()
        client.wait_ready(PATIENCE_S * 1000)
        assert client.get(keys_of(4, 6), target[:2]).ok.all()
        sampler.sample()
    daemon = effect()["spans"]["span"]["daemon"]
    assert daemon["get_bytes"] == 6 * 4096
    assert daemon["put_bytes"] == 0, "what it had counted before the first sample is nobody's"
    assert daemon["hits_memory"] + daemon["hits_flash"] == 6


def test_the_command_records_a_daemon(daemon: Any, records: Path) -> None:
    done = subprocess.run(
        [*COMMAND, "effect", "record", daemon.url, "--interval", "1s", "--count", "2"],
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
        env=os.environ,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(f"2 samples in {records}/daemon-".encode())
    assert effect()["spans"]["span"]["daemon"]["get_bytes"] is not None


def test_a_benchmark_counts_nothing(daemon: Any, records: Path) -> None:
    from halfstep.tools.bench.driver import bench_client
    from halfstep.tools.bench.plan import Plan

    with bench_client(Plan(), daemon.url) as client:
        assert client.tally is None
