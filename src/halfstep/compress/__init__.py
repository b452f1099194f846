"""Codecs of KV, unit by unit: what the client's core does to the parts of a block, for tools, tests and the curious.

    unit = compress.encode(part, element="bf16", row_values=1024)     # None where it does not pay
    compress.decode(unit, raw_bytes=len(part)) == part

A client that is opened with `connect(url, codecs=("bfx",))` codes and decodes by itself, for layouts that name the codec.
`ubq` is lossy: it codes nothing without a step, and no value is off by more than half of it (and its own rounding). `zstd` is
exact, for values of unknown make.

Source: docs/compression.md, docs/quantiser.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from halfstep import _peer
from halfstep.arguments import whole_number
from halfstep.errors import ConfigError, ProtocolError

__all__ = [
    "CODECS",
    "ELEMENTS",
    "LOSSY",
    "Element",
    "PartValues",
    "UnitFacts",
    "coding_fields",
    "decode",
    "encode",
    "inspect",
    "path",
]

Element = Literal["bf16", "fp16", "e4m3", "e5m2"]
ELEMENTS: dict[Element, int] = {"bf16": 2, "fp16": 2, "e4m3": 1, "e5m2": 1}
# Names of the codecs of this build, and their numbers in part tables.
CODECS: dict[str, int] = _peer.codecs()
# Of these decoding does not give what was encoded. They code these elements.
LOSSY = frozenset({"ubq"})
LOSSY_ELEMENTS: tuple[Element, ...] = ("bf16", "fp16")
# A row of more values has no bases.
ROW_VALUES_MAX = 16384
# Of a step, as a share of a unit's deviation.
STEP_MIN, STEP_MAX = 0.001, 4.0


@dataclass(frozen=True)
class PartValues:
    """What the values of a part are. row_values: how many stand for one token, back to back; 0 where that is not known.

    step: of a lossy codec, as a share of the part's deviation (docs/quantiser.md); 0 for an exact one.
    """

    element: Element
    row_values: int = 0
    step: float = 0.0

    def __post_init__(self) -> None:
        if self.element not in ELEMENTS:
            raise ConfigError(f"element={self.element!r}: must be one of {', '.join(ELEMENTS)}")
        if not 0 <= whole_number("row_values", self.row_values) <= ROW_VALUES_MAX:
            raise ConfigError(f"row_values={self.row_values}: must be 0 (not known) to {ROW_VALUES_MAX}")
        if isinstance(self.step, bool) or not isinstance(self.step, (int, float)):
            raise ConfigError(f"step={self.step!r}: must be a number")
        if self.step != 0 and not STEP_MIN <= self.step <= STEP_MAX:
            raise ConfigError(f"step={self.step}: must be {STEP_MIN} to {STEP_MAX:g}, a share of the part's deviation")

    def check_for(self, codec: str) -> None:
        """That the codec can code such values. Errors: ConfigError."""
        if codec not in LOSSY:
            if self.step != 0:
                raise ConfigError(f"step={self.step}: codec {codec!r} is exact and has none")
            return
        if self.element not in LOSSY_ELEMENTS:
            raise ConfigError(f"codec {codec!r} codes {' and '.join(LOSSY_ELEMENTS)}, not {self.element}")
        if self.row_values == 0:
            raise ConfigError(f"codec {codec!r} has to know row_values, the values of one token")
        if self.step == 0:
            raise ConfigError(f"codec {codec!r} is lossy and needs a step, such as step=0.1")

    def __str__(self) -> str:
        if self.step:
            return f"{self.element}/{self.row_values}/{self.step:.6g}"
        return f"{self.element}/{self.row_values}" if self.row_values else self.element


@dataclass(frozen=True)
class UnitFacts:
    """What a unit says of itself.

    row_values: of its bases or means; 0 where it has none. step: no value is off by more than half of it, in the values' own
    unit, and its own rounding; 0 where none is off.
    """

    version: int
    element: str
    row_values: int
    raw_bytes: int
    step: float


def encode(
    raw: object, *, codec: str = "bfx", element: Element | None = None, row_values: int = 0, step: float = 0.0
) -> bytes | None:
    """The unit of one part, or None where the codec refuses it: it would gain too little, or have no bound of its error.

    raw: any contiguous buffer. element: of its values; None: an exact codec looks for itself. row_values, step: see PartValues.
    The same bytes come out on every processor. The interpreter's lock is released.
    Errors: ConfigError.
    """
    if element is not None:
        PartValues(element, row_values, step).check_for(codec)
    elif codec in LOSSY or step != 0:
        raise ConfigError(f"codec {codec!r}, step={step}: a lossy codec has to know the element")
    unit = bytearray(memoryview(raw).nbytes)  # type: ignore[arg-type]
    stored_bytes = _peer.encode_unit(codec, raw, element or "", row_values, unit, step)
    return bytes(memoryview(unit)[:stored_bytes]) if stored_bytes else None


def decode(unit: object, raw_bytes: int, *, codec: str = "bfx") -> bytes:
    """The raw bytes of one part. Errors: ConfigError; ProtocolError (no unit of a part of `raw_bytes`)."""
    out = bytearray(whole_number("raw_bytes", raw_bytes))
    if not _peer.decode_unit(codec, unit, out):
        raise ProtocolError(f"no {codec} unit of a part of {raw_bytes} bytes; it is damaged, or belongs to another part")
    return bytes(out)


def inspect(unit: object, *, codec: str = "bfx") -> UnitFacts:
    """What the head of a unit says. Errors: ConfigError; ProtocolError (it has none)."""
    told = _peer.inspect_unit(codec, unit)
    if told is None:
        raise ProtocolError(f"no {codec} unit: its head is damaged")
    return UnitFacts(*told)


def path() -> str:
    """Which of the three paths this process takes: plain, avx2 or avx512."""
    return _peer.compress_path()


def coding_fields(codec: str, groups: Sequence[Sequence[PartValues]] = ()) -> dict[str, str]:
    """The fields by which a Layout says how its blocks are coded.

    groups: of each group, what its parts are, in turn as its part sizes are; empty for one that nobody knows, which a lossy
    codec does not take. Errors: ConfigError (a codec that this build does not have, or that does not code such parts).
    """
    if codec not in CODECS or codec == "raw":
        raise ConfigError(f"codec={codec!r}: must be one of {', '.join(name for name in CODECS if name != 'raw')}")
    if codec in LOSSY and not (groups and all(groups)):
        raise ConfigError(
            f"codec={codec!r}: is lossy, and has to know the element, the row and the step of every group's parts"
        )
    fields = {"codec": codec}
    for number, parts in enumerate(groups):
        for part in parts:
            part.check_for(codec)
        if parts:
            fields[f"codec.{number}"] = ",".join(map(str, parts))
    return fields
