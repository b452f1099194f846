"""Records a daemon's counters, as clients record theirs.

Invariants: a daemon that is gone is said once and asked again. A daemon that was started anew between two samples counts from
its start; what it had counted before the first sample is nobody's.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from halfstep.errors import Unavailable
from halfstep.record import Line, RecordFile, encoded
from halfstep.tools.effect.figures import DAEMON_COUNTERS

if TYPE_CHECKING:
    from halfstep import Client


class Sampler:
    """Of one daemon, into one file of a folder. clock: Unix time."""

    def __init__(self, client: Client, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._client, self._clock = client, clock
        self._file = RecordFile(folder, f"daemon-{secrets.token_hex(8)}")
        self._boot, self._time_s = "", 0.0

    @property
    def path(self) -> Path:
        """Where it writes."""
        return self._file.path

    def sample(self) -> None:
        """A line. Errors: Unavailable (no daemon), OSError (no room)."""
        counters = self._client.admin.stat()
        boot = self._client.facts().boot_id.hex()
        if self._boot not in ("", boot):
            # What was told may be of the boot before, if it ended in between.
            counters = self._client.admin.stat()
            boot = self._client.facts().boot_id.hex()
        self._time_s = max(self._time_s, self._clock())
        kept = {name: counters[name] for name in DAEMON_COUNTERS if name in counters}
        first = self._boot not in ("", boot)
        self._file.append(encoded(Line("daemon", boot, self._time_s, first, "", "", kept)))
        self._boot = boot


def sample_all(sampler: Sampler, interval_s: float, count: int, say: Callable[[str], None]) -> int:
    """So many samples, 0 = until it is interrupted. say: told of an outage and of its end. Returns how many were written."""
    written, asked, out = 0, 0, False
    while True:
        try:
            sampler.sample()
        except Unavailable as error:
            if not out:
                say(f"{error}; asked again every {interval_s:g} s")
            out = True
        else:
            if out:
                say("the daemon answers again")
            written, out = written + 1, False
        asked += 1
        if count and asked >= count:
            return written
        time.sleep(interval_s)
