"""What a codec makes of real K and V: ratio by plane, with pages and trailers, and the bound of such a code.

A tensor is [..., heads, tokens, dimensions]. A unit is what all heads have of so many consecutive tokens; its place among the
leading dimensions is its plane (layer, K or V). A block is the units of all planes for the same tokens.

Deterministic: the same file gives the same figures on every machine. Speeds are measured apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from halfstep.compress import ELEMENTS, LOSSY, LOSSY_ELEMENTS, ROW_VALUES_MAX, Element, decode, encode, path
from halfstep.compress.tensors import Tensor

# docs/on-flash-format.md, *Extent*.
PAGE_BYTES, TRAILER_BYTES, TRAILER_PART_BYTES = 4096, 32, 24
_EXPONENTS = {"bf16": (7, 8), "fp16": (10, 5), "e4m3": (3, 4), "e5m2": (2, 5)}
_GAIN_MIN = 1.03
_ROUNDS = 5
_STEP = 0.1


@dataclass
class PlaneFigures:
    """One plane at one unit length. ratio: raw to stored. bound: of any code of single exponents, over all that was seen."""

    plane: str
    element: str
    unit_tokens: int
    raw_bytes: int = 0
    stored_bytes: int = 0
    raw_units: int = 0
    units: int = 0
    bound: float = 1.0

    @property
    def ratio(self) -> float:
        """Raw bytes over stored ones."""
        return self.raw_bytes / self.stored_bytes


@dataclass
class LengthFigures:
    """All planes together at one unit length. flash_ratio: pages of plain blocks to those of coded ones."""

    unit_tokens: int
    raw_bytes: int = 0
    stored_bytes: int = 0
    plain_pages: int = 0
    coded_pages: int = 0

    @property
    def ratio(self) -> float:
        """Raw bytes over stored ones."""
        return self.raw_bytes / self.stored_bytes if self.stored_bytes else 1.0

    @property
    def flash_ratio(self) -> float:
        """With pages, trailers and padding counted."""
        return self.plain_pages / self.coded_pages if self.coded_pages else 1.0

    @property
    def policy(self) -> str:
        """What is worth it: exact or off."""
        return "exact" if self.flash_ratio >= _GAIN_MIN else "off"


@dataclass(frozen=True)
class Speeds:
    """GB/s of raw bytes on one core, each unit's best of five; path: which of the three. codec: bfx, or ubq at 0.1."""

    codec: str
    path: str
    encode_gb_s: float
    decode_gb_s: float


class Unit(NamedTuple):
    """A part, or what would be one. bits: uint8 or uint16, of any shape. row_values: see PartValues."""

    plane: str
    element: Element
    bits: npt.NDArray[Any]
    row_values: int


class Block(NamedTuple):
    """Units that are stored together. unit_tokens: of each."""

    unit_tokens: int
    units: Sequence[Unit]


Seen = Callable[[Block], None]


def analyse(
    tensors: Iterable[Tensor], lengths: Sequence[int], seen: Seen = lambda _: None
) -> tuple[list[LengthFigures], list[PlaneFigures]]:
    """Figures of the tensors' units, by unit length, and by plane and unit length. seen: is handed each block, too."""
    account = _Account(lengths)
    for tensor in tensors:
        for label, values in _planes(tensor):
            account.see(label, tensor.element, values)
        for length in lengths:
            for block in _blocks(tensor, length):
                account.count(block)
                seen(block)
    return account.figures()


def analyse_blocks(blocks: Iterable[Block], seen: Seen = lambda _: None) -> tuple[list[LengthFigures], list[PlaneFigures]]:
    """The same of blocks as they are cut already."""
    account = _Account()
    for block in blocks:
        for unit in block.units:
            account.see(unit.plane, unit.element, unit.bits)
        account.count(block)
        seen(block)
    return account.figures()


class _Account:
    def __init__(self, lengths: Sequence[int] = ()) -> None:
        self._wholes = {length: LengthFigures(length) for length in lengths}
        self._planes: dict[tuple[str, str, int], PlaneFigures] = {}
        self._counts: dict[tuple[str, str], npt.NDArray[np.int64]] = {}

    def see(self, plane: str, element: Element, bits: npt.NDArray[Any]) -> None:
        """Values that the bound is of."""
        low, width = _EXPONENTS[element]
        seen = self._counts.setdefault((plane, element), np.zeros(256, np.int64))
        seen += np.bincount((bits.ravel() >> low) & ((1 << width) - 1), minlength=256)

    def count(self, block: Block) -> None:
        """Codes the block's units."""
        raw_bytes = stored_bytes = 0
        for unit in block.units:
            raw = unit.bits.tobytes()
            coded = encode(raw, element=unit.element, row_values=unit.row_values)
            stored = len(raw) if coded is None else len(coded)
            key = unit.plane, unit.element, block.unit_tokens
            one = self._planes.setdefault(key, PlaneFigures(*key))
            one.raw_bytes += len(raw)
            one.stored_bytes += stored
            one.units += 1
            one.raw_units += coded is None
            raw_bytes += len(raw)
            stored_bytes += stored
        plain = -(-raw_bytes // PAGE_BYTES)
        coded_pages = -(-(stored_bytes + TRAILER_BYTES + TRAILER_PART_BYTES * len(block.units)) // PAGE_BYTES)
        whole = self._wholes.setdefault(block.unit_tokens, LengthFigures(block.unit_tokens))
        whole.raw_bytes += raw_bytes
        whole.stored_bytes += stored_bytes
        whole.plain_pages += plain
        whole.coded_pages += min(plain, coded_pages)

    def figures(self) -> tuple[list[LengthFigures], list[PlaneFigures]]:
        """Of what was counted."""
        for (plane, element, _), one in self._planes.items():
            one.bound = _bound(self._counts[plane, element], element)
        return [whole for whole in self._wholes.values() if whole.raw_bytes], list(self._planes.values())


def measure(tensors: Iterable[Tensor], length: int, codec: str = "bfx") -> Speeds:
    """How fast units of that length are coded and decoded here, out of the cache of the moment."""
    return measure_blocks((block for tensor in tensors for block in _blocks(tensor, length)), codec)


def measure_blocks(blocks: Iterable[Block], codec: str = "bfx") -> Speeds:
    """The same of blocks as they are cut already. Units that the codec refuses are passed over."""
    encode_s = decode_s = 0.0
    raw_bytes = 0
    for block in blocks:
        for unit in block.units:
            raw = unit.bits.tobytes()
            terms = _terms(unit, codec)
            coded = None if terms is None else encode(raw, **terms)
            if terms is None or coded is None:
                continue
            raw_bytes += len(raw)
            encode_s += min(_timed(lambda: encode(raw, **terms)) for _ in range(_ROUNDS))  # noqa: B023 -- called at once
            decode_s += min(_timed(lambda: decode(coded, len(raw), codec=codec)) for _ in range(_ROUNDS))  # noqa: B023
    if raw_bytes == 0:
        return Speeds(codec, path(), 0.0, 0.0)
    return Speeds(codec, path(), raw_bytes / encode_s / 1e9, raw_bytes / decode_s / 1e9)


def _row_values(values: np.ndarray) -> int:
    """The last dimension; 0, not known, where it is longer than a row can be."""
    return values.shape[-1] if values.shape[-1] <= ROW_VALUES_MAX else 0


def _terms(unit: Unit, codec: str) -> dict[str, Any] | None:
    """What encode() is told; None: the codec does not take such units."""
    terms: dict[str, Any] = {"codec": codec, "element": unit.element, "row_values": unit.row_values}
    if codec not in LOSSY:
        return terms
    takes = unit.element in LOSSY_ELEMENTS and unit.row_values > 0
    return terms | {"step": _STEP} if takes else None


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _planes(tensor: Tensor) -> Iterator[tuple[str, np.ndarray]]:
    """Label and [heads, tokens, dimensions] of each plane."""
    bits = tensor.bits
    while bits.ndim < 3:
        bits = bits[np.newaxis]
    leading = bits.shape[:-3]
    for index in product(*(range(size) for size in leading)):
        if len(leading) == 2 and leading[1] == 2:
            label = f"layer {index[0]} {'KV'[index[1]]}"
        else:
            label = f"{tensor.name}{list(index)}" if index else tensor.name
        yield label, bits[index]


def _blocks(tensor: Tensor, length: int) -> Iterator[Block]:
    planes = list(_planes(tensor))
    for first in range(0, planes[0][1].shape[1] - length + 1, length):
        cut = ((label, np.ascontiguousarray(values[:, first : first + length])) for label, values in planes)
        yield Block(length, [Unit(label, tensor.element, bits, _row_values(bits)) for label, bits in cut])


def _bound(counts: np.ndarray, element: str) -> float:
    """Value bits over sign, mantissa and the entropy of single exponents."""
    shares = counts[counts > 0] / counts.sum()
    entropy = float(-(shares * np.log2(shares)).sum())
    bits = 8 * ELEMENTS[element]  # type: ignore[index]
    return bits / (bits - _EXPONENTS[element][1] + entropy)
