"""The scripts of bench/, as far as they can be run without measuring anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("click")


def script(repository: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    name, *rest = arguments
    return subprocess.run(
        [sys.executable, str(repository / "bench" / name), *rest], capture_output=True, text=True, timeout=60, check=False
    )


def test_every_script_can_be_run_and_has_its_row(repository: Path) -> None:
    rows = (repository / "bench" / "README.md").read_text()
    shared = ("cores.py", "native_driver.py", "script.py", "tiered_model.py")
    scripts = [path for path in sorted((repository / "bench").glob("*.py")) if path.name not in shared]
    assert len(scripts) >= 14
    for path in scripts:
        assert path.stat().st_mode & 0o111, path.name
        assert f"| `bench/{path.name}` |" in rows


@pytest.mark.parametrize(
    "name",
    [
        "beside.py",
        "cold.py",
        "first_token.py",
        "layers.py",
        "many_clients.py",
        "minimal.py",
        "mixed_tail.py",
        "prefetch.py",
        "shared_memory.py",
        "tail.py",
    ],
)
def test_a_script_names_what_it_cannot_do(repository: Path, name: str) -> None:
    by_rounds = ("beside.py", "cold.py", "first_token.py", "layers.py", "many_clients.py", "mixed_tail.py", "tail.py")
    of_rounds = dict.fromkeys(by_rounds, "--rounds")
    number = {**of_rounds, "prefetch.py": "--requests"}.get(name, "--repeat")
    refused = script(repository, name, number, "0")
    assert refused.returncode == 2
    assert f"argument {number}: 0: must be a whole number from 1 on" in refused.stderr


@pytest.mark.parametrize("name", ["cold.py", "mixed_tail.py"])
def test_fio_that_is_missing_is_named(repository: Path, tmp_path: Path, name: str) -> None:
    done = subprocess.run(
        [sys.executable, str(repository / "bench" / name)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PATH": str(tmp_path)},
    )
    assert done.returncode == 1
    assert done.stderr == "fio: there is none here, and it is what this compares with; install the package fio\n"


def test_rounds_are_told_by_their_median_and_what_they_lie_between(repository: Path) -> None:
    ask = f"import sys; sys.path.insert(0, {str(repository / 'bench')!r}); import script\n"
    ask += "print(script.spread([3.0, 1.0, 2.0]), script.spread_text([3.0, 1.0, 2.0]))"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "{'median': 2.0, 'lowest': 1.0, 'highest': 3.0} 2.00 (1.00 to 3.00)\n"


def test_a_program_that_is_missing_or_no_release_build_is_named(repository: Path, tmp_path: Path) -> None:
    missing = script(repository, "shared_memory.py", "--programs", str(tmp_path))
    assert missing.returncode == 1
    assert f"{tmp_path}/halfstep_shm_bench: not built; run `make native`" in missing.stderr
    program = tmp_path / "program"
    ask = f"import sys; sys.path.insert(0, {str(repository / 'bench')!r}); import pathlib, script\n"
    ask += f"script.run(lambda: script.said_by(pathlib.Path({str(program)!r}), {{'bs': 1}})['bs'])"
    for build, status, said in (("release", 7, ""), ("debug", 1, "build=debug")):
        program.write_text(f"#!/bin/sh\n[ \"$*\" = '--bs 1' ] && echo '{json.dumps({'build': build, 'bs': 7})}'\n")
        program.chmod(0o755)
        done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == status, done.stderr
        assert said in done.stderr
        assert "Traceback" not in done.stderr


VERIFY_COST = {
    "version": "1.2.3",
    "build": "release",
    "commit": "abc",
    "piece_bytes": 262144,
    "set_bytes": 1 << 28,
    "rounds": 21,
    **{name: {"median": 50.0, "min": 49.0, "max": 51.0} for name in ("hot_ms_per_gib", "cold_ms_per_gib", "copy_ms_per_gib")},
    "hot_to_copy": {"median": 0.5, "min": 0.4, "max": 0.6},
}
RECOVERY = {
    **{name: VERIFY_COST[name] for name in ("version", "build", "commit")},
    "seed": 1,
    "engine": "uring",
    "direct": True,
    "blocks": 1000,
    "bytes": 1 << 40,
    "footer_bytes": 1 << 20,
    "resident_bytes": 30_000,
    "plain_read_s": 1.0,
    "open_s": 1.1,
    "cpu_s": 0.5,
    "recovery_s": 1.2,
}


@pytest.fixture
def program(tmp_path: Path) -> Callable[[object], Path]:
    """A program that prints a document, with the arguments it was given; {} in the phase that makes something."""

    def make(document: object) -> Path:
        path = tmp_path / "program.py"
        path.write_text(
            f"#!{sys.executable}\nimport json, sys\n"
            f"said = json.loads({json.dumps(document)!r})\n"
            "print(json.dumps({} if 'make' in sys.argv else {**said, 'asked': sys.argv[1:]}))\n"
        )
        path.chmod(0o755)
        return path

    return make


def test_a_script_of_one_program_passes_options_on_and_judges(repository: Path, program: Callable[[object], Path]) -> None:
    one = program(VERIFY_COST)
    done = script(repository, "verify_cost.py", "--program", str(one), "--rounds", "3", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["asked"] == ["--rounds", "3"]
    assert {"kernel", "cpu", "cores", "load_average", "command"} <= set(said["header"])
    lines = script(repository, "verify_cost.py", "--program", str(one)).stdout.splitlines()
    assert lines[0] == "halfstep 1.2.3 (release), commit abc"
    assert lines[1].startswith("kernel ")
    assert lines[-1].split()[-2:] == ["0.50", "(0.40-0.60)"]


def test_a_script_of_one_program_fails_where_a_goal_is_missed(repository: Path, program: Callable[[object], Path]) -> None:
    slow = program({**VERIFY_COST, "hot_ms_per_gib": {"median": 61.0, "min": 60.0, "max": 62.0}})
    done = script(repository, "verify_cost.py", "--program", str(slow))
    assert (done.returncode, done.stderr) == (1, "MISSED: 61.0 ms a GiB, at most 60\n")


def test_a_script_of_one_program_refuses_a_debug_build(repository: Path, program: Callable[[object], Path]) -> None:
    done = script(repository, "verify_cost.py", "--program", str(program({**VERIFY_COST, "build": "debug"})))
    assert done.returncode == 1
    assert done.stderr.startswith("build=debug: a benchmark reports from a release build alone")


def test_recovery_runs_its_phases_and_judges(repository: Path, program: Callable[[object], Path]) -> None:
    done = script(repository, "recovery.py", "--program", str(program(RECOVERY)), "--real-blocks", "0", "--segments", "5")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "halfstep 1.2.3 (release), commit abc, seed 1"
    assert lines[2] == "uring, O_DIRECT: 1,000 blocks, 1.00 TiB, footers 1 MiB"
    assert lines[-2] == "resident bytes a block: 30.00, at most 32.00: met"
    late = script(repository, "recovery.py", "--program", str(program({**RECOVERY, "recovery_s": 9.0})), "--real-blocks", "0")
    assert late.returncode == 1
    assert late.stdout.endswith("recovery, seconds: 9.00, at most 2.00: MISSED\n")


@pytest.mark.parametrize("name", ["index.py", "recovery.py", "verify_cold.py", "verify_cost.py"])
def test_a_script_of_one_program_names_one_that_is_not_built(repository: Path, tmp_path: Path, name: str) -> None:
    done = script(repository, name, "--program", str(tmp_path / "none"))
    assert done.returncode == 1
    assert done.stderr == f"{tmp_path / 'none'}: not built; run `make native`, or name another with --program\n"
