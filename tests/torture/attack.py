"""What every attack of a hostile run has: the daemon, a generator of its own, a moment to end at, and what it counts."""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from tests.torture import pipelines
from tests.wire.frames import Aborted, Closed
from tests.wire.layouts import Group, Layout
from tests.wire.session import Refused, Session
from tests.wire.streams import SocketStream

IN_FLIGHT = 128
SHORT_S = 2.0
# What an attacker has beyond its end that has not done anything yet: a busy machine may not have let it begin.
LATE_S = 6.0
TURN_S = 0.25
VALUES = Layout({"attacker": "values"})
# Two groups: one part of up to 256 KiB after the other, and parts of one byte.
CRUMBS = Layout({"attacker": "crumbs"}, [Group(0, (262_144,)), Group(0, (24,))])
GONE = (OSError, Closed, Aborted, Refused)


@dataclass(frozen=True)
class Target:
    """The daemon. namespace: the attackers' own."""

    address: tuple[str, int]
    unix: str
    namespace: str
    store_bytes: int


@dataclass
class Attack:
    """What every scenario has. until: monotonic seconds."""

    target: Target
    rng: random.Random
    until: float
    tally: Counter[str]

    def session(self, namespace: str | None = "") -> Session:
        """A new connection, in the attackers' namespace unless another is named. Errors: GONE."""
        name = self.target.namespace if namespace == "" else namespace
        return Session(SocketStream.connect(self.target.address, SHORT_S), namespace=name)

    def sessions(self, count: int) -> list[Session]:
        """As many of them as the daemon takes."""
        opened = []
        for _ in range(count):
            with contextlib.suppress(*GONE):
                opened.append(self.session())
        return opened

    @property
    def end(self) -> float:
        """Monotonic seconds: `until`, and later while nothing has been done."""
        return self.until if self.tally["acts"] else self.until + LATE_S

    def going(self) -> bool:
        """Whether there is time left."""
        return time.monotonic() < self.end

    def rest(self, seconds: float = 0.1) -> None:
        """Waits, but not past the end."""
        time.sleep(max(0.0, min(seconds, self.end - time.monotonic())))

    def name(self) -> bytes:
        """A key that nobody had before."""
        return b"%016x" % self.rng.getrandbits(64)

    def pipelined(self, connections: int, make: Callable[[Session, int], bytes], in_flight: int = IN_FLIGHT) -> None:
        """Connections with requests in flight that never end. make: the frame of a request id."""

        def one() -> pipelines.Pipeline:
            session = self.session()
            return pipelines.Pipeline(session, pipelines.numbered(lambda number: make(session, number), in_flight))

        while self.going():
            try:
                pipelines.run(one, connections, max(self.until, min(self.end, time.monotonic() + TURN_S)), self.tally)
            except GONE:
                self.tally["refused"] += 1
                self.rest()
