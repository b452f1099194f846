"""Memory for placed gets: regions, places, templates and rows, as they travel and as they lie. Section 16 of the page."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from tests.wire.frames import Kind, need, tlv
from tests.wire.layouts import PARTS_MAX

REGIONS_MAX, TEMPLATES_MAX = 64, 16


@dataclass(frozen=True)
class Piece:
    """Some bytes of a region."""

    offset: int
    size: int
    region: int = 0

    def encoded(self) -> bytes:
        """As a PlacePiece travels."""
        return struct.pack("<QII", self.offset, self.region, self.size)


@dataclass(frozen=True)
class Region:
    """Registered memory, as the other end is told of it. size: 0 forgets the number."""

    number: int
    key: int
    address: int
    size: int

    def record(self) -> bytes:
        return struct.pack("<IIQQ", self.number, self.key, self.address, self.size)

    def tlv(self) -> bytes:
        """For RegisterRegion."""
        return tlv(Kind.RDMA_REGION, self.record())


def keys_tlv(regions: Sequence[Region]) -> bytes:
    """Regions of a request's own. Their numbers ascend."""
    return tlv(Kind.PLACE_KEYS, b"".join(region.record() for region in regions))


def region_of(value: bytes) -> Region:
    """One that came. Errors: WireFault."""
    need(len(value) == 24, f"an RdmaRegion of {len(value)} bytes")
    region = Region(*struct.unpack("<IIQQ", value))
    need(region.number < REGIONS_MAX, f"region {region.number}")
    return region


@dataclass(frozen=True)
class PlacePart:
    """Where one part of a block lies, by its row."""

    offset: int
    row_stride: int
    inner_bytes: int
    inner_count: int = 1
    inner_stride: int = 0
    region: int = 0

    def encoded(self) -> bytes:
        """As it travels."""
        head = struct.pack("<QqqI", self.offset, self.row_stride, self.inner_stride, self.inner_count)
        return head + struct.pack("<III", self.inner_bytes, self.region, 0)

    def pieces(self, row: int) -> list[Piece]:
        """In the order of the part's bytes."""
        begins = self.offset + row * self.row_stride
        return [Piece(begins + at * self.inner_stride, self.inner_bytes, self.region) for at in range(self.inner_count)]


def template_tlv(number: int, parts: Sequence[PlacePart]) -> bytes:
    """For RegisterTemplate."""
    return tlv(Kind.PLACE_TEMPLATE, struct.pack("<II", number, len(parts)) + b"".join(part.encoded() for part in parts))


def template_of(value: bytes) -> tuple[int, list[PlacePart]]:
    """One that came. Errors: WireFault."""
    need(len(value) >= 8, f"a PlaceTemplate of {len(value)} bytes")
    number, count = struct.unpack_from("<II", value)
    fits = number < TEMPLATES_MAX and count <= PARTS_MAX and len(value) == 8 + 40 * count
    need(fits, f"template {number} of {count} parts in {len(value)} bytes")
    parts = []
    for at in range(8, len(value), 40):
        offset, row_stride, inner_stride, inner_count, inner_bytes, region, zero = struct.unpack_from("<QqqIIII", value, at)
        need(inner_count > 0 and inner_bytes > 0 and zero == 0, f"a PlacePart of {inner_count} times {inner_bytes}, {zero}")
        parts.append(PlacePart(offset, row_stride, inner_bytes, inner_count, inner_stride, region))
    return number, parts


@dataclass(frozen=True)
class Places:
    """Of a section's items, each its pieces."""

    items: Sequence[Sequence[Piece]]

    def tlv(self, section: int) -> bytes:
        """Behind the section."""
        pieces = [piece for item in self.items for piece in item]
        head = struct.pack("<HHIII", section, 0, len(self.items), len(pieces), 0)
        counts = struct.pack(f"<{len(self.items)}I", *map(len, self.items))
        return tlv(Kind.PLACES, head + b"".join(piece.encoded() for piece in pieces) + counts)

    def has(self, part: int) -> bool:
        """Every part of an item is laid over its pieces."""
        return part >= 0

    def pieces(self, item: int, part: int, before: int) -> tuple[Sequence[Piece], int]:
        """Over which pieces the part is laid, and at which byte of them it begins. before: bytes of the parts before it."""
        del part
        return self.items[item], before


def places_of(value: bytes) -> tuple[int, Places]:
    """Those that came, and their section. Errors: WireFault."""
    need(len(value) >= 16, f"Places of {len(value)} bytes")
    section, zero, item_count, piece_count, reserved = struct.unpack_from("<HHIII", value)
    need(zero == 0 and reserved == 0, f"Places with zero {zero}, {reserved}")
    need(len(value) == 16 + 16 * piece_count + 4 * item_count, f"Places of {len(value)} bytes, {piece_count} pieces")
    pieces = []
    for at in range(piece_count):
        offset, region, count = struct.unpack_from("<QII", value, 16 + 16 * at)
        need(count > 0, "a piece of no bytes")
        pieces.append(Piece(offset, count, region))
    counts = struct.unpack_from(f"<{item_count}I", value, 16 + 16 * piece_count)
    need(sum(counts) == piece_count, f"{piece_count} pieces, the items have {sum(counts)}")
    items, at = [], 0
    for count in counts:
        items.append(pieces[at : at + count])
        at += count
    return section, Places(items)


@dataclass(frozen=True)
class PlaceRows:
    """Of a section's items, each its row of a template."""

    template: int
    parts: Sequence[PlacePart]
    rows: Sequence[int]

    def tlv(self, section: int) -> bytes:
        """Behind the section."""
        head = struct.pack("<HHIII", section, 0, len(self.rows), self.template, 0)
        return tlv(Kind.PLACE_ROWS, head + struct.pack(f"<{len(self.rows)}q", *self.rows))

    def has(self, part: int) -> bool:
        """A template may have fewer parts than a block."""
        return part < len(self.parts)

    def pieces(self, item: int, part: int, before: int) -> tuple[Sequence[Piece], int]:
        """As those of Places: a part has pieces of its own."""
        del before
        return self.parts[part].pieces(self.rows[item]), 0


def rows_of(value: bytes) -> tuple[int, int, list[int]]:
    """Section, template and rows of PlaceRows that came. Errors: WireFault."""
    need(len(value) >= 16, f"PlaceRows of {len(value)} bytes")
    section, zero, item_count, template, reserved = struct.unpack_from("<HHIII", value)
    need(zero == 0 and reserved == 0, f"PlaceRows with zero {zero}, {reserved}")
    need(len(value) == 16 + 8 * item_count, f"PlaceRows of {len(value)} bytes, {item_count} items")
    return section, template, list(struct.unpack_from(f"<{item_count}q", value, 16))


Placing = Places | PlaceRows


def cut(pieces: Sequence[Piece], at: int, count: int) -> list[Piece] | None:
    """Where bytes `at` to `at + count` of what is laid over the pieces lie; None: these have no room for them."""
    found = []
    for piece in pieces:
        if not count:
            break
        if at >= piece.size:
            at -= piece.size
            continue
        size = min(count, piece.size - at)
        found.append(Piece(piece.offset + at, size, piece.region))
        at, count = 0, count - size
    return None if count else found
