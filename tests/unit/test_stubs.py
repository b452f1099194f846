"""The checked-in stubs say what the extension modules really offer."""

from __future__ import annotations

import difflib
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("module", ["_peer", "_shard", "_store"])
def test_stub_is_what_stubgen_writes(repository: Path, tmp_path: Path, module: str) -> None:
    checked_in = repository / "src" / "halfstep" / f"{module}.pyi"
    generated = tmp_path / f"{module}.pyi"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "nanobind.stubgen",
            "-q",
            "-m",
            f"halfstep.{module}",
            "-o",
            str(generated),
        ],
        check=True,
        timeout=60,
    )
    difference = "".join(
        difflib.unified_diff(
            checked_in.read_text().splitlines(keepends=True) if checked_in.exists() else [],
            generated.read_text().splitlines(keepends=True),
            str(checked_in.relative_to(repository)),
            "stubgen",
        )
    )
    assert not difference, f"run `make stubs` and commit what it wrote:\n{difference}"
