"""One word for each failure: of a daemon that is dead every call fails, and an operator needs to hear of it once."""

from __future__ import annotations

import logging
import math
import threading
import time
from dataclasses import dataclass

log = logging.getLogger("halfstep.connectors")


@dataclass(slots=True)
class _Failing:
    count: int = 0
    said: bool = False  # by a warning of its own, or one right before it


class Notices:
    """Says once that something fails, and once that it works again: of each kind of work, as one may do and another not.

    One word for all that begins to fail within SPACE_S of it. What fails then is told of as soon as that time is over, if it
    still fails. name: of who says it, as operators know it. Thread: any.
    """

    # Between two warnings. What fails every other time is not worth one each.
    SPACE_S = 10.0

    def __init__(self, name: str) -> None:
        self._name = name
        self._failed: dict[str, _Failing] = {}
        self._said_s = -math.inf
        self._over = False
        self._lock = threading.Lock()

    def note(self, what: str, why: str) -> None:
        """what: a kind of work. why: it failed, for another reason than absence; "" = it was done."""
        if self._over:
            return
        if why:
            now_s = time.monotonic()
            with self._lock:
                failing = self._failed.setdefault(what, _Failing())
                failing.count += 1
                lately = now_s - self._said_s < self.SPACE_S
                if failing.said or lately:
                    # What begins to fail right behind another kind of work fails by the same.
                    failing.said |= lately and any(other.said for other in self._failed.values())
                    return
                failing.said, self._said_s = True, now_s
            log.warning("%s: %s: %s; blocks are computed instead until it works again", self._name, what, why)
        elif what in self._failed:
            with self._lock:
                over = self._failed.pop(what, None)  # another thread may have said so
            if over is not None and over.said:
                log.info("%s: %s works again, after %d failures", self._name, what, over.count)

    def end(self) -> None:
        """What is called off from here on is no failure."""
        self._over = True
