"""Blocks of a running daemon's namespace, as units that a codec can be tried on.

What a block is made of is said by its layout, which the daemon is asked for. A unit is a part as it is stored: of a layout of
halfstep.tier.shapes one head's plane of one layer.

Invariants: blocks are read and nothing else; what went meanwhile is left out, and counted. Blocks of lossy codecs are left out
as well: what was quantised says nothing of what real K and V would become.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import TYPE_CHECKING, cast

import numpy as np

from halfstep.client.layout_question import ask_layout
from halfstep.compress import CODECS, ELEMENTS, LOSSY, ROW_VALUES_MAX, Element, PartValues
from halfstep.compress.analysis import Block, Unit
from halfstep.errors import ConfigError
from halfstep.tier.coding import element_of
from halfstep.tier.shapes import ORDER

if TYPE_CHECKING:
    from halfstep import Client, Layout
    from halfstep.client.entries import Entry

# How many entries of a listing are looked at for each block that is wanted.
_LOOKED_AT = 16
_GET_BYTES = 32 << 20
# A sample ends before it has more. Its blocks are analysed as they come; few are kept, for who measures speed.
SAMPLE_BYTES_MAX = 1 << 30
KEEP_BYTES = 64 << 20
_GROUP_SHIFT, _CELL_MASK = 24, (1 << 20) - 1
# How halfstep.tier.shapes describes a kind: layers, heads, tokens of an entry; a window, a dtype.
_KIND = re.compile(r".*: ([\d\- ]+), (\d+) heads, 1/([1-9]\d*)(?:, \d+ tokens)?(?:, dtype (.+))?")
# A word of a field `codec.<group>`: element, row, step.
_PART = re.compile(r"(\w+)(?:/(\d{1,6}))?(?:/(\d+(?:\.\d+)?))?")


@dataclass
class Sample:
    """What was taken: known once all of its blocks have been.

    keep_bytes, kept: the first blocks, no more than so many bytes of them, or one. bytes_max, full: where it ends, and whether
    it did. blocks: how many. unknown: blocks of layouts that do not say what their values are, by layout id. unread: blocks of
    lossy codecs and of those that this build has not, by codec. went: blocks that were listed and not got.
    """

    keep_bytes: int = 0
    bytes_max: int = SAMPLE_BYTES_MAX
    kept: list[Block] = field(default_factory=list)
    full: bool = False
    blocks: int = 0
    unknown: dict[str, int] = field(default_factory=dict)
    unread: dict[str, int] = field(default_factory=dict)
    went: int = 0


@dataclass(frozen=True)
class Shape:
    """Of one group of a layout. planes: what part p is called, by cell; None: nobody says."""

    values: tuple[PartValues, ...]
    block_tokens: int
    plane_of: Callable[[int, int], str]


def sample(client: Client, count: int, taken: Sample, *, element: Element | None = None) -> Iterator[Block]:
    """The first `count` blocks of the namespace's listing whose values are known, read and decoded, as they are asked for.

    They are counted in `taken`, whose bounds hold. element: of layouts that name neither codec nor dtype.
    Errors: Unavailable, ProtocolError.
    """
    kept_bytes = 0
    for layout, shape, entries in _wanted(client, count, taken, element):
        component, block_bytes = entries[0].component, entries[0].block_bytes
        for raw in _read(client, layout, component, block_bytes, [entry.key for entry in entries], taken):
            taken.blocks += 1
            if kept_bytes + block_bytes <= max(taken.keep_bytes, block_bytes if taken.keep_bytes else 0):
                kept_bytes += block_bytes
                taken.kept.append(block_of(raw.copy(), layout, component, shape))
            yield block_of(raw, layout, component, shape)


def _wanted(
    client: Client, count: int, taken: Sample, element: Element | None
) -> Iterator[tuple[Layout, Shape, Sequence[Entry]]]:
    """Entries that one get can ask for, by their layout: alike in component and size."""
    shapes: dict[bytes, tuple[Layout, dict[int, Shape]] | None] = {}
    wanted: list[Entry] = []
    wanted_bytes = 0
    for entry in islice(client.admin.list(limit=count * _LOOKED_AT), count * _LOOKED_AT):
        if entry.layout_id not in shapes:
            layout = ask_layout(client.url, entry.layout_id)
            shapes[entry.layout_id] = None if layout is None else (layout, shapes_of(layout, element))
        known = shapes[entry.layout_id]
        codec = "" if known is None else known[0].fields.get("codec", "")
        if codec in LOSSY or codec not in ("", *CODECS):
            taken.unread[codec] = taken.unread.get(codec, 0) + 1
            continue
        if known is None or entry.component >> _GROUP_SHIFT not in known[1]:
            name = entry.layout_id.hex()
            taken.unknown[name] = taken.unknown.get(name, 0) + 1
            continue
        if wanted and wanted_bytes + entry.block_bytes > taken.bytes_max:
            taken.full = True
            break
        wanted.append(entry)
        wanted_bytes += entry.block_bytes
        if len(wanted) == count:
            break
    wanted.sort(key=_alike)
    for (layout_id, component, _), entries in groupby(wanted, _alike):
        of = shapes[layout_id]
        assert of is not None
        yield of[0], of[1][component >> _GROUP_SHIFT], list(entries)


def _alike(entry: Entry) -> tuple[bytes, int, int]:
    return entry.layout_id, entry.component, entry.block_bytes


def shapes_of(layout: Layout, element: Element | None = None) -> dict[int, Shape]:
    """By group, of those groups whose values are known."""
    dtype = layout.fields.get("dtype", "")
    tokens = layout.fields.get("block_tokens", "")
    block_tokens = int(tokens) if tokens.isdecimal() else 0
    shapes = {}
    for number, group in enumerate(layout.groups):
        told = layout.fields.get(f"codec.{number}", "")
        kind = _KIND.fullmatch(layout.fields.get(f"kind{number}", ""))
        named = element_of((kind and kind[4]) or dtype) or element
        values = _values(told)
        if not values and named is not None:
            entries = block_tokens // int(kind[3]) if kind else 0
            values = tuple(PartValues(named, _row_values(size // ELEMENTS[named], entries)) for size in group.part_bytes)
        if values:
            shapes[number] = Shape(values, block_tokens, _namer(layout, number, kind))
    return shapes


def _row_values(part_values: int, entries: int) -> int:
    """Of a part of so many tokens' entries; 0 where that is not known."""
    row = part_values // entries if entries and part_values % entries == 0 else 0
    return row if row <= ROW_VALUES_MAX else 0


def _values(told: str) -> tuple[PartValues, ...]:
    """Of a field `codec.<group>`: docs/compression.md, section 7. Nothing where this build does not know one of its words."""
    values = []
    for word in told.split(",") if told else ():
        said = _PART.fullmatch(word)
        if said is None or said[1] not in ELEMENTS:
            return ()
        try:
            values.append(PartValues(cast("Element", said[1]), int(said[2] or 0), float(said[3] or 0)))
        except ConfigError:
            return ()
    return tuple(values)


def _namer(layout: Layout, number: int, told: re.Match[str] | None) -> Callable[[int, int], str]:
    """(cell, part) -> layer and plane, of a layout that halfstep.tier.shapes made; else the group's number."""
    grid = re.fullmatch(r"(\d+)x(\d+)", layout.fields.get("grid", ""))
    group = layout.groups[number]
    if told is None or grid is None or layout.fields.get("order") != ORDER:
        return lambda _cell, _part: f"group {number}"
    layers = [layer for run in told[1].split() for layer in _run(run)]
    heads, layer_cells = int(told[2]), int(grid[2])
    head_cells = min(int(grid[1]), heads)
    heads_each, layers_each = heads // max(head_cells, 1), len(layers) // max(layer_cells, 1)
    planes = group.part_count // max(heads_each * layers_each, 1)
    if planes < 1 or planes * heads_each * layers_each != group.part_count:
        return lambda _cell, _part: f"group {number}"
    plane_major = len(group.part_bytes) == 1

    def name(cell: int, part: int) -> str:
        layer, within = divmod(part, planes * heads_each)
        plane = within // heads_each if plane_major else within % planes
        place = (cell // head_cells * layers_each + layer) % len(layers)
        return f"layer {layers[place]}" + (f" {'KV'[plane]}" if planes == 2 else f" plane {plane}" if planes > 1 else "")

    return name


def _run(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def _read(
    client: Client, layout: Layout, component: int, block_bytes: int, keys: list[bytes], taken: Sample
) -> Iterator[np.ndarray]:
    """uint8 [block_bytes] of each key that is still there."""
    step = max(1, _GET_BYTES // block_bytes)
    for first in range(0, len(keys), step):
        some = keys[first : first + step]
        target = np.empty((len(some), block_bytes), np.uint8)
        got = client.get(some, target, layout=layout, first_component=component)
        for at, ok in enumerate(got.ok.reshape(-1).tolist()):
            if ok:
                yield target[at]
            else:
                taken.went += 1


def block_of(raw: np.ndarray, layout: Layout, component: int, shape: Shape) -> Block:
    """A block's parts as units. component: its own, of the first variant."""
    group = layout.groups[component >> _GROUP_SHIFT]
    units = []
    at = 0
    for part in range(group.parts_of(len(raw))):
        size = min(group.part_bytes[part % len(group.part_bytes)], len(raw) - at)
        values = shape.values[part % len(shape.values)]
        width = ELEMENTS[values.element]
        bits = raw[at : at + size // width * width].view(np.uint16 if width == 2 else np.uint8)
        units.append(Unit(shape.plane_of(component & _CELL_MASK, part), values.element, bits, values.row_values))
        at += size
    return Block(shape.block_tokens, units)


def complaint(taken: Sample, url: str) -> ConfigError:
    """Why a sample without blocks has none."""
    if taken.unknown:
        names = ", ".join(f"{count} of {name[:8]}" for name, count in sorted(taken.unknown.items()))
        return ConfigError(
            f"{url}: no layout of the blocks listed first says what its values are (blocks of layouts: {names}); name it with "
            "--element, or ask for more --blocks"
        )
    if taken.unread:
        return ConfigError(f"{url}: {_unread(taken)}; there is no sample of real K and V among the blocks listed first")
    if taken.went:
        return ConfigError(f"{url}: {taken.went} blocks went between their listing and their get; try again")
    return ConfigError(f"{url}: the namespace has no blocks")


def lines(taken: Sample) -> Iterable[str]:
    """What a reader has to know of the sample."""
    yield f"{taken.blocks:,} stored blocks; a unit is a part of one, as it is stored"
    if taken.full:
        yield f"the sample ended before it had {taken.bytes_max:,} bytes of blocks"
    if taken.unknown:
        yield f"left out: {sum(taken.unknown.values()):,} blocks of layouts that do not say what their values are"
    if taken.unread:
        yield f"left out: {_unread(taken)}"
    if taken.went:
        yield f"left out: {taken.went:,} blocks that went meanwhile"


def _unread(taken: Sample) -> str:
    told = []
    for codec, count in sorted(taken.unread.items()):
        why = "what was quantised is no sample of real K and V" if codec in LOSSY else "this build has no such codec"
        told.append(f"{count:,} blocks of codec {codec}: {why}")
    return "; ".join(told)
