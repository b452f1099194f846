"""`halfstep size`: that a store of the size it names keeps what was asked for, and what it says of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.integration.commands import Run, error_of
from tests.integration.conftest import Daemon

import halfstep

pytestmark = pytest.mark.integration

CONFIGS = Path(__file__).parents[1] / "unit" / "configs"
TIB = 1 << 40


def sized(run: Run, *arguments: str | Path) -> dict[str, Any]:
    done = run("size", *arguments, "--json")
    assert (done.returncode, done.stderr) == (0, b"")
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.parametrize("shards", [1, 2])
def test_a_daemon_of_that_size_keeps_all_blocks(run: Run, tmp_path: Path, shards: int) -> None:
    blocks, block_bytes = 4000, 64 << 10
    told = sized(run, "--blocks", str(blocks), "--block-bytes", str(block_bytes), "--shards", str(shards), "--arena", "64MiB")
    size, *more = told["serve"].removeprefix("halfstep serve --size ").removesuffix(" --arena 64MiB").split()
    daemon = Daemon(tmp_path, size, *more)
    try:
        daemon.start()
        keys = [f"block {number}".encode() for number in range(blocks)]
        payload = np.zeros((50, block_bytes), np.uint8)
        with halfstep.connect(daemon.url, required=True, deadline_ms=60_000, match_deadline_ms=60_000) as client:
            for first in range(0, blocks, len(payload)):
                stored = client.put(keys[first : first + len(payload)], payload, durability="persist")
                assert stored.ok.all(), stored.reason(int(np.argmin(stored.ok)))
            assert client.match(keys).prefix == blocks
            counters = client.stat()
        assert sum(value for name, value in counters.items() if "blocks_evicted" in name) == 0
        assert sum(value for name, value in counters.items() if "index_full" in name) == 0
    finally:
        daemon.close()


def test_a_model_and_its_tokens(run: Run) -> None:
    told = sized(run, CONFIGS / "llama-3-70b.json", "--tokens", "1M")
    assert told["payload_bytes"] == 1_000_000 * 327_680
    assert told["payload_bytes"] < told["store_bytes"] < 1.2 * told["payload_bytes"]
    assert told["serve"] == f"halfstep serve --size {told['store_bytes'] >> 20}MiB"
    assert told["index_bytes"] is None, "blocks of 5 MiB need less than the default"
    fp8 = sized(run, CONFIGS / "llama-3-70b.json", "--tokens", "1M", "--dtype", "fp8")
    assert fp8["payload_bytes"] * 2 == told["payload_bytes"]
    cells = sized(run, CONFIGS / "llama-3-70b.json", "--tokens", "1M", "--grid-heads", "8")
    assert cells["payload_bytes"] == told["payload_bytes"]
    assert cells["store_bytes"] > told["store_bytes"], "eight blocks for one have eight headers"


def test_kinds_of_several_sizes_are_all_counted(run: Run) -> None:
    told = sized(run, CONFIGS / "deepseek-v4-flash.json", "--tokens", "2M")
    assert told["payload_bytes"] == 2_000_000 * 50_261
    assert told["store_bytes"] > told["payload_bytes"]


def test_small_blocks_ask_for_a_larger_index(run: Run) -> None:
    told = sized(run, "--blocks", "20M", "--block-bytes", "16k")
    assert told["index_bytes"] >= 29 * 20_000_000
    assert re.search(r" --index \d+MiB$", told["serve"])
    assert told["memory_bytes"] > told["index_bytes"] + told["arena_bytes"]


def test_the_table_ends_with_the_command(run: Run) -> None:
    done = run("size", "--blocks", "4M", "--block-bytes", "256KiB", "--shards", "4")
    lines = done.stdout.decode().splitlines()
    assert lines[0] == "4,000,000 blocks of 262,144 bytes"
    assert [line.split()[0] for line in lines[3:-2] if line.strip()][1:] == ["payload", "flash", "index", "arena", "memory"]
    assert lines[-2].startswith("halfstep serve --size ")
    assert " --shards 4" in lines[-2]
    assert "--store DEVICE" in lines[-1]


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (("--blocks", "4M"), 2, "name CONFIG and --tokens, or --blocks and --block-bytes"),
        (("--tokens", "4M"), 2, "name CONFIG and --tokens, or --blocks and --block-bytes"),
        (("--blocks", "no", "--block-bytes", "1MiB"), 3, "blocks='no': must be a number"),
        (("--blocks", "0", "--block-bytes", "1MiB"), 3, "blocks='0': must be a number from 1"),
        (("--blocks", "9T", "--block-bytes", "1MiB"), 3, "a store reaches 64 TiB"),
        (("--blocks", "1", "--block-bytes", "0"), 3, "block_bytes='0': must be above 0"),
        (("--blocks", "1", "--block-bytes", "1GiB"), 3, "no block has more than 268173312 bytes"),
        (("--blocks", "1", "--block-bytes", "100MiB"), 3, "a block has at most 67108864 bytes; give a larger arena"),
        ((CONFIGS / "llama-3-70b.json", "--tokens", "9T"), 3, "a store reaches 64 TiB"),
        ((CONFIGS / "deepseek-v4-flash.json", "--tokens", "1400M"), 3, "a store reaches 64 TiB"),
        ((CONFIGS / "absent.json", "--tokens", "1M"), 3, "No such file"),
    ],
)
def test_what_cannot_be_is_refused_with_its_bound(run: Run, arguments: tuple[str, ...], status: int, told: str) -> None:
    done = run("size", *arguments)
    assert done.returncode == status
    assert told in (error_of(done) if status == 3 else done.stderr.decode())
