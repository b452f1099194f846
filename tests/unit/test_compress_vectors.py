"""The published units of tests/unit/vectors/compress.txt, decoded by what docs/compression.md says and by nothing of ours."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

VECTORS = Path(__file__).parent / "vectors" / "compress.txt"
GROUP = 64
ELEMENTS = {1: "bf16", 2: "fp16", 3: "e4m3", 4: "e5m2"}


def published() -> Iterator[tuple[str, str, int, bytes, bytes]]:
    for line in VECTORS.read_text().splitlines():
        if line and not line.startswith("#"):
            name, element, row_values, raw, unit = line.split()
            yield name, element, int(row_values), bytes.fromhex(raw), bytes.fromhex(unit)


class Cursor:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        assert self.at + count <= len(self.data), "the unit ends early"
        self.at += count
        return self.data[self.at - count : self.at]


def groups(count: int) -> Iterator[int]:
    while count > 0:
        yield min(count, GROUP)
        count -= GROUP


def plane(data: bytes, length: int) -> list[int]:
    bits = [data[i // 8] >> i % 8 & 1 for i in range(8 * len(data))]
    assert not any(bits[length:]), "a spare bit is set"
    return bits[:length]


def take_planes(cursor: Cursor, length: int, count: int) -> list[list[int]]:
    return [plane(cursor.take((length + 7) // 8), length) for _ in range(count)]


def take_fractions(cursor: Cursor, element: str, length: int) -> list[tuple[int, int]]:
    """(sign, mantissa) of each value of one group."""
    if element == "bf16":
        return [(byte >> 7, byte & 0x7F) for byte in cursor.take(length)]
    if element == "fp16":
        low = cursor.take(length)
        signs, nines, eights = take_planes(cursor, length, 3)
        return [(s, n << 9 | e << 8 | b) for s, n, e, b in zip(signs, nines, eights, low, strict=True)]
    if element == "e4m3":
        packed = cursor.take((length + 1) // 2)
        nibbles = [byte & 15 for byte in packed] + [byte >> 4 for byte in packed]
        assert not any(nibbles[length:])
        return [(nibble >> 3, nibble & 7) for nibble in nibbles[:length]]
    signs, ones, zeros = take_planes(cursor, length, 3)
    return [(s, o << 1 | z) for s, o, z in zip(signs, ones, zeros, strict=True)]


def decode(unit: bytes) -> tuple[str, bytes]:
    """The element and the raw bytes of a bfx unit."""
    version, number, row_values, values, second, third = struct.unpack_from("<BBHIII", unit)
    listed, tail_bytes, zero = unit[16:25], unit[25], unit[26:28]
    assert version == 1
    assert zero == b"\0\0"
    element = ELEMENTS[number]
    cursor = Cursor(unit[28:])
    bases = cursor.take(row_values)
    fractions = [pair for length in groups(values) for pair in take_fractions(cursor, element, length)]
    levels = [
        [code for length in groups(count) for code in zip(*take_planes(cursor, length, 2), strict=True)]
        for count in (values, second, third)
    ]
    rest = cursor.take(len(unit) - 28 - cursor.at - tail_bytes)
    tail = cursor.take(tail_bytes)
    symbols = list(rest)
    for number, level in reversed(list(enumerate(levels))):
        below = iter(symbols)
        symbols = [next(below) if (a, b) == (1, 1) else listed[3 * number + a + 2 * b] for a, b in level]
        assert next(below, None) is None, "a level sends on fewer values than the next one has"
    out = bytearray()
    for i, (symbol, (sign, mantissa)) in enumerate(zip(symbols, fractions, strict=True)):
        exponent = (symbol + bases[i % row_values]) % 256 if row_values else symbol
        if element in ("bf16", "fp16"):
            exponent_bits, mantissa_bits = (8, 7) if element == "bf16" else (5, 10)
            assert exponent < 1 << exponent_bits
            out += struct.pack("<H", sign << 15 | exponent << mantissa_bits | mantissa)
        else:
            exponent_bits, mantissa_bits = (4, 3) if element == "e4m3" else (5, 2)
            assert exponent < 1 << exponent_bits
            out.append(sign << 7 | exponent << mantissa_bits | mantissa)
    return element, bytes(out) + tail


@pytest.mark.parametrize(("name", "element", "row_values", "raw", "unit"), list(published()), ids=[v[0] for v in published()])
def test_a_published_unit_decodes_by_the_description(name: str, element: str, row_values: int, raw: bytes, unit: bytes) -> None:
    found, decoded = decode(unit)
    assert decoded == raw
    assert found == (element if element != "unknown" else "bf16")
    assert len(unit) <= len(raw) * 0.97


def test_the_published_units_use_all_that_the_format_has() -> None:
    units = {name: unit for name, _, _, _, unit in published()}
    assert {unit[1] for unit in units.values()} == set(ELEMENTS)
    assert units["bf16-bases"][2] > 0, "bases"
    assert units["bf16-odd-byte"][25] == 1, "a tail"
    assert any(struct.unpack_from("<I", unit, 4)[0] % GROUP for unit in units.values()), "a last group of fewer than 64"
