"""What `list` and `stat` bring: records of the protocol, as values."""

from __future__ import annotations

import struct
from typing import NamedTuple

from halfstep.errors import ProtocolError

# EntryRecord of docs/wire-protocol.md: layout id, component, block bytes, parts, created, expiry, key bytes, flags, reserved.
_ENTRY = struct.Struct("<16sIIIIIBBH")
_COUNTER = struct.Struct("<Q")


class Entry(NamedTuple):
    """A block that is there. created_s, expiry_s: seconds of the store's clock (Unix time); expiry 0 = never."""

    layout_id: bytes
    component: int
    key: bytes
    block_bytes: int
    parts: int
    created_s: int
    expiry_s: int


def entry_of(record: bytes, key: bytes) -> Entry:
    """Errors: ProtocolError."""
    if len(record) != _ENTRY.size:
        raise ProtocolError(f"entry of {len(record)} bytes; version 1 has {_ENTRY.size}")
    layout_id, component, block_bytes, parts, created_s, expiry_s, _, _, _ = _ENTRY.unpack(record)
    return Entry(layout_id, component, key, block_bytes, parts, created_s, expiry_s)


def counters_of(records: list[tuple[bytes, bytes]]) -> dict[str, float]:
    """Counters by name, summed over shards. Errors: ProtocolError."""
    counters: dict[str, float] = {}
    for record, name in records:
        if len(record) != _COUNTER.size:
            raise ProtocolError(f"counter {name!r} of {len(record)} bytes; version 1 has {_COUNTER.size}")
        counters[name.decode()] = counters.get(name.decode(), 0) + _COUNTER.unpack(record)[0]
    return counters
