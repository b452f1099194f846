"""Numbers that callers pass: checked where they come in, and refused in a sentence. Errors of every function: ConfigError."""

from __future__ import annotations

import math
import operator

from halfstep.errors import ConfigError


def whole_number(name: str, value: object) -> int:
    """An int, or what stands for one (numpy's); nothing is rounded."""
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ConfigError(f"{name}={value!r}: must be a whole number, not {type(value).__name__}") from None


def unsigned(name: str, value: object, bits: int) -> int:
    """A whole number of so many bits."""
    # An int is what nearly every call has, several times; whole_number() would cost it half of what it does here.
    number = value if type(value) is int else whole_number(name, value)
    if not 0 <= number < 1 << bits:
        raise ConfigError(f"{name}={number}: must be 0 to {(1 << bits) - 1}")
    return number


def real_number(name: str, value: object) -> float:
    """A float, or what stands for one; not a text, and not NaN."""
    try:
        number = math.nan if isinstance(value, (str, bytes)) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if math.isnan(number):
        raise ConfigError(f"{name}={value!r}: must be a number")
    return number
