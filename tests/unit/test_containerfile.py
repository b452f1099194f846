"""The Containerfile, as far as it can be checked without running containers."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest
from tests.unit.test_sdist import sdist_of

from halfstep.client.url import Endpoint
from halfstep.tools.check import check
from halfstep.tools.cli import COMMANDS
from halfstep.tools.serve import serve


@pytest.fixture
def instructions(repository: Path) -> list[tuple[str, str]]:
    """(instruction, arguments), continued lines joined, without comments."""
    text = re.sub(r"^#.*\n", "", (repository / "Containerfile").read_text(), flags=re.MULTILINE)
    lines = [re.sub(r"\s+", " ", line) for line in re.sub(r"\\\n", " ", text).splitlines() if line.strip()]
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines)]


@pytest.fixture
def readme_lines(repository: Path) -> list[str]:
    """The commands of README's section on installing."""
    section = (repository / "README.md").read_text().split("## Install\n")[1].split("\n## ")[0]
    return [line.split("#")[0].strip() for line in section.split("```sh\n")[1].split("```")[0].splitlines()]


def packages_of(command: str) -> set[str]:
    """What an apt-get line installs."""
    words = shlex.split(command.split("apt-get install")[1].split("&&")[0])
    return {word for word in words if not word.startswith("-")}


def sources(instructions: list[tuple[str, str]]) -> list[str]:
    """What is copied from the checkout."""
    copies = [rest.split() for name, rest in instructions if name == "COPY" and "--from=" not in rest]
    return [source for words in copies for source in words[:-1]]


def test_what_is_copied_is_there_and_passes_the_ignore_file(repository: Path, instructions: list[tuple[str, str]]) -> None:
    kept = [line[1:] for line in (repository / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert sorted(sources(instructions)) == sorted(kept)
    assert [source for source in kept if not (repository / source).exists()] == []


def test_what_is_copied_is_in_a_source_distribution(
    repository: Path, instructions: list[tuple[str, str]], tmp_path: Path
) -> None:
    """So the image builds from an unpacked one, too."""
    pytest.importorskip("scikit_build_core")
    unpacked = sdist_of(repository, tmp_path)
    wanted = (*sources(instructions), "Containerfile", ".dockerignore")
    assert [path for path in wanted if not (unpacked / path).exists()] == []


def test_all_that_a_build_needs_is_copied(repository: Path, instructions: list[tuple[str, str]]) -> None:
    with (repository / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)
    needed = [path.removesuffix("/**") for path in project["tool"]["scikit-build"]["sdist"]["include"]]
    needed += [project["project"]["readme"], *project["project"]["license-files"], "pyproject.toml", "CMakeLists.txt"]
    assert set(needed) == set(sources(instructions))


def test_it_installs_as_readme_does(instructions: list[tuple[str, str]], readme_lines: list[str]) -> None:
    """Those lines run in an empty environment: tests/integration/test_readme_install.py."""
    runs = [rest for name, rest in instructions if name == "RUN"]
    (packages,) = (line for line in readme_lines if "apt-get install" in line)
    assert packages_of(runs[0]) == packages_of(packages) | {"ca-certificates"}
    (install,) = (line for line in readme_lines if "-m venv" in line)
    assert runs[1].replace("/opt/halfstep", "venv") == install


def test_it_runs_without_root_and_with_places_of_its_own(instructions: list[tuple[str, str]]) -> None:
    last = [name for name, _ in instructions][::-1].index("FROM")
    final = dict(instructions[len(instructions) - last - 1 :])
    assert final["USER"] == "halfstep"
    environment = dict(word.split("=", 1) for word in final["ENV"].split())
    assert json.loads(final["VOLUME"]) == [environment["STATE_DIRECTORY"], environment["RUNTIME_DIRECTORY"]]
    assert "g++" not in " ".join(final.values())


def test_its_commands_parse(instructions: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    said = dict(instructions)
    entry = json.loads(said["ENTRYPOINT"])
    assert entry[:2] == ["halfstep", "serve"]
    serve.make_context("serve", entry[2:])
    program, name, *arguments = json.loads(said["HEALTHCHECK"].split("CMD", 1)[1])
    assert (program, name) == ("halfstep", "check")
    assert name in COMMANDS
    context = check.make_context(name, list(arguments))
    environment = dict(word.split("=", 1) for word in said["ENV"].split())
    monkeypatch.setenv("RUNTIME_DIRECTORY", environment["RUNTIME_DIRECTORY"])
    from halfstep.daemon.config import runtime_directory

    assert Endpoint.parse(context.params["url"]).address == f"unix:{runtime_directory()}/halfstep.sock"


@pytest.mark.parametrize("path", ["docs/install.md", "Containerfile"])
def test_podman_is_asked_for_a_format_that_has_health_checks(repository: Path, path: str) -> None:
    builds = re.findall(r"podman build(.*)", (repository / path).read_text())
    assert builds
    assert [rest for rest in builds if not rest.startswith(" --format docker ")] == []


def test_the_page_names_commands_that_parse(repository: Path) -> None:
    """docs/install.md: what follows the image's name are options of `halfstep serve`."""
    page = (repository / "docs" / "install.md").read_text().split("## In a container\n")[1].split("\n## ")[0]
    runs = re.findall(r"^podman run (.*?[^\\])$", page.replace("\\\n", " "), re.MULTILINE)
    assert runs
    for run in runs:
        _, _, options = run.rpartition(" halfstep ")
        serve.make_context("serve", shlex.split(options))
