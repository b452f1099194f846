#!/usr/bin/env python3
"""What do gets into the memory of a GPU move, beside the same gets into host memory and plain copies?

Needs torch with CUDA and a device. Elsewhere it says why it measures nothing, and its exit status is 0. The blocks come from
the device's memory by a put, and are in the memory of a daemon of this machine. The limit is what asynchronous copies of
256 KiB from pinned memory move. What lands is compared with what was put.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from script import header, positive, run

import halfstep
from halfstep.daemon.units import KIB, MIB
from halfstep.errors import ConfigError
from halfstep.tools.bench.place import own_daemon

SLOT_BYTES = 256 * KIB


def cuda() -> Any | str:
    """torch, with a CUDA device that the client can reach; else why not."""
    try:
        import torch
    except ImportError as error:
        return f"torch is not installed: {error}"
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no CUDA device"
    return torch


def gb_per_s(call: Callable[[], object], total_bytes: int, rounds: int) -> dict[str, float]:
    """The median of the rounds, and between what they were."""
    call()
    speeds = []
    for _ in range(rounds):
        began_s = time.monotonic()
        call()
        speeds.append(total_bytes / (time.monotonic() - began_s) / 1e9)
    return {"median": statistics.median(speeds), "min": min(speeds), "max": max(speeds)}


def measure(torch: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Of one size of batch, all ways in turn."""
    count, block_bytes = options.blocks, options.block_bytes
    total = count * block_bytes
    keys = [b"gpu-%d" % number for number in range(count)]
    host = torch.from_numpy(np.random.default_rng(1).integers(0, 256, (count, block_bytes), np.uint8)).pin_memory()
    source, target, plain = host.cuda(), torch.zeros_like(host, device="cuda"), torch.zeros_like(host)
    stream = torch.cuda.current_stream()
    torch.cuda.synchronize()

    def ok(result: Any) -> None:
        if not result.ok.all():
            raise SystemExit(f"not ok: {result.reason(int(np.argmin(result.ok)))}")

    def limit() -> None:
        for to, of in zip(target.view(-1).split(SLOT_BYTES), host.view(-1).split(SLOT_BYTES), strict=True):
            to.copy_(of, non_blocking=True)
        torch.cuda.synchronize()

    with (
        own_daemon("--size", "4GiB", "--arena", "1GiB") as daemon,
        halfstep.connect(daemon.url, required=True, mode="on", deadline_ms=30_000) as client,
    ):
        ok(client.put(keys, source, stream=stream))
        found = {"limit": gb_per_s(limit, total, options.rounds)}
        target.zero_()
        torch.cuda.synchronize()
        found["get_device"] = gb_per_s(lambda: ok(client.get(keys, target, stream=stream)), total, options.rounds)
        if not torch.equal(target, source):
            raise SystemExit("the device has other bytes than were put")
        found["get_host"] = gb_per_s(lambda: ok(client.get(keys, plain)), total, options.rounds)
        if not torch.equal(plain, host):
            raise SystemExit("the host has other bytes than were put")
        facts = client.facts().gpu
    return {"gb_per_s": found, "device": facts.devices, "copies": facts.copies, "slot_waits": facts.slot_waits}


def main() -> int:
    """The document, or its two lines."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--blocks", type=positive, default=64)
    parser.add_argument("--block-bytes", type=positive, default=MIB)
    parser.add_argument("--rounds", type=positive, default=9)
    parser.add_argument("--json", action="store_true", help="one document on stdout")
    options = parser.parse_args()
    torch = cuda()
    if isinstance(torch, str):
        print(json.dumps({"measured": False, "why": torch}) if options.json else f"nothing is measured: {torch}")
        return 0
    head = header(blocks=options.blocks, block_bytes=options.block_bytes, rounds=options.rounds)
    try:
        found = measure(torch, options)
    except ConfigError as error:
        raise SystemExit(str(error)) from None
    if options.json:
        print(json.dumps({"measured": True, "header": head, **found}))
        return 0
    print(f"{found['device']}: {options.blocks} blocks of {options.block_bytes} bytes, GB/s")
    for way, speed in found["gb_per_s"].items():
        print(f"{way:<11} {speed['median']:6.2f} ({speed['min']:.2f}-{speed['max']:.2f})")
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
