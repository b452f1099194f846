"""Arrays of numbers that callers pass: as the core wants them, or refused in a sentence (ConfigError)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from halfstep.errors import ConfigError

PARENT_ROOT = -1
PARENT_UNKNOWN = -2


def per_item(name: str, values: object, count: int, dtype: type[np.unsignedinteger[Any]], items: int) -> npt.NDArray[Any]:
    """`values` (one, or one of each of `count`) as an array of `dtype`, one per item. Errors: ConfigError when out of range."""
    array = whole_numbers(name, values)
    if array.ndim > 1 or (array.ndim == 1 and len(array) != count):
        raise ConfigError(f"{name}: shape {array.shape}; must be one number or {count} of them")
    bound = int(np.iinfo(dtype).max)
    if array.size and (int(array.min()) < 0 or int(array.max()) > bound):
        wrong = int(array.min()) if int(array.min()) < 0 else int(array.max())
        raise ConfigError(f"{name}={wrong}: must be 0 to {bound}")
    spread = np.broadcast_to(array.astype(dtype), (count,))
    return np.ascontiguousarray(np.repeat(spread, items // count) if count else spread)


def ordinals_of(parents: object, count: int, items: int) -> npt.NDArray[np.uint64]:
    """Parents' ordinals as the core wants them: -1 (root) and -2 (unknown) wrap to the two largest numbers."""
    array = whole_numbers("parents", parents)
    if array.shape != (count,):
        raise ConfigError(f"parents: shape {array.shape}; must be one ordinal per key, {count} in all")
    if array.size and (int(array.min()) < PARENT_UNKNOWN or int(array.max()) >= count):
        raise ConfigError(f"parents: must be ordinals of the keys (0 to {count - 1}), -1 for a root or -2 where it is unknown")
    return np.ascontiguousarray(np.repeat(array.astype(np.uint64), items // count) if count else array.astype(np.uint64))


def whole_numbers(name: str, values: object) -> npt.NDArray[np.int64]:
    """`values` as they are; nothing is rounded."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from None
    if array.size and array.dtype.kind not in "iu":
        raise ConfigError(f"{name}: must be whole numbers under 2**63, not {array.dtype}")
    if array.dtype == np.uint64 and array.size and int(array.max()) >= 1 << 63:
        raise ConfigError(f"{name}: {int(array.max())} is too large; must be under 2**63")
    return array.astype(np.int64, copy=False)


def unsigned_array(name: str, values: object, dtype: type[np.unsignedinteger[Any]]) -> npt.NDArray[Any]:
    """`values` as they are, refused where they are none of `dtype`."""
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"{name}: {error}") from None
    if array.dtype != dtype:
        array = whole_numbers(name, array)
        bound = int(np.iinfo(dtype).max)
        if array.size and (int(array.min()) < 0 or int(array.max()) > bound):
            raise ConfigError(f"{name}: {int(array.min())} to {int(array.max())}; must be 0 to {bound}")
    return array.astype(dtype, copy=False)
