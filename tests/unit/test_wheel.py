"""The wheel as a stranger gets it: installed into an empty environment with numpy alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

# What the extras bring. None of it may be needed, or even looked at, by `import halfstep`.
EXTRAS = ("click", "rich", "prometheus_client", "torch", "transformers", "xxhash")

PROBE = f"""
import json, sys
before = set(sys.modules)
import halfstep
halfstep.connect
loaded = sorted({{name.partition(".")[0] for name in set(sys.modules) - before}} - set(sys.stdlib_module_names))
import halfstep._peer, halfstep._shard, halfstep._store
print(json.dumps({{"loaded": loaded, "file": halfstep.__file__, "extras": [e for e in {EXTRAS!r} if e in sys.modules]}}))
"""


def run(*arguments: str | Path, timeout_s: float = 1500) -> str:
    done = subprocess.run(
        [str(a) for a in arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        cwd="/",
        check=False,
        env=os.environ | {"CI": "1"},  # scikit-build waits longer for cmake to say its version
    )
    assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    # The build folder of `make build`, with its options: nothing is compiled twice, and a wheel is packed of what was tested.
    run(
        *(sys.executable, "-m", "pip", "-qq", "wheel", "--no-build-isolation", "--no-deps", "--wheel-dir", target),
        f"--config-settings=build-dir={repository}/build/release",
        "--config-settings=cmake.args=--preset=release",
        repository,
    )
    (built,) = target.glob("halfstep-*.whl")
    return built


@pytest.mark.timeout(1800)
def test_wheel_carries_the_package_and_nothing_else(wheel: Path, repository: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    package = repository / "src"
    wanted = {
        str(path.relative_to(package))
        for path in (package / "halfstep").rglob("*")
        # What is built into a checkout is not of it, the copies of ISA-L and zstd included.
        if path.is_file() and not re.search(r"\.so(\.\d+)*$", path.name) and "__pycache__" not in path.parts
    }
    modules = {name for name in names if name.endswith(".so")}
    assert {name.partition(".")[0] for name in modules} == {"halfstep/_peer", "halfstep/_shard", "halfstep/_store"}
    # ISA-L and zstd, where the machine that built the wheel had only shared ones.
    carried = {name for name in names if re.fullmatch(r"halfstep/lib(isal|zstd)\.so\.\d+", name)}
    assert names - modules - carried == wanted


@pytest.mark.timeout(1800)
def test_import_needs_numpy_alone(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    run(sys.executable, "-m", "venv", environment)
    python = environment / "bin" / "python"
    run(python, "-m", "pip", "-qq", "--disable-pip-version-check", "install", wheel)
    installed = {entry["name"] for entry in json.loads(run(python, "-m", "pip", "list", "--format=json"))}
    assert installed - {"pip", "setuptools"} == {"halfstep", "numpy"}

    seen = json.loads(run(python, "-c", PROBE))
    assert seen["file"].startswith(str(environment))
    assert set(seen["loaded"]) <= {"halfstep", "numpy"}
    assert seen["extras"] == []


@pytest.mark.timeout(1800)
def test_client_module_does_not_link_io_uring(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (client,) = (name for name in archive.namelist() if name.startswith("halfstep/_peer") and name.endswith(".so"))
        module = archive.read(client)
    assert b"io_uring" not in module
    assert b"liburing" not in module
