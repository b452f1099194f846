"""A loop device for tests, where this machine lends one."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

# Users other than root have no sbin in their path.
SEARCH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"


@contextmanager
def loop_device(image: Path, size: int = 160 << 20) -> Iterator[Path]:
    """A blank device over a sparse file; the test is skipped where none can be had."""
    losetup = shutil.which("losetup", path=SEARCH)
    if losetup is None:
        pytest.skip("no loop device can be made here: there is no losetup")
    with image.open("wb") as file:
        file.truncate(size)
    made = subprocess.run(
        [losetup, "--find", "--show", "--direct-io=on", str(image)], capture_output=True, text=True, timeout=60, check=False
    )
    if made.returncode:
        pytest.skip(f"no loop device can be made here: {made.stderr.strip()}")
    device = Path(made.stdout.strip())
    try:
        yield device
    finally:
        subprocess.run([losetup, "--detach", str(device)], timeout=60, check=True)
