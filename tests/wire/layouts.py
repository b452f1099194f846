"""Layouts, groups, parts and components: section 3 of the page."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.wire.frames import need

PARTS_MAX = 2560
VALUE_PART_BYTES = 262_144


@dataclass(frozen=True)
class Group:
    """Blocks of one make. part_count: 0, as many as the length gives. part_bytes: lengths of parts, in turn."""

    part_count: int
    part_bytes: tuple[int, ...]

    def parts_of(self, block_bytes: int) -> list[tuple[int, int]] | None:
        """(offset, length) of each part; None when a block cannot have this length."""
        parts: list[tuple[int, int]] = []
        at = 0
        while len(parts) < self.part_count if self.part_count else at < block_bytes:
            size = self.part_bytes[len(parts) % len(self.part_bytes)]
            if not self.part_count:
                size = min(size, block_bytes - at)
            parts.append((at, size))
            at += size
        return parts if at == block_bytes and 1 <= len(parts) <= PARTS_MAX else None


# Values of unknown make.
VALUES = Group(0, (VALUE_PART_BYTES,))


class Layout:
    """What a block's bytes mean."""

    def __init__(self, fields: Mapping[str, object], groups: Sequence[Group] = (VALUES,)) -> None:
        self.groups = tuple(groups)
        texts = sorted((name.encode(), str(value).encode()) for name, value in fields.items())
        out = struct.pack("<HH", 1, len(texts))
        for name, value in texts:
            out += struct.pack("<H", len(name)) + name + struct.pack("<H", len(value)) + value
        out += struct.pack("<H", len(self.groups))
        for group in self.groups:
            sizes = group.part_bytes
            out += struct.pack(f"<HH{len(sizes)}I", group.part_count, len(sizes), *sizes)
        self.canonical = out
        self.id = hashlib.sha256(out).digest()[:16]


def component(group: int, cell: int = 0, variant: int = 0) -> int:
    """Which piece of a key."""
    return group << 24 | variant << 20 | cell


def layout_of(canonical: bytes) -> Layout:
    """The layout that a canonical form says. Errors: WireFault."""
    at = 0

    def number() -> int:
        nonlocal at
        at += 2
        need(at <= len(canonical), f"a layout of {len(canonical)} bytes ends early")
        return int.from_bytes(canonical[at - 2 : at], "little")

    def text() -> str:
        nonlocal at
        count = number()
        at += count
        return canonical[at - count : at].decode()

    need(number() == 1, "the version of a layout is 1")
    fields = {text(): text() for _ in range(number())}
    groups = []
    for _ in range(number()):
        part_count, size_count = number(), number()
        need(at + 4 * size_count <= len(canonical), f"a layout of {len(canonical)} bytes ends early")
        groups.append(Group(part_count, struct.unpack_from(f"<{size_count}I", canonical, at)))
        at += 4 * size_count
    layout = Layout(fields, groups)
    need(layout.canonical == canonical, "a layout that is not canonical")
    return layout
