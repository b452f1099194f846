"""CRC32C, the number of a name, the check of a part and the route of a key: sections 3 and 4 of the page."""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt
import xxhash

Bytes = bytes | bytearray | memoryview

MASK_32 = 0xFFFFFFFF
PART_STEP = 0x9E3779B1
ROUTE_SEED = 0x48414C4653544550

# Long data goes through in lanes of so many bytes, all of them side by side; then lanes are joined, two and two. That is some
# dozens of steps, however long it is.
_LANE_BYTES = 16
_LANES_MIN = 64
_POLYNOMIAL = 0x82F63B78


def _table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return table


_TABLE = _table()
_WIDE = np.array(_TABLE, np.uint32)


def _step(states: npt.NDArray[np.uint32], column: npt.NDArray[np.uint8] | int) -> npt.NDArray[np.uint32]:
    stepped: npt.NDArray[np.uint32] = _WIDE[(states ^ column) & 0xFF] ^ (states >> np.uint32(8))
    return stepped


def _shifted(states: npt.NDArray[np.uint32], tables: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """The states after the zeros that the tables stand for: one for each byte of a state, since the register is linear."""
    wide: npt.NDArray[np.uint32] = tables[0][states & 0xFF] ^ tables[3][states >> np.uint32(24)]
    wide ^= tables[1][states >> np.uint32(8) & 0xFF] ^ tables[2][states >> np.uint32(16) & 0xFF]
    return wide


def _after_a_lane_of_zeros() -> npt.NDArray[np.uint32]:
    states = np.arange(256, dtype=np.uint32) << np.arange(0, 32, 8, dtype=np.uint32)[:, None]
    for _ in range(_LANE_BYTES):
        states = _step(states, 0)
    return states


# After 1, 2, 4, ... lanes of zeros, as far as data was long enough to ask for.
_ZEROS = [_after_a_lane_of_zeros()]


def _joined(states: npt.NDArray[np.uint32]) -> int:
    """The state after all lanes, from those of each by itself."""
    level = 0
    while len(states) > 1:
        if len(states) % 2:
            states = np.concatenate((np.zeros(1, np.uint32), states))
        if level == len(_ZEROS):
            _ZEROS.append(_shifted(_ZEROS[-1], _ZEROS[-1]))
        states = _shifted(states[::2], _ZEROS[level]) ^ states[1::2]
        level += 1
    return int(states[0])


def crc32c(data: Bytes) -> int:
    """CRC32C (RFC 3720) of the bytes."""
    state = MASK_32
    lanes = len(data) // _LANE_BYTES
    if lanes >= _LANES_MIN:
        columns = np.frombuffer(data, np.uint8, lanes * _LANE_BYTES).reshape(lanes, _LANE_BYTES).T.copy()
        states = np.zeros(lanes, np.uint32)
        states[0] = state
        for column in columns:
            states = _step(states, column)
        state = _joined(states)
        data = data[lanes * _LANE_BYTES :]
    table = _TABLE
    for byte in bytes(data):
        state = state >> 8 ^ table[(state ^ byte) & 0xFF]
    return state ^ MASK_32


def name_number(layout_id: bytes, component: int, key: bytes) -> int:
    """The number that binds a part's check to the name of its block."""
    return xxhash.xxh3_64_intdigest(layout_id + struct.pack("<I", component) + key) & MASK_32


def part_check(number: int, part: int, data: Bytes) -> int:
    """What travels beside a part: number is that of its block's name."""
    return crc32c(data) ^ (number + part * PART_STEP & MASK_32)


def shard_of(key: bytes, shards: int) -> int:
    """The shard that holds every component of an engine key."""
    return (xxhash.xxh3_64_intdigest(key, seed=ROUTE_SEED) >> 32) * shards >> 32
