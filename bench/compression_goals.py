#!/usr/bin/env python3
"""Question: do exact and lossy coding keep their goals in bytes and in error on real K and V?

FILE: an .npz of real K and V in bf16, tensors kv* of [layers, K and V, heads, tokens, values]; its q* of [layers, heads, rows,
values], where they are, are queries for the attention error. --fp16: the like in fp16. fp8 is the bf16 file cast to e4m3. A
unit is what all heads have of so many tokens. The error of attention is the root mean square by which softmax(Q Kᵀ / √d) V is
off, as a share of its own. ubq has the one step for K and V whose error of attention is that of a cast to fp8 e4m3; its ratio
is that step's. Nothing is timed: who runs it again gets the same numbers.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
from script import header, run

from halfstep.compress.analysis import analyse
from halfstep.compress.errors import cast_to_fp8
from halfstep.compress.policy import Choice
from halfstep.compress.tensors import Tensor, read_tensors
from halfstep.compress.trial import floats_of, tried

LENGTHS = (16, 64, 256)
# Ratio of units, and of pages with trailers; by element and tokens of a unit.
UNITS = {"bf16": {16: 1.45, 64: 1.46, 256: 1.46}, "fp16": {64: 1.14}, "e4m3": {64: 1.16}}
FLASH = {"bf16": {16: 1.40, 64: 1.44, 256: 1.46}}
QUANTISED = {16: 2.6, 256: 2.8}

Floats = npt.NDArray[np.float32]


def e4m3_of(tensor: Tensor) -> Tensor:
    """The bits of a cast to fp8 e4m3."""
    values = cast_to_fp8(floats_of(tensor.bits, tensor.element))
    sizes = np.abs(values)
    exponent = np.maximum(np.where(sizes == 0, -6, np.frexp(sizes)[1] - 1), -6)
    fraction = np.ldexp(sizes, 3 - exponent).astype(np.uint8)  # 8 to 15 of a normal value, below 8 of a denormal one
    normal = fraction >= 8
    bits = np.where(normal, (exponent + 7).astype(np.uint8) << 3 | (fraction & 7), fraction)
    return Tensor(tensor.name, "e4m3", (bits | (np.signbit(values).astype(np.uint8) << 7)).astype(np.uint8))


def through(bits: npt.NDArray[np.uint16], tokens: int, step: float) -> tuple[npt.NDArray[np.uint16], int]:
    """K or V of a layer, [heads, tokens, values], as units of so many tokens at a step; and the units' bytes."""
    back, stored = bits.copy(), 0
    for first in range(0, bits.shape[1] - tokens + 1, tokens):
        part = np.ascontiguousarray(bits[:, first : first + tokens])
        trial = tried(part, "bf16", part.shape[-1], Choice("ubq", step))
        back[:, first : first + tokens] = trial.back
        stored += trial.stored_bytes
    return back, stored


def attention(q: Floats, k: Floats, v: Floats) -> Floats:
    """[heads, rows, values] of one layer."""
    scores = q @ k.transpose(0, 2, 1) / np.float32(q.shape[-1] ** 0.5)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    out: Floats = (weights / weights.sum(-1, keepdims=True)) @ v
    return out


def pairs(path: Path, tensors: list[Tensor]) -> Iterator[tuple[npt.NDArray[np.uint16], Floats]]:
    """K and V of a layer as bits, with its queries."""
    with np.load(path) as arrays:
        for tensor in tensors:
            name = tensor.name.replace("kv", "q")
            if name in arrays.files:
                queries = floats_of(arrays[name], "bf16")
                yield from zip(tensor.bits, queries, strict=True)


def quantised(path: Path, tensors: list[Tensor]) -> dict[str, object]:
    """By length the largest step whose error of attention is a cast's, and its ratio; nothing where there are no queries."""
    layers = list(pairs(path, tensors))
    if not layers:
        return {}
    exact = [attention(q, *(floats_of(plane, "bf16") for plane in kv)) for kv, q in layers]
    size = sum(float(np.square(one, dtype=np.float64).sum()) for one in exact)

    def error(others: list[Floats]) -> float:
        off = sum(float(np.square(a.astype(np.float64) - b).sum()) for a, b in zip(exact, others, strict=True))
        return (off / size) ** 0.5

    cast = error([attention(q, *(cast_to_fp8(floats_of(plane, "bf16")) for plane in kv)) for kv, q in layers])

    def tried_at(step: float, tokens: int) -> tuple[float, float]:
        others, stored, raw = [], 0, 0
        for kv, q in layers:
            told = [through(plane, tokens, step) for plane in kv]
            others.append(attention(q, *(floats_of(bits, "bf16") for bits, _ in told)))
            stored += sum(count for _, count in told)
            raw += kv.nbytes
        return error(others), raw / stored

    def largest(tokens: int) -> dict[str, float]:
        low, high = 0.02, 0.5
        for _ in range(8):
            middle = (low * high) ** 0.5
            low, high = (middle, high) if tried_at(middle, tokens)[0] <= cast else (low, middle)
        found, ratio = tried_at(low, tokens)
        return {"step": low, "error": found, "ratio": ratio}

    return {"cast_error": cast, "by_tokens": {tokens: largest(tokens) for tokens in QUANTISED}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--fp16", type=Path)
    options = parser.parse_args()
    tensors = [one for one in read_tensors(options.file) if one.bits.ndim == 5 and one.element == "bf16"]
    if not tensors:
        raise SystemExit(f"{options.file}: has no tensor of [layers, 2, heads, tokens, values] in bf16")
    sets = {"bf16": tensors, "e4m3": [e4m3_of(one) for one in tensors]}
    if options.fp16:
        sets["fp16"] = [one for one in read_tensors(options.fp16) if one.bits.ndim == 5 and one.element == "fp16"]
    goals = []
    for element, some in sets.items():
        wholes, _ = analyse(some, LENGTHS)
        for whole in wholes:
            for what, ratio, wanted in (("units", whole.ratio, UNITS), ("flash", whole.flash_ratio, FLASH)):
                goal = wanted.get(element, {}).get(whole.unit_tokens)
                goals.append(
                    {
                        "what": f"{element} {what}",
                        "tokens": whole.unit_tokens,
                        "ratio": ratio,
                        "goal": goal,
                        "met": goal is None or ratio >= goal,
                    }
                )
    lossy = quantised(options.file, tensors)
    for tokens, told in lossy.get("by_tokens", {}).items():  # type: ignore[attr-defined]
        met = told["ratio"] >= QUANTISED[tokens]
        goals.append(
            {"what": "ubq at a cast's error", "tokens": tokens, "ratio": told["ratio"], "goal": QUANTISED[tokens], "met": met}
        )
    print(json.dumps(header(goals=goals, quantised=lossy), indent=2))
    return 0 if all(one["met"] for one in goals) else 1


if __name__ == "__main__":
    run(main)
