"""Frames and TLVs, section 2 of the page: what goes out is built here, what comes in is checked here and nowhere else."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from tests.wire.checksums import crc32c

MAGIC = b"HSW1"
HEADER_BYTES = 32
BODY_BYTES_MAX = 2 << 20
CHUNK_BODY_BYTES_MAX = 64 << 10
CHUNK_BYTES_MAX = 256 << 10

Tlv = tuple[int, bytes]


class Op(IntEnum):
    """Opcodes, section 5."""

    HELLO = 1
    REGISTER_LAYOUT = 2
    MATCH = 3
    GET = 4
    PUT = 5
    RELEASE = 6
    DELETE = 7
    CANCEL = 8
    LIST = 9
    STAT = 10
    PREFETCH = 11
    TOUCH = 12
    HOLD = 13
    RENEW = 14
    EXPIRE = 15
    CLEAR = 16
    NAMESPACE = 17
    LAYOUT_OF = 128
    REGISTER_REGION = 129
    REGISTER_TEMPLATE = 130
    CHUNK = 32
    WANT = 33
    ANSWERS = 34
    FINAL = 35
    ABORT = 36
    PLACED = 37


class Kind(IntEnum):
    """Kinds of TLV, section 2."""

    HELLO_CLIENT = 1
    NAMESPACE_NAME = 2
    AUTHENTICATION = 3
    HELLO_SERVER = 4
    SHARD_MAP = 5
    LAYOUT_CANONICAL = 6
    LAYOUT_HANDLE = 7
    BATCH = 8
    SECTION = 9
    OFFERS = 10
    PART_TABLE = 11
    STATUSES = 12
    LENGTHS = 13
    MATCH_BITS = 14
    RUNS = 15
    GRANT = 16
    LOAD = 17
    REASON = 18
    OWNER = 19
    CURSOR = 20
    ENTRIES = 21
    COUNTERS = 22
    CANCEL_TARGET = 23
    NAMESPACE_ACTION = 24
    UNTIL = 25
    EXPIRY = 26
    LAYOUT_ID = 27
    PIN_BUDGET = 28
    EXPLANATION = 30
    SHARD_HOSTS = 31
    NAMESPACE_CODING = 32
    CODING_CHOICES = 34
    RDMA_OFFER = 64
    RDMA_ANSWER = 65
    RDMA_REGION = 66
    PLACE_TEMPLATE = 67
    PLACES = 68
    PLACE_ROWS = 69
    RDMA_READS = 70
    PLACE_KEYS = 71
    KEY_QUESTION = 32797
    SET_CODING = 32801


# A kind with this bit must be understood, whoever receives it.
MUST_UNDERSTAND = 0x8000


class WireFault(Exception):
    """The server broke a rule of the page."""


class Closed(Exception):
    """The connection is at its end."""


class Aborted(Exception):
    """The server sent an Abort, with this reason."""


def need(condition: object, what: str) -> None:
    """Raises WireFault unless the server kept this rule."""
    if not condition:
        raise WireFault(what)


class Source(Protocol):
    """Where bytes come from."""

    def receive(self, count: int, timeout_s: float) -> bytes:
        """Exactly so many bytes. Errors: TimeoutError, Closed."""


@dataclass
class Frame:
    """One that came."""

    op: int
    request_id: int
    tlvs: list[Tlv]
    payload: bytes = b""

    def all(self, kind: Kind) -> list[bytes]:
        """The values of this kind, in their order."""
        return [value for number, value in self.tlvs if number == kind]

    def one(self, kind: Kind) -> bytes:
        """The only value of this kind."""
        values = self.all(kind)
        need(len(values) == 1, f"{kind.name} comes {len(values)} times in opcode {self.op}, once is right")
        return values[0]

    @property
    def reason(self) -> str:
        """The text for people, if there is one."""
        return " / ".join(value.decode() for value in self.all(Kind.REASON))


def tlv(kind: int, value: bytes) -> bytes:
    """One TLV, padded."""
    return struct.pack("<HHI", kind, 0, len(value)) + value + bytes(-len(value) % 8)


def frame(op: int, request_id: int, body: bytes = b"", payload: bytes = b"", **lies: int) -> bytes:
    """A whole frame with right checksums.

    lies: flags, reserved, body_bytes, payload_bytes, body_crc, header_crc: what it says instead of the truth.
    """
    head = MAGIC + struct.pack(
        "<BBHQIII",
        op,
        lies.get("flags", 0),
        lies.get("reserved", 0),
        request_id,
        lies.get("body_bytes", len(body)),
        lies.get("payload_bytes", len(payload)),
        lies["body_crc"] if "body_crc" in lies else crc32c(body),
    )
    return head + struct.pack("<I", lies["header_crc"] if "header_crc" in lies else crc32c(head)) + body + payload


def parse_tlvs(body: bytes) -> list[Tlv]:
    """What a body holds."""
    need(len(body) % 8 == 0, f"a body of {len(body)} bytes: no multiple of 8")
    found: list[Tlv] = []
    at = 0
    while at < len(body):
        kind, reserved, size = struct.unpack_from("<HHI", body, at)
        padded = size + -size % 8
        need(reserved == 0, f"TLV {kind}: its reserved field is {reserved}")
        need(at + 8 + padded <= len(body), f"TLV {kind} of {size} bytes reaches past its body")
        need(not any(body[at + 8 + size : at + 8 + padded]), f"TLV {kind}: its padding is not zero")
        need(not kind & MUST_UNDERSTAND, f"TLV {kind} of a server's has to be understood, and is not")
        found.append((kind, body[at + 8 : at + 8 + size]))
        at += 8 + padded
    return found


def read_any(source: Source, timeout_s: float) -> Frame:
    """The next frame of either end. Errors: WireFault, Aborted, Closed, TimeoutError."""
    head = source.receive(HEADER_BYTES, timeout_s)
    need(head[:4] == MAGIC, f"magic {head[:4]!r}")
    need(crc32c(head[:28]) == struct.unpack_from("<I", head, 28)[0], "header checksum")
    op, flags, reserved, request_id, body_bytes, payload_bytes, body_crc = struct.unpack_from("<BBHQIII", head, 4)
    need(flags == 0 and reserved == 0, f"flags {flags}, reserved {reserved}")
    body_max = CHUNK_BODY_BYTES_MAX if op in (Op.CHUNK, Op.PLACED) else BODY_BYTES_MAX
    need(body_bytes <= body_max, f"opcode {op}: {body_bytes} bytes of body")
    need(payload_bytes <= (CHUNK_BYTES_MAX if op == Op.CHUNK else 0), f"opcode {op}: {payload_bytes} bytes of payload")
    body = source.receive(body_bytes, timeout_s)
    need(crc32c(body) == body_crc, f"opcode {op}: body checksum")
    came = Frame(op, request_id, parse_tlvs(body), source.receive(payload_bytes, timeout_s))
    if op == Op.ABORT:
        need(request_id == 0, f"an Abort of request {request_id}")
        raise Aborted(came.reason)
    need(request_id != 0, f"opcode {op} of request 0")
    return came


def read_frame(source: Source, timeout_s: float) -> Frame:
    """The next frame of a server. Errors: WireFault, Aborted, Closed, TimeoutError."""
    came = read_any(source, timeout_s)
    need(came.op in (Op.CHUNK, Op.PLACED, Op.WANT, Op.ANSWERS, Op.FINAL), f"opcode {came.op} from a server")
    if came.op == Op.FINAL:
        need(len(came.one(Kind.LOAD)) == 16, "Load's size")
    return came
