"""A source distribution: what is built from it knows the commit."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

_BUILD = "import sys; sys.path.insert(0, 'scripts'); import build_backend; print(build_backend.build_sdist(sys.argv[1]))"


def described(repository: Path) -> str:
    command = ["git", "-C", str(repository), "describe", "--always", "--dirty", "--tags", "--abbrev=12"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def sdist_of(tree: Path, target: Path) -> Path:
    """Makes one of a source tree and unpacks it."""
    done = subprocess.run(
        [sys.executable, "-c", _BUILD, str(target)], cwd=tree, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    with tarfile.open(next(target.glob("halfstep-*.tar.gz"))) as archive:
        # Before 3.11.4 there is no filter; the archive is our own.
        archive.extractall(target, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    (unpacked,) = (path for path in target.iterdir() if path.is_dir())
    return unpacked


def commit_in(tree: Path, work: Path) -> str:
    """What a build of this tree would say, by the module that says it."""
    work.mkdir()
    definitions = {"PROJECT_SOURCE_DIR": tree, "PROJECT_BINARY_DIR": work, "PROJECT_VERSION": "1.2.3"}
    command = ["cmake", *(f"-D{name}={value}" for name, value in definitions.items())]
    command += ["-P", str(tree / "cmake" / "HalfstepBuildInfo.cmake")]
    subprocess.run(command, capture_output=True, timeout=60, check=True)
    header = (work / "generated" / "base" / "build_info.h").read_text()
    found = re.search(r'kCommit = "([^"]*)"', header)
    assert found is not None, header
    return found[1]


def test_what_is_built_from_a_source_distribution_knows_its_commit(repository: Path, tmp_path: Path) -> None:
    if not (repository / ".git").exists() or shutil.which("git") is None:
        pytest.skip("this is no repository, or there is no git")
    pytest.importorskip("scikit_build_core")
    first = tmp_path / "first"
    first.mkdir()
    unpacked = sdist_of(repository, first)
    assert commit_in(unpacked, tmp_path / "build") == described(repository)
    assert not (repository / "cmake" / "COMMIT").exists(), "the tree stays as it was"

    second = tmp_path / "second"
    second.mkdir()
    assert commit_in(sdist_of(unpacked, second), tmp_path / "again") == described(repository), "one of one keeps it"

    (unpacked / "cmake" / "COMMIT").unlink()
    assert commit_in(unpacked, tmp_path / "without") == "of the source distribution 1.2.3"
