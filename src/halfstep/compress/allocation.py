"""Bits where they count: of each unit one option, so that all together cost the fewest bits within a bound of the loss.

Losses add up. Lagrange: for a price of loss each unit takes the option with the least bits plus price times loss; the price is
found by bisection. What that leaves of the bound goes to the unit that saves the most bits with it.

Invariants: deterministic; the bound holds wherever the options with the least loss keep it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_PRICES = 200  # of a bisection between prices whose logarithms are this far apart
_PRICE_MIN, _PRICE_MAX = 1e-12, 1e18


class Option(NamedTuple):
    """bits: of the whole unit. loss: 0 for an exact one."""

    bits: float
    loss: float


def allocated(units: Sequence[Sequence[Option]], bound: float) -> list[int]:
    """Of each unit, the number of its option."""
    low, high = _PRICE_MIN, _PRICE_MAX
    chosen = [_cheapest(options, high) for options in units]
    for _ in range(_PRICES):
        price = (low * high) ** 0.5
        tried = [_cheapest(options, price) for options in units]
        if _loss(units, tried) <= bound:
            chosen, high = tried, price
        else:
            low = price
    return _filled(units, chosen, bound)


def _cheapest(options: Sequence[Option], price: float) -> int:
    return min(range(len(options)), key=lambda at: (options[at].bits + price * options[at].loss, options[at].loss))


def _loss(units: Sequence[Sequence[Option]], chosen: Sequence[int]) -> float:
    return sum(options[at].loss for options, at in zip(units, chosen, strict=True))


def _filled(units: Sequence[Sequence[Option]], chosen: list[int], bound: float) -> list[int]:
    while True:
        left = bound - _loss(units, chosen)
        best: tuple[float, int, int] | None = None
        for unit, (options, at) in enumerate(zip(units, chosen, strict=True)):
            for other, option in enumerate(options):
                saved = options[at].bits - option.bits
                if saved > 0 and option.loss - options[at].loss <= left and (best is None or saved > best[0]):
                    best = saved, unit, other
        if best is None:
            return chosen
        chosen[best[1]] = best[2]
