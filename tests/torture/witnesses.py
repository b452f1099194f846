"""Others who look at a daemon under attack: newcomers over TCP, the operator at the unix socket, and its memory.

Thread: one for each way in, so that one that waits keeps nobody else from trying.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

from tests.torture.process import WatchedDaemon
from tests.wire import catalog
from tests.wire.frames import Aborted, Closed, WireFault
from tests.wire.layouts import Layout
from tests.wire.session import Refused, Session
from tests.wire.streams import Address

PAUSE_S = 0.25
# Of a connect; each answer has the session's patience.
CONNECT_S = 10.0
LAYOUTS = 8


class Visitor:
    """Connects again and again, says hello, registers a layout and asks for the counters. label: of its layouts."""

    def __init__(self, address: Address, label: str) -> None:
        self._address = address
        self._label = label
        self._counts: Counter[str] = Counter()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._visit)
        self._thread.start()

    def end(self) -> Counter[str]:
        """How its visits ended: ok, or a word for what happened."""
        self._stop.set()
        self._thread.join()
        return self._counts

    def _visit(self) -> None:
        number = 0
        while True:
            self._counts[self._once(Layout({"visitor": self._label, "number": number % LAYOUTS}))] += 1
            number += 1
            if self._stop.wait(PAUSE_S):
                return

    def _once(self, layout: Layout) -> str:
        try:
            with Session.connect(self._address) as session:
                session.register(layout)
                catalog.stat(session)
        except Refused as refused:
            return f"refused: {refused.status}"
        except Aborted as aborted:
            return f"aborted: {aborted}"
        except WireFault as fault:
            return f"fault of the server: {fault}"
        except (Closed, OSError) as error:
            return type(error).__name__
        return "ok"


class Meter:
    """The most that a daemon's own memory was since it began to look."""

    def __init__(self, daemon: WatchedDaemon) -> None:
        self._daemon = daemon
        self._most = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def end(self) -> int:
        """Bytes."""
        self._stop.set()
        self._thread.join()
        return self._most

    def _watch(self) -> None:
        while not self._stop.is_set():
            if self._daemon.running:
                self._most = max(self._most, self._daemon.resident_bytes())
            self._stop.wait(PAUSE_S)


def wait_for(seconds: float, while_true: Callable[[], bool]) -> None:
    """So long, or until it is no longer true."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and while_true():
        time.sleep(min(0.1, max(0.0, until - time.monotonic())))
