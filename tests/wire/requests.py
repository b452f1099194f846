"""What requests with keys consist of: Batch, Section, Offers. Sections 6 and 8 of the page."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.wire.frames import Kind, tlv
from tests.wire.layouts import Group, Layout

KEY_MAJOR, LAYER_MAJOR = 0, 1
CACHE, PERSIST = 0, 1
LENGTHS_WANTED, FOLLOW, DECODABLE, WAIT = 1, 2, 4, 8
STOP_AT_MISS = 1
PARENT_UNKNOWN, PARENT_ROOT, PARENT_IN_BATCH, PARENT_KNOWN = 0, 1, 2, 3
CODED = 1


@dataclass(frozen=True)
class Batch:
    """What holds for the whole request. deadline_us: 0 is none. hold_ms: above 0 exactly when there is an owner."""

    deadline_us: int = 0
    priority: int = 0
    order: int = KEY_MAJOR
    durability: int = CACHE
    flags: int = 0
    hold_owner: int = 0
    hold_ms: int = 0

    def tlv(self) -> bytes:
        """As it travels."""
        value = struct.pack("<IBBBB", self.deadline_us, self.priority, self.order, self.durability, self.flags)
        return tlv(Kind.BATCH, value + struct.pack("<QII", self.hold_owner, self.hold_ms, 0))


@dataclass(frozen=True)
class PartRange:
    """Parts start, start + stride, …"""

    start: int
    count: int
    stride: int = 1


@dataclass
class Section:
    """Some keys of a layout, with cells `first_component` and following of each."""

    layout: Layout
    keys: Sequence[bytes]
    first_component: int = 0
    component_count: int = 1
    ranges: Sequence[PartRange] = ()
    stop_at_miss: bool = False

    @property
    def items(self) -> int:
        """How many there are."""
        return len(self.keys) * self.component_count

    @property
    def group(self) -> Group:
        """That of its components."""
        return self.layout.groups[self.first_component >> 24]

    def name(self, item: int) -> tuple[bytes, int]:
        """Engine key and component of an item."""
        return self.keys[item // self.component_count], self.first_component + item % self.component_count

    def selected(self) -> list[int]:
        """The parts that its ranges name, in their order; none: all."""
        return [each.start + at * each.stride for each in self.ranges for at in range(each.count)]

    def tlv(self, handle: int) -> bytes:
        """As it travels."""
        keys = b"".join(bytes([len(key)]) + key for key in self.keys)
        head = struct.pack("<HHI", handle, STOP_AT_MISS if self.stop_at_miss else 0, self.first_component)
        head += struct.pack("<HHIII", self.component_count, len(self.ranges), len(self.keys), len(keys), 0)
        ranges = b"".join(struct.pack("<III", each.start, each.count, each.stride) for each in self.ranges)
        return tlv(Kind.SECTION, head + ranges + keys)


@dataclass(frozen=True)
class Offer:
    """A block that a put has. stored_bytes: what travels; the same as block_bytes unless it is coded."""

    block_bytes: int
    stored_bytes: int
    parent: int = 0
    parent_kind: int = PARENT_UNKNOWN
    hint: int = 0
    depth: int = 0
    ttl_s: int = 0
    flags: int = 0

    def encoded(self) -> bytes:
        """As it travels."""
        sizes = struct.pack("<IIQ", self.block_bytes, self.stored_bytes, self.parent)
        return sizes + struct.pack("<BBHIII", self.parent_kind, self.hint, self.depth, self.ttl_s, self.flags, 0)


@dataclass(frozen=True)
class PartRecord:
    """How a part of a coded block travels."""

    codec: int
    stored_bytes: int
    raw_bytes: int
    raw_crc: int

    def encoded(self) -> bytes:
        """As it travels."""
        return struct.pack("<B3xIII", self.codec, self.stored_bytes, self.raw_bytes, self.raw_crc)


@dataclass
class Block:
    """One that a put sends: its parts as they travel, and what its offer says."""

    parts: list[bytes]
    offer: Offer
    table: list[PartRecord] = field(default_factory=list)


def offers_tlv(section: int, offers: Sequence[Offer]) -> bytes:
    """All offers of a section."""
    return tlv(Kind.OFFERS, struct.pack("<HHI", section, 0, len(offers)) + b"".join(each.encoded() for each in offers))


def part_table_tlv(section: int, item: int, table: Sequence[PartRecord]) -> bytes:
    """The table of one coded item."""
    head = struct.pack("<HHIII", section, 0, item, len(table), 0)
    return tlv(Kind.PART_TABLE, head + b"".join(record.encoded() for record in table))
