"""`make demo` in short: its verdict, its table and its JSON."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

pytestmark = pytest.mark.integration

COMMAND = [sys.executable, "-m", "halfstep.tools.demo"]
TOKENS = 100


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=800, check=False)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_demo_says_identical_tokens_and_notices_a_swap() -> None:
    done = run("--tokens", str(TOKENS), "--new-tokens", "12", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["wrong"] == []
    assert [one["kind"] for one in told["results"]] == ["gqa", "mla"]
    for one in told["results"]:
        blocks = (TOKENS - 1) // 16
        assert one["identical"] is True
        assert one["swap_differs"] is True
        assert one["save"]["saved_blocks"] == one["restore"]["hit_blocks"] == one["swap"]["hit_blocks"] == blocks
        assert one["restore"]["bytes"] == one["save"]["bytes"] == blocks * one["save"]["block_bytes"] > 0
        assert len(one["restore"]["tokens"]) == 12
        assert one["restore"]["tokens"] == one["save"]["tokens"] != one["swap"]["tokens"]
    assert told["daemon"]["created"] is False, "the facts are those of the restarted daemon"
    assert told["daemon"]["recovery"]["blocks"] > 0
    assert "kill -9" in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_coded_blocks_give_identical_tokens_and_more_of_them_fit() -> None:
    done = run("--tokens", "400", "--new-tokens", "12", "--codec", "exact", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout)
    assert told["wrong"] == []
    for one in told["results"]:
        assert one["identical"] is True
        assert one["swap_differs"] is True
        assert one["restore"]["decode_failures"] == 0
        assert one["coded_blocks"] > one["plain_blocks"] > 0
        assert one["more_blocks"] >= 1.3


@pytest.mark.parametrize("arguments", [("--tokens", "64"), ("--tokens", "4090"), ("--new-tokens", "0")])
def test_a_prompt_that_shows_nothing_is_refused_with_the_bounds(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert "at least 65" in done.stderr
    assert "4096" in done.stderr
