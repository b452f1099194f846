"""Where a process keeps the KV cache of its layers and heads, said once.

Each plane of each layer is an array [blocks, heads, entries, values], strided as the engine has it: paged pools, one tensor a
layer or one for all, tokens before heads or heads before tokens. Its memory is registered, and how a cell's parts lie in it is
a template; a transfer then names blocks by number, and nothing is computed per block in Python.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import Any, Self

import numpy as np

from halfstep.client.region import PartDescriptor, Region, Template
from halfstep.errors import ConfigError
from halfstep.tier.shapes import Cell, Kind, KVLayout

# Of one section of a get, on the wire.
RANGES_MAX = 8

# Where an array and its layout both say one of these, they must agree; raw bytes and integers stand for anything.
_FLOATS = {"float16", "bfloat16", "float32", "float64"}

# Planes of a layer: K and V, or one.
Planes = Sequence[Any]


@dataclass(frozen=True)
class Piece:
    """What a process has of a cell. parts: ranges of its parts, in order; None: all of them, and it may write the cell.

    steps: of each of its layers, by the model's number, how many parts have landed when it is whole, in the order of `parts`.
    """

    cell: Cell
    template: Template
    parts: tuple[range, ...] | None
    steps: Mapping[int, int]


@dataclass(frozen=True)
class _Strided:
    """An array as addresses: bytes throughout."""

    region: Region
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Memory:
    """The KV cache of one process: made once, and used by any number of prefixes until close().

    planes: of each kind, for each of its layers that this process has, K and V (or the one plane), as arrays of shape [blocks,
    heads, entries, values] with any strides but that of the values, or without the axis of heads where there is one. They are
    numpy arrays, CPU tensors, or tensors of one CUDA device, whose bytes a transfer orders after `stream`; whoever owns them
    must not free them before close(). A layout of one kind takes its layers without the mapping. layers: the model's layers
    that this process has, heads: its KV heads (kinds that every rank has whole are always whole); None: all.
    Errors: ConfigError.
    """

    def __init__(
        self,
        layout: KVLayout,
        planes: Mapping[str, Sequence[Planes]] | Sequence[Planes],
        *,
        layers: range | None = None,
        heads: range | None = None,
    ) -> None:
        self.layout = layout
        if layers is not None and not isinstance(layers, range):
            raise ConfigError(f"layers={layers!r}: must be a range of the model's layers")
        given = planes if isinstance(planes, Mapping) else {layout.kinds[0].name: planes}
        for name, of_kind in given.items():
            if not isinstance(of_kind, Sequence) or not all(isinstance(one, Sequence) for one in of_kind):
                raise ConfigError(f"planes of kind {name!r}: must be a list with, for each layer, a list of its arrays")
        self._regions: dict[tuple[int, int], Region] = {}
        self._device: str | None = None
        self.blocks: int | None = None
        self.pieces: list[Piece] = []
        try:
            for kind in layout.kinds:
                own = range(kind.heads) if heads is None or kind.heads == 1 else _within("heads", heads, kind.heads, kind)
                ordinals = _ordinals(kind, layers)
                self.pieces += self._pieces_of(kind, given.get(kind.name, ()), ordinals, own)
            if unknown := given.keys() - {kind.name for kind in layout.kinds}:
                layout.kind(min(unknown))
            if not self.pieces:
                raise ConfigError(f"layers={layers}: this layout has none of them")
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Fence: afterwards nothing reads or writes the arrays. Idempotent."""
        for region in self._regions.values():
            region.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- within ----

    def _pieces_of(self, kind: Kind, planes: Sequence[Planes], layers: range, heads: range) -> list[Piece]:
        if len(planes) != len(layers):
            raise ConfigError(f"kind {kind.name!r}: planes of {len(planes)} layers; this process has {len(layers)} of them")
        cells = [cell for cell in self.layout.cells(kind.name) if _cut(cell.layers, layers) and _cut(cell.heads, heads)]
        arrays = [
            [
                self._strided(kind, cell_entries(self.layout, kind), plane, at, number, len(heads))
                for number, plane in enumerate(one)
            ]
            for at, one in enumerate(planes)
        ]
        starts = [array.region.address for one in arrays for array in one] if self.blocks else []
        if len(set(starts)) != len(starts):
            raise ConfigError(f"kind {kind.name!r}: two of its planes are the same memory")
        for at, one in enumerate(arrays):
            if len(one) != len(kind.planes):
                raise ConfigError(f"kind {kind.name!r}: layer {at} has {len(one)} planes; must be {len(kind.planes)}")
        return [self._piece(cell, arrays, layers, heads) for cell in cells]

    def _piece(self, cell: Cell, arrays: list[list[_Strided]], layers: range, heads: range) -> Piece:
        kind = cell.kind
        has_layers, has_heads = _cut(cell.layers, layers), _cut(cell.heads, heads)
        descriptors: list[PartDescriptor | None] = [None] * cell.parts
        spare: dict[int, PartDescriptor] = {}
        for layer in has_layers:
            for number, size in enumerate(kind.planes):
                array = arrays[layer - layers.start][number]
                for head in has_heads:
                    part = _part_of(array, head - heads.start, size, cell.entries)
                    descriptors[cell.part(layer - cell.layers.start, number, head - cell.heads.start)] = part
                    spare[number] = part
        whole = len(has_layers) == len(cell.layers) and len(has_heads) == len(cell.heads)
        if not whole:
            # What no range selects is described, too: by a part of its length.
            for layer in range(len(cell.layers)):
                for number in range(len(kind.planes)):
                    for head in range(len(cell.heads)):
                        at = cell.part(layer, number, head)
                        descriptors[at] = descriptors[at] or spare[number]
        template = Template([part for part in descriptors if part is not None])
        parts = None if whole else _ranges(cell, has_layers, has_heads)
        return Piece(cell, template, parts, _steps(cell, parts))

    def _strided(self, kind: Kind, entries: int, array: Any, layer: int, plane: int, heads: int) -> _Strided:
        where = f"kind {kind.name!r}, layer {layer}, plane {plane}"
        address, shape, strides, itemsize, writable = _numbers(where, array, self.layout.dtype)
        device = str(getattr(array, "device", "cpu"))
        if self._device is not None and device != self._device:
            raise ConfigError(f"{where}: is on {device}, others are on {self._device}; all planes must be on one device")
        self._device = device
        if len(shape) == 3 and heads == 1:
            shape, strides = (shape[0], 1, *shape[1:]), (strides[0], 0, *strides[1:])
        wanted = (heads, entries, kind.planes[plane] // itemsize)
        if len(shape) != 4 or shape[1:] != wanted or kind.planes[plane] % itemsize:
            raise ConfigError(
                f"{where}: shape {shape} of {itemsize}-byte values; must be [blocks, heads={heads}, entries={entries}, "
                f"values={kind.planes[plane] / itemsize:g}]"
            )
        if strides[3] != itemsize or min(strides) < 0:
            raise ConfigError(
                f"{where}: strides {strides}; the values of an entry must lie together, and none may run backwards"
            )
        reached = itemsize
        for stride, count in sorted(zip(strides, shape, strict=True)):
            if count > 1:
                if stride < reached:
                    raise ConfigError(f"{where}: strides {strides} of shape {shape} overlap; each value needs its own place")
                reached += (count - 1) * stride
        if self.blocks is not None and shape[0] != self.blocks:
            raise ConfigError(f"{where}: {shape[0]} blocks, others have {self.blocks}")
        self.blocks = shape[0]
        extent = (
            sum((count - 1) * stride for count, stride in zip(shape, strides, strict=True)) + itemsize if prod(shape) else 0
        )
        region = self._regions.get((address, extent))
        if region is None:
            region = self._regions[address, extent] = Region(
                _buffer(address, extent, array, writable=writable) if device == "cpu" else _flat(array, extent)
            )
        return _Strided(region, shape, strides)


def cell_entries(layout: KVLayout, kind: Kind) -> int:
    """Entries that a block has of each head and layer of a kind."""
    return layout.block_tokens // kind.tokens_per_entry


def _numbers(where: str, array: Any, dtype: str) -> tuple[int, tuple[int, ...], tuple[int, ...], int, bool]:
    """Address, shape, strides in bytes, bytes a value, writable."""
    named = str(getattr(array, "dtype", "")).removeprefix("torch.")
    if named in _FLOATS and dtype in _FLOATS and named != dtype:
        raise ConfigError(f"{where}: has values of {named}; the layout's are of {dtype}")
    if hasattr(array, "data_ptr"):
        if array.device.type not in ("cpu", "cuda"):
            raise ConfigError(f"{where}: is on {array.device}; only the host and CUDA devices are reached, copy it there")
        itemsize = array.element_size()
        return array.data_ptr(), tuple(array.shape), tuple(step * itemsize for step in array.stride()), itemsize, True
    seen = array if isinstance(array, np.ndarray) else None
    if seen is None:
        raise ConfigError(f"{where} ({type(array).__name__}): must be a numpy array or a tensor")
    if seen.dtype.hasobject:
        raise ConfigError(f"{where}: has values of {seen.dtype}; must be numbers")
    return seen.__array_interface__["data"][0], seen.shape, seen.strides, seen.itemsize, bool(seen.flags.writeable)


def _buffer(address: int, extent: int, owner: Any, *, writable: bool) -> Any:
    """All bytes from an array's first to its last, whatever lies between; keeps the array alive."""
    memory: Any = (ctypes.c_ubyte * extent).from_address(address) if extent else (ctypes.c_ubyte * 0)()
    memory.owner = owner
    return memory if writable else memoryview(memory).toreadonly()


def _flat(tensor: Any, extent: int) -> Any:
    """As _buffer, of a tensor whose memory Python cannot address: a tensor of one dimension over the same storage."""
    count = extent // tensor.element_size()
    return tensor.new_empty(0).set_(tensor.untyped_storage(), tensor.storage_offset(), (count,), (1,))


def _part_of(array: _Strided, head: int, size: int, entries: int) -> PartDescriptor:
    block_stride, head_stride, entry_stride, _ = array.strides
    offset = head * head_stride
    if entry_stride == size or entries == 1:
        return PartDescriptor(offset, block_stride, 1, entries * size, region=array.region)
    return PartDescriptor(offset, block_stride, entries, size, entry_stride, region=array.region)


def _ranges(cell: Cell, layers: range, heads: range) -> tuple[range, ...]:
    """The parts of some layers and heads of a cell."""
    parts = sorted(
        cell.part(layer - cell.layers.start, plane, head - cell.heads.start)
        for layer in layers
        for plane in range(len(cell.kind.planes))
        for head in heads
    )
    # As few ranges as there are: those of one distance, else a run each.
    period = len(cell.heads) if cell.kind.plane_major else len(cell.heads) * len(cell.kind.planes)
    columns = [[part for part in parts if part % period == column] for column in range(period)]
    strided = tuple(range(column[0], column[-1] + 1, period) for column in columns if column)
    runs: list[range] = []
    for part in parts:
        if runs and part == runs[-1].stop:
            runs[-1] = range(runs[-1].start, part + 1)
        else:
            runs.append(range(part, part + 1))
    best = min((strided, tuple(runs)), key=len)
    if len(best) > RANGES_MAX:
        raise ConfigError(
            f"kind {cell.kind.name!r}: {len(heads)} of {len(cell.heads)} heads and {len(layers)} of {len(cell.layers)} "
            f"layers of a cell are {len(best)} ranges of parts, at most {RANGES_MAX}; choose a Grid of more cells"
        )
    return best


def _steps(cell: Cell, parts: tuple[range, ...] | None) -> dict[int, int]:
    """See Piece.steps."""
    each = len(cell.heads) * len(cell.kind.planes)
    selected = range(cell.parts) if parts is None else chain.from_iterable(parts)
    return {cell.kind.layers[cell.layers[part // each]]: step for step, part in enumerate(selected, 1)}


def _ordinals(kind: Kind, layers: range | None) -> range:
    """Which of a kind's layers are among `layers`."""
    if layers is None:
        return range(len(kind.layers))
    own = [at for at, layer in enumerate(kind.layers) if layer in layers]
    if own and own != list(range(own[0], own[-1] + 1)):
        raise ConfigError(f"layers={layers}: of kind {kind.name!r} they are {own}, which is no range of its layers")
    return range(own[0], own[-1] + 1) if own else range(0)


def _within(name: str, some: range, count: int, kind: Kind) -> range:
    if not isinstance(some, range) or some.step != 1 or not 0 <= some.start < some.stop <= count:
        raise ConfigError(f"{name}={some}: must be a range within the {count} of kind {kind.name!r}")
    return some


def _cut(one: range, other: range) -> range:
    return range(max(one.start, other.start), max(min(one.stop, other.stop), max(one.start, other.start)))
