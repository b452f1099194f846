"""What every test sees: the checkout, Ctrl-C, and the switch that leaves torch out of sanitizer runs."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

# A shell without job control starts what it puts into the background deaf to Ctrl-C, and every process of a test inherits that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

REPOSITORY = Path(__file__).resolve().parent.parent

# A module that is None in sys.modules cannot be imported, so `pytest.importorskip` reports the tests that need it as skipped.
for _module in filter(None, os.environ.get("HALFSTEP_TESTS_WITHOUT", "").split(",")):
    sys.modules[_module] = None  # type: ignore[assignment]


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return REPOSITORY
