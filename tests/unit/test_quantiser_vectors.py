"""The published units of tests/unit/vectors/quantiser.txt, by what docs/quantiser.md says and by nothing of ours.

Each is decoded, and its step and its levels are computed anew from the raw bytes, in numpy's float32.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

VECTORS = Path(__file__).parent / "vectors" / "quantiser.txt"
GROUP = 64
HEADER = struct.Struct("<BBHIIIIf9sBBB")
F32 = np.float32
Floats = npt.NDArray[np.float32]


@dataclass
class Vector:
    name: str
    element: str
    row_values: int
    share: np.float32
    raw: bytes
    unit: bytes
    back: bytes


def published() -> Iterator[Vector]:
    for line in VECTORS.read_text().splitlines():
        if line and not line.startswith("#"):
            name, element, row_values, share, *data = line.split()
            yield Vector(name, element, int(row_values), F32(share), *map(bytes.fromhex, data))


every_vector = pytest.mark.parametrize("vector", list(published()), ids=lambda vector: vector.name)


def floats(element: str, raw: bytes) -> Floats:
    if element == "fp16":
        return np.frombuffer(raw, np.float16).astype(F32)
    return (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(F32)


def rounded(element: str, values: Floats) -> bytes:
    """To the element, to nearest, of equals the even one."""
    if element == "fp16":
        return values.astype(np.float16).tobytes()
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16).tobytes()


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


def take_planes(cursor: Cursor, length: int, count: int) -> list[list[int]]:
    planes = []
    for _ in range(count):
        data = cursor.take((length + 7) // 8)
        bits = [data[i // 8] >> i % 8 & 1 for i in range(8 * len(data))]
        assert not any(bits[length:]), "a spare bit is set"
        planes.append(bits[:length])
    return planes


def signed(byte: int, bits: int) -> int:
    return byte - (1 << bits) if byte >> (bits - 1) else byte


def take_offsets(cursor: Cursor, channels: int, bits: int, shift: int) -> list[int]:
    if bits == 0:
        return [0] * channels
    data = cursor.take((channels * bits + 7) // 8)
    parts = list(data) if bits == 8 else [half for byte in data for half in (byte & 15, byte >> 4)]
    assert not any(parts[channels:]), "a spare half is set"
    return [signed(part, bits) << shift for part in parts[:channels]]


def levels_of(unit: bytes) -> tuple[np.float32, npt.NDArray[np.int16]]:
    """The step and the levels of a ubq unit."""
    version, element, channels, values, second, third, far, step, listed, low_bits, mean_bits, mean_shift = HEADER.unpack_from(
        unit
    )
    assert (version, HEADER.size) == (1, 36)
    assert element in (1, 2)
    cursor = Cursor(unit[HEADER.size :])
    offsets = take_offsets(cursor, channels, mean_bits, mean_shift)
    lows: list[int] = []
    for length in groups(values):
        planes = take_planes(cursor, length, low_bits)
        lows += [sum(plane[i] << bit for bit, plane in enumerate(planes)) for i in range(length)]
    levels = [
        [code for length in groups(count) for code in zip(*take_planes(cursor, length, 2), strict=True)]
        for count in (values, second, third)
    ]
    symbols = list(cursor.take(len(unit) - HEADER.size - cursor.at - 2 * far))
    distant = iter(struct.unpack(f"<{far}h", cursor.take(2 * far)))
    for number, level in reversed(list(enumerate(levels))):
        below = iter(symbols)
        symbols = [next(below) if (a, b) == (1, 1) else listed[3 * number + a + 2 * b] for a, b in level]
        assert next(below, None) is None, "a level sends on fewer values than the next one has"
    whole = [next(distant) if symbol == 0x80 else signed(symbol, 8) for symbol in symbols]
    assert next(distant, None) is None
    out = [(high << low_bits) + low + offsets[i % channels] for i, (high, low) in enumerate(zip(whole, lows, strict=True))]
    return F32(step), np.array(out, np.int64).astype(np.int16)


def step_of(values: Floats, channels: int, share: np.float32) -> np.float32:
    """By section 4, operation by operation."""
    rows = values.reshape(-1, channels)
    seen = min(len(rows), 64)
    rows = rows[[i * len(rows) // seen for i in range(seen)]]
    sums = np.zeros(channels, F32)
    for row in rows:
        sums = sums + row
    centres = sums * (F32(1) / F32(seen)) if seen > 1 else np.zeros(channels, F32)
    distances = np.zeros(16, F32)
    for row in rows:
        for channel in range(channels):
            distances[channel % 16] += abs(row[channel] - centres[channel])
    parts = min(channels, 16)
    means = [distances[lane] * (F32(1) / F32(seen * len(range(lane, channels, 16)))) for lane in range(parts)]
    step: np.float32 = sorted(means)[parts // 2] * F32(1.25) * share
    return step


@every_vector
def test_a_published_unit_decodes_by_the_description(vector: Vector) -> None:
    step, levels = levels_of(vector.unit)
    assert rounded(vector.element, levels.astype(F32) * step) == vector.back


@every_vector
def test_its_step_and_levels_are_those_of_the_stated_operations(vector: Vector) -> None:
    values = floats(vector.element, vector.raw)
    step, levels = levels_of(vector.unit)
    assert step == step_of(values, vector.row_values, vector.share)
    assert np.array_equal(np.rint(values * (F32(1) / step)).astype(np.int16), levels)


@every_vector
def test_no_value_is_off_by_more_than_half_a_step_and_its_rounding(vector: Vector) -> None:
    step, _ = levels_of(vector.unit)
    before = floats(vector.element, vector.raw).astype(np.float64)
    after = floats(vector.element, vector.back).astype(np.float64)
    half_ulps = np.abs(after) * (2.0**-11 if vector.element == "fp16" else 2.0**-8)
    assert (np.abs(before - after) <= float(step) / 2 * (1 + 2.0**-20) + np.maximum(half_ulps, 2.0**-25)).all()


def test_the_units_show_every_feature() -> None:
    heads = [HEADER.unpack_from(vector.unit) for vector in published()]
    assert {head[1] for head in heads} == {1, 2}
    assert {head[10] for head in heads} == {0, 4, 8}, "means"
    assert {0, 5} <= {head[9] for head in heads}, "low bits"
    assert any(head[6] > 0 for head in heads), "far symbols"
    assert any(head[3] % GROUP for head in heads), "a last group"
