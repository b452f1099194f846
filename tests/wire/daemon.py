"""A daemon in plain Python, written from docs/wire-protocol.md alone: one shard in memory, over TCP and over rings of RDMA.

It answers Hello, RegisterLayout, Match, Get, Put, Touch, Delete, Stat, Cancel, RegisterRegion and RegisterTemplate, one
request after the other; all others are `rejected(unsupported)`. A thread for each connection. It is for tests of a client:
what it does wrong on purpose is in Lies.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from tests.wire.frames import Aborted, Closed, Frame, Kind, Op, WireFault, frame, need, read_any, tlv
from tests.wire.layouts import Layout, layout_of
from tests.wire.paths import ROOM, Refusal, answer_tlv, gid_of, offer_of
from tests.wire.places import Piece, region_of, template_of
from tests.wire.rdma import RING_BYTES, RdmaEnd, RdmaStream
from tests.wire.requests import LENGTHS_WANTED, Section
from tests.wire.serving import ABSENT, OK, PRESENT, UNSUPPORTED, Refuse, batch_of, sections_of, statuses_tlv, whole_tlv
from tests.wire.serving_gets import Getting, Memories, frames_of
from tests.wire.serving_puts import Putting
from tests.wire.streams import SocketStream, Stream
from tests.wire.verbs import Device, Memory, VerbsFault

PATIENCE_S = 300.0
EARLY_BYTES = 65_536
BLOCK_BYTES_MAX = 16 << 20
FEATURE_PLACE = 2
SOURCE_BYTES = 256 << 10  # a Placed has no more
Name = tuple[bytes, bytes, int]


@dataclass
class Lies:
    """What a daemon does wrong when it is asked for a get.

    position: it writes with a position so many bytes past what it has written. room: it tells that so many bytes more were
    taken than came. check: those of placed runs are wrong. byte: one of each placed run is.
    """

    position: int = 0
    room: int = 0
    check: bool = False
    byte: bool = False


class Daemon:
    """Listens at the address. device: for rings over RDMA; None refuses them.

    blocks: what is stored, by namespace, layout id, key and component. counts: frames by opcode, bytes that were placed.
    ended: why connections did.
    """

    def __init__(self, address: str, device: Device | None = None, *, ring_bytes: int = RING_BYTES) -> None:
        self.device, self.ring_bytes = device, ring_bytes
        self.lies = Lies()
        self.blocks: dict[tuple[bytes, Name], bytes] = {}
        self.counts: Counter[str] = Counter()
        self.ended: list[str] = []
        self.uuid, self.boot = os.urandom(16), os.urandom(16)
        self._listener = socket.create_server((address, 0))
        self.address: tuple[str, int] = self._listener.getsockname()
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def url(self, transport: str = "auto") -> str:
        """For connect()."""
        return f"halfstep://{self.address[0]}:{self.address[1]}?transport={transport}"

    def close(self) -> None:
        """When its clients have gone."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in [self._accepting, *self._threads]:
            thread.join(PATIENCE_S)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connected, _ = self._listener.accept()
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                thread = threading.Thread(target=self._serve, args=(connected,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, connected: socket.socket) -> None:
        connection = Connection(self, connected)
        try:
            connection.serve()
        except (Closed, WireFault, Aborted, VerbsFault, TimeoutError, OSError) as error:
            self.ended.append(f"{type(error).__name__}: {error}")
        finally:
            connection.close()


class Connection:
    """One client's."""

    def __init__(self, daemon: Daemon, connected: socket.socket) -> None:
        self._daemon, self._socket = daemon, connected
        self._stream: Stream = SocketStream(connected)
        self._rings: RdmaStream | None = None
        self._source: Memory | None = None
        self._namespace = b"default"
        self._handles: list[Layout] = []
        self._puts: dict[int, Putting] = {}
        self._memories = Memories()
        self._does: dict[int, Callable[[Frame], None]] = {
            Op.REGISTER_LAYOUT: self._register_layout,
            Op.MATCH: self._match,
            Op.GET: self._get,
            Op.PUT: self._put,
            Op.CHUNK: self._chunk,
            Op.DELETE: self._delete,
            Op.TOUCH: self._touch,
            Op.STAT: self._stat,
            Op.CANCEL: self._cancel,
            Op.REGISTER_REGION: self._register_region,
            Op.REGISTER_TEMPLATE: self._register_template,
        }

    def serve(self) -> None:
        """From the Hello to the end. Errors: Closed, and what else ends a connection."""
        self._hello(read_any(self._stream, PATIENCE_S))
        while True:
            came = read_any(self._stream, PATIENCE_S)
            self._daemon.counts[f"opcode {came.op}"] += 1
            need(came.op < Op.CHUNK or came.op > 127 or came.op == Op.CHUNK, f"opcode {came.op} from a client")
            try:
                self._does.get(came.op, self._unknown)(came)
            except Refuse as refused:
                self._final(came.request_id, whole_tlv(refused.status))

    def close(self) -> None:
        """Ends it."""
        self._stream.close()
        if self._source is not None:
            self._source.close()

    def _send(self, op: int, request_id: int, body: bytes, payload: bytes = b"") -> None:
        self._stream.send(frame(op, request_id, body, payload))

    def _final(self, request_id: int, body: bytes) -> None:
        self._send(Op.FINAL, request_id, body + tlv(Kind.LOAD, bytes(16)))

    def _unknown(self, came: Frame) -> None:
        raise Refuse(UNSUPPORTED)

    # --- Hello, and the connection's own ---

    def _hello(self, came: Frame) -> None:
        need(came.op == Op.HELLO, f"opcode {came.op} where a Hello is due")
        if came.all(Kind.NAMESPACE_NAME):
            self._namespace = came.one(Kind.NAMESPACE_NAME)
        limits = (BLOCK_BYTES_MAX, 2560, 4096, 256, 256 << 10, EARLY_BYTES, 60_000, 0)
        named = (1, 1, FEATURE_PLACE, 1, self._daemon.uuid, self._daemon.boot)
        body = tlv(Kind.HELLO_SERVER, struct.pack("<HHIQ16s16s8I", *named, *limits))
        body += tlv(Kind.SHARD_MAP, bytes(8)) + tlv(Kind.SHARD_HOSTS, struct.pack("<QII", 1, 0, 0))
        if came.all(Kind.AUTHENTICATION):
            body += tlv(Kind.AUTHENTICATION, bytes(8))
        if came.all(Kind.RDMA_OFFER):
            body += self._answer(came.one(Kind.RDMA_OFFER))
        self._final(came.request_id, body)
        if self._rings is not None:
            self._stream = self._rings

    def _answer(self, offer: bytes) -> bytes:
        device = self._daemon.device
        versions, paths = offer_of(offer)
        if not versions[0] <= 1 <= versions[1]:
            return answer_tlv(None, Refusal.VERSION)
        if device is None:
            return answer_tlv(None, Refusal.OFF)
        gid = gid_of(self._socket.getpeername()[0])
        for number, path in enumerate(paths):
            if path.gid == gid:
                end = RdmaEnd(device, self._daemon.ring_bytes)
                self._source = Memory(device, SOURCE_BYTES)
                self._rings = RdmaStream(self._socket, end, path, begins=False)
                return answer_tlv(end.path, number=number)
        return answer_tlv(None, Refusal.NO_PATH)

    def _register_layout(self, came: Frame) -> None:
        layout = layout_of(came.one(Kind.LAYOUT_CANONICAL))
        self._handles.append(layout)
        handle = struct.pack("<HHHH16s", len(self._handles) - 1, 0, 0, 0, layout.id)
        self._final(came.request_id, tlv(Kind.LAYOUT_HANDLE, handle))

    def _stat(self, came: Frame) -> None:
        if came.all(Kind.KEY_QUESTION):
            raise Refuse(UNSUPPORTED)
        name = b"peer_blocks"
        counter = struct.pack("<HHIQ", len(name), 0, 0, len(self._daemon.blocks)) + name + bytes(-len(name) % 8)
        self._final(came.request_id, tlv(Kind.COUNTERS, counter) + tlv(Kind.CURSOR, bytes(16)))

    def _register_region(self, came: Frame) -> None:
        if self._rings is None:
            raise Refuse(UNSUPPORTED)
        region = region_of(came.one(Kind.RDMA_REGION))
        self._memories.regions[region.number] = region
        if not region.size:
            del self._memories.regions[region.number]
        self._final(came.request_id, whole_tlv(OK))

    def _register_template(self, came: Frame) -> None:
        if self._rings is None:
            raise Refuse(UNSUPPORTED)
        number, parts = template_of(came.one(Kind.PLACE_TEMPLATE))
        self._memories.templates[number] = parts
        self._final(came.request_id, whole_tlv(OK))

    # --- requests with keys ---

    def _name(self, section: Section, item: int) -> tuple[bytes, Name]:
        key, component = section.name(item)
        return self._namespace, (section.layout.id, key, component)

    def _found(self, section: Section) -> list[bytes | None]:
        return [self._daemon.blocks.get(self._name(section, item)) for item in range(section.items)]

    def _match(self, came: Frame) -> None:
        wants_lengths = batch_of(came).flags & LENGTHS_WANTED
        body = b""
        for number, section in enumerate(sections_of(came, self._handles)):
            found, cells = self._found(section), section.component_count
            bits = bytearray((len(section.keys) + 7) // 8)
            for key in range(len(section.keys)):
                bits[key // 8] |= (None not in found[key * cells : (key + 1) * cells]) << key % 8
            body += tlv(Kind.MATCH_BITS, struct.pack("<HHI", number, 0, len(section.keys)) + bits)
            if wants_lengths:
                sizes = [len(each or b"") for each in found]
                head = struct.pack("<HHIII", number, 0, 0, len(sizes), 0)
                body += tlv(Kind.LENGTHS, head + struct.pack(f"<{len(sizes)}I", *sizes))
        self._final(came.request_id, body)

    def _touch(self, came: Frame) -> None:
        rows = enumerate(self._found(section) for section in sections_of(came, self._handles))
        body = [statuses_tlv(n, [ABSENT if each is None else PRESENT for each in row]) for n, row in rows]
        self._final(came.request_id, b"".join(body))

    def _delete(self, came: Frame) -> None:
        body = b""
        for number, section in enumerate(sections_of(came, self._handles)):
            gone = [self._daemon.blocks.pop(self._name(section, item), None) for item in range(section.items)]
            body += statuses_tlv(number, [ABSENT if each is None else OK for each in gone])
        self._final(came.request_id, body)

    def _put(self, came: Frame) -> None:
        sections = sections_of(came, self._handles)
        there = [[data is not None for data in self._found(section)] for section in sections]
        putting = self._puts[came.request_id] = Putting(came, sections, there, BLOCK_BYTES_MAX)
        if (want := putting.want_tlv()) is not None:
            self._send(Op.WANT, came.request_id, want)
        self._settle(came.request_id, putting)

    def _chunk(self, came: Frame) -> None:
        putting = self._puts.get(came.request_id)
        if putting is None:
            return  # it has had its Final
        for number, item, data in putting.take(came):
            self._daemon.blocks[self._name(putting.sections[number], item)] = data
        self._settle(came.request_id, putting)

    def _settle(self, request_id: int, putting: Putting) -> None:
        if (answers := putting.final_tlvs()) is not None:
            del self._puts[request_id]
            self._final(request_id, answers)

    def _cancel(self, came: Frame) -> None:
        (target,) = struct.unpack("<Q", came.one(Kind.CANCEL_TARGET))
        putting = self._puts.get(target)
        self._final(came.request_id, whole_tlv(ABSENT if putting is None else OK))
        if putting is not None:
            putting.cancel()
            self._settle(target, putting)

    # --- get ---

    def _get(self, came: Frame) -> None:
        sections = sections_of(came, self._handles)
        placings = self._memories.placings(came, sections)
        if placings and self._rings is None:
            raise Refuse(UNSUPPORTED)
        self._lie()
        getting = Getting(sections, [self._found(section) for section in sections], batch_of(came).order)
        for op, body, data, pieces in frames_of(getting.payloads(), sections, placings):
            if op == Op.PLACED:
                self._place(data, pieces)
                self._send(op, came.request_id, self._checks_of(body))
            else:
                self._send(op, came.request_id, body, data)
        self._final(came.request_id, getting.answers_tlvs())

    def _place(self, data: bytes, pieces: list[Piece]) -> None:
        """Posted before the frame that tells of them, so they arrive before it."""
        rings, source = self._rings, self._source
        assert rings is not None
        assert source is not None
        if self._daemon.lies.byte:
            data = data[:-1] + bytes([data[-1] ^ 1])
        rings.drain()  # nothing reads our memory any more
        source.view[: len(data)] = data
        at = 0
        for piece in pieces:
            region = self._memories.regions[piece.region]
            rings.place(source, at, piece.size, region.address + piece.offset, region.key)
            at += piece.size
        self._daemon.counts["placed bytes"] += at

    def _checks_of(self, body: bytes) -> bytes:
        """The last four bytes that are not padding are a check's: of one run, whose checks end the TLV."""
        if not self._daemon.lies.check:
            return body
        size = struct.unpack_from("<I", body, 4)[0]
        return body[: 8 + size - 1] + bytes([body[8 + size - 1] ^ 1]) + body[8 + size :]

    def _lie(self) -> None:
        lies, rings = self._daemon.lies, self._rings
        if rings is None:
            return
        if lies.position:
            rings.write(rings.positions.written % rings.its.ring_bytes, 8, rings.positions.written + lies.position)
        if lies.room:
            rings.say(ROOM | (rings.positions.taken + lies.room) % ROOM)
