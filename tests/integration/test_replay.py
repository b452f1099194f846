"""`halfstep replay`: a small trace over the real store, as people and programs run it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from tests.agentic_trace import write_agentic_trace
from tests.chat_trace import write_chat_trace

from halfstep import _store
from halfstep.tools.cli import main
from halfstep.tools.replay.dram import DRAM_POLICY, DramCache
from halfstep.tools.replay.flash import STORE_POLICIES, FlashCache
from halfstep.tools.replay.reference import REFERENCES
from halfstep.tools.replay.trace import Trace, load

pytestmark = pytest.mark.integration

PATIENCE_S = 120
COMMAND = [sys.executable, "-m", "halfstep.tools.cli", "replay"]

Done = subprocess.CompletedProcess[str]
Replay = Callable[..., Done]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_trace(tmp_path_factory.mktemp("trace") / "chat.jsonl")


@pytest.fixture
def replay(path: Path) -> Replay:
    """replay(*arguments): the command over the small trace. Whatever it does, it prints no trace of its own."""

    def run(*arguments: str | Path) -> Done:
        done = subprocess.run(
            [*COMMAND, str(path), *map(str, arguments)], capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    return run


def results_of(done: Done) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    results: list[dict[str, Any]] = json.loads(done.stdout)["results"]
    return results


def error_of(done: Done) -> str:
    assert done.returncode == 3, (done.returncode, done.stdout, done.stderr)
    assert done.stdout == ""
    assert done.stderr.startswith("halfstep: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def log_of_segments(trace: Trace, segments: int, blocks_per_segment: int) -> float:
    """The hit ratio of a plain log that overwrites its oldest segment: what seg-fifo has to come near."""
    log: OrderedDict[int, list[int]] = OrderedDict({0: []})
    there: set[int] = set()
    hits = 0
    for index in range(trace.requests):
        blocks = trace.request(index).tolist()
        found = [block in there for block in blocks]
        hits += found.index(False) if False in found else len(blocks)
        for block in reversed(blocks):
            if block in there:
                continue
            newest = next(reversed(log))
            if len(log[newest]) == blocks_per_segment:
                newest += 1
                log[newest] = []
                # One is being written and one is kept ready.
                if len(log) == segments:
                    there.difference_update(log.popitem(last=False)[1])
            log[newest].append(block)
            there.add(block)
    return hits / len(trace.blocks)


# ---- the store ----


def test_the_store_hits_what_a_plain_log_of_its_segments_hits(path: Path) -> None:
    trace = load(path)
    for capacity_blocks in (400, 1000):
        cache = FlashCache(trace, capacity_blocks, policy="seg-fifo", segments=32)
        hits = sum(cache.request(index) for index in range(trace.requests))
        sizing = cache.tally().sizing
        plain = log_of_segments(trace, sizing["segments"], sizing["blocks_per_segment"])
        assert hits / len(trace.blocks) == pytest.approx(plain, rel=0.03)
        assert cache.tally().evicted["age"] > 0, "nothing was evicted: the run showed nothing"
        cache.close()


def test_rewrites_of_agentic_traffic_stay_below_their_share(tmp_path: Path) -> None:
    trace = load(write_agentic_trace(tmp_path / "agentic.jsonl", requests=2000, live=100))
    cache = FlashCache(trace, len(trace.keys) * 5 // 100, policy="seg-adapt10", rewrite_share=0.1, segments=128)
    hits = sum(cache.request(index) for index in range(trace.requests))
    tally = cache.tally()
    cache.close()
    assert tally.blocks_rewritten <= 1.02 * 0.1 * tally.blocks_written
    assert tally.blocks_rewritten > 0.08 * tally.blocks_written, "the share was never reached: the run showed nothing"
    assert hits > 0.44 * len(trace.blocks)  # leaf-lru: 0.566
    assert tally.blocks_wrong == 0


def test_a_block_that_is_evicted_between_match_and_read_is_no_fault_of_the_device(tmp_path: Path) -> None:
    """While a long prefix is read, a window of blocks at a time, the store goes on, and a segment of that prefix may go."""
    trace = load(write_agentic_trace(tmp_path / "agentic.jsonl", requests=300, live=20, seed=1))
    cache = FlashCache(trace, 400, segments=32)
    for index in range(trace.requests):
        cache.request(index)
    tally = cache.tally()
    cache.close()
    assert tally.blocks_overtaken > 0, "nothing was overtaken: the run showed nothing"
    assert (tally.blocks_missed, tally.blocks_wrong) == (0, 0)


def test_capacity_is_never_more_than_asked_and_hardly_less(path: Path) -> None:
    trace = load(path)
    for capacity_blocks in (64, 200, 777, 2000):
        cache = FlashCache(trace, capacity_blocks, segments=16)
        for index in range(trace.requests):
            cache.request(index)
        tally = cache.tally()
        cache.close()
        assert tally.sizing["capacity_blocks"] <= capacity_blocks
        assert tally.sizing["capacity_blocks"] > 0.95 * capacity_blocks
        # All but the segment that is kept ready and what is left of the open one.
        assert 0.8 * tally.sizing["capacity_blocks"] < tally.blocks_peak <= tally.sizing["capacity_blocks"]


def test_presence_is_what_was_written_and_not_evicted(path: Path) -> None:
    trace = load(path)
    cache = FlashCache(trace, trace.unique_blocks * 2, segments=16)
    seen: set[int] = set()
    for index in range(100):
        cache.request(index)
        seen.update(trace.request(index).tolist())
    assert set(np.flatnonzero(cache.present()).tolist()) == seen
    assert cache.tally().blocks_written == len(seen)
    cache.close()


def test_a_time_to_live_ends_by_the_traces_clock(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    requests = [(0, ["a", "b"], 60), (30_000, ["a", "b"], 0), (90_000, ["a", "b"], 0), (9e6, ["a", "b"], 0)]
    path.write_text(
        "".join(json.dumps({"timestamp_ms": at, "blocks": blocks, "ttl_s": ttl}) + "\n" for at, blocks, ttl in requests)
    )
    trace = load(path)
    cache = FlashCache(trace, 100, segments=8)
    assert [cache.request(index) for index in range(trace.requests)] == [0, 2, 0, 2]
    cache.close()


def test_a_store_in_a_file_decides_as_one_in_memory_and_leaves_nothing(path: Path, tmp_path: Path) -> None:
    trace = load(path)
    file = tmp_path / "store.hs"
    tallies = []
    for where in ("", str(file)):
        cache = FlashCache(trace, 400, segments=16, path=where)
        hits = sum(cache.request(index) for index in range(trace.requests))
        tallies.append((hits, cache.tally()))
        assert not file.exists()
        cache.close()
    assert tallies[0] == tallies[1]
    assert list(tmp_path.iterdir()) == []


def test_a_closed_store_says_so() -> None:
    store = _store.Store(capacity_blocks=64, segments=8, device_bytes=1 << 20)
    store.close()
    store.close()
    with pytest.raises(_store.StoreError, match="closed"):
        store.match(np.zeros((1, 16), np.uint8))


def test_keys_of_another_shape_are_refused() -> None:
    store = _store.Store(capacity_blocks=64, segments=8, device_bytes=1 << 20)
    with pytest.raises(TypeError):
        store.match(np.zeros((4, 8), np.uint8))
    assert store.match(np.zeros((0, 16), np.uint8)) == (0, b"")
    assert store.read(np.zeros((2, 16), np.uint8)) == (0, 2, 0)


# ---- memory ----


@pytest.mark.parametrize("share", [0.01, 0.05, 0.10, 0.25, 0.50])
def test_the_policy_of_memory_hits_what_the_three_class_model_hits(tmp_path: Path, share: float) -> None:
    trace = load(write_chat_trace(tmp_path / "chat.jsonl", requests=4000))
    capacity = int(trace.unique_blocks * share)
    caches = (DramCache(trace, capacity), REFERENCES["hazard"](trace, capacity))
    hits, model_hits = (sum(cache.request(index) for index in range(trace.requests)) for cache in caches)
    assert hits >= 0.98 * model_hits
    assert int(np.count_nonzero(caches[0].present())) == capacity
    tally = caches[0].tally()
    assert tally.blocks_written - tally.evicted["evicted"] == capacity


def test_memory_of_everything_keeps_everything(path: Path) -> None:
    trace = load(path)
    cache = DramCache(trace, trace.unique_blocks)
    hits = sum(cache.request(index) for index in range(trace.requests))
    assert hits == len(trace.blocks) - trace.unique_blocks
    assert cache.tally().evicted == {"evicted": 0}
    assert cache.present().all()


def test_numbers_that_no_block_has_are_refused() -> None:
    hot = _store.HotBlocks(capacity_blocks=4, unique_blocks=8)
    for blocks in ([8], [0, -1]):
        with pytest.raises(IndexError, match=f"block {blocks[-1]}: must be 0 to 8 - 1"):
            hot.request(np.array(blocks, np.int32))
    assert hot.inserted == 0


def test_memory_before_flash_takes_hits_over_and_never_more_than_it_holds(path: Path) -> None:
    trace = load(path)
    from_dram = []
    for dram_blocks in (0, 64, 128, 1024):
        cache = FlashCache(trace, 1000, segments=16, dram_blocks=dram_blocks)
        hits = sum(cache.request(index) for index in range(trace.requests))
        tally = cache.tally()
        cache.close()
        assert 0.9 * dram_blocks < tally.sizing["dram_blocks"] <= dram_blocks or dram_blocks == 0
        assert tally.blocks_wrong == 0
        from_dram.append(tally.blocks_hit_dram)
        assert tally.blocks_hit_dram <= hits
    assert from_dram[0] == 0
    assert from_dram == sorted(from_dram)
    assert from_dram[1] > 0
    # All that is on flash fits into memory, too.
    assert from_dram[3] > 0.95 * hits


# ---- the command ----


def test_json_has_a_result_for_every_policy_and_capacity(replay: Replay) -> None:
    results = results_of(replay("--policy", "seg-fifo,leaf-lru,min", "--capacity", "10%,30%", "--segments", "16", "--json"))
    assert [(result["policy"], result["capacity_asked"]) for result in results] == [
        (policy, capacity) for policy in ("seg-fifo", "leaf-lru", "min") for capacity in ("10%", "30%")
    ]
    for result in results:
        assert 0 < result["hit_ratio"] < 1
        assert result["capacity"] == pytest.approx(float(result["capacity_asked"][:-1]) / 100, abs=0.001)
        assert 0 <= result["orphan_share"] < 1
        assert result["write_amplification"] >= 1
        assert result["blocks_wrong"] == result["blocks_missed"] == result["blocks_refused"] == 0
    store, _, leaf_lru, *_ = results
    assert store["hit_ratio_to_leaf_lru"] == pytest.approx(store["hit_ratio"] / leaf_lru["hit_ratio"])
    assert store["real_store"]
    assert not leaf_lru["real_store"]
    assert set(store["bytes"]) == {"user", "rewrite", "metadata", "padding"}
    assert store["bytes"]["user"] == store["blocks_written"] * (64 << 20)
    assert store["bytes_on_scaled_device"]["user"] == store["blocks_written"] * store["scaled_device"]["block_bytes"]
    assert store["evictions"]["age"] > 0
    assert (store["hit_ratio_dram"], store["hit_ratio_flash"]) == (0, store["hit_ratio"])


def test_hits_of_memory_are_told_apart_from_those_of_flash(replay: Replay, tmp_path: Path) -> None:
    arguments = ("--policy", "seg-fifo,dram", "--capacity", "30%", "--segments", "16", "--dram", "10GiB")
    store, memory = results_of(replay(*arguments, "--json"))
    assert store["hit_ratio_dram"] > 0
    assert store["hit_ratio_flash"] > 0
    assert store["hit_ratio_dram"] + store["hit_ratio_flash"] == pytest.approx(store["hit_ratio"])
    assert store["scaled_device"]["dram_blocks"] <= 160
    assert memory["hit_ratio_flash"] is None
    picture = tmp_path / "hits.svg"
    done = replay(*arguments, *(("--plot", picture) if find_spec("matplotlib") else ()))
    assert done.returncode == 0, done.stderr
    for text in ("from dram", "from flash", " blocks in memory"):
        assert text in done.stdout, text


def test_a_codec_is_worth_what_more_room_is_worth(replay: Replay, tmp_path: Path) -> None:
    arguments = ("--policy", "seg-fifo,leaf-lru", "--block-bytes", "48KiB", "--segments", "16")
    picture = ("--plot", tmp_path / "codec.svg") if find_spec("matplotlib") else ()
    done = replay(*arguments, "--capacity", "5%", "--codec", "1.45", *picture, "--json")
    plain, coded, lru, lru_coded = results_of(done)
    header = json.loads(done.stdout)["header"]
    # Nine pages instead of twelve, trailer included.
    assert (header["codec_ratio"], header["flash_ratio"]) == (1.45, pytest.approx(12 / 9))
    assert (coded["stored_bytes"], coded["extent_bytes"]) == (33898, 9 * 4096)
    assert lru_coded["capacity_blocks"] == lru["capacity_blocks"] * 12 // 9
    assert coded["hit_ratio_to_plain"] == pytest.approx(coded["hit_ratio"] / plain["hit_ratio"])
    assert coded["hit_ratio_to_plain"] > 1.02
    assert coded["hit_ratio_to_leaf_lru"] == pytest.approx(coded["hit_ratio"] / lru_coded["hit_ratio"])
    assert plain["hit_ratio_to_plain"] is None
    assert coded["bytes"]["user"] == coded["blocks_written"] * 33898
    # The same as a plain store of so many blocks.
    asked = f"{lru['capacity_blocks_asked'] * 12 // 9}blocks"
    larger, _ = results_of(replay(*arguments, "--capacity", asked, "--json"))
    assert larger["blocks_hit"] == coded["blocks_hit"]


def test_a_codec_stands_beside_the_run_without_in_the_table(replay: Replay) -> None:
    done = replay("--policy", "lru,seg-fifo", "--capacity", "20%", "--segments", "16", "--codec", "1.48", "--dram", "10GiB")
    assert done.returncode == 0, done.stderr
    for text in ("codec", "to plain", " none ", "codec 1.48: a block of 64 MiB takes 43.2", "seg-fifo 20% 1.48: "):
        assert text in done.stdout, text


def test_the_same_trace_and_seed_give_the_same_numbers(replay: Replay) -> None:
    arguments = ("--policy", "seg-fifo,hazard", "--capacity", "15%", "--segments", "16", "--seed", "5", "--json")
    first, second = (results_of(replay(*arguments)) for _ in range(2))
    for result in (*first, *second):
        del result["seconds"]
    assert first == second


def test_tables_name_hits_writes_and_what_qualifies_them(replay: Replay) -> None:
    done = replay("--capacity", "20%", "--segments", "16")
    assert done.returncode == 0, done.stderr
    for text in (
        "hit ratio",
        "to leaf-lru",
        "orphans",
        "(user+rewrite)/user",
        "metadata",
        "padding",
        " age",
        "without eviction",
    ):
        assert text in done.stdout, text


def test_withheld_parents_and_a_limit_are_said(replay: Replay) -> None:
    done = replay("--capacity", "20%", "--segments", "16", "--parents", "withheld", "--limit", "50", "--json")
    header = json.loads(done.stdout)["header"]
    assert header["parents"] == "withheld"
    assert header["requests"] == 50


def test_a_real_clock_waits_for_the_trace(replay: Replay) -> None:
    # 40 requests, a quarter of a second apart, a hundred times faster.
    started = time.monotonic()
    arguments = ("--policy", "seg-fifo", "--capacity", "100%", "--limit", "40", "--segments", "8")
    results_of(replay(*arguments, "--clock", "real", "--speed", "100", "--json"))
    assert time.monotonic() - started >= 39 * 0.25 / 100


def test_a_plot_is_drawn(replay: Replay, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name, start in (("hits.svg", b"<?xml"), ("hits.png", b"\x89PNG")):
        done = replay("--policy", "leaf-lru,fifo", "--capacity", "10%,20%", "--plot", tmp_path / name)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / name).read_bytes().startswith(start)


def test_ctrl_c_prints_what_is_complete(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_request = FlashCache.request

    def request(self: FlashCache, index: int) -> int:
        if index == 100:
            raise KeyboardInterrupt
        return real_request(self, index)

    monkeypatch.setattr(FlashCache, "request", request)
    arguments = ["replay", str(path), "--policy", "fifo,seg-fifo", "--capacity", "20%", "--segments", "16"]
    done = CliRunner().invoke(main, [*arguments, "--json"])
    assert done.exit_code == 130
    document = json.loads(done.output)
    assert document["interrupted"] is True
    assert [result["policy"] for result in document["results"]] == ["fifo"]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 130
    assert "interrupted: 1 of 2 results" in done.output


def test_an_unknown_policy_lists_the_known(replay: Replay) -> None:
    text = error_of(replay("--policy", "seg-fifo,clairvoyance"))
    assert "policy='clairvoyance': unknown" in text
    assert all(name in text for name in (*STORE_POLICIES, DRAM_POLICY, *REFERENCES))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--capacity", "5"), "capacity='5': write 5%, 2000blocks or 64GiB"),
        (("--capacity", "10blocks"), "a store needs room for at least"),
        (("--capacity", "99999999999blocks"), "capacity=99999999999blocks: must be at most 2147483647 blocks"),
        (("--seed", "-1"), "seed=-1: must be 0 to"),
        (("--segments", "2"), "segments=2: must be 8"),
        (("--block-bytes", "1GiB"), "block_bytes=1073741824: must be"),
        (("--codec", "0.9"), "codec=0.9: must be 1, for none, to 64"),
        (("--codec", "nan"), "codec=nan: must be 1"),
        (("--codec", "1.3", "--block-bytes", "8KiB"), "codec=1.3: a block of 8 KiB takes as many pages coded as plain"),
        (("--dram", "128MiB"), "dram of 2 blocks: must hold at least"),
        (("--dram", "1MiB"), "dram=1 MiB: less than one block, 64 MiB"),
        (("--dram", "64GiB", "--policy", "lru,dram"), "dram=64 GiB: stands before flash, and none of these policies has any"),
        (("--plot", "hits.pdf"), "plot=hits.pdf: must end in .png or .svg"),
        (("--speed", "0"), "speed=0.0: must be above 0"),
        (("--store", "/proc/no/such/store"), "/proc/no/such/store"),
    ],
)
def test_a_wrong_value_is_named_with_its_bound(replay: Replay, arguments: tuple[str, ...], complaint: str) -> None:
    assert complaint in error_of(replay(*arguments))


def test_a_file_that_exists_is_left_alone(replay: Replay, tmp_path: Path) -> None:
    file = tmp_path / "precious"
    file.write_text("mine")
    assert "exists" in error_of(replay("--store", file))
    assert file.read_text() == "mine"


def test_a_broken_line_is_named(replay: Replay, path: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_text(path.read_text().replace('"hash_ids": [', '"hash_ids": ["', 1))
    done = subprocess.run([*COMMAND, str(broken)], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert "broken.jsonl:1: not JSON" in error_of(done)
