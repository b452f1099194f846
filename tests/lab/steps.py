"""For the jobs in a guest: a check that ends the run, and patience for what is emulated."""

from __future__ import annotations

import time
from collections.abc import Callable

# Emulated, and beside others: what takes a moment on a machine may take a minute here.
PATIENCE_S = 240.0
DEADLINE_MS = PATIENCE_S * 1000


class DoesNotHold(Exception):
    """A step of the job: says which."""


def check(holds: bool, what: str) -> None:
    """Ends the run where it does not."""
    print(f"lab: {'ok' if holds else 'FAILED'}: {what}", flush=True)
    if not holds:
        raise DoesNotHold(what)


def wait_for(is_true: Callable[[], bool], what: str) -> None:
    """Or fails when it does not come true."""
    until = time.monotonic() + PATIENCE_S
    while not is_true():
        if time.monotonic() >= until:
            check(False, f"in time: {what}")
        time.sleep(0.1)
