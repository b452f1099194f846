#!/usr/bin/env python3
"""Question: do blocks that are prefetched one decode step ahead wait in memory for their get?

Writes every block of a trace, restarts the daemon so that memory is empty, and replays the requests: prefetch, 30 ms, get; then
again on an empty memory without the prefetch, for comparison. Of the blocks that a get asks for and that memory did not have
before, the staged ones are those that were there when the get came; one that was still on its way is late. Exit status 1 if
fewer than 0.95 are staged. Memory and blocks are sized so that the device can keep up; --json: the document.

--trace FILE: in a format of `halfstep replay`; by default chats that are made up, always the same.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from script import header, positive, run

import halfstep
from halfstep.daemon.units import GIB, KIB, MIB, format_bytes
from halfstep.tools.bench.device import BlockDevice
from halfstep.tools.bench.machine import device_name
from halfstep.tools.bench.place import own_daemon
from halfstep.tools.bench.workload import DEADLINE_MS, percentile_us, put_whole
from halfstep.tools.replay.trace import Trace, load

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.chat_trace import write_chat_trace

STAGED_MIN = 0.95
NOTICE_S = 0.030
ARENA = "512MiB"
KEYS_MAX = 512  # of a put
BLOCK_BYTES_MIN = 4  # of the number in it


@dataclass(frozen=True)
class Pass:
    """One replay. blocks: asked for. in_memory: those that a get found there. brought: by a prefetch, the late ones too."""

    blocks: int
    in_memory: int
    brought: int
    late: int
    from_flash: int
    get_ms_p50: float
    get_ms_p99: float

    @property
    def staged_share(self) -> float:
        """Of the blocks that memory did not have when their prefetch came, or their get where there was none.

        A late one came from flash, too: its get waited for the same read.
        """
        staged = self.brought - self.late
        if staged + self.from_flash == 0:
            raise SystemExit("memory had every block that was asked for: nothing was measured; give a --trace of more blocks")
        return staged / (staged + self.from_flash)


def counters(client: halfstep.Client) -> dict[str, float]:
    stat = client.stat()
    return {
        "memory": stat['halfstep_store_hits_total{from="memory"}'],
        "flash": stat['halfstep_store_hits_total{from="flash"}'],
        "brought": stat["halfstep_store_staged_blocks_total"],
        "late": stat['halfstep_store_staged_ended_total{as="late"}'],
    }


def replay(client: halfstep.Client, trace: Trace, requests: int, block_bytes: int, *, ahead: bool) -> Pass:
    """All of them, one after the other; every block must be there and right."""
    target = np.zeros((int(np.diff(trace.starts).max()), block_bytes), np.uint8)
    before = counters(client)
    blocks = 0
    took_us = []
    with client.queue() as queue:
        for number in range(requests):
            asked = np.unique(trace.request(number))
            keys = trace.keys[asked]
            ticket = queue.prefetch(keys, follow=True, seconds=5) if ahead else None
            time.sleep(NOTICE_S)
            began = time.perf_counter()
            got = client.get(keys, target[: len(asked)])
            took_us.append((time.perf_counter() - began) * 1e6)
            if not got.ok.all() or not np.array_equal(target[: len(asked), :4].view("<u4").ravel(), asked):
                raise SystemExit(f"request {number}: {got!r}")
            blocks += len(asked)
            if ticket is not None:
                ticket.result()
    after = counters(client)
    delta = {name: int(after[name] - before[name]) for name in before}
    times_us = np.array(took_us)
    return Pass(
        blocks,
        delta["memory"],
        delta["brought"],
        delta["late"],
        delta["flash"],
        percentile_us(times_us, 0.5) / 1000,
        percentile_us(times_us, 0.99) / 1000,
    )


def fill(client: halfstep.Client, trace: Trace, blocks: int, block_bytes: int) -> None:
    """Each block begins with its number; the rest is noise."""
    noise = np.random.default_rng(1).integers(0, 256, (KEYS_MAX, block_bytes), np.uint8)
    for at in range(0, blocks, KEYS_MAX):
        numbers = np.arange(at, min(blocks, at + KEYS_MAX), dtype="<u4")
        noise[: len(numbers), :4] = numbers[:, None].view(np.uint8)
        put_whole(client, trace.keys[numbers], noise[: len(numbers)])


def measure(trace: Trace, requests: int, block_bytes: int, directory: Path | None) -> tuple[str, dict[str, Pass]]:
    """(device, passes)."""
    blocks = int(trace.blocks[: trace.starts[requests]].max()) + 1
    size = max(GIB, blocks * (block_bytes + 4 * KIB) * 5 // 4 + 256 * MIB)
    terms: dict[str, Any] = {
        "layout": halfstep.Layout.opaque("bench/prefetch"),
        "required": True,
        "deadline_ms": DEADLINE_MS,
        "mode": "on",
    }
    passes = {}
    with own_daemon("--size", str(size), "--arena", ARENA, directory=directory) as daemon:
        with halfstep.connect(daemon.url, **terms) as client:
            fill(client, trace, blocks, block_bytes)
        for name, ahead in (("prefetched", True), ("without", False)):
            daemon.end()
            daemon.start()
            with halfstep.connect(daemon.url, **terms) as client:
                passes[name] = replay(client, trace, requests, block_bytes, ahead=ahead)
        device = device_name(BlockDevice.of(daemon.store))
    return device, passes


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--trace", type=Path, default=None)
    parser.add_argument("--requests", type=positive, default=400, help="of the trace, from the first on")
    parser.add_argument("--block-bytes", type=positive, default=64 * KIB)
    parser.add_argument("--directory", type=Path, default=None, help="where the store lies: on the drive in question")
    parser.add_argument("--json", action="store_true", dest="as_json")
    arguments = parser.parse_args()
    if arguments.block_bytes < BLOCK_BYTES_MIN:
        raise SystemExit(
            f"--block-bytes {arguments.block_bytes}: must be at least {BLOCK_BYTES_MIN}, the number of the block in it"
        )
    head = header(block_bytes=arguments.block_bytes, notice_s=NOTICE_S, arena=ARENA)
    with tempfile.TemporaryDirectory(prefix="halfstep-bench-") as own:
        trace = load(arguments.trace or write_chat_trace(Path(own) / "chats.jsonl"))
    requests = min(arguments.requests, trace.requests)
    device, passes = measure(trace, requests, arguments.block_bytes, arguments.directory)
    head |= {"device": device, "trace": trace.name, "requests": requests}
    share = passes["prefetched"].staged_share
    if arguments.as_json:
        print(json.dumps({"header": head, "staged_share": share, **{name: asdict(one) for name, one in passes.items()}}))
    else:
        print(f"halfstep {head['version']}, commit {head['commit']}; {head['cpu']}, kernel {head['kernel']}, on {device}")
        print(f"load {head['load_average']:.1f} at the start")
        size = format_bytes(arguments.block_bytes)
        print(f"{trace.name}: {requests} requests, {NOTICE_S * 1000:.0f} ms ahead, blocks of {size}")
        print(f"{'':<12}{'blocks':>8}{'in memory':>11}{'brought':>9}{'late':>6}{'from flash':>12}{'get p50 ms':>12}{'p99':>8}")
        for name, one in passes.items():
            row = f"{one.blocks:>8}{one.in_memory:>11}{one.brought:>9}{one.late:>6}{one.from_flash:>12}"
            print(f"{name:<12}{row}{one.get_ms_p50:>12.2f}{one.get_ms_p99:>8.2f}")
        print(f"staged, of what memory did not have: {share:.3f}")
    if share < STAGED_MIN:
        print(f"MISSED: {share:.3f} staged, at least {STAGED_MIN}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    run(main)
