"""The scripts of bench/, as far as they can be run without measuring anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
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
