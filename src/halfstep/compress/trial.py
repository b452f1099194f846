"""What a choice makes of one part: its bytes, and how far off is what comes back. As the client codes it, without a daemon.

A part that a lossy codec refuses is coded exactly, and one that this does not pay for is raw.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from halfstep.compress import LOSSY, Element, decode, encode
from halfstep.compress.policy import Choice

Bits = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]


class Trial(NamedTuple):
    """stored_bytes: of the unit, or of the raw part. back: what decoding gives; the part itself where it is exact."""

    stored_bytes: int
    back: Bits


def tried(part: Bits, element: Element, row_values: int, choice: Choice) -> Trial:
    """One part through a choice. part: contiguous, of uint16 or uint8, as many bytes as its element has."""
    for codec in (choice.codec, "bfx") if choice.lossy else (choice.codec,):
        if codec == "raw":
            continue
        step = choice.step if codec in LOSSY else 0.0
        unit = encode(part, codec=codec, element=element, row_values=row_values, step=step)
        if unit is not None:
            if codec not in LOSSY:
                return Trial(len(unit), part)
            back = np.frombuffer(decode(unit, part.nbytes, codec=codec), part.dtype)
            return Trial(len(unit), back.reshape(part.shape))
    return Trial(part.nbytes, part)


def floats_of(bits: Bits, element: Element) -> Floats:
    """The values of bf16 or fp16."""
    if element == "bf16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.view(np.float16).astype(np.float32)


def bits_of(values: Floats, element: Element) -> npt.NDArray[np.uint16]:
    """Values rounded to bf16 or fp16, of equals to the even one."""
    if element == "fp16":
        return values.astype(np.float16).view(np.uint16)
    wide = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = ((wide + 0x7FFF + ((wide >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded)
