#!/usr/bin/env python3
"""Question: how many bytes does each built-in policy save, and how far off is what comes back?

FILE: an .npz or .safetensors of real K and V in bf16 or fp16, as tensors of [layers, K and V, heads, tokens, values]. A unit is
one head's K or V of one layer, as halfstep.tier stores it. Ratios count the units and nothing of a block around them. Errors
are root mean squares, as shares of that of the values. Nothing is timed: who runs it again gets the same numbers.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from script import header, positive, run

from halfstep import compress
from halfstep.compress.policy import BUILT_IN, Plane, Policy, policy_of
from halfstep.compress.tensors import Tensor, read_tensors

PLANES: tuple[Plane, ...] = ("k", "v")


def floats(bits: np.ndarray, element: str) -> np.ndarray:
    """The values of bf16 or fp16."""
    return (bits.astype(np.uint32) << 16).view(np.float32) if element == "bf16" else bits.view(np.float16).astype(np.float32)


def coded(tensors: list[Tensor], tokens: int, policy: Policy) -> dict[str, float]:
    """Ratio of all, and of each plane ratio and error."""
    raw, stored, squares, errors = (dict.fromkeys(PLANES, 0.0) for _ in range(4))
    for tensor in tensors:
        layers, _, heads, length, width = tensor.bits.shape
        for layer in range(layers):
            for number, plane in enumerate(PLANES):
                choice = policy.choice(layer, plane, layers=layers)
                for head in range(heads):
                    for at in range(0, length - tokens + 1, tokens):
                        part = np.ascontiguousarray(tensor.bits[layer, number, head, at : at + tokens])
                        size, back = through(part, tensor.element, width, choice.codec, choice.step)
                        raw[plane] += part.nbytes
                        stored[plane] += size
                        values = floats(part, tensor.element)
                        squares[plane] += float((values**2).sum())
                        errors[plane] += float(((floats(back, tensor.element) - values) ** 2).sum())
    told = {"ratio": sum(raw.values()) / sum(stored.values())}
    for plane in PLANES:
        told |= {f"{plane}_ratio": raw[plane] / stored[plane], f"{plane}_error": (errors[plane] / squares[plane]) ** 0.5}
    return told


def through(part: np.ndarray, element: compress.Element, width: int, codec: str, step: float) -> tuple[int, np.ndarray]:
    """Bytes of a part's unit, and what decoding gives: as the client does it, exact where the codec refuses, else raw."""
    for name in {codec: step, "bfx": 0.0} if codec in compress.LOSSY else {codec: 0.0}:
        own = step if name in compress.LOSSY else 0.0
        unit = None if name == "raw" else compress.encode(part, codec=name, element=element, row_values=width, step=own)
        if unit is not None:
            back = np.frombuffer(compress.decode(unit, part.nbytes, codec=name), part.dtype)
            return len(unit), back.reshape(part.shape)
    return part.nbytes, part


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--tokens", type=positive, nargs="+", default=[16, 64, 256], help="of a unit (default 16 64 256)")
    parser.add_argument("--policy", nargs="+", default=list(BUILT_IN), help="built in, or a file (default: all built in)")
    options = parser.parse_args()
    policies = [policy_of(name) for name in options.policy]
    shaped = [one for one in read_tensors(options.file) if one.bits.ndim == 5 and one.bits.shape[1] == 2]
    tensors = [one for one in shaped if one.element in compress.LOSSY_ELEMENTS]
    if not tensors:
        raise SystemExit(f"{options.file}: has no tensor of [layers, 2, heads, tokens, values] in bf16 or fp16")
    results = {policy.name: {str(tokens): coded(tensors, tokens, policy) for tokens in options.tokens} for policy in policies}
    print(json.dumps(header(results=results), indent=2))
    return 0


if __name__ == "__main__":
    run(main)
