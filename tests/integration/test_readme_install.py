"""README in an empty environment: its lines for installing, serving, checking, Python and two machines, as they are printed."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.integration.machines import machines, on
from tests.integration.readme_lines import PATIENCE_S, ended, lines_of, served, snippet_of, try_two_machines

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(3600)]

BUILD_S = 3000
FREE_BYTES_MIN = 8 << 30


@dataclass
class Installed:
    """A checkout in which README's line has been run, and the environment of a shell there."""

    readme: str
    tree: Path
    environment: dict[str, str]

    def run(self, command: list[str]) -> str:
        """What it printed; it has to succeed."""
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=self.environment, cwd=self.tree
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def checkout(repository: Path, tree: Path) -> None:
    """What git knows of the repository, as it is now."""
    listed = subprocess.run(["git", "-C", str(repository), "ls-files", "-z"], capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("this is no repository of git, which knows what a checkout has")
    for name in filter(None, listed.stdout.split("\0")):
        if (repository / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(repository / name, tree / name)


def missing_packages(line: str) -> list[str]:
    """Of what an apt-get line installs."""
    names = [word for word in shlex.split(line, comments=True)[3:] if not word.startswith("-")]
    known = ["dpkg-query", "--show", "--showformat=${db:Status-Status}"]
    asked = {name: subprocess.run([*known, name], capture_output=True, text=True, check=False) for name in names}
    return [name for name, said in asked.items() if said.stdout != "installed"]


@pytest.fixture(scope="module")
def installed(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("stranger")
    if shutil.which("dpkg-query") is None:
        pytest.skip("README's packages are Debian's, and there is no dpkg here")
    if shutil.disk_usage(folder).free < FREE_BYTES_MIN:
        pytest.skip(f"the build and README's store of 4 GiB ask for {FREE_BYTES_MIN >> 30} GiB of free space in {folder}")
    readme = (repository / "README.md").read_text()
    packages, install, *_ = lines_of(readme, "Install").splitlines()
    assert packages.startswith("sudo apt-get install -y ")
    if missing := missing_packages(packages):
        pytest.skip(f"README's packages are not all here: {' '.join(missing)}")
    tree = folder / "halfstep"
    checkout(repository, tree)
    # A stranger's shell: nothing of the environment that runs the tests, and the compiler cache as if all lay in one place.
    own = ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "HALFSTEP_URL", "HALFSTEP_MODE")
    environment = {name: value for name, value in os.environ.items() if name not in own}
    base = Path(sys.base_prefix) / "bin"
    environment |= {
        "PATH": f"{base}:{os.environ['PATH']}",
        "XDG_STATE_HOME": str(folder / "state"),
        "XDG_RUNTIME_DIR": str(folder / "run"),
        "CCACHE_BASEDIR": str(tree),
        "CCACHE_NOHASHDIR": "1",
        "PYTHONUNBUFFERED": "1",
    }
    done = subprocess.run(
        ["bash", "-eu", "-c", install], capture_output=True, text=True, timeout=BUILD_S, check=False, env=environment, cwd=tree
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return Installed(readme, tree, environment)


def test_the_command_is_that_of_the_environment(installed: Installed) -> None:
    where = installed.run(["venv/bin/python", "-c", "import halfstep; print(halfstep.__file__)"])
    assert Path(where.strip()).is_relative_to(installed.tree / "venv")
    assert installed.run(["venv/bin/halfstep", "--version"]).startswith("halfstep ")


def test_the_lines_serve_and_check_and_the_python_runs(installed: Installed) -> None:
    """In a namespace, where port 7350 is free whatever else this machine serves."""
    serve, check = lines_of(installed.readme, "Install").splitlines()[2:]
    assert serve.startswith("venv/bin/halfstep serve ")
    assert check.startswith("venv/bin/halfstep check")
    with machines("10.0.0.5") as names:
        daemon = served(on(names["10.0.0.5"], f"exec {serve}"), installed.environment, installed.tree)
        try:
            assert "tcp" in installed.run(on(names["10.0.0.5"], check))
            (installed.tree / "ten_lines.py").write_text(snippet_of(installed.readme))
            assert installed.run(on(names["10.0.0.5"], "venv/bin/python ten_lines.py")) == ""
        finally:
            status = ended(daemon)
        assert status == 0


def test_the_lines_for_two_machines_work_between_two(installed: Installed, tmp_path: Path) -> None:
    environment = installed.environment | {"PATH": f"{installed.tree / 'venv' / 'bin'}:{installed.environment['PATH']}"}
    with machines("10.0.0.5", "10.0.0.8") as names:
        try_two_machines(installed.readme, names, tmp_path, "halfstep", environment)
