"""What `.ci/run` does about engines whose packages the network refuses, and about what it compiles beside the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# In the place of everything that takes long: it says what a runner says at its end.
MAKE = """#!/bin/sh
echo "made: $*"
echo "${SANITIZE_ONLY:-all}$FUZZ_ONLY $1 ${SANITIZE_EXCEPT:-}" >>made
if [ "$FAILS" = ahead ] && [ "$SANITIZE_ONLY" = build ]; then echo "no compiler today"; exit 2; fi
if [ "$1" = "$FAILS" ]; then echo "=== 1 failed in 1.00s ==="; exit 2; fi
echo "100% tests passed, 0 tests failed out of 7"
echo "=== $1 passed: 3 passed in 1.00s ==="
"""
# An interpreter whose environments have pip, or one that the network refuses.
PYTHON = """#!/bin/sh
case "$*" in
  "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  *" install "*) if [ "$REFUSED" = yes ]; then echo "ERROR: Could not find a version (from versions: none)" >&2; exit 1; fi ;;
  *purelib*) pwd ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """One in which nothing is built or downloaded."""
    for name in (".ci/run", "scripts/setup.sh"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for name, text in (("bin/make", MAKE), (".venv/bin/python", PYTHON)):
        program = tmp_path / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(text)
        program.chmod(0o755)
    return tmp_path


def run(checkout: Path, **more: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PATH": f"{checkout / 'bin'}:{os.environ['PATH']}", "FAILS": "nothing", "REFUSED": "no"} | more
    return subprocess.run(["bash", ".ci/run"], cwd=checkout, env=environment, capture_output=True, text=True, timeout=60)


def test_engines_are_tested_where_their_packages_are_to_be_had(checkout: Path) -> None:
    ran = run(checkout)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "made: connectors-short" in ran.stdout
    assert ran.stdout.rstrip().endswith("=== connectors-short passed: 3 passed in 1.00s ===")


def test_packages_that_are_refused_skip_the_engines_and_say_so_at_the_end(checkout: Path) -> None:
    ran = run(checkout, REFUSED="yes")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "made: connectors-short" not in ran.stdout
    assert "made: tsan" in ran.stdout, "the steps behind it have run"
    assert "(from versions: none)" in ran.stdout
    assert ran.stdout.splitlines()[-1].startswith("SKIPPED: vLLM and LMCache were not tested: their packages could not be had")


@pytest.mark.parametrize("fails", ["connectors-short", "demo", "tsan"])
def test_a_step_that_fails_is_no_skip(checkout: Path, fails: str) -> None:
    assert run(checkout, FAILS=fails).returncode != 0


def test_a_set_up_that_breaks_is_no_skip(checkout: Path) -> None:
    """Packages were had, and what is made with them fails."""
    python = checkout / ".venv/bin/python"
    python.write_text(python.read_text().replace("*purelib*) pwd", "*purelib*) exit 1"))
    ran = run(checkout)
    assert ran.returncode != 0
    assert "made: connectors-short" not in ran.stdout


def test_what_is_compiled_beside_the_tests_is_what_the_later_steps_run(checkout: Path) -> None:
    assert run(checkout).returncode == 0
    made = (checkout / "made").read_text().splitlines()
    ahead = [line.removeprefix("buildbuild ") for line in made if line.startswith("buildbuild ")]
    later = [line.removeprefix("all ") for line in made if line.startswith("all ")]
    assert [line.split()[0] for line in ahead] == ["asan", "tsan", "fuzz"]
    assert set(ahead) <= set(later), "the same tests are left out"
    assert ahead[0].split()[1:], "what CI leaves out is left out of the build, too"


def test_a_build_beside_the_tests_that_fails_is_shown_and_left_to_its_own_step(checkout: Path) -> None:
    ran = run(checkout, FAILS="ahead")
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "no compiler today" in ran.stdout
    assert "made: tsan" in ran.stdout
