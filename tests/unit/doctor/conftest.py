from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.doctor.machine import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """One that is healthy, with a daemon that runs."""
    return Machine(tmp_path)
