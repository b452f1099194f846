"""One word for each failure: of a daemon that is dead every call fails, and an operator needs to hear of it once."""

from __future__ import annotations

import logging
import time

log = logging.getLogger("halfstep.connectors")


class Notices:
    """Says once that something fails, and once that it works again: of each kind of work, as one may do and another not.

    name: of who says it, as operators know it. Thread: any.
    """

    # Between two warnings. What fails every other time is not worth one each.
    SPACE_S = 10.0

    def __init__(self, name: str) -> None:
        self._name = name
        self._failed: dict[str, int] = {}
        self._said_s = -self.SPACE_S
        self._over = False

    def note(self, what: str, why: str) -> None:
        """what: a kind of work. why: it failed, for another reason than absence; "" = it was done."""
        if self._over:
            return
        failed = self._failed.get(what, 0)
        if why:
            now_s = time.monotonic()
            first = not self._failed and now_s - self._said_s >= self.SPACE_S
            self._failed[what] = failed + 1
            if first:
                self._said_s = now_s
                log.warning("%s: %s: %s; blocks are computed instead until it works again", self._name, what, why)
        elif failed:
            self._failed.pop(what, None)  # another thread may have said so
            log.info("%s: %s works again, after %d failures", self._name, what, failed)

    def end(self) -> None:
        """What is called off from here on is no failure."""
        self._over = True
