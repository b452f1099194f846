#!/usr/bin/env python3
"""Question: how early is the first layer of a large request from flash there, and what does layer order cost all of it?

A daemon of its own has blocks of 64 layers on flash and nothing in memory; one get asks for all of them in layer order, one in
key order, with a restart before each; so for each number in --blocks, of which a connection may have some in memory at once and
others not. The first layer is there when the ticket's queue says so; every block is compared afterwards. Exit status 1 if a
median of it is later than a quarter of the whole time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from script import header, positive, run

import halfstep
from halfstep.daemon.units import GIB, KIB, MIB, format_bytes
from halfstep.layout import Group
from halfstep.tools.bench.place import own_daemon
from halfstep.tools.bench.workload import DEADLINE_MS

LAYERS = 64
ARENA = "512MiB"
FIRST_SHARE_MAX = 0.25


def content(block: int, layer_bytes: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    return np.random.default_rng(block).integers(0, 1 << 63, LAYERS * layer_bytes // 8, np.uint64)


def got(client: halfstep.Client, blocks: int, layer_bytes: int, order: str) -> tuple[float, float]:
    """Milliseconds until the first layer of all blocks was there (in key order: until all were), and until all were."""
    keys = [f"block {block}".encode() for block in range(blocks)]
    target = np.ones((blocks, LAYERS * layer_bytes // 8), np.uint64)
    first_ms = None
    with client.queue() as queue:
        began = time.perf_counter()
        ticket = queue.get(keys, target, order="layer" if order == "layer" else "key")
        while not ticket.done:
            for event in queue.wait(1.0):
                if order == "layer" and first_ms is None and event.steps_done > 0:
                    first_ms = (time.perf_counter() - began) * 1e3
        all_ms = (time.perf_counter() - began) * 1e3
        if not ticket.result().ok.all():
            raise SystemExit(f"a get in {order} order: {ticket.result()!r}")
    for block in range(blocks):
        if not np.array_equal(target[block], content(block, layer_bytes)):
            raise SystemExit(f"a get in {order} order brought a wrong block")
    return all_ms if first_ms is None else first_ms, all_ms


def measure(blocks: int, layer_bytes: int, rounds: int, directory: Path | None) -> Iterator[dict[str, float]]:
    """One document a round."""
    terms: dict[str, Any] = {
        "layout": halfstep.Layout({"name": "bench/layers"}, [Group(LAYERS, (layer_bytes,))]),
        "required": True,
        "deadline_ms": DEADLINE_MS,
        "mode": "on",
    }
    size = 2 * GIB + 2 * blocks * LAYERS * layer_bytes
    with own_daemon("--size", str(size), "--arena", ARENA, directory=directory) as daemon:
        with halfstep.connect(daemon.url, **terms) as client:
            for block in range(blocks):
                put = client.put([f"block {block}".encode()], content(block, layer_bytes), durability="persist")
                if not put.ok.all():
                    raise SystemExit(f"blocks of {format_bytes(LAYERS * layer_bytes)}: {put!r}")
        for _ in range(rounds):
            said = {}
            for order in ("layer", "key"):
                daemon.end()
                daemon.start()
                with halfstep.connect(daemon.url, **terms) as client:
                    said["first_ms"], said[f"{order}_ms"] = got(client, blocks, layer_bytes, order)
                    if order == "layer":
                        first_ms = said["first_ms"]
            yield {**said, "first_ms": first_ms, "first_share": first_ms / said["layer_ms"]}


def print_table(said: dict[str, Any], size: int) -> None:
    """Of one number of blocks of this many bytes."""
    print(f"{said['blocks']} blocks of {format_bytes(size)}, {said['blocks'] * size / MIB:.0f} MiB in one get, from flash")
    print(f"{'':>8}{'first layer, ms':>18}{'all in layer order':>20}{'all in key order':>18}{'first, of all':>15}")
    for name, one in [*((f"{number + 1}", one) for number, one in enumerate(said["rounds"])), ("median", said["median"])]:
        print(f"{name:>8}{one['first_ms']:>18.1f}{one['layer_ms']:>20.1f}{one['key_ms']:>18.1f}{one['first_share']:>15.2f}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--blocks", type=positive, nargs="+", default=[15, 64], help="in one get")
    parser.add_argument("--layer-bytes", type=positive, default=64 * KIB)
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--directory", type=Path, default=None, help="where the store lies: on the drive in question")
    parser.add_argument("--json", action="store_true", dest="as_json")
    arguments = parser.parse_args()
    if arguments.layer_bytes % 4096 or LAYERS * arguments.layer_bytes * max(arguments.blocks) > GIB:
        raise SystemExit(f"--layer-bytes {arguments.layer_bytes}: whole pages of 4096, and all blocks together at most 1 GiB")
    head = header(blocks=arguments.blocks, layer_bytes=arguments.layer_bytes, arena=ARENA)
    said = []
    for blocks in arguments.blocks:
        rounds = list(measure(blocks, arguments.layer_bytes, arguments.rounds, arguments.directory))
        median = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
        said.append({"blocks": blocks, "rounds": rounds, "median": median})
    if arguments.as_json:
        print(json.dumps({"header": head, "gets": said}))
    else:
        print(f"halfstep {head['version']}, commit {head['commit']}; {head['cpu']}, kernel {head['kernel']}")
        for one in said:
            print_table(one, LAYERS * arguments.layer_bytes)
    missed = [one for one in said if one["median"]["first_share"] > FIRST_SHARE_MAX]
    for one in missed:
        share = one["median"]["first_share"]
        print(
            f"MISSED: {one['blocks']} blocks: the first layer after {share:.2f} of the time, at most {FIRST_SHARE_MAX}",
            file=sys.stderr,
        )
    return 1 if missed else 0


if __name__ == "__main__":
    run(main)
