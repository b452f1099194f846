"""What a layout is whose id alone is known: the daemon's answer to LayoutOf (docs/wire-protocol.md, section 5).

For tools that read blocks which somebody else stored. The question goes over a connection of its own, in plain Python, and
closes it; nothing of the data path is here.
Thread: any.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import struct
from collections.abc import Iterator

from halfstep.client.url import Endpoint
from halfstep.errors import ProtocolError, Unavailable
from halfstep.layout import Layout

_MAGIC = b"HSW1"
_HEAD = struct.Struct("<BBHQIII")
_HEADER_BYTES, _BODY_BYTES_MAX = 32, 64 << 10
_OP_HELLO, _OP_LAYOUT_OF, _OP_FINAL = 1, 128, 35
_HELLO_CLIENT, _NAMESPACE, _HELLO_SERVER, _CANONICAL, _STATUSES, _REASON, _NAMED_LAYOUT = 1, 2, 4, 6, 12, 18, 27
# A head of 8 and one run of 12.
_STATUSES_BYTES, _MISS = 20, 2
_VERSION, _RAW = 1, 1
_CASTAGNOLI = 0x82F63B78


def ask_layout(url: str, layout_id: bytes, *, timeout_s: float = 30.0) -> Layout | None:
    """The layout of the URL's namespace that has this id; None where there is none any more.

    Errors: ConfigError (url), Unavailable (no daemon, it refuses, or it cannot tell), ProtocolError (what came is no layout).
    """
    endpoint = Endpoint.parse(url)
    try:
        with contextlib.closing(_connect(endpoint.first_address, timeout_s)) as connected:
            hello = _tlv(_HELLO_CLIENT, struct.pack("<HHIQQ", _VERSION, _VERSION, 0, _RAW, secrets.randbits(64)))
            welcome = _ask(connected, _OP_HELLO, 1, hello + _tlv(_NAMESPACE, endpoint.namespace.encode()))
            if _HELLO_SERVER not in welcome:
                raise Unavailable(f"{url}: refuses the connection{_why(welcome)}")
            answer = _ask(connected, _OP_LAYOUT_OF, 2, _tlv(_NAMED_LAYOUT, layout_id))
    except OSError as error:
        raise Unavailable(f"{url}: {error.strerror or error}") from None
    if _CANONICAL in answer:
        return _checked(answer[_CANONICAL], layout_id)
    if _answer_of(answer) != _MISS:
        raise Unavailable(f"{url}: does not tell its layouts{_why(answer)}; it may be of an earlier build")
    return None


def _answer_of(final: dict[int, bytes]) -> int:
    """Of the request as a whole: section 9."""
    statuses = final.get(_STATUSES, b"")
    if len(statuses) != _STATUSES_BYTES:
        raise ProtocolError(f"Statuses of {len(statuses)} bytes; one answer has {_STATUSES_BYTES}")
    return statuses[16]


def _checked(canonical: bytes, layout_id: bytes) -> Layout:
    layout = Layout.of_canonical(canonical)
    if layout.id != layout_id:
        raise ProtocolError(f"layout of {layout_id.hex()}: what came is layout {layout.id.hex()}")
    return layout


def _connect(address: str, timeout_s: float) -> socket.socket:
    if address.startswith("unix:"):
        connected = socket.socket(socket.AF_UNIX)
        connected.settimeout(timeout_s)
        try:
            connected.connect(address.removeprefix("unix:"))
        except BaseException:
            connected.close()
            raise
        return connected
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.removeprefix("[").removesuffix("]"), int(port)), timeout_s)


def _ask(connected: socket.socket, opcode: int, request_id: int, body: bytes) -> dict[int, bytes]:
    """The Final of a request that has no other answer, its TLVs by kind."""
    head = _MAGIC + _HEAD.pack(opcode, 0, 0, request_id, len(body), 0, _crc32c(body))
    connected.sendall(head + struct.pack("<I", _crc32c(head)) + body)
    head = _receive(connected, _HEADER_BYTES)
    came, _, _, of_request, body_bytes, payload_bytes, body_crc = _HEAD.unpack_from(head, 4)
    if head[:4] != _MAGIC or struct.unpack_from("<I", head, 28)[0] != _crc32c(head[:28]):
        raise ProtocolError("what answers is no Halfstep daemon: its frame has another magic, or another checksum")
    if payload_bytes or body_bytes > _BODY_BYTES_MAX:
        raise ProtocolError(
            f"frame {came}: {body_bytes} bytes of body and {payload_bytes} of payload, {_BODY_BYTES_MAX} and 0 at most"
        )
    answer = _receive(connected, body_bytes)
    if _crc32c(answer) != body_crc:
        raise ProtocolError(f"frame {came}: its body has another checksum")
    tlvs = dict(_tlvs(answer))
    if came != _OP_FINAL or of_request != request_id:
        raise Unavailable(f"the daemon ended the connection{_why(tlvs)}")
    return tlvs


def _receive(connected: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        more = connected.recv(count - len(data))
        if not more:
            raise Unavailable("the daemon closed the connection")
        data += more
    return bytes(data)


def _tlv(kind: int, value: bytes) -> bytes:
    return struct.pack("<HHI", kind, 0, len(value)) + value + bytes(-len(value) % 8)


def _tlvs(body: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + 8 <= len(body):
        kind, _, size = struct.unpack_from("<HHI", body, at)
        if at + 8 + size > len(body):
            raise ProtocolError(f"TLV {kind} of {size} bytes reaches past its body")
        yield kind, body[at + 8 : at + 8 + size]
        at += 8 + size + -size % 8


def _why(tlvs: dict[int, bytes]) -> str:
    return f": {tlvs[_REASON].decode(errors='replace')}" if _REASON in tlvs else ""


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (_CASTAGNOLI if byte & 1 else 0)
        table.append(byte)
    return table


_OF_BYTE = _table()


def _crc32c(data: bytes) -> int:
    """RFC 3720; of some hundred bytes."""
    register = 0xFFFFFFFF
    for byte in data:
        register = _OF_BYTE[(register ^ byte) & 0xFF] ^ register >> 8
    return register ^ 0xFFFFFFFF
