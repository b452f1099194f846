"""Connections that always have many requests in flight: frames are made once, and each goes out again when its Final has come.

Thread: one for all connections. What comes is skipped by its lengths alone: an attacker costs less than what it asks for.
"""

from __future__ import annotations

import selectors
import struct
import time
from collections import Counter
from collections.abc import Callable, Mapping

from tests.wire.frames import HEADER_BYTES, MAGIC, Op
from tests.wire.session import Session
from tests.wire.streams import SocketStream

TURN_S = 0.05
SEND_BYTES = 1 << 18


class Pipeline:
    """One connection. frames: by request id; all of them are in flight at once."""

    def __init__(self, session: Session, frames: Mapping[int, bytes]) -> None:
        assert isinstance(session.stream, SocketStream)
        self.socket = session.stream.socket
        self.socket.setblocking(False)
        self.closed = False
        self._session = session
        self._frames = frames
        self._out = bytearray(b"".join(frames.values()))
        self._in = bytearray()
        self._skip = 0

    @property
    def wants_to_send(self) -> bool:
        """Whether something waits."""
        return bool(self._out)

    def send(self) -> None:
        """As much as the socket takes."""
        try:
            sent = self.socket.send(memoryview(self._out)[:SEND_BYTES])
        except BlockingIOError:
            return
        except OSError:
            self.closed = True
            return
        del self._out[:sent]

    def receive(self, tally: Counter[str]) -> None:
        """What has come; what it ends goes out again."""
        try:
            data = self.socket.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.closed = True
            return
        self._in += data
        at = 0
        while True:
            skipped = min(self._skip, len(self._in) - at)
            at += skipped
            self._skip -= skipped
            if self._skip or len(self._in) - at < HEADER_BYTES:
                break
            op = self._in[at + 4]
            request_id, body_bytes, payload_bytes = struct.unpack_from("<QII", self._in, at + 8)
            tally["server_faults"] += self._in[at : at + 4] != MAGIC
            at += HEADER_BYTES
            self._skip = body_bytes + payload_bytes
            if op == Op.FINAL:
                tally["acts"] += 1
                self._out += self._frames.get(request_id, b"")
        del self._in[:at]

    def close(self) -> None:
        """Ends it."""
        self._session.close()


def run(make: Callable[[], Pipeline], count: int, until: float, tally: Counter[str]) -> None:
    """Keeps so many connections busy; one that the daemon ends is made anew. until: monotonic seconds."""
    pipelines: list[Pipeline] = []
    with selectors.DefaultSelector() as selector:
        try:
            while time.monotonic() < until:
                while len(pipelines) < count:
                    one = make()
                    pipelines.append(one)
                    selector.register(one.socket, selectors.EVENT_WRITE, one)
                for key, events in selector.select(TURN_S):
                    one = key.data
                    if events & selectors.EVENT_WRITE:
                        one.send()
                    if events & selectors.EVENT_READ:
                        one.receive(tally)
                _watch(selector, pipelines, tally)
        finally:
            for one in pipelines:
                one.close()


def _watch(selector: selectors.BaseSelector, pipelines: list[Pipeline], tally: Counter[str]) -> None:
    for one in [each for each in pipelines if each.closed]:
        selector.unregister(one.socket)
        one.close()
        pipelines.remove(one)
        tally["closed_by_daemon"] += 1
    for one in pipelines:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if one.wants_to_send else 0)
        if selector.get_key(one.socket).events != events:
            selector.modify(one.socket, events, one)


def numbered(make: Callable[[int], bytes], count: int) -> dict[int, bytes]:
    """Frames under ids of their own. make: of an id."""
    first = 1000
    return {number: make(number) for number in range(first, first + count)}
