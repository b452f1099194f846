"""Calls of functions of ours on an engine's thread, by module.

A profile function sees each call of a Python function. Whoever reaches the daemon, or takes a lock that another thread may
hold, goes through a function of halfstep.client; so a step that calls none sends nothing and waits for nobody.
"""

from __future__ import annotations

import sys
from collections import Counter
from types import FrameType

OURS = "halfstep."


class OurCalls:
    """Of the thread that starts and stops it."""

    def __init__(self) -> None:
        self._calls: Counter[str] = Counter()

    def start(self) -> None:
        """Count from now on."""
        sys.setprofile(self._seen)

    def stop(self) -> None:
        """Count no more."""
        sys.setprofile(None)

    def anew(self) -> Counter[str]:
        """Where calls are counted from now on. What was counted before stays in the one that was told then."""
        self._calls = Counter()
        return self._calls

    def _seen(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and (name := frame.f_globals.get("__name__", "")).startswith(OURS):
            self._calls[name] += 1
