"""Memory of a GPU as target and source: the Python face, over a driver whose device is host memory (fake_libcuda.cc)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Daemon

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BATCH = "cuMemcpyBatchAsync"  # which older drivers do not have


@pytest.fixture(scope="module")
def fake_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """libcuda.so.1, built here."""
    library = tmp_path_factory.mktemp("cuda") / "libcuda.so.1"
    compiler = os.environ.get("CXX", "c++")
    command = [compiler, "-std=c++20", "-shared", "-fPIC", "-O1", "-I", str(ROOT / "native"), str(HERE / "fake_libcuda.cc")]
    subprocess.run([*command, "-Wl,-soname,libcuda.so.1", "-pthread", "-o", str(library)], check=True)
    return library


@pytest.mark.parametrize("transport", ["tcp", "shm"])
@pytest.mark.parametrize("scenario", ["both_ways", "regions", "planes", "prefetch", "failures"])
def test_gpu_memory_is_target_and_source(daemon: Daemon, fake_driver: Path, scenario: str, transport: str) -> None:
    url = daemon.url if transport == "tcp" else daemon.unix_url
    command = [sys.executable, "-X", "faulthandler", str(HERE / "gpu_process.py"), str(fake_driver), url, scenario]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stderr


@pytest.mark.parametrize("bench", [["gpu_path.py", "--blocks", "4"], ["gpu_copies.py"]])
def test_the_bench_measures_or_says_why_not(bench: list[str]) -> None:
    command = [sys.executable, str(ROOT / "bench" / bench[0]), *bench[1:], "--rounds", "1", "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout)
    assert said["measured"] or said["why"]


def test_the_ways_of_copies_are_compared_by_their_bytes(fake_driver: Path) -> None:
    command = [sys.executable, str(ROOT / "bench" / "gpu_copies.py"), "--piece-bytes", "65536", "--rounds", "1", "--json"]
    paths = {"LD_LIBRARY_PATH": str(fake_driver.parent)}
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=os.environ | paths)
    assert ended.returncode == 0, ended.stderr
    rows = json.loads(ended.stdout)["rows"]
    seen = {(row["to_device"], row["way"]) for row in rows if "gb_per_s" in row}
    assert seen == {(to_device, way) for to_device in (True, False) for way in ("copies", "kernel", "whole")}
    assert [row["error"] for row in rows if "gb_per_s" not in row] == 2 * [f"{fake_driver}: undefined symbol: {BATCH}"]
