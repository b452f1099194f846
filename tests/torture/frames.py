"""Frames of the wire protocol built by hand, apart from the library's own code: a second reading of docs/wire-protocol.md."""

from __future__ import annotations

import struct

MAGIC = 0x31575348


def _table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


_CRC = _table()


def crc32c(data: bytes) -> int:
    """CRC32C, bit by bit from its definition (RFC 3720)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _CRC[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def seal(opcode: int, request_id: int, body: bytes, payload: bytes = b"") -> bytes:
    """A whole frame with right checksums."""
    head = struct.pack("<IBBHQIII", MAGIC, opcode, 0, 0, request_id, len(body), len(payload), crc32c(body))
    return head + struct.pack("<I", crc32c(head)) + body + payload
