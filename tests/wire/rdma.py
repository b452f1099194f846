"""The byte stream through two rings that RDMA writes fill: section 15 of the page. For either end of a connection.

One thread. It looks at the queue pair whenever it sends or receives, and in between sleeps on the socket for a moment.
"""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from typing import Self

from tests.wire.frames import Closed, Kind, need
from tests.wire.paths import ROOM, Positions, RdmaPath, answer_of, gid_of, offer_tlv, reads_of, reads_tlv
from tests.wire.session import RAW_CODECS, Session
from tests.wire.streams import Address, SocketStream
from tests.wire.verbs import Device, Memory, QueuePair, VerbsFault

SEND_TIMEOUT_S = 120.0
RING_BYTES = 256 << 10
_MOMENT_MS = 1
_LAST_WRITES_S = 1.0


class RdmaRefused(Exception):
    """The server gives no path. Carries RdmaAnswer's refusal; None: it answered nothing."""


class RdmaEnd:
    """One end of a path that has no other yet: a queue pair with its receives, and the ring that will be written into."""

    def __init__(self, device: Device, ring_bytes: int = RING_BYTES) -> None:
        self.device = device
        self.ring = Memory(device, ring_bytes, remote="write")
        self.pair = QueuePair(device)
        self.path = RdmaPath(
            device.gid, self.pair.number, self.pair.psn, self.ring.address, self.ring.key, ring_bytes, device.mtu_bytes
        )

    def close(self) -> None:
        """The queue pair first: then nobody writes into the ring."""
        self.pair.close()
        self.ring.close()


class RdmaStream:
    """A connection's two rings. begins: this end is the client's, and writes first. reads: of the server's, that it answers."""

    def __init__(self, connected: socket.socket, end: RdmaEnd, its: RdmaPath, *, begins: bool, reads: int = 0) -> None:
        self.end, self.its = end, its
        self.positions = Positions(end.path.ring_bytes, its.ring_bytes)
        # Byte n of what goes out lies at n mod the other ring's size here too, until its write has completed.
        self.source = Memory(end.device, its.ring_bytes)
        self.pair = end.pair
        self.writes = self.rooms = 0  # that this end has posted
        self.its_rooms = 0
        self._socket = connected
        self._posted: deque[int] = deque()  # where each write that has not completed begins
        self._pending = bytearray()
        self._ended = False
        self._may_write = begins
        self._poll = select.poll()
        self._poll.register(connected.fileno(), select.POLLIN | select.POLLRDHUP)
        self.pair.connect(its, reads)
        if begins:
            self.tell_room()

    def send(self, data: bytes) -> None:
        """All of them. Errors: TimeoutError, Closed, WireFault."""
        until = time.monotonic() + SEND_TIMEOUT_S
        rest = memoryview(data)
        while rest:
            self._look()
            at, count = self.positions.next_write(len(rest))
            if not count or not self._may_write or self.pair.full or not self._source_free(count):
                self._wait(until)
                continue
            self.source.view[at : at + count] = rest[:count]
            self.write(at, count, self.positions.written + count)
            rest = rest[count:]

    def write(self, at: int, count: int, position: int) -> None:
        """Posts a write of our bytes at `at` of the ring; the immediate says this position."""
        self._post(self.source, at, count, self.its.ring_address + at, self.its.ring_key, position % ROOM)
        self.positions.written += count
        self.writes += 1

    def receive(self, count: int, timeout_s: float) -> bytes:
        """Exactly so many; what came before a timeout stays for the next call. Errors: Closed, TimeoutError, WireFault."""
        until = time.monotonic() + timeout_s
        while len(self._pending) < count:
            ended = self._ended
            if self._look():
                continue
            if ended:
                raise Closed(f"the socket ended, {len(self._pending)} of {count} bytes had come")
            self._wait(until)
        taken = bytes(self._pending[:count])
        del self._pending[:count]
        return taken

    def tell_room(self) -> None:
        """How much was ever taken out of our ring."""
        self.say(ROOM | self.positions.taken % ROOM)
        self.positions.told = self.positions.taken
        self.rooms += 1

    def say(self, immediate: int) -> None:
        """An immediate, by a write of no bytes."""
        self._post(self.source, 0, 0, self.its.ring_address, self.its.ring_key, immediate)

    def place(self, source: Memory, at: int, count: int, target: int, key: int) -> None:
        """Writes bytes of `source` to an address of the other end's, before whatever is written next."""
        self._post(source, at, count, target, key, None)

    def drain(self) -> None:
        """Waits until every write has completed. Errors: TimeoutError, Closed."""
        until = time.monotonic() + SEND_TIMEOUT_S
        while self._posted:
            self._look()
            if self._posted:
                self._wait(until)

    def close(self) -> None:
        """The socket ends when the last writes have completed. A second time does nothing."""
        if self._socket.fileno() < 0:
            return
        until = time.monotonic() + _LAST_WRITES_S
        try:
            while self._posted and time.monotonic() < until and not self._ended:
                self._completed()
                time.sleep(_MOMENT_MS / 1000)
        except VerbsFault:
            pass
        self.end.close()
        self.source.close()
        self._socket.close()

    def _post(self, source: Memory, at: int, count: int, target: int, key: int, immediate: int | None) -> None:
        until = time.monotonic() + SEND_TIMEOUT_S
        while self.pair.full:
            self._completed()
            need(time.monotonic() < until, "no write completes")
        self.pair.write(source, at, count, target, key, immediate)
        self._posted.append(self.positions.written)

    def _source_free(self, count: int) -> bool:
        """Whether no write that is under way reads what the next so many bytes lie over."""
        return not self._posted or self.positions.written + count - self._posted[0] <= self.its.ring_bytes

    def _completed(self) -> None:
        before = self.pair.sent
        self.pair.look_at_sends()
        for _ in range(self.pair.sent - before):
            self._posted.popleft()

    def _look(self) -> bool:
        """Takes what has come. Returns whether anything has. Errors: Closed, WireFault."""
        try:
            self._completed()
            came = self.pair.arrivals()
        except VerbsFault as error:
            raise Closed(str(error)) from error
        for each in came:
            self._may_write = True
            self.its_rooms += bool(each.immediate & ROOM)
            at, count = self.positions.note(each.immediate, each.bytes)
            self._pending += self.end.ring.view[at : at + count]
            self.positions.taken += count
            if self.positions.room_due():
                self.tell_room()
        return bool(came)

    def _wait(self, until: float) -> None:
        if time.monotonic() >= until:
            raise TimeoutError("neither rings nor socket moved")
        if self._ended:
            raise Closed("the socket ended")
        for _ in self._poll.poll(_MOMENT_MS):
            try:
                need(not self._socket.recv(1, socket.MSG_DONTWAIT), "the socket spoke")
            except BlockingIOError:
                continue
            except ConnectionError:
                pass
            self._ended = True


class RdmaSession(Session):
    """A connection whose Hello offers a path, and that goes by it. Errors: RdmaRefused, beside those of a Session."""

    @classmethod
    def over(cls, address: Address, device: Device, *, ring_bytes: int = RING_BYTES, reads: int = 0) -> Self:
        """address: of the server's socket, by the device's network. reads: it may have out at once; 0 offers none."""
        end = RdmaEnd(device, ring_bytes)
        stream = SocketStream.connect(address)
        try:
            more = offer_tlv([end.path]) + (reads_tlv(reads) if reads else b"")
            session = cls(stream, codecs=RAW_CODECS, more=more)
            session.switch(stream, end, reads)
        except BaseException:
            end.close()
            stream.close()
            raise
        return session

    def switch(self, stream: SocketStream, end: RdmaEnd, reads: int = 0) -> None:
        """From the socket to the path that the Final answered with. reads: that were offered."""
        if not self.hello.all(Kind.RDMA_ANSWER):
            raise RdmaRefused(None)
        answer = answer_of(self.hello.one(Kind.RDMA_ANSWER), 1)
        if answer.path is None:
            raise RdmaRefused(answer.refusal)
        need(answer.path.gid == gid_of(stream.socket.getpeername()[0]), "the path's gid is not the server's address")
        said = self.hello.all(Kind.RDMA_READS)
        need(not said or reads, "RdmaReads where none were offered")
        self.reads = reads_of(self.hello.one(Kind.RDMA_READS), reads) if said else 0
        self.rings = RdmaStream(stream.socket, end, answer.path, begins=True, reads=self.reads)
        self.stream = self.rings
