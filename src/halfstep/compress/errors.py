"""What lossy codecs make of real K and V: bytes and errors by plane, step and policy, and which policy that recommends.

An error is the difference of two values, in their own unit. Of a unit coded with a step no value may be off by more than half
of it, a thousandth of it since levels are computed in float32, and half a last place of its element. `worst` is the largest
share of that bound which any value took: at most 1, or the codec is broken.

Deterministic. Blocks are counted one by one; policies are put together at the end, when all layers are known.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from halfstep.compress import LOSSY_ELEMENTS, Element, decode, encode, inspect
from halfstep.compress.analysis import Block, Unit
from halfstep.compress.policy import Choice, Plane, Policy
from halfstep.compress.trial import Bits, Floats, floats_of

DEFAULT_POLICIES = ("high", "balanced", "compact")
# How analysis and samples of a namespace call a plane of which layer and kind are known.
_PLACE = re.compile(r"layer (\d+) ([KV])")
# Of a step beyond its half (docs/quantiser.md, section 1), and the bits of a mantissa.
_LEVEL_SHARE = 1e-3
_MANTISSA = {"bf16": 7, "fp16": 10}
_LOWEST_EXPONENT = {"bf16": -126, "fp16": -14}

# A level has 14 bits; what channel means take away may add one.
_LEVEL_MAX = 1 << 14

Place = tuple[int, Plane]


@dataclass
class ErrorFigures:
    """One plane at one step and unit length; step 0 is exact, a cast to fp8 has none.

    exact_units: refused by the lossy codec, and stored exactly. error_max: of any value. bound: half of the largest unit's
    step. worst: see the module. level_counts: of level -2^14 on.
    """

    plane: str
    element: str
    unit_tokens: int
    step: float
    raw_bytes: int = 0
    stored_bytes: int = 0
    units: int = 0
    exact_units: int = 0
    values: int = 0
    squares: float = 0.0
    squared_errors: float = 0.0
    error_max: float = 0.0
    bound: float = 0.0
    worst: float = 0.0
    level_counts: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(2 * _LEVEL_MAX + 1, np.int64), repr=False)

    @property
    def entropy_bound(self) -> float:
        """Of the ratio, of any code of single levels over all that was seen; 0 where no unit was lossy."""
        counts = self.level_counts[self.level_counts > 0]
        if len(counts) == 0:
            return 0.0
        shares = counts / counts.sum()
        bits = float(-(shares * np.log2(shares)).sum())
        return 16 / bits if bits else 0.0

    @property
    def ratio(self) -> float:
        """Raw bytes over stored ones."""
        return self.raw_bytes / self.stored_bytes if self.stored_bytes else 1.0

    @property
    def error_rms(self) -> float:
        """In the values' own unit."""
        return float((self.squared_errors / self.values) ** 0.5) if self.values else 0.0

    @property
    def error_share(self) -> float:
        """Root mean square, as a share of that of the values."""
        return float((self.squared_errors / self.squares) ** 0.5) if self.squares else 0.0


@dataclass(frozen=True)
class PolicyFigures:
    """A policy over all planes at one unit length. error: root mean square as a share of that of the values, of K and of V."""

    policy: str
    unit_tokens: int
    ratio: float
    k_error: float
    v_error: float
    worst: float
    within_fp8: bool


@dataclass
class Errors:
    """Counts blocks for some policies. Planes of which nobody says the layer, and whether they are K or V, are left out."""

    policies: Sequence[Policy]
    _figures: dict[tuple[str, Element, int, float], ErrorFigures] = field(default_factory=dict)
    _exact: dict[tuple[str, Element, int], ErrorFigures] = field(default_factory=dict)
    _fp8: dict[tuple[str, Element, int], ErrorFigures] = field(default_factory=dict)

    def count(self, block: Block) -> None:
        """One block: each lossy step that a policy may give a plane of it, exactly, and as a cast to fp8."""
        for unit in block.units:
            place = place_of(unit.plane)
            if place is None or unit.element not in LOSSY_ELEMENTS or unit.row_values == 0:
                continue
            raw = np.ascontiguousarray(unit.bits).reshape(-1)
            values = floats_of(raw, unit.element)
            key = unit.plane, unit.element, block.unit_tokens
            exact = self._exact.setdefault(key, ErrorFigures(*key, 0.0))
            exact_bytes = _add_exact(exact, unit, raw, values)
            cast = self._fp8.setdefault(key, ErrorFigures(*key, 0.0))
            _add(cast, raw, values, cast_to_fp8(values), raw.nbytes // 2)
            for step in self._steps(place[1]):
                one = self._figures.setdefault((*key, step), ErrorFigures(*key, step))
                _add_lossy(one, unit, raw, values, step, exact_bytes)

    def _steps(self, plane: Plane) -> list[float]:
        steps = {
            rule.choice.step for policy in self.policies for rule in policy.rules if not rule.planes or plane in rule.planes
        }
        return sorted(steps - {0.0})

    def planes(self) -> list[ErrorFigures]:
        """By plane, element, length and step."""
        return sorted(self._figures.values(), key=lambda one: (one.unit_tokens, _order(one.plane), one.step))

    def of_policies(self) -> list[PolicyFigures]:
        """Each policy at each unit length, finest first."""
        lengths = sorted({(element, tokens) for _, element, tokens in self._exact})
        told = (self._of_policy(policy, element, tokens) for element, tokens in lengths for policy in self.policies)
        return [one for one in told if one is not None]

    def _of_policy(self, policy: Policy, element: Element, tokens: int) -> PolicyFigures | None:
        places = [
            (plane, place) for plane, some, at in self._exact if (some, at) == (element, tokens) if (place := place_of(plane))
        ]
        layers = 1 + max(layer for _, (layer, _) in places)
        chosen: dict[Plane, list[ErrorFigures]] = {"k": [], "v": []}
        within = True
        for name, (layer, plane) in places:
            choice = policy.choice(layer, plane, layers=layers)
            figures = self._of_choice(name, element, tokens, choice)
            if figures is None:
                return None
            chosen[plane].append(figures)
            within = within and figures.error_rms <= self._fp8[name, element, tokens].error_rms
        every = chosen["k"] + chosen["v"]
        raw, stored = sum(one.raw_bytes for one in every), sum(one.stored_bytes for one in every)
        return PolicyFigures(
            policy.name, tokens, raw / stored, _share(chosen["k"]), _share(chosen["v"]), max(one.worst for one in every), within
        )

    def _of_choice(self, name: str, element: Element, tokens: int, choice: Choice) -> ErrorFigures | None:
        if choice.lossy:
            return self._figures.get((name, element, tokens, choice.step))
        return self._exact[name, element, tokens] if choice.codec == "bfx" else None

    def fp8(self) -> list[ErrorFigures]:
        """The same planes as casts to fp8 e4m3, for comparison: half the bytes."""
        return sorted(self._fp8.values(), key=lambda one: (one.unit_tokens, _order(one.plane)))


def recommended(figures: Sequence[PolicyFigures]) -> str:
    """The policy with the best ratio whose error is within that of a cast to fp8 in every plane; "" where none is.

    Of the longest units. An error that a cast has is one that many take; what it costs a model, calibration tells.
    """
    longest = max((one.unit_tokens for one in figures), default=0)
    good = [one for one in figures if one.unit_tokens == longest and one.within_fp8]
    return max(good, key=lambda one: one.ratio).policy if good else ""


def place_of(plane: str) -> Place | None:
    """Layer and plane of a label; None: it says none."""
    said = _PLACE.fullmatch(plane)
    return (int(said[1]), "k" if said[2] == "K" else "v") if said else None


def bound_of(back: Floats, step: float, element: Element) -> Floats:
    """How far off each value may be: see the module. back: as decoded."""
    lowest = _LOWEST_EXPONENT[element]
    exponent = np.maximum(np.where(back == 0, lowest, np.frexp(np.abs(back))[1] - 1), lowest) - _MANTISSA[element] - 1
    bound: Floats = (step * (0.5 + _LEVEL_SHARE) + np.ldexp(np.float32(1), exponent)).astype(np.float32)
    return bound


def cast_to_fp8(values: npt.NDArray[np.float32]) -> Floats:
    """Nearest e4m3, of equals to the even one; what is larger than 448 becomes that."""
    exponent = np.maximum(np.frexp(np.abs(values))[1] - 1, -6) - 3
    with np.errstate(invalid="ignore"):
        cast: Floats = np.clip(np.ldexp(np.rint(np.ldexp(values, -exponent)), exponent), -448, 448).astype(np.float32)
    return cast


# ---- within ----


def _add_exact(one: ErrorFigures, unit: Unit, raw: Bits, values: Floats) -> int:
    coded = encode(raw, element=unit.element, row_values=unit.row_values)
    size = raw.nbytes if coded is None else len(coded)
    _add(one, raw, values, values, size)
    return size


def _add_lossy(one: ErrorFigures, unit: Unit, raw: Bits, values: Floats, step: float, exact_bytes: int) -> None:
    coded = encode(raw, codec="ubq", element=unit.element, row_values=unit.row_values, step=step)
    if coded is None:
        one.exact_units += 1
        _add(one, raw, values, values, exact_bytes)
        return
    back = floats_of(np.frombuffer(decode(coded, raw.nbytes, codec="ubq"), raw.dtype), unit.element)
    said = inspect(coded, codec="ubq")
    own = said.step
    one.bound = max(one.bound, own / 2)
    one.worst = max(one.worst, float((np.abs(back - values) / bound_of(back, own, unit.element)).max()))
    _add(one, raw, values, back, len(coded))
    one.level_counts += _levels(values, own, said.row_values)


def _levels(values: Floats, step: float, row_values: int) -> npt.NDArray[np.int64]:
    """How often each level stands in a unit. row_values: of its means, which are taken away; 0: it has none."""
    levels = np.rint(values / np.float32(step))
    if row_values:
        rows = levels.reshape(-1, row_values)
        levels = (rows - np.rint(rows.mean(axis=0))).ravel()
    return np.bincount(levels.astype(np.int64) + _LEVEL_MAX, minlength=2 * _LEVEL_MAX + 1)


def _add(one: ErrorFigures, raw: Bits, values: Floats, back: Floats, stored_bytes: int) -> None:
    one.units += 1
    one.raw_bytes += raw.nbytes
    one.stored_bytes += stored_bytes
    finite = np.isfinite(values)
    one.values += int(finite.sum())
    one.squares += float(np.square(values[finite], dtype=np.float64).sum())
    if back is not values:
        off = np.abs(back[finite].astype(np.float64) - values[finite])
        one.squared_errors += float(np.square(off).sum())
        one.error_max = max(one.error_max, float(off.max(initial=0.0)))


def _share(figures: Sequence[ErrorFigures]) -> float:
    squares = sum(one.squares for one in figures)
    return float((sum(one.squared_errors for one in figures) / squares) ** 0.5) if squares else 0.0


def _order(plane: str) -> tuple[int, str]:
    place = place_of(plane)
    return (place[0], place[1]) if place else (1 << 30, plane)
