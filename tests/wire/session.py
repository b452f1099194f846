"""A connection: Hello, requests under numbers of their own, frames sorted by request. Section 1 of the page."""

from __future__ import annotations

import random
import struct
import time
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from tests.wire.answers import Status, Tally, whole
from tests.wire.frames import Frame, Kind, Op, frame, need, read_frame, tlv
from tests.wire.layouts import Layout
from tests.wire.requests import Batch, Section
from tests.wire.streams import Address, SocketStream, Stream

PATIENCE_S = 30.0
RAW_CODECS = 1
# Of a server.
FEATURE_WAIT = 1


@dataclass(frozen=True)
class ShardAddress:
    """Where a shard listens. port: 0 is the address of the connection. host: "" is the host of the connection."""

    port: int
    host: str


def shard_addresses(final: Frame) -> tuple[int, tuple[ShardAddress, ...]]:
    """The epoch of the map, and each shard's address, from ShardMap and ShardHosts."""
    hosts_value = final.one(Kind.SHARD_HOSTS)
    epoch, host_count, zero = struct.unpack_from("<QII", hosts_value)
    need(host_count <= 16 and zero == 0, f"ShardHosts of {host_count} hosts, zero {zero}")
    hosts, at = [""], 16
    for _ in range(host_count):
        size = hosts_value[at]
        need(size > 0, "a host of no bytes")
        hosts.append(hosts_value[at + 1 : at + 1 + size].decode())
        at += 1 + size
    at += -at % 8
    need(at == len(hosts_value), f"ShardHosts of {len(hosts_value)} bytes, its hosts end at {at}")
    map_value = final.one(Kind.SHARD_MAP)
    need(len(map_value) % 8 == 0, f"ShardMap of {len(map_value)} bytes")
    addresses = []
    for at in range(0, len(map_value), 8):
        port, _, host, reserved = struct.unpack_from("<HHHH", map_value, at)
        need(host < len(hosts) and reserved == 0, f"ShardAddress: host {host} of {len(hosts) - 1}, zero {reserved}")
        addresses.append(ShardAddress(port, hosts[host]))
    return epoch, tuple(addresses)


def namespace_coding(final: Frame) -> tuple[int, int]:
    """The namespace's default policy, and the coarsest step of its lossy blocks in 1/10,000, from the Final of a Hello."""
    if not final.all(Kind.NAMESPACE_CODING):
        return 0, 0
    value = final.one(Kind.NAMESPACE_CODING)
    need(len(value) == 8, f"NamespaceCoding of {len(value)} bytes")
    policy, step_limit, zero = struct.unpack("<HHI", value)
    need(zero == 0 and (policy, step_limit) != (0, 0), f"NamespaceCoding {policy}, {step_limit}, zero {zero}")
    return policy, step_limit


@dataclass(frozen=True)
class Server:
    """What HelloServer and the map of shards say."""

    version: int
    shards: int
    features: int
    codecs: int
    store_uuid: bytes
    boot_id: bytes
    block_bytes_max: int
    parts_max: int
    keys_max: int
    requests_in_flight_max: int
    chunk_bytes_max: int
    early_credit_bytes: int
    lease_ms_max: int
    shard: int
    epoch: int
    addresses: tuple[ShardAddress, ...]

    @classmethod
    def of(cls, final: Frame) -> Self:
        """From the Final of a Hello."""
        hello = final.one(Kind.HELLO_SERVER)
        need(len(hello) == 80, f"HelloServer of {len(hello)} bytes")
        fields = struct.unpack("<HHIQ16s16s8I", hello)
        epoch, addresses = shard_addresses(final)
        need(len(addresses) == fields[1], f"ShardMap of {len(addresses)} shards, HelloServer of {fields[1]}")
        need(fields[-1] < fields[1], f"shard {fields[-1]} of {fields[1]}")
        return cls(*fields, epoch, addresses)


class Refused(Exception):
    """A request as a whole was not ok."""

    def __init__(self, final: Frame) -> None:
        self.status = whole(final)
        super().__init__(f"{self.status}: {final.reason}")


class Session:
    """A connection after its Hello. Errors of its making: Refused, Aborted, WireFault, OSError."""

    def __init__(
        self,
        stream: Stream,
        *,
        namespace: str | None = None,
        codecs: int = RAW_CODECS,
        versions: tuple[int, int] = (1, 1),
        client_id: int | None = None,
        more: bytes = b"",
    ) -> None:
        self.stream = stream
        self.client_id = random.getrandbits(64) if client_id is None else client_id
        self._next_id = 1
        self._frames: defaultdict[int, deque[Frame]] = defaultdict(deque)
        self._handles: dict[bytes, int] = {}
        self.hello = self.final(self.send(Op.HELLO, hello_body(namespace, codecs, versions, self.client_id) + more))
        if not self.hello.all(Kind.HELLO_SERVER):
            self.close()
            raise Refused(self.hello)
        self.server = Server.of(self.hello)
        self.early_bytes = self.server.early_credit_bytes

    @classmethod
    def connect(cls, address: Address, namespace: str | None = None) -> Self:
        """Over TCP or a unix socket, without shared memory."""
        return cls(SocketStream.connect(address), namespace=namespace)

    def send(self, op: int, body: bytes = b"", payload: bytes = b"", request_id: int | None = None) -> int:
        """One frame; the number of its request."""
        if request_id is None:
            request_id = self.next_id()
        self.stream.send(frame(op, request_id, body, payload))
        return request_id

    def next_id(self) -> int:
        """A number that no request had yet."""
        self._next_id += 1
        return self._next_id - 1

    def next_frame(self, timeout_s: float = PATIENCE_S) -> Frame:
        """Of whatever request. Errors: TimeoutError, WireFault, Aborted, Closed."""
        return read_frame(self.stream, timeout_s)

    def frame_of(self, request_id: int, timeout_s: float = PATIENCE_S) -> Frame:
        """The next frame of a request. Errors: TimeoutError, WireFault, Aborted, Closed."""
        until = time.monotonic() + timeout_s
        while not self._frames[request_id]:
            came = self.next_frame(max(until - time.monotonic(), 0.001))
            self._frames[came.request_id].append(came)
        came = self._frames[request_id].popleft()
        if came.op == Op.FINAL:
            need(not self._frames.pop(request_id), f"frames of request {request_id} behind its Final")
        return came

    def final(self, request_id: int, timeout_s: float = PATIENCE_S) -> Frame:
        """The Final of a request that has no other answer."""
        came = self.frame_of(request_id, timeout_s)
        need(came.op == Op.FINAL, f"opcode {came.op} where a Final is due")
        return came

    def ask(self, op: int, body: bytes = b"") -> Frame:
        """One request whose only answer is its Final."""
        return self.final(self.send(op, body))

    def register(self, layout: Layout) -> int:
        """The layout's handle on this connection. Errors: Refused."""
        if layout.id not in self._handles:
            final = self.ask(Op.REGISTER_LAYOUT, tlv(Kind.LAYOUT_CANONICAL, layout.canonical))
            if not final.all(Kind.LAYOUT_HANDLE):
                raise Refused(final)
            handle, *zeros, number = struct.unpack("<HHHH16s", final.one(Kind.LAYOUT_HANDLE))
            need(not any(zeros) and number == layout.id, "LayoutHandle names another layout")
            self._handles[layout.id] = handle
        return self._handles[layout.id]

    def sections(self, sections: Sequence[Section]) -> bytes:
        """As they travel, with the handles of this connection."""
        return b"".join(section.tlv(self.register(section.layout)) for section in sections)

    def cancel(self, request_id: int) -> Status:
        """Ends another request of this connection: ok, or miss(absent)."""
        return whole(self.ask(Op.CANCEL, tlv(Kind.CANCEL_TARGET, struct.pack("<Q", request_id))))

    def keyed(self, op: int, sections: Sequence[Section], more: bytes = b"", batch: Batch | None = None) -> list[list[Status]]:
        """A request whose items are answered one by one, in Answers and in its Final."""
        request_id = self.send(op, (batch or Batch()).tlv() + more + self.sections(sections))
        tally = Tally([section.items for section in sections], [False] * len(sections))
        while True:
            came = self.frame_of(request_id)
            need(came.op in (Op.ANSWERS, Op.FINAL), f"opcode {came.op} of a request without payload")
            tally.add(came)
            if came.op == Op.FINAL:
                return tally.settled()

    def close(self) -> None:
        """Ends the connection."""
        self.stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def hello_body(namespace: str | None, codecs: int, versions: tuple[int, int], client_id: int) -> bytes:
    """The TLVs of a Hello."""
    body = tlv(Kind.HELLO_CLIENT, struct.pack("<HHIQQ", *versions, 0, codecs, client_id))
    return body if namespace is None else body + tlv(Kind.NAMESPACE_NAME, namespace.encode())
