"""README keeps its word: the snippet runs as it is printed, the commands and the pages exist."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.integration.machines import machines
from tests.integration.readme_lines import try_two_machines

pytestmark = pytest.mark.integration

LINES_MAX = 12
URL = "halfstep://127.0.0.1:7350"


@pytest.fixture
def readme(repository: Path) -> str:
    return (repository / "README.md").read_text()


@pytest.fixture
def snippet(readme: str) -> str:
    """The one block of Python."""
    found = re.findall(r"^```python\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    assert len(found) == 1
    text: str = found[0]
    return text


def test_the_snippet_is_short(snippet: str) -> None:
    code = [line for line in snippet.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    assert len(code) <= LINES_MAX


def test_the_snippet_runs_as_printed(
    snippet: str, daemon: Any, run_script: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    assert URL in snippet, "it names the daemon that `halfstep serve` starts"
    assert f'"{URL}/default")' in snippet
    done = run_script(snippet.replace(f'"{URL}/default"', f'"{daemon.url}", deadline_ms=60_000'))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_snippet_fails_where_nothing_was_stored(
    snippet: str, daemon: Any, run_script: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    without_put = "\n".join(line for line in snippet.splitlines() if ".put(" not in line)
    done = run_script(without_put.replace(URL, daemon.url).replace("block-", "absent-"))
    assert done.returncode == 1
    assert "AssertionError" in done.stderr


def test_the_make_targets_that_are_named_exist(readme: str, repository: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (repository / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", readme, re.MULTILINE))
    assert {"demo", "test"} <= named
    assert named <= targets


def test_the_commands_that_are_named_exist(readme: str) -> None:
    named = set(re.findall(r"`halfstep ([a-z]+)", readme))
    assert "serve" in named
    for name in named:
        command = [sys.executable, "-m", "halfstep.tools.cli", name, "--help"]
        assert subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0, name


def test_the_pages_that_are_linked_exist(readme: str, repository: Path) -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)", readme) if "://" not in link]
    assert links
    assert [link for link in links if not (repository / link).exists()] == []


def test_the_lines_for_two_machines_work_between_two(readme: str, tmp_path: Path) -> None:
    command = shlex.join([sys.executable, "-m", "halfstep.tools.cli"])
    with machines("10.0.0.5", "10.0.0.8") as names:
        try_two_machines(readme, names, tmp_path, command, dict(os.environ))
