"""What a block's bytes mean, in canonical form, and which part of it is where.

The canonical form names a layout everywhere (docs/wire-protocol.md): two clients that write the same fields and shapes mean
the same blocks, and any difference keeps them apart.

    u16 version = 1
    u16 field_count   then per field, sorted bytewise by name: u16 length, name; u16 length, value   (UTF-8)
    u16 group_count   then per group: u16 part_count, u16 size_count, u32 part_bytes[size_count]

Little endian, no padding. The layout id is the first 16 bytes of its SHA-256.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from halfstep.arguments import whole_number
from halfstep.errors import ConfigError, ProtocolError

VERSION = 1
LAYOUT_BYTES_MAX = 16 * 1024
GROUPS_MAX = 256
PART_SIZES_MAX = 4
PARTS_MAX = 2560
BLOCK_BYTES_MAX = (256 << 20) - (256 << 10)
OPAQUE_PART_BYTES = 256 * 1024

VARIANTS_MAX = 1 << 4
CELLS_MAX = 1 << 20


@dataclass(frozen=True)
class Group:
    """How the blocks of one attention kind are cut into parts.

    part_count: parts of a block, at most 2,560; 0 = parts follow until the block's length ends, the last may be shorter.
    part_bytes: part p has part_bytes[p % len(part_bytes)] bytes; 1 to 4 sizes (K and V of different sizes, for example).
    Errors: ConfigError.
    """

    part_count: int
    part_bytes: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "part_count", whole_number("part_count", self.part_count))
        object.__setattr__(self, "part_bytes", tuple(whole_number("part_bytes", size) for size in self.part_bytes))
        if not 0 <= self.part_count <= PARTS_MAX:
            raise ConfigError(f"part_count={self.part_count}: must be 0 (until the length ends) to {PARTS_MAX}")
        if not 1 <= len(self.part_bytes) <= PART_SIZES_MAX:
            raise ConfigError(f"part_bytes has {len(self.part_bytes)} sizes: must be 1 to {PART_SIZES_MAX}, taken in turn")
        for size in self.part_bytes:
            if not 1 <= size <= BLOCK_BYTES_MAX:
                raise ConfigError(f"part_bytes={self.part_bytes}: each must be 1 to {BLOCK_BYTES_MAX}")
        if self._offset_of(self.part_count) > BLOCK_BYTES_MAX:
            raise ConfigError(
                f"{self.part_count} parts are {self._offset_of(self.part_count)} bytes: a block has at most {BLOCK_BYTES_MAX}; "
                "cut it into several components"
            )

    def _offset_of(self, part: int) -> int:
        cycles, rest = divmod(part, len(self.part_bytes))
        return cycles * sum(self.part_bytes) + sum(self.part_bytes[:rest])

    @property
    def block_bytes(self) -> int:
        """Bytes of a block whose parts are counted. Errors: ConfigError where part_count is 0: any length will do there."""
        if self.part_count == 0:
            raise ConfigError("block_bytes: a group with part_count=0 has blocks of any length; ask the block")
        return self._offset_of(self.part_count)

    def parts_of(self, block_bytes: int) -> int:
        """How many parts a block of `block_bytes` has; 0 when no block of this group can have that length."""
        if block_bytes <= 0:
            return 0
        if self.part_count:
            return self.part_count if self.block_bytes == block_bytes else 0
        cycles, rest = divmod(block_bytes, sum(self.part_bytes))
        parts = cycles * len(self.part_bytes)
        for size in self.part_bytes:
            if rest <= 0:
                break
            rest -= size
            parts += 1
        return parts if parts <= PARTS_MAX else 0


class Layout:
    """A frozen, hashable, picklable name for what blocks mean: model, weights revision, dtype, shapes, and so on.

    fields: name -> text or whole number. Names are 1 byte or more, unique, and sorted in the canonical form.
    groups: one shape per group of layers, numbered from 0 as in a component.
    Errors: ConfigError.
    Source: docs/wire-protocol.md, *Names*.
    """

    __slots__ = ("_canonical", "_fields", "_groups", "_id")

    def __init__(self, fields: Mapping[str, str | int], groups: Sequence[Group]) -> None:
        texts = {_utf8_checked(name): _value_text(name, value) for name, value in fields.items()}
        self._fields = MappingProxyType({name: texts[name] for name in sorted(texts, key=str.encode)})
        self._groups = tuple(groups)
        self._canonical = _canonical(self._fields, self._groups)
        self._id = hashlib.sha256(self._canonical).digest()[:16]

    @classmethod
    def opaque(cls, name: str, **fields: str | int) -> Layout:
        """Values of unknown make: one group, parts of 256 KiB until the length ends. `name` keeps different uses apart."""
        return cls({"name": name, **fields}, [Group(0, (OPAQUE_PART_BYTES,))])

    @classmethod
    def of_canonical(cls, canonical: bytes) -> Layout:
        """The layout with these bytes. Errors: ProtocolError (they are no layout's canonical form)."""
        try:
            layout = cls(*_parsed(canonical))
        except (struct.error, UnicodeDecodeError, ConfigError) as error:
            raise ProtocolError(f"layout of {len(canonical)} bytes: is not in canonical form: {error}") from None
        if layout.canonical != canonical:
            raise ProtocolError(
                f"layout of {len(canonical)} bytes: is not in canonical form: its fields are not sorted, or it is longer"
            )
        return layout

    @property
    def canonical(self) -> bytes:
        """The bytes that name it on the wire."""
        return self._canonical

    @property
    def id(self) -> bytes:
        """The first 16 bytes of the SHA-256 of `canonical`."""
        return self._id

    @property
    def fields(self) -> Mapping[str, str]:
        """The fields as text, sorted by name."""
        return self._fields

    @property
    def groups(self) -> tuple[Group, ...]:
        """The shapes, by group number."""
        return self._groups

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self._canonical == other._canonical

    def __hash__(self) -> int:
        return hash(self._id)

    def __reduce__(self) -> tuple[type[Layout], tuple[dict[str, str], tuple[Group, ...]]]:
        return Layout, (dict(self._fields), self._groups)

    def __repr__(self) -> str:
        return f"Layout({self._id.hex()}, {dict(self._fields)}, {len(self._groups)} groups)"


def component(group: int = 0, variant: int = 0, cell: int = 0) -> int:
    """The number of a piece of a key: group 8 bits, variant 4, cell 20, from the high bits down. Errors: ConfigError."""
    for name, value, bound in (("group", group, GROUPS_MAX), ("variant", variant, VARIANTS_MAX), ("cell", cell, CELLS_MAX)):
        if not 0 <= whole_number(name, value) < bound:
            raise ConfigError(f"{name}={value}: must be 0 to {bound - 1}")
    return group << 24 | variant << 20 | cell


def _value_text(name: str, value: str | int) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise ConfigError(f"field {name}={value!r}: must be text or a whole number; write it as text")
    return _utf8_checked(value) if isinstance(value, str) else str(int(value))


def _utf8_checked(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{text!r}: is no UTF-8 ({error.reason}); a layout's names and values are text") from None
    return text


def _counted(text: str, name: str, bytes_min: int) -> bytes:
    encoded = text.encode()
    if not bytes_min <= len(encoded) <= LAYOUT_BYTES_MAX:
        raise ConfigError(f"{name}: {len(encoded)} bytes; must be {bytes_min} to {LAYOUT_BYTES_MAX}")
    return struct.pack("<H", len(encoded)) + encoded


def _parsed(canonical: bytes) -> tuple[dict[str, str], list[Group]]:
    """Fields and groups. Errors: struct.error, UnicodeDecodeError, ConfigError."""
    at = 0

    def take(form: str) -> tuple[int, ...]:
        nonlocal at
        numbers: tuple[int, ...] = struct.unpack_from(form, canonical, at)
        at += struct.calcsize(form)
        return numbers

    def text() -> str:
        nonlocal at
        (size,) = take("<H")
        at += size
        return canonical[at - size : at].decode()

    version, field_count = take("<HH")
    if version != VERSION:
        raise ConfigError(f"version {version}; this build knows {VERSION}")
    fields = {text(): text() for _ in range(field_count)}
    (group_count,) = take("<H")
    groups = []
    for _ in range(group_count):
        part_count, size_count = take("<HH")
        groups.append(Group(part_count, take(f"<{size_count}I")))
    return fields, groups


def _canonical(fields: Mapping[str, str], groups: tuple[Group, ...]) -> bytes:
    if not 1 <= len(groups) <= GROUPS_MAX:
        raise ConfigError(f"{len(groups)} groups: a layout has 1 to {GROUPS_MAX}")
    pieces = [struct.pack("<HH", VERSION, len(fields))]
    for name, value in fields.items():
        pieces += [_counted(name, f"field name {name!r}", 1), _counted(value, f"field {name!r}", 0)]
    pieces.append(struct.pack("<H", len(groups)))
    for group in groups:
        sizes = group.part_bytes
        pieces.append(struct.pack(f"<HH{len(sizes)}I", group.part_count, len(sizes), *sizes))
    canonical = b"".join(pieces)
    if len(canonical) > LAYOUT_BYTES_MAX:
        raise ConfigError(f"layout: {len(canonical)} bytes in canonical form; at most {LAYOUT_BYTES_MAX}, shorten its fields")
    return canonical
