"""README keeps its word: the snippet runs as it is printed, the commands and the pages exist."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

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
    done = run_script(snippet.replace(URL, daemon.url))
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


@pytest.fixture
def two_machines() -> Iterator[dict[str, str]]:
    """Network namespaces with the README's two addresses and a cable between them: address to namespace."""
    if shutil.which("ip") is None:
        pytest.skip("there is no ip (iproute2)")
    names = {address: f"hs-{os.getpid() % 100_000}-{address[-1]}" for address in ("10.0.0.5", "10.0.0.8")}
    node, host = names.values()

    def ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)

    try:
        for name in names.values():
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", node, "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", host)
        for address, name in names.items():
            ip("-n", name, "address", "add", f"{address}/24", "dev", "cable")
            ip("-n", name, "link", "set", "cable", "up")
    except subprocess.CalledProcessError as error:
        for name in names.values():
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)
        pytest.skip(f"a network namespace cannot be made here: {error.stderr.strip()}")
    yield names
    for name in names.values():
        ip("netns", "delete", name)


def test_the_lines_for_two_machines_work_between_two(readme: str, two_machines: dict[str, str], tmp_path: Path) -> None:
    (lines,) = re.findall(r"^## Two machines\n.*?^```sh\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    of_node, of_host = lines.split("# on the inference host\n")
    (serve,) = (line for line in of_node.splitlines() if line.startswith("halfstep serve"))
    assert "/dev/nvme1n1" in serve, "the drive, of which a file takes the place here"
    serve = serve.replace("/dev/nvme1n1", f"{tmp_path}/store.hs --size 256MiB --unix none")
    command = shlex.join([sys.executable, "-m", "halfstep.tools.cli"])

    def on(address: str, script: str) -> list[str]:
        script = re.sub(r"^halfstep ", f"exec {command} " if script == serve else f"{command} ", script, flags=re.MULTILINE)
        return ["ip", "netns", "exec", two_machines[address], "bash", "-eu", "-c", script]

    with subprocess.Popen(on("10.0.0.5", serve), stdout=subprocess.PIPE, text=True) as daemon:
        try:
            assert daemon.stdout is not None
            assert any("listening" in line for line in daemon.stdout)
            done = subprocess.run(on("10.0.0.8", of_host), capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
            assert "10.0.0.5" in done.stdout
        finally:
            daemon.terminate()
            daemon.communicate(timeout=60)
