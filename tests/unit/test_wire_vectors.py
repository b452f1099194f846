"""The published bytes of wire protocol 1, encoded here a second time from docs/wire-protocol.md and the Python library alone.

native/wire/vectors_test.cc compares the same file with what the native code writes.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

xxhash = pytest.importorskip("xxhash")

VECTORS = Path(__file__).with_name("vectors") / "wire.txt"

MAGIC, CHUNK_PART = b"HSW1", 0x9E3779B1
HELLO, REGISTER_LAYOUT, GET, PUT, CANCEL, STAT, HOLD, NAMESPACE = 1, 2, 4, 5, 8, 10, 13, 17
CHUNK, WANT, ANSWERS, FINAL, LAYOUT_OF = 32, 33, 34, 35, 128
T_HELLO_CLIENT, T_NAMESPACE, T_HELLO_SERVER, T_SHARD_MAP = 1, 2, 4, 5
T_BATCH, T_SECTION, T_OFFERS, T_PART_TABLE, T_STATUSES = 8, 9, 10, 11, 12
T_CODING_CHOICES = 34
T_LENGTHS, T_MATCH_BITS, T_RUNS, T_GRANT, T_LOAD = 13, 14, 15, 16, 17
T_CURSOR, T_ENTRIES, T_COUNTERS = 20, 21, 22
T_AUTHENTICATION, T_CANONICAL, T_HANDLE, T_OWNER = 3, 6, 7, 19
T_CANCEL_TARGET, T_NAMESPACE_ACTION, T_UNTIL, T_LAYOUT_ID, T_PIN_BUDGET = 23, 24, 25, 27, 28
T_EXPLANATION, T_SHARD_HOSTS, T_KEY_QUESTION = 30, 31, 32797
KEYS = (b"key-0", b"key-1")
BLOCKS = (bytes(range(16)), bytes(range(16, 40)))


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def pad(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


def tlv(kind: int, value: bytes) -> bytes:
    return struct.pack("<HHI", kind, 0, len(value)) + pad(value)


def frame(opcode: int, request_id: int, body: bytes, payload: bytes = b"") -> bytes:
    head = MAGIC + struct.pack("<BBHQIII", opcode, 0, 0, request_id, len(body), len(payload), crc32c(body))
    return head + struct.pack("<I", crc32c(head)) + body + payload


def layout() -> bytes:
    fields = sorted([(b"model", b"tiny"), (b"dtype", b"bf16"), (b"engine", b"example 1.0")])
    out = struct.pack("<HH", 1, len(fields))
    for text in (text for field in fields for text in field):
        out += struct.pack("<H", len(text)) + text
    return out + struct.pack("<HHHIHHII", 2, 0, 1, 262144, 4, 2, 4096, 2048)


LAYOUT_ID = hashlib.sha256(layout()).digest()[:16]


def name_number(component: int, key: bytes) -> int:
    return xxhash.xxh3_64_intdigest(LAYOUT_ID + struct.pack("<I", component) + key) & 0xFFFFFFFF


def wire_check(data: bytes, number: int, part: int) -> int:
    return crc32c(data) ^ (number + part * CHUNK_PART & 0xFFFFFFFF)


def route(key: bytes, shards: int) -> int:
    seed = int.from_bytes(b"HALFSTEP", "big")
    return (xxhash.xxh3_64_intdigest(key, seed) >> 32) * shards >> 32


def section(keys: tuple[bytes, ...], *, flags: int = 0, component: int = 0, count: int = 1, ranges: bytes = b"") -> bytes:
    packed = b"".join(bytes([len(key)]) + key for key in keys)
    head = struct.pack("<HHIHHIII", 0, flags, component, count, len(ranges) // 12, len(keys), len(packed), 0)
    return tlv(T_SECTION, head + ranges + packed)


def batch(deadline_us: int = 0, *, order: int = 0, durability: int = 0, flags: int = 0) -> bytes:
    return tlv(T_BATCH, struct.pack("<IBBBBQII", deadline_us, 0, order, durability, flags, 0, 0, 0))


def offer(block: int, stored: int, *, parent: int = 0, kind: int = 0, depth: int = 0, ttl: int = 0, flags: int = 0) -> bytes:
    return struct.pack("<IIQBBHIII", block, stored, parent, kind, 0, depth, ttl, flags, 0)


def statuses(section_number: int, *runs: tuple[int, int, int, int]) -> bytes:
    body = b"".join(struct.pack("<IIBBH", first, count, answer, 0, reason) for first, count, answer, reason in runs)
    return tlv(T_STATUSES, struct.pack("<HHI", section_number, 0, len(runs)) + body)


def vectors() -> Iterator[tuple[str, str]]:
    yield "layout canonical", layout().hex()
    yield "layout id", LAYOUT_ID.hex()
    default = struct.pack("<HHH4sH7sHHHI", 1, 1, 4, b"name", 7, b"default", 1, 0, 1, 262144)
    yield "layout default", hashlib.sha256(default).digest()[:16].hex()
    for component, key in ((0, KEYS[0]), (0, KEYS[1]), (0x01000007, b"coded"), (0xFFFFFFFF, b"\xff" * 255)):
        yield f"name_number {component} {key.hex()}", str(name_number(component, key))
    yield "wire_check", str(wire_check(BLOCKS[0], name_number(0, KEYS[0]), 5))
    for key in (b"k", *KEYS, bytes(36), b"\xff" * 255):
        yield f"route {key.hex()}", " ".join(str(route(key, shards)) for shards in range(1, 17))

    yield (
        "frame hello",
        frame(
            HELLO, 1, tlv(T_HELLO_CLIENT, struct.pack("<HHIQQ", 1, 1, 0, 1, 0x0123456789ABCDEF)) + tlv(T_NAMESPACE, b"default")
        ).hex(),
    )
    server = struct.pack(
        "<HHIQ16s16s8I", 1, 1, 0, 1, b"\xa1" * 16, b"\xb2" * 16, 64 << 20, 2560, 4096, 256, 262144, 65536, 60000, 0
    )
    yield (
        "frame hello_final",
        frame(
            FINAL,
            1,
            statuses(0xFFFF, (0, 1, 1, 0))
            + tlv(T_HELLO_SERVER, server)
            + tlv(T_SHARD_MAP, bytes(8))
            + tlv(T_SHARD_HOSTS, struct.pack("<QII", 3, 0, 0))
            + tlv(T_AUTHENTICATION, bytes(8))
            + tlv(T_LOAD, bytes(16)),
        ).hex(),
    )
    yield (
        "frame get",
        frame(
            GET,
            2,
            batch(2_000_000, order=1) + section(KEYS, flags=1, component=1 << 24, count=2, ranges=struct.pack("<3I", 0, 2, 2)),
        ).hex(),
    )
    offers = offer(16, 16, kind=1) + offer(24, 24, kind=2, depth=1, ttl=3600)
    yield (
        "frame put",
        frame(
            PUT, 3, batch(5_000_000, durability=1) + section(KEYS) + tlv(T_OFFERS, struct.pack("<HHI", 0, 0, 2) + offers)
        ).hex(),
    )
    parts = ((3, 3072, 4096, 1), (0, 2048, 2048, 2), (3, 3072, 4096, 3), (0, 2048, 2048, 4))
    table = struct.pack("<HHIII", 0, 0, 0, 4, 0) + b"".join(struct.pack("<I3I", *part) for part in parts)
    coded = struct.pack("<HHI", 0, 0, 1) + offer(12288, 10240, flags=1)
    yield (
        "frame put_coded",
        frame(
            PUT, 4, batch() + section((b"coded",), component=1 << 24 | 7) + tlv(T_OFFERS, coded) + tlv(T_PART_TABLE, table)
        ).hex(),
    )
    plain = struct.pack("<HHI", 0, 0, 2) + offer(16, 16) + offer(24, 24)
    known = struct.pack("<4QII", 5_000_000_000, 9_000_000_000, 200_000_000, 6_000_000_000, 1480, 0)
    choices = struct.pack("<HHI", 0, 0, 2) + known + bytes([9, 8])  # no_gain, slow_decode
    yield (
        "frame put_choices",
        frame(PUT, 16, batch() + section(KEYS) + tlv(T_OFFERS, plain) + tlv(T_CODING_CHOICES, choices)).hex(),
    )
    grant = struct.pack("<QII", 40, 1, 0) + struct.pack("<HHII", 0, 0, 0, 2)
    yield "frame want", frame(WANT, 3, tlv(T_GRANT, grant)).hex()
    runs = struct.pack("<II", 2, 2)
    for item, block in enumerate(BLOCKS):
        runs += struct.pack("<HH7I", 0, 0, item, 0, 1, 0, len(block), len(block), 1)
    for key, block in zip(KEYS, BLOCKS, strict=True):
        runs += struct.pack("<I", wire_check(block, name_number(0, key), 0))
    yield "frame chunk", frame(CHUNK, 3, tlv(T_RUNS, runs), b"".join(BLOCKS)).hex()
    load = tlv(T_LOAD, struct.pack("<IIQ", 1, 250, 3_000_000_000))
    yield "frame final", frame(FINAL, 3, statuses(0, (0, 2, 1, 1)) + load).hex()
    bits = tlv(T_MATCH_BITS, struct.pack("<HHIBB", 0, 0, 10, 0xFF, 1))
    lengths = tlv(T_LENGTHS, struct.pack("<HHIIIII", 0, 0, 0, 2, 0, 4096, 0))
    yield "frame match_final", frame(FINAL, 5, bits + lengths + tlv(T_LOAD, bytes(16))).hex()
    entry = struct.pack("<16s5IBBH", bytes(16), 0, 16, 1, 1_700_000_000, 0, 5, 0, 0)
    listed = tlv(T_ENTRIES, struct.pack("<II", 1, 0) + entry + pad(KEYS[0]))
    cursor = tlv(T_CURSOR, struct.pack("<QII", 9, 1, 0))
    yield "frame list_final", frame(FINAL, 6, statuses(0xFFFF, (0, 1, 1, 0)) + listed + cursor + tlv(T_LOAD, bytes(16))).hex()
    yield from control_frames()
    yield from coded_frames()
    yield "shm ask", struct.pack("<4sHHQ", b"HSM1", 1, 1, 0).hex()
    yield "shm answer", struct.pack("<4sHHQIIQ", b"HSM1", 1, 0, 4096 + 3 * 65536, 131072, 65536, 0).hex()
    yield "shm refusal", struct.pack("<4sHHQIIQ", b"HSM1", 0, 1, 0, 0, 0, 0).hex()


def control_frames() -> Iterator[tuple[str, str]]:
    """Requests without payload, and answers to them."""
    ok, load = statuses(0xFFFF, (0, 1, 1, 0)), tlv(T_LOAD, bytes(16))
    token = struct.pack("<HHI", 1, 0, 0) + b"token"
    client = struct.pack("<HHIQQ", 1, 1, 0, 0b1001, 0x0123456789ABCDEF)
    yield "frame hello_authenticated", frame(HELLO, 1, tlv(T_HELLO_CLIENT, client) + tlv(T_AUTHENTICATION, token)).hex()
    shard_map = tlv(T_SHARD_MAP, struct.pack("<8H", 7350, 0, 0, 0, 7351, 0, 1, 0))
    hosts = tlv(T_SHARD_HOSTS, struct.pack("<QII", 4, 1, 0) + pad(b"\x06flash3"))
    yield "frame wrong_shard_final", frame(FINAL, 7, statuses(0xFFFF, (0, 1, 6, 52)) + shard_map + hosts + load).hex()
    yield "frame register_layout", frame(REGISTER_LAYOUT, 8, tlv(T_CANONICAL, layout())).hex()
    handle = tlv(T_HANDLE, bytes(8) + LAYOUT_ID)
    yield "frame register_layout_final", frame(FINAL, 8, ok + handle + load).hex()
    yield "frame layout_of", frame(LAYOUT_OF, 9, tlv(T_LAYOUT_ID, LAYOUT_ID)).hex()
    yield "frame answers", frame(ANSWERS, 3, statuses(0, (0, 1, 1, 2), (2, 1, 5, 32))).hex()
    yield "frame cancel", frame(CANCEL, 10, tlv(T_CANCEL_TARGET, struct.pack("<Q", 3))).hex()
    owner = tlv(T_OWNER, struct.pack("<QII", 0x1122334455667788, 0, 0))
    until = tlv(T_UNTIL, struct.pack("<QII", 0, 1, 0))
    yield "frame hold", frame(HOLD, 11, batch() + owner + until + section(KEYS)).hex()
    action = tlv(T_NAMESPACE_ACTION, struct.pack("<BBHIQ", 1, 1, 0, 86_400, 1 << 40))
    name, pins = tlv(T_NAMESPACE, b"tenant-a"), tlv(T_PIN_BUDGET, struct.pack("<Q", 1 << 30))
    yield "frame create_namespace", frame(NAMESPACE, 12, name + action + pins).hex()
    question = struct.pack("<IHBBII", 1, 1, 5, 0, 0, 4) + KEYS[0]
    yield "frame explain", frame(STAT, 13, tlv(T_KEY_QUESTION, question)).hex()
    told = tlv(T_EXPLANATION, b'{"now_s":1800000000,"blocks":[]}')
    yield "frame explain_final", frame(FINAL, 13, ok + told + load).hex()
    yield "frame stat_page", frame(STAT, 14, tlv(T_CURSOR, struct.pack("<QII", 5, 0, 0))).hex()
    counter = tlv(T_COUNTERS, struct.pack("<HHIQ", 4, 0, 0, 12) + pad(b"hits"))
    yield "frame stat_final", frame(FINAL, 14, ok + counter + tlv(T_CURSOR, bytes(16)) + load).hex()


def coded_frames() -> Iterator[tuple[str, str]]:
    """A get of the block that `put_coded` offers, and the one Chunk that it brings."""
    component, key = 1 << 24 | 7, b"coded"
    yield "frame get_decodable", frame(GET, 15, batch(flags=4) + section((key,), component=component)).hex()
    payload = bytes(i * 7 & 0xFF for i in range(10240))
    parts, at = [], 0
    for codec, stored, raw, raw_crc in ((3, 3072, 4096, 1), (0, 2048, 2048, 0), (3, 3072, 4096, 3), (0, 2048, 2048, 0)):
        crc = crc32c(payload[at : at + stored])
        parts.append((crc, struct.pack("<I3I", codec, stored, raw, raw_crc or crc)))
        at += stored
    table = struct.pack("<HHIII", 0, 0, 0, 4, 0) + b"".join(record for _, record in parts)
    runs = struct.pack("<II", 1, 4) + struct.pack("<HH7I", 0, 2, 0, 0, 4, 0, 10240, 12288, 4)
    number = name_number(component, key)
    for part, (crc, _) in enumerate(parts):
        runs += struct.pack("<I", crc ^ (number + part * CHUNK_PART & 0xFFFFFFFF))
    yield "frame chunk_coded", frame(CHUNK, 15, tlv(T_PART_TABLE, table) + tlv(T_RUNS, runs), payload).hex()


def published() -> dict[str, str]:
    lines = (line for line in VECTORS.read_text().splitlines() if line and not line.startswith("#"))
    return dict(line.split(" = ") for line in lines)


@pytest.mark.parametrize(("name", "value"), list(vectors()), ids=lambda text: text[:40])
def test_published_vector_is_what_the_document_describes(name: str, value: str) -> None:
    assert published()[name] == value


def test_nothing_else_is_published() -> None:
    assert list(published()) == [name for name, _ in vectors()]


def test_crc32c_has_the_check_value_of_its_catalogue() -> None:
    assert crc32c(b"123456789") == 0xE3069283
