"""The build backend: scikit-build-core's, which knows the commit in a source distribution, too.

A source distribution has no .git. While one is made, cmake/COMMIT says what it is made from; cmake/HalfstepBuildInfo.cmake
reads it where there is no repository to ask.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from scikit_build_core import build as backend
from scikit_build_core.build import *  # noqa: F403 -- every hook that is not below

COMMIT = Path("cmake", "COMMIT")  # hooks run in the root of the source tree


def commit() -> str:
    """As HalfstepBuildInfo.cmake asks for it; empty where there is no repository, or no git."""
    if not Path(".git").exists():
        return ""
    command = ["git", "describe", "--always", "--dirty", "--tags", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def build_sdist(sdist_directory: str, config_settings: dict[str, Any] | None = None) -> str:
    """PEP 517. One that is made from another one keeps the commit that this one has."""
    described = commit()
    if not described:
        return backend.build_sdist(sdist_directory, config_settings)
    COMMIT.write_text(described + "\n")
    try:
        return backend.build_sdist(sdist_directory, config_settings)
    finally:
        COMMIT.unlink()
