#!/usr/bin/env python3
"""Question: is exact coding of K and V so much faster than zstd -1 that it costs a transfer nothing?

FILE: an .npz or .safetensors of real K and V, which is repeated until it is larger than the caches. Each round codes and
decodes all units one after the other on one core: with bfx, with ubq at a step, with zstd -1, lz4 and ZipNN where their
libraries are installed, and a copy. The goals are multiples of zstd -1's speed in the same run, by the path that this processor
takes, for bfx and ubq alike. ZipNN takes and gives bytes objects, whose copies are part of its times. Times are the thread's
own, so that waiting for a busy core does not count; a call from Python takes some microseconds of a small unit's. Every byte is
compared. Units of ubq have their values token by token, and each value is within half a step and its own
rounding.
"""

from __future__ import annotations

import argparse
import ctypes
import ctypes.util
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from script import header, positive, run

from halfstep import _peer, compress
from halfstep.compress.tensors import read_tensors

SET_BYTES = 72 << 20
# Multiples of zstd -1: in, out.
GOALS = {"avx512": (4.0, 7.0), "avx2": (1.5, 2.0), "plain": (0.0, 0.0)}

Coder = Callable[[int, int, int, int], int]


def units_of(path: Path, tokens: int, pattern: str, *, by_token: bool = False) -> tuple[list[np.ndarray], str, int]:
    """Units of [heads, tokens, dimensions], or [tokens, heads, dimensions]; their element and values of a row."""
    units, element, row = [], "", 0
    for tensor in read_tensors(path):
        if not tensor.name.startswith(pattern) or tensor.bits.ndim < 3:
            continue
        element, row = tensor.element, tensor.bits.shape[-1] * (tensor.bits.shape[-3] if by_token else 1)
        planes = tensor.bits.reshape(-1, *tensor.bits.shape[-3:])
        for plane in planes:
            cuts = range(0, plane.shape[1] - tokens + 1, tokens)
            pieces = [plane[:, at : at + tokens] for at in cuts]
            order = [piece.transpose(1, 0, 2) if by_token else piece for piece in pieces]
            units += [np.ascontiguousarray(piece).view(np.uint8).ravel() for piece in order]
    if not units:
        raise SystemExit(f"{path}: has no tensor {pattern}* with {tokens} tokens")
    return units, element, row


def library(name: str, found: str) -> ctypes.CDLL | None:
    """A shared library, where it is installed."""
    try:
        return ctypes.CDLL(ctypes.util.find_library(name) or found)
    except OSError:
        return None


def zstd_coders() -> tuple[Coder, Coder] | None:
    """zstd -1 over memory, with contexts that are kept."""
    zstd = library("zstd", "libzstd.so.1")
    if zstd is None:
        return None
    for name in ("ZSTD_createCCtx", "ZSTD_createDCtx"):
        getattr(zstd, name).restype = ctypes.c_void_p
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    zstd.ZSTD_compressCCtx.argtypes = [pointer, pointer, size, pointer, size, ctypes.c_int]
    zstd.ZSTD_decompressDCtx.argtypes = [pointer, pointer, size, pointer, size]
    zstd.ZSTD_compressCCtx.restype = zstd.ZSTD_decompressDCtx.restype = size
    into, out_of = zstd.ZSTD_createCCtx(), zstd.ZSTD_createDCtx()
    return (
        lambda to, room, source, count: zstd.ZSTD_compressCCtx(into, to, room, source, count, 1),
        lambda to, room, source, count: zstd.ZSTD_decompressDCtx(out_of, to, room, source, count),
    )


def lz4_coders() -> tuple[Coder, Coder] | None:
    """lz4's fast level."""
    lz4 = library("lz4", "liblz4.so.1")
    if lz4 is None:
        return None
    for name in ("LZ4_compress_default", "LZ4_decompress_safe"):
        getattr(lz4, name).argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
    return (
        lambda to, room, source, count: lz4.LZ4_compress_default(source, to, count, room),
        lambda to, room, source, count: lz4.LZ4_decompress_safe(source, to, count, room),
    )


def zipnn_coders(element: str) -> tuple[Coder, Coder] | None:
    """The package's own defaults, told the element, on one thread."""
    try:
        from zipnn import ZipNN
    except ImportError:
        return None
    zipnn = ZipNN(input_format="byte", bytearray_dtype={"bf16": "bfloat16", "fp16": "float16"}.get(element, element), threads=1)

    def placed(to: int, what: bytes) -> int:
        ctypes.memmove(to, bytes(what), len(what))
        return len(what)

    return (
        lambda to, _room, source, count: placed(to, zipnn.compress(ctypes.string_at(source, count))),
        lambda to, _room, source, count: placed(to, zipnn.decompress(ctypes.string_at(source, count))),
    )


class Bench:
    """The set, and memory for what becomes of it: each unit has its own place, so that nothing stays in a cache."""

    def __init__(self, units: list[np.ndarray]) -> None:
        self.unit_bytes = units[0].nbytes
        repeats = -(-SET_BYTES // (self.unit_bytes * len(units)))
        self.source = np.concatenate(units * repeats).reshape(-1, self.unit_bytes)
        self.room = self.unit_bytes + self.unit_bytes // 8 + 1024
        self.coded = np.zeros((len(self.source), self.room), np.uint8)
        self.back = np.zeros_like(self.source)
        self.lengths = [0] * len(self.source)

    def rounds(self, count: int, coders: tuple[Coder, Coder], check: Callable[[], None] | None = None) -> dict[str, float]:
        """GB/s of raw bytes, in and out, the best of the rounds, and the ratio. check: by default, that each byte came back."""
        into, out_of = coders
        best_in = best_out = float("inf")
        sources = [unit.ctypes.data for unit in self.source]
        coded = [unit.ctypes.data for unit in self.coded]
        backs = [unit.ctypes.data for unit in self.back]
        for _ in range(count):
            started = time.thread_time()
            for i, source in enumerate(sources):
                self.lengths[i] = into(coded[i], self.room, source, self.unit_bytes)
            best_in = min(best_in, time.thread_time() - started)
            started = time.thread_time()
            for i, back in enumerate(backs):
                out_of(back, self.unit_bytes, coded[i], self.lengths[i])
            best_out = min(best_out, time.thread_time() - started)
            (check or self.check)()
        raw = self.source.nbytes
        return {"ratio": raw / sum(self.lengths), "in_gb_s": raw / best_in / 1e9, "out_gb_s": raw / best_out / 1e9}

    def ours(self, codec: str, count: int, element: str, row: int, step: float = 0.0) -> dict[str, float]:
        """As rounds(), by the extension module: it takes buffers, not addresses."""
        places = {unit.ctypes.data: unit for units in (self.source, self.coded, self.back) for unit in units}

        def into(to: int, _room: int, source: int, _count: int) -> int:
            length = _peer.encode_unit(codec, places[source], element, row, places[to], step)
            if length == 0:
                raise SystemExit("a unit does not pay: these are no K and V")
            return length

        def out_of(to: int, _room: int, source: int, length: int) -> int:
            return _peer.decode_unit(codec, places[source][:length], places[to])

        return self.rounds(count, (into, out_of), (lambda: self.check_bound(element)) if codec in compress.LOSSY else None)

    def check_bound(self, element: str) -> None:
        """No value is off by more than half its unit's step, and its own rounding."""
        ulps = 2.0**-8 if element == "bf16" else 2.0**-11
        for before, after, unit, length in zip(self.source, self.back, self.coded, self.lengths, strict=True):
            step = compress.inspect(unit[:length], codec="ubq").step
            x, y = floats_of(element, before), floats_of(element, after)
            if not (np.abs(x - y) <= step / 2 * 1.00001 + np.abs(y) * ulps).all():
                raise SystemExit("a value is off by more than half a step")
        self.back.fill(0)

    def check(self) -> None:
        """What came back is what went in."""
        if not np.array_equal(self.source, self.back):
            raise SystemExit("other bytes came back")
        self.back.fill(0)


def floats_of(element: str, raw: np.ndarray) -> np.ndarray:
    """Values of bf16 or fp16."""
    if element == "fp16":
        return raw.view(np.float16).astype(np.float32)
    return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)


def copied(to: int, _room: int, source: int, count: int) -> int:
    """A copy, as a coder."""
    ctypes.memmove(to, source, count)
    return count


def main() -> int:
    """0 when the goals are met, or there is no zstd to compare with."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help=".npz or .safetensors")
    parser.add_argument("--tokens", type=positive, default=256, help="of a unit (256)")
    parser.add_argument("--tensor", default="kv", help="the tensors' names begin so (kv)")
    parser.add_argument("--step", type=float, default=0.1, help="of ubq (0.1)")
    parser.add_argument("--rounds", type=positive, default=5)
    options = parser.parse_args()
    units, element, row = units_of(options.file, options.tokens, options.tensor)
    bench = Bench(units)
    results = {"copy": bench.rounds(options.rounds, (copied, copied))}
    for name, coders in (("zstd_1", zstd_coders()), ("lz4", lz4_coders()), ("zipnn", zipnn_coders(element))):
        if coders is not None:
            results[name] = bench.rounds(options.rounds, coders)
    results["bfx"] = bench.ours("bfx", options.rounds, element, row)
    if element in compress.LOSSY_ELEMENTS:
        units, element, row = units_of(options.file, options.tokens, options.tensor, by_token=True)
        results["ubq"] = Bench(units).ours("ubq", options.rounds, element, row, options.step)
    path = compress.path()
    document = header(
        path=path,
        element=element,
        unit_bytes=bench.unit_bytes,
        set_bytes=bench.source.nbytes,
        step=options.step,
        results=results,
    )
    missed = []
    if "zstd_1" in results:
        document["goals"] = dict(zip(("in", "out"), GOALS[path], strict=True))
        document["times_zstd_1"] = {
            codec: {way: results[codec][f"{way}_gb_s"] / results["zstd_1"][f"{way}_gb_s"] for way in ("in", "out")}
            for codec in ("bfx", "ubq")
            if codec in results
        }
        missed = [
            f"{codec} {way}"
            for codec, times in document["times_zstd_1"].items()
            for way, goal in document["goals"].items()
            if times[way] < goal
        ]
        document["missed"] = missed
    print(json.dumps(document, indent=2))
    return 1 if missed else 0


if __name__ == "__main__":
    run(main)
