"""`bfx` in torch operations: the bytes of the native codec, for parts that live on a GPU.

    units = encode(parts)              # [units, ...], of bf16, fp16 or fp8; before the copy to the host
    stored = units.to_host()           # bytes, or None where a part is raw
    units = Units.of(stored, raw_bytes, device="cuda")
    raw, good = decode(units)          # after the copy from the host

Units of one raw length are worked on together. Nothing here waits for the device but what says so: `Units.to_host`, and
`encode` and `decode` where nobody names the element. Working memory is up to 50 times the raw bytes of a slice, which has
SLICE_BYTES or one unit.

Invariants: encode gives the bytes of `halfstep.compress.encode` and decode refuses what `halfstep.compress.decode` refuses, on
every device; there is no floating-point operation and no order of additions that could change a result.

Source: docs/compression.md, sections 2 to 5; native/compress/bfx.cc and bfx_sample.cc.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from halfstep.arguments import whole_number
from halfstep.compress import ELEMENTS, ROW_VALUES_MAX, Element, PartValues
from halfstep.errors import ConfigError

try:
    import torch
except ModuleNotFoundError as error:  # the client needs numpy alone
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "halfstep.compress.torch needs torch; in the checkout of Halfstep: pip install '.[torch]'", name="torch"
    ) from None

__all__ = ["SLICE_BYTES", "Units", "decode", "encode"]

# Raw bytes of the units that are worked on at once.
SLICE_BYTES = 8 << 20

_VERSION, _HEADER_BYTES, _LISTED_AT = 1, 28, 16
_GROUP = 64  # values
_LISTED = 3  # of a level
_LEVELS = 3
_SYMBOLS = 256
_VALUES_MIN = 256
_RAW_BYTES_MAX = (1 << 32) - 1
# What an encoder looks at (docs/compression.md, section 5).
_SAMPLE_GROUPS_MIN, _SAMPLE_GROUPS_MAX, _GROUPS_PER_SAMPLE = 8, 64, 16
_ROWS_MIN, _ROWS_SUMMED = 64, 16

_NUMBERS: dict[Element, int] = {element: number for number, element in enumerate(ELEMENTS, 1)}
_EXPONENT_BITS: dict[Element, int] = {"bf16": 8, "fp16": 5, "e4m3": 4, "e5m2": 5}
_OF_DTYPE: dict[torch.dtype, Element] = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float8_e4m3fn: "e4m3",
    torch.float8_e5m2: "e5m2",
}


@dataclass(frozen=True)
class Units:
    """Units of parts of one raw length, on one device.

    data: uint8 [units, capacity]; a unit is the first bytes of its row, the rest is undefined. lengths: int64 [units], of each
    unit in bytes; 0: it does not pay, and the part is raw. raw_bytes: of each part.
    """

    data: torch.Tensor
    lengths: torch.Tensor
    raw_bytes: int

    def __post_init__(self) -> None:
        if self.data.dtype != torch.uint8 or self.data.dim() != 2:
            raise ConfigError(f"data: must be uint8 [units, bytes], not {self.data.dtype} {list(self.data.shape)}")
        if self.lengths.shape != self.data.shape[:1] or self.lengths.dtype != torch.int64:
            raise ConfigError(
                f"lengths: must be int64 [{self.data.shape[0]}], not {self.lengths.dtype} {list(self.lengths.shape)}"
            )
        if not 0 < whole_number("raw_bytes", self.raw_bytes) <= _RAW_BYTES_MAX:
            raise ConfigError(f"raw_bytes={self.raw_bytes}: must be 1 to {_RAW_BYTES_MAX}")

    @classmethod
    def of(cls, units: Sequence[bytes | None], raw_bytes: int, *, device: torch.device | str = "cpu") -> Units:
        """Units that came from a tier or a disk, in one copy to the device. None: of a part that is raw."""
        longest = max((len(unit) for unit in units if unit is not None), default=0)
        rows = bytearray(len(units) * longest)
        for at, unit in enumerate(units):
            if unit is not None:
                rows[at * longest : at * longest + len(unit)] = unit
        data = torch.frombuffer(rows, dtype=torch.uint8) if rows else torch.empty(0, dtype=torch.uint8)
        lengths = torch.tensor([len(unit or b"") for unit in units], dtype=torch.int64)
        return cls(data.view(len(units), longest).to(device), lengths.to(device), raw_bytes)

    def to_host(self) -> list[bytes | None]:
        """The units' bytes; None where a part is raw. Waits for the device twice: for the lengths, and for the units."""
        lengths = self.lengths.tolist()
        packed = torch.cat([self.data[at, :length] for at, length in enumerate(lengths)]) if lengths else self.data.view(-1)
        flat = packed.cpu().numpy().tobytes()
        units: list[bytes | None] = []
        at = 0
        for length in lengths:
            units.append(flat[at : at + length] if length else None)
            at += length
        return units


def encode(parts: torch.Tensor, *, element: Element | None = None, row_values: int = 0) -> Units:
    """The units of parts of one shape.

    parts: [units, ...]; the bytes of parts[i], contiguous, are part i. element: of its values; None: that of the dtype, or,
    of integers, the codec looks for itself, part by part, for which it waits for the device. row_values: see PartValues.
    Errors: ConfigError.
    """
    if parts.dim() < 2:
        raise ConfigError(f"parts: has the shape {list(parts.shape)}; must be [units, ...]")
    element = element or _OF_DTYPE.get(parts.dtype)
    # Without an element a row's values are of no known width.
    PartValues(element or "bf16", row_values)
    if parts.dtype.is_complex or (parts.dtype.is_floating_point and parts.dtype not in _OF_DTYPE):
        raise ConfigError(f"parts: are {parts.dtype}; bfx knows {', '.join(ELEMENTS)}, or their bits as integers")
    raw = parts.flatten(1).contiguous().view(torch.uint8)
    raw_bytes = raw.shape[1]
    if raw_bytes == 0:
        raise ConfigError(f"parts: has the shape {list(parts.shape)}; a part has at least one byte")
    limit = _unit_bytes_max(raw_bytes)
    data = raw.new_empty(raw.shape[0], limit)
    lengths = raw.new_zeros(raw.shape[0], dtype=torch.int64)
    if raw_bytes <= _RAW_BYTES_MAX and raw_bytes // (ELEMENTS[element] if element else 2) >= _VALUES_MIN:
        for rows in _slices(raw.shape[0], raw_bytes):
            if element is not None:
                _encode_into(raw[rows], _choose(raw[rows], element, row_values), limit, data[rows], lengths[rows])
            else:
                _encode_unnamed(raw[rows], limit, data[rows], lengths[rows])
    return Units(data, lengths, raw_bytes)


def decode(units: Units, *, element: Element | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Raw bytes, uint8 [units, raw_bytes], and good, bool [units]: False for what is no unit of such a part.

    element: of all units, others are not good; None: that of each unit, for which it waits for the device. The bytes of a unit
    that is not good are undefined; a raw part (length 0) is not good. `raw.view(torch.bfloat16)` has the values.
    Errors: ConfigError.
    """
    if element is not None:
        PartValues(element)
    count = units.data.shape[0]
    raw = units.data.new_empty(count, units.raw_bytes)
    good = units.data.new_zeros(count, dtype=torch.bool)
    if units.data.shape[1] < _HEADER_BYTES:
        return raw, good
    if element is not None:
        found: set[Element] = {element}
    else:
        numbers = set(units.data[:, 1].tolist())
        found = {name for name, number in _NUMBERS.items() if number in numbers}
    for rows in _slices(count, units.raw_bytes):
        data, lengths = units.data[rows], units.lengths[rows]
        for name in found:
            values, right = _decode_as(data, lengths, units.raw_bytes, name)
            raw[rows] = values if len(found) == 1 else torch.where(right[:, None], values, raw[rows])
            good[rows] |= right
    return raw, good


def _slices(count: int, raw_bytes: int) -> Iterator[slice]:
    step = max(1, SLICE_BYTES // raw_bytes)
    for first in range(0, count, step):
        yield slice(first, min(first + step, count))


# ---- Sizes -----------------------------------------------------------------------------------------------------------------


def _unit_bytes_max(raw_bytes: int) -> int:
    return raw_bytes - (raw_bytes * 3 + 99) // 100


def _fraction_bytes(element: Element, count: int) -> int:
    """Of one group of `count` values."""
    plane = (count + 7) // 8
    return {"bf16": count, "fp16": count + 3 * plane, "e4m3": (count + 1) // 2, "e5m2": 3 * plane}[element]


def _fractions_bytes(element: Element, count: int) -> int:
    return count // _GROUP * _fraction_bytes(element, _GROUP) + _fraction_bytes(element, count % _GROUP)


def _planes_bytes(count: int) -> int:
    return count // _GROUP * 16 + (count % _GROUP + 7) // 8 * 2


def _planes_bytes_each(counts: torch.Tensor) -> torch.Tensor:
    return torch.div(counts, _GROUP, rounding_mode="floor") * 16 + (counts % _GROUP + 7 >> 3) * 2


# ---- Bits ------------------------------------------------------------------------------------------------------------------


def _pack(bits: torch.Tensor) -> torch.Tensor:
    """Of bool or 0/1 [..., n], n a multiple of 8: uint8 [..., n / 8], bit 0 of a byte first."""
    places = torch.arange(8, dtype=torch.uint8, device=bits.device)
    return (bits.view(*bits.shape[:-1], -1, 8).to(torch.uint8) << places).sum(-1, dtype=torch.uint8)


def _unpack(octets: torch.Tensor) -> torch.Tensor:
    """The inverse of _pack: uint8 0 or 1."""
    places = torch.arange(8, dtype=torch.uint8, device=octets.device)
    return ((octets.unsqueeze(-1) >> places) & 1).flatten(-2)


def _pad(values: torch.Tensor, multiple: int) -> torch.Tensor:
    """With zeros at the end of the last dimension."""
    missing = -values.shape[-1] % multiple
    return torch.nn.functional.pad(values, (0, missing)) if missing else values


def _little(number: torch.Tensor, octets: int) -> torch.Tensor:
    """uint8 [n, octets] of int64 [n]."""
    places = 8 * torch.arange(octets, device=number.device)
    return ((number[:, None] >> places) & 0xFF).to(torch.uint8)


def _big(octets: torch.Tensor) -> torch.Tensor:
    """int64 [n] of little-endian uint8 [n, octets]."""
    places = 8 * torch.arange(octets.shape[1], device=octets.device)
    return (octets.to(torch.int64) << places).sum(1)


def _exponents(raw: torch.Tensor, element: Element) -> torch.Tensor:
    """uint8 [units, values] of whole values' bytes."""
    if element == "bf16":
        return (raw[:, 1::2] << 1) | (raw[:, 0::2] >> 7)
    if element == "fp16":
        return (raw[:, 1::2] >> 2) & 31
    return (raw >> 3) & 15 if element == "e4m3" else (raw >> 2) & 31


def _bit(octets: torch.Tensor, place: int) -> torch.Tensor:
    return (octets >> place) & 1


# ---- What an encoder chooses -----------------------------------------------------------------------------------------------


class _Choice(NamedTuple):
    """Of each unit: bases uint8 [units, row_values], zeros where it has none; based bool; listed uint8 [units, 9]; estimate."""

    element: Element
    row_values: int
    bases: torch.Tensor
    based: torch.Tensor
    listed: torch.Tensor
    estimate: torch.Tensor


def _choose(raw: torch.Tensor, element: Element, row_values: int) -> _Choice:
    width = ELEMENTS[element]
    values = raw.shape[1] // width
    exponents = _exponents(raw[:, : values * width], element)
    seen = _sampled(values, raw.device)
    symbols = exponents[:, seen]
    fixed = _HEADER_BYTES + (values // _GROUP + 1) * _fraction_bytes(element, _GROUP)
    listed, plain = _list(symbols, values)
    if row_values == 0 or row_values > ROW_VALUES_MAX or values // row_values < _ROWS_MIN:
        nobody = torch.zeros_like(plain, dtype=torch.bool)
        return _Choice(element, 0, raw.new_zeros(raw.shape[0], 0), nobody, listed, plain + fixed)
    rows = values // row_values
    summed = torch.arange(_ROWS_SUMMED, device=raw.device) * rows >> 4
    by_row = exponents[:, : rows * row_values].view(-1, rows, row_values)[:, summed]
    bases = ((by_row.sum(1, dtype=torch.int32) + _ROWS_SUMMED // 2) >> 4).to(torch.uint8)
    listed_based, after = _list(symbols - bases[:, seen % row_values], values)
    after += row_values
    based = after < plain
    return _Choice(
        element,
        row_values,
        bases * based[:, None],
        based,
        torch.where(based[:, None], listed_based, listed),
        torch.where(based, after, plain) + fixed,
    )


def _sampled(values: int, device: torch.device) -> torch.Tensor:
    """Which values are looked at."""
    groups = values // _GROUP
    taken = min(groups, min(max(groups // _GROUPS_PER_SAMPLE, _SAMPLE_GROUPS_MIN), _SAMPLE_GROUPS_MAX))
    stride = groups // taken
    place = torch.arange(taken, device=device)
    first = (place * stride + place * (stride - 1) % stride) * _GROUP
    return (first[:, None] + torch.arange(_GROUP, device=device)).flatten()


def _list(symbols: torch.Tensor, values: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The nine most frequent symbols of each unit, and the bytes of three levels and the rest, about."""
    sample = symbols.shape[1]
    counts = torch.zeros(symbols.shape[0], _SYMBOLS, dtype=torch.int64, device=symbols.device)
    counts.scatter_add_(1, symbols.to(torch.int64), torch.ones_like(symbols, dtype=torch.int64))
    # Of equals the lowest symbol; those that were not seen come last, and are equals too.
    ranks = counts * _SYMBOLS + torch.arange(_SYMBOLS - 1, -1, -1, device=symbols.device)
    most = ranks.topk(_LISTED * _LEVELS, dim=1).values
    listed = (_SYMBOLS - 1 - most % _SYMBOLS).to(torch.uint8)
    left = sample - (most >> 8).cumsum(1)
    bits = 2 * sample + 2 * left[:, 2] + 2 * left[:, 5] + 8 * left[:, 8]
    return listed, torch.div(torch.div(bits * values, sample, rounding_mode="floor"), 8, rounding_mode="floor")


# ---- Encoding --------------------------------------------------------------------------------------------------------------


def _encode_unnamed(raw: torch.Tensor, limit: int, data: torch.Tensor, lengths: torch.Tensor) -> None:
    """Each part by the element with the smallest estimate, the lowest number of equals."""
    choices = [_choose(raw, element, 0) for element in ELEMENTS]
    best = torch.stack([choice.estimate for choice in choices])
    which = (best == best.min(0).values).to(torch.uint8).argmax(0).tolist()
    for number, choice in enumerate(choices):
        rows = [at for at, chosen in enumerate(which) if chosen == number]
        if not rows:
            continue
        picked = _Choice(choice.element, 0, choice.bases[rows], choice.based[rows], choice.listed[rows], choice.estimate[rows])
        some_data, some_lengths = data[rows], lengths[rows]
        _encode_into(raw[rows], picked, limit, some_data, some_lengths)
        data[rows], lengths[rows] = some_data, some_lengths


def _encode_into(raw: torch.Tensor, choice: _Choice, limit: int, data: torch.Tensor, lengths: torch.Tensor) -> None:
    """Units into `data`, [units, limit], and their lengths; what does not fit has length 0."""
    element, row_values = choice.element, choice.row_values
    width = ELEMENTS[element]
    values = raw.shape[1] // width
    whole, tail = raw[:, : values * width], raw[:, values * width :]
    symbols = _exponents(whole, element)
    if row_values:
        channels = torch.arange(values, device=raw.device) % row_values
        symbols = symbols - choice.bases[:, channels]
    counts = torch.full_like(lengths, values)
    pieces, sizes, on = [], [], [counts]
    for level in range(_LEVELS):
        planes, symbols, more = _put_level(symbols, on[level], choice.listed[:, _LISTED * level : _LISTED * (level + 1)])
        pieces.append(planes)
        sizes.append(_planes_bytes_each(on[level]))
        on.append(more)
    pieces += [symbols, tail]
    sizes += [on[_LEVELS], torch.full_like(lengths, tail.shape[1])]
    fractions = _put_fractions(whole, element)
    bases_bytes = choice.based * row_values
    header = torch.cat(
        [
            _little(torch.full_like(lengths, _VERSION | _NUMBERS[element] << 8), 2),
            *(_little(number, octets) for number, octets in ((bases_bytes, 2), (counts, 4), (on[1], 4), (on[2], 4))),
            choice.listed,
            _little(torch.full_like(lengths, tail.shape[1]), 3),
        ],
        1,
    )
    out = raw.new_empty(raw.shape[0], limit + 1)  # the last byte takes what has no place
    starts = torch.zeros_like(lengths)
    for piece, size in zip(
        [header, choice.bases, fractions, *pieces],
        [torch.full_like(lengths, header.shape[1]), bases_bytes, torch.full_like(lengths, fractions.shape[1]), *sizes],
        strict=True,
    ):
        _place(out, starts, piece, size, limit)
        starts = starts + size
    data.copy_(out[:, :limit])
    lengths.copy_(torch.where((starts <= limit) & (choice.estimate <= raw.shape[1]), starts, 0))


def _place(out: torch.Tensor, starts: torch.Tensor, piece: torch.Tensor, sizes: torch.Tensor, limit: int) -> None:
    """The first sizes[i] bytes of piece[i] to out[i, starts[i]:]; what does not fit goes to the byte at `limit`."""
    at = torch.arange(piece.shape[1], device=piece.device)
    target = starts[:, None] + at
    out.scatter_(1, torch.where(at < sizes[:, None], target, limit).clamp_(max=limit), piece)


def _put_level(
    symbols: torch.Tensor, counts: torch.Tensor, listed: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The planes of the first counts[i] symbols, those that go on back to back, and how many they are."""
    places = torch.arange(symbols.shape[1], device=symbols.device)
    valid = places < counts[:, None]
    second, third = (symbols == listed[:, 1:2]) & valid, (symbols == listed[:, 2:3]) & valid
    none = ~(second | third | (symbols == listed[:, 0:1])) & valid
    planes = _interleave(_pack(_pad(second | none, _GROUP)), _pack(_pad(third | none, _GROUP)), counts)
    # A value's place among those that go on; the others share one that is cut off.
    target = torch.where(none, none.cumsum(1) - 1, symbols.shape[1])
    going_on = symbols.new_zeros(symbols.shape[0], symbols.shape[1] + 1).scatter_(1, target, symbols)
    return planes, going_on[:, :-1], none.sum(1)


def _interleave(a: torch.Tensor, b: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Planes by groups: 8 bytes of a, 8 of b; in a last group of fewer values as many bytes as they need."""
    planes = torch.stack([a.view(a.shape[0], -1, 8), b.view(b.shape[0], -1, 8)], 2).flatten(1)
    at = torch.arange(planes.shape[1], device=planes.device)
    last = torch.div(counts, _GROUP, rounding_mode="floor")[:, None] * 16
    plane = (counts % _GROUP + 7 >> 3)[:, None]
    # Within the last group, byte `plane` and those after it are b's, which began at byte 8.
    of_b = (at >= last + plane) & (at < last + 2 * plane)
    source = torch.where(of_b, at + 8 - plane, at).clamp_(max=planes.shape[1] - 1)
    return planes.gather(1, source)


def _put_fractions(whole: torch.Tensor, element: Element) -> torch.Tensor:
    """uint8 [units, bytes]."""
    width = ELEMENTS[element]
    values = whole.shape[1] // width
    if element == "bf16":
        return (whole[:, 1::2] & 0x80) | (whole[:, 0::2] & 0x7F)
    full = values // _GROUP * _GROUP
    groups = _put_fraction_groups(whole[:, : full * width].reshape(whole.shape[0], -1, _GROUP * width), element)
    if full == values:
        return groups.flatten(1)
    last = _put_fraction_groups(whole[:, full * width :].unsqueeze(1), element)
    return torch.cat([groups.flatten(1), last.flatten(1)], 1)


def _put_fraction_groups(groups: torch.Tensor, element: Element) -> torch.Tensor:
    """Of [units, groups, bytes of a group's values]."""
    if element == "e4m3":
        nibbles = _pad(((groups >> 4) & 8) | (groups & 7), 2)
        half = nibbles.shape[-1] // 2
        return nibbles[..., :half] | (nibbles[..., half:] << 4)
    high = groups[..., 1::2] if element == "fp16" else groups
    planes = [_pack(_pad(_bit(high, place), 8)) for place in (7, 1, 0)]
    return torch.cat([groups[..., 0::2], *planes] if element == "fp16" else planes, -1)


# ---- Decoding --------------------------------------------------------------------------------------------------------------


def _decode_as(
    data: torch.Tensor, lengths: torch.Tensor, raw_bytes: int, element: Element
) -> tuple[torch.Tensor, torch.Tensor]:
    """Raw bytes of units of `element`, and which of them are good."""
    width = ELEMENTS[element]
    # A header that says anything else is refused.
    values, tail_bytes = divmod(raw_bytes, width)
    row_values, second, third = _big(data[:, 2:4]), _big(data[:, 8:12]), _big(data[:, 12:16])
    good = (data[:, 0] == _VERSION) & (data[:, 1] == _NUMBERS[element]) & (_big(data[:, 4:8]) == values)
    good &= (data[:, 25] == tail_bytes) & (_big(data[:, 26:28]) == 0) & (lengths >= _HEADER_BYTES)
    good &= (lengths <= data.shape[1]) & (second <= values) & (third <= second) & (row_values <= ROW_VALUES_MAX)

    counts = [torch.full_like(lengths, values), second.clamp(max=values), third.clamp(max=values)]
    fractions_at = _HEADER_BYTES + row_values
    at = fractions_at + _fractions_bytes(element, values)
    planes_at = []
    for count in counts:
        planes_at.append(at)
        at = at + _planes_bytes_each(count)
    rest = lengths - at - tail_bytes
    good &= (rest >= 0) & (rest <= third)

    symbols = _take(data, at, values)
    counts.append(rest)
    for level in reversed(range(_LEVELS)):
        listed = data[:, _LISTED_AT + _LISTED * level : _LISTED_AT + _LISTED * (level + 1)]
        symbols, right = _get_level(data, planes_at[level], counts[level], listed, symbols, counts[level + 1], values)
        good &= right
    exponents = symbols + _get_bases(data, row_values, values)
    if _EXPONENT_BITS[element] < 8:
        good &= ~((exponents >> _EXPONENT_BITS[element]) != 0).any(1)
    joined, right = _join(_take(data, fractions_at, _fractions_bytes(element, values)), exponents, element)
    return torch.cat([joined, _take(data, at + rest, tail_bytes)], 1), good & right


def _take(data: torch.Tensor, starts: torch.Tensor, size: int) -> torch.Tensor:
    """data[i, starts[i] : starts[i] + size]; what lies outside is some byte of the row."""
    at = starts[:, None] + torch.arange(size, device=data.device)
    return data.gather(1, at.clamp_(0, data.shape[1] - 1))


def _get_bases(data: torch.Tensor, row_values: torch.Tensor, values: int) -> torch.Tensor:
    """Of each value, 0 where its unit has none."""
    has = row_values > 0
    channels = torch.arange(values, device=data.device) % torch.where(has, row_values, 1)[:, None]
    return data.gather(1, (channels + _HEADER_BYTES).clamp_(max=data.shape[1] - 1)) * has[:, None]


def _get_level(
    data: torch.Tensor,
    planes_at: torch.Tensor,
    counts: torch.Tensor,
    listed: torch.Tensor,
    below: torch.Tensor,
    below_counts: torch.Tensor,
    values: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Symbols uint8 [units, values], of which the first counts[i] count, and whether the planes are right."""
    octets = torch.arange((values + 7) // 8, device=data.device)
    group = octets >> 3
    # A last group of fewer values has shorter planes.
    whole = group < torch.div(counts, _GROUP, rounding_mode="floor")[:, None]
    plane = torch.where(whole, 8, (counts % _GROUP + 7 >> 3)[:, None])
    valid = 8 * octets < counts[:, None]
    a_at = planes_at[:, None] + 16 * group + (octets & 7)
    last = data.shape[1] - 1
    a = _unpack(data.gather(1, a_at.clamp(max=last)) * valid)
    b = _unpack(data.gather(1, (a_at + plane).clamp_(max=last)) * valid)
    spare = ((a | b) != 0) & (torch.arange(a.shape[1], device=data.device) >= counts[:, None])
    right = ~spare.any(1)
    a, b = a[:, :values], b[:, :values]
    on = a & b
    taken = on.cumsum(1, dtype=torch.int64)
    right &= on.sum(1, dtype=torch.int64) == below_counts
    symbols = listed.gather(1, (a + 2 * b).to(torch.int64).clamp_(max=_LISTED - 1))
    if values:
        symbols = torch.where(on != 0, below.gather(1, (taken - 1).clamp_(min=0)), symbols)
    return symbols, right


def _join(fractions: torch.Tensor, exponents: torch.Tensor, element: Element) -> tuple[torch.Tensor, torch.Tensor]:
    """Bytes of whole values, and whether all bits that belong to none are zero."""
    units, values = exponents.shape
    if element == "bf16":
        low, high = (exponents << 7) | (fractions & 0x7F), (fractions & 0x80) | (exponents >> 1)
        return torch.stack([low, high], 2).flatten(1), exponents.new_ones(units, dtype=torch.bool)
    groups, group_bytes = values // _GROUP, _fraction_bytes(element, _GROUP)
    full, border = groups * _GROUP, groups * group_bytes
    joined, right = _join_groups(
        fractions[:, :border].reshape(units, groups, group_bytes), exponents[:, :full].reshape(units, groups, _GROUP), element
    )
    if full == values:
        return joined.flatten(1), right
    last, last_right = _join_groups(fractions[:, border:].unsqueeze(1), exponents[:, full:].unsqueeze(1), element)
    return torch.cat([joined.flatten(1), last.flatten(1)], 1), right & last_right


def _join_groups(groups: torch.Tensor, exponents: torch.Tensor, element: Element) -> tuple[torch.Tensor, torch.Tensor]:
    """The inverse of _put_fraction_groups, with exponents [units, groups, values of a group]."""
    count = exponents.shape[2]
    if element == "e4m3":
        nibbles = torch.cat([groups & 15, groups >> 4], 2)
        right = ~(nibbles[:, :, count:] != 0).flatten(1).any(1)
        nibbles = nibbles[:, :, :count]
        return ((nibbles & 8) << 4) | (nibbles & 7) | (exponents << 3), right
    low_bytes = count if element == "fp16" else 0
    sign, one, zero = (_unpack(plane) for plane in groups[:, :, low_bytes:].chunk(3, 2))
    right = ~((sign | one | zero)[:, :, count:] != 0).flatten(1).any(1)
    high = ((sign << 7) | (one << 1) | zero)[:, :, :count] | (exponents << 2)
    return torch.stack([groups[:, :, :low_bytes], high], 3).flatten(2) if low_bytes else high, right
