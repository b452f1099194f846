"""`bench/first_token.py` with a tiny model: what each way has to show of itself, and what it refuses. No time is judged."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("click")

from tests.bench_command import directio, measures

WAYS = ["computed", "memory", "flash", "stopped", "cut", "gone"]
# A block of the tiny model: K and V of two layers, one head of 16 values, 4 bytes each, for 16 tokens.
BLOCK_TOKENS, BLOCK_BYTES = 16, 2 * 2 * 16 * 4 * 16


def script(repository: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """One thread: several wait for each other at every step, which takes longest where tests run beside each other."""
    command = [sys.executable, str(repository / "bench" / "first_token.py"), *arguments]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


@measures
@pytest.mark.integration
def test_each_way_ends_in_the_same_token_and_shows_where_its_blocks_were(repository: Path, tmp_path: Path) -> None:
    directio(tmp_path)
    few = ("--small", "--dtype", "float32", "--tokens", "50", "129", "--rounds", "1", "--directory", str(tmp_path))
    done = script(repository, *few, "--match-deadline-ms", "900", "--deadline-ms", "1000", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["header"]["block_bytes"] == BLOCK_BYTES
    assert [one["tokens"] for one in told["prompts"]] == [50, 129]
    for one, blocks in zip(told["prompts"], (3, 8), strict=True):
        assert (one["blocks"], one["bytes"]) == (blocks, blocks * BLOCK_BYTES)
        assert one["margin"] > 0
        assert list(one["ways"]) == WAYS
        runs: dict[str, Any] = {way: said["runs"][0] for way, said in one["ways"].items()}
        assert {run["token"] for run in runs.values()} == {one["token"]}
        assert [run["hit_blocks"] for run in runs.values()] == [0, blocks, blocks, 0, 0, 0]
        assert [run["bytes_same"] for run in runs.values()] == [None, True, True, None, None, None]
        assert all(0 <= run["restore_ms"] <= run["ms"] for run in runs.values())
        memory, flash = runs["memory"]["counted"], runs["flash"]["counted"]
        assert (memory["memory_hits"], memory["flash_hits"], memory["gets_read_bytes"]) == (blocks, 0, 0)
        assert (flash["memory_hits"], flash["flash_hits"]) == (0, blocks)
        assert flash["gets_read_bytes"] >= one["bytes"]
        # The tier gave up at the deadline of the call that met no answer, and at once where nobody listened.
        assert runs["stopped"]["reason"].startswith("late")
        assert runs["stopped"]["restore_ms"] >= 900
        assert runs["cut"]["reason"].startswith("late")
        assert runs["cut"]["restore_ms"] >= 1000
        assert runs["gone"]["reason"].startswith("unavailable")
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--tokens", "16"), "--tokens 16: must be 17, a full block and a token, to 32768"),
        (("--tokens", "40000"), "--tokens 40000: must be 17, a full block and a token, to 32768"),
        (("--tokens", "99", "99"), "--tokens: each length once"),
        (("--block-tokens", "257"), "--block-tokens 257: must be 1 to 256"),
        (("--match-deadline-ms", "soon"), "soon: must be a number of milliseconds from 1 to 60000"),
        (("--dtype", "int8"), "'int8'"),
    ],
)
def test_what_cannot_be_measured_is_refused_by_name(repository: Path, arguments: tuple[str, ...], why: str) -> None:
    done = script(repository, *arguments)
    assert done.returncode == 2
    assert why in done.stderr


def test_a_picture_that_cannot_be_drawn_is_refused_before_a_model_is_made(repository: Path) -> None:
    done = script(repository, "--picture", "times.gif")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("picture=times.gif: must end in .png or .svg")


@pytest.mark.parametrize("name", ["torch", "transformers"])
def test_a_package_that_is_missing_is_named_with_the_extra_that_has_it(repository: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text(f"raise ModuleNotFoundError('none', name={name!r})\n")
    done = script(repository, "--rounds", "1", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        done.stderr
        == f"{name}: not installed; in the checkout of Halfstep: pip install '.[transformers]', or `make demo` once\n"
    )


@pytest.fixture
def bench(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The modules of the script, which are no part of the package."""
    monkeypatch.syspath_prepend(str(repository / "bench"))
    return SimpleNamespace(script=importlib.import_module("first_token"), model=importlib.import_module("tiered_model"))


def test_the_arena_is_what_a_daemon_may_have(bench: Any) -> None:
    gib = 1 << 30
    assert bench.model.arena_for([1 << 20]) == bench.model.ARENA_BYTES_MIN
    assert bench.model.arena_for([gib, gib // 2]) == 3 * gib + 3 * gib // 2
    assert bench.model.arena_for([4 * gib, 2 * gib]) == 8 * gib
    with pytest.raises(SystemExit, match=r"the longest prompt has 4 GiB of KV, and a daemon's arena at most 8 GiB, half of it"):
        bench.model.arena_for([4 * gib + 1])


def runs_of(bench: Any, **changes: Any) -> dict[str, Any]:
    """A round in which restoring takes a tenth of the time; changes: of the run from memory."""
    said = {way: bench.model.Run(way, 100.0, 1.0, 7, 0, "", None, None) for way in WAYS}
    for way in ("memory", "flash"):
        counted = bench.model.Counters(4 * (way == "memory"), 4 * (way == "flash"), 4096 * (way == "flash"), 4096)
        said[way] = bench.model.Run(way, 10.0, 1.0, 7, 4, "", True, counted)
    said["memory"] = bench.model.replace(said["memory"], **changes)
    return said


PROMPT: Any = SimpleNamespace(tokens=65, blocks=4, bytes=4096, token=7, margin=1.0, spread=1.0)


@pytest.mark.parametrize(
    ("changes", "wrong", "slower"),
    [
        ({}, [], []),
        ({"token": 8}, ["65 tokens, round 2, restored from memory: token 8, not 7"], []),
        (
            {"bytes_same": False},
            ["65 tokens, round 2, restored from memory: the restored bytes differ from the saved ones"],
            [],
        ),
        ({"ms": 350.0}, [], ["memory"]),
    ],
)
def test_what_differs_or_is_slower_is_told(bench: Any, changes: dict[str, Any], wrong: list[str], slower: list[str]) -> None:
    verdict = bench.script.Verdict(PROMPT, [runs_of(bench), runs_of(bench, **changes)], judged=True)
    assert verdict.wrong == wrong
    assert verdict.slower == slower
    assert bench.script.Verdict(PROMPT, verdict.rounds, judged=False).slower == []
    [flash] = [line.split() for line in verdict.table().splitlines() if line.startswith("restored from flash")]
    assert flash[3:] == [
        "10",
        "(10",
        "to",
        "10)",
        "0.100",
        "(0.100",
        "to",
        "0.100)",
        "1.0",
        "(1.0",
        "to",
        "1.0)",
        "4",
        "0.0",
        "MiB",
    ]


def test_a_restore_that_was_late_is_made_again_and_counted(bench: Any) -> None:
    late = {"hit_blocks": 0, "reason": "late (deadline)", "bytes_same": None}
    stage = object.__new__(bench.model.Stage)
    some = iter([runs_of(bench, **late)["memory"], runs_of(bench, **late)["memory"], runs_of(bench)["memory"]])
    stage._once = lambda way, prompt: next(some)
    one = stage.run("memory", PROMPT)
    assert (one.hit_blocks, one.late) == (4, 2)
    verdict = bench.script.Verdict(PROMPT, [runs_of(bench) | {"memory": one}], judged=True)
    assert "2 restores were late though the daemon answers" in verdict.table()
    stage._once = lambda way, prompt: runs_of(bench, **late)["memory"]
    with pytest.raises(SystemExit, match="0 of 4 blocks were restored, 4 should be"):
        stage.run("memory", PROMPT)


@pytest.mark.parametrize(
    ("way", "counted", "why"),
    [
        ("memory", (3, 1, 1024, 1024), "3 of 4 blocks came from memory, 1024 bytes were read"),
        ("flash", (1, 3, 3072, 3072), "3 of 4 blocks came from flash, 3072 bytes of 4096 were read"),
        ("flash", (0, 4, 4096, 0), "vdx read 0 bytes of 4096: a page cache answered"),
    ],
)
def test_blocks_that_were_elsewhere_are_no_run_of_that_way(
    bench: Any, way: str, counted: tuple[int, int, int, int], why: str
) -> None:
    stage = object.__new__(bench.model.Stage)
    stage.device = SimpleNamespace(name="vdx", stat_files=("stat",))
    stage._once = lambda way, prompt: bench.model.replace(runs_of(bench)[way], counted=bench.model.Counters(*counted))
    with pytest.raises(SystemExit, match=why):
        stage.run(way, PROMPT)
