#!/usr/bin/env python3
"""What do gets into the memory of a GPU move, beside the same gets into host memory and plain copies?

Needs torch with CUDA and a device. Elsewhere it says why it measures nothing, and its exit status is 0. The blocks come from
the device's memory by a put, and are in the memory of a daemon of this machine. The limit is what asynchronous copies of
256 KiB from pinned memory move. With --piece-bytes the blocks lie in pieces on the device, as in an engine's pages: twice
their length apart. With --clients the blocks are also had by so many clients, each of which gets its share in a thread of its
own, as the ranks of an engine do. What lands is compared with what was put.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
from script import header, positive, run

import halfstep
from halfstep.daemon.units import GIB, KIB, MIB
from halfstep.errors import ConfigError
from halfstep.tools.bench.place import own_daemon

SLOT_BYTES = 256 * KIB
TRIES_MAX = 60


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


def ok(result: Any) -> None:
    if not result.ok.all():
        raise SystemExit(f"not ok: {result.reason(int(np.argmin(result.ok)))}")


class Way:
    """Gets and puts of the same blocks, of one place on the device or the host."""

    def __init__(self, client: halfstep.Client, keys: list[bytes], where: object, options: argparse.Namespace) -> None:
        self._client, self._keys, self._where, self._options = client, keys, where, options
        self._stream = -1  # all that is measured here is over before a call
        self._puts = 0

    def get(self) -> dict[str, float]:
        def call() -> None:
            ok(self._client.get(self._keys, self._where, stream=self._stream))

        return gb_per_s(call, self._options.blocks * self._options.block_bytes, self._options.rounds)

    def put(self) -> dict[str, float]:
        """Of keys that are new each time. A put that the store throttles is not measured, and made again."""
        total, speeds = self._options.blocks * self._options.block_bytes, []
        for _ in range(TRIES_MAX):
            self._puts += 1
            keys = [b"%d %d %b" % (id(self), self._puts, key) for key in self._keys]
            began_s = time.monotonic()
            result = self._client.put(keys, self._where, stream=self._stream)
            took_s = time.monotonic() - began_s
            self._client.delete(keys)
            if result.ok.all():
                speeds.append(total / took_s / 1e9)
            else:
                time.sleep(0.2)
            if len(speeds) > self._options.rounds:
                break
        if len(speeds) < 2:
            raise SystemExit("no put was taken whole: the store throttles all of them")
        return {"median": statistics.median(speeds[1:]), "min": min(speeds[1:]), "max": max(speeds[1:])}


def in_pieces(region: halfstep.Region, size: int, options: argparse.Namespace) -> halfstep.Rows:
    """Blocks that lie in every other piece of `size` bytes."""
    parts = [
        halfstep.PartDescriptor(2 * SLOT_BYTES * part, 2 * options.block_bytes, SLOT_BYTES // size, size, 2 * size)
        for part in range(options.block_bytes // SLOT_BYTES)
    ]
    return halfstep.Rows(region.template(parts), np.arange(options.blocks))


def get_by(clients: list[halfstep.Client], keys: list[bytes], where: Any, rounds: int) -> dict[str, float]:
    """All blocks, by all clients at once; in one batch each."""
    shares = [slice(len(keys) * n // len(clients), len(keys) * (n + 1) // len(clients)) for n in range(len(clients))]

    def get(client: halfstep.Client, share: slice) -> None:
        ok(client.get(keys[share], where[share], stream=-1))

    with ThreadPoolExecutor(len(clients)) as pool:
        return gb_per_s(lambda: list(pool.map(get, clients, shares)), where.nbytes, rounds)


def measure(torch: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Of one size of batch, all ways in turn."""
    count, block_bytes = options.blocks, options.block_bytes
    total = count * block_bytes
    keys = [b"gpu-%d" % number for number in range(count)]
    host = torch.from_numpy(np.random.default_rng(1).integers(0, 256, (count, block_bytes), np.uint8)).pin_memory()
    source, target, plain = host.cuda(), torch.zeros_like(host, device="cuda"), torch.zeros_like(host)
    torch.cuda.synchronize()

    def limit() -> None:
        for to, of in zip(target.view(-1).split(SLOT_BYTES), host.view(-1).split(SLOT_BYTES), strict=True):
            to.copy_(of, non_blocking=True)
        torch.cuda.synchronize()

    size, shards = str(4 * GIB * options.shards), str(options.shards)
    with (
        own_daemon("--size", size, "--shards", shards, "--arena", "1GiB", unix=options.transport == "shm") as daemon,
        ExitStack() as opened,
    ):
        url = daemon.shared_url if options.transport == "shm" else daemon.url
        clients = [
            opened.enter_context(halfstep.connect(url, required=True, mode="on", deadline_ms=30_000))
            for _ in range(options.clients)
        ]
        client = clients[0]
        ok(client.put(keys, source, stream=-1))
        found = {"limit": gb_per_s(limit, total, options.rounds)}
        target.zero_()
        torch.cuda.synchronize()
        found["get_device"] = Way(client, keys, target, options).get()
        if not torch.equal(target, source):
            raise SystemExit("the device has other bytes than were put")
        found["get_host"] = Way(client, keys, plain, options).get()
        if not torch.equal(plain, host):
            raise SystemExit("the host has other bytes than were put")
        if len(clients) > 1:
            target.zero_()
            torch.cuda.synchronize()
            found[f"get_by_{len(clients)}"] = get_by(clients, keys, target, options.rounds)
            if not torch.equal(target, source):
                raise SystemExit(f"{len(clients)} clients: the device has other bytes than were put")
        for size in options.piece_bytes:
            pool = torch.zeros((count, block_bytes // size, 2, size), dtype=torch.uint8, device="cuda")
            torch.cuda.synchronize()
            with client.register(pool) as region:
                way = Way(client, keys, in_pieces(region, size, options), options)
                found[f"get_{size // KIB}_kib"] = way.get()
                if not torch.equal(pool[:, :, 0].reshape(count, block_bytes), source):
                    raise SystemExit(f"pieces of {size} bytes: the device has other bytes than were put")
                found[f"put_{size // KIB}_kib"] = way.put()
        found["put_device"] = Way(client, keys, source, options).put()
        found["put_host"] = Way(client, keys, host, options).put()
        facts = [one.facts().gpu for one in clients]
    counts = {name: sum(getattr(one, name) for one in facts) for name in ("copies", "slot_waits")}
    return {
        "gb_per_s": found,
        "device": facts[0].devices,
        **counts,
        "error": next((one.error for one in facts if one.error), ""),
    }


def main() -> int:
    """The document, or its two lines."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--blocks", type=positive, default=64)
    parser.add_argument("--block-bytes", type=positive, default=MIB)
    parser.add_argument("--piece-bytes", type=positive, nargs="*", default=[], help="divisors of 256 KiB, of 1 KiB at least")
    parser.add_argument("--transport", choices=("tcp", "shm"), default="tcp", help="between client and daemon (tcp)")
    parser.add_argument("--clients", type=positive, default=1, help="that get their share at once (1)")
    parser.add_argument("--shards", type=positive, default=1, help="of the daemon: threads (1)")
    parser.add_argument("--rounds", type=positive, default=9)
    parser.add_argument("--json", action="store_true", help="one document on stdout")
    options = parser.parse_args()
    for size in options.piece_bytes:
        if SLOT_BYTES % size or size % KIB or options.block_bytes % SLOT_BYTES:
            parser.error(f"--piece-bytes {size}: must divide {SLOT_BYTES}, in whole KiB, and that the --block-bytes")
    if options.clients > options.blocks:
        parser.error(f"--clients {options.clients}: must be at most the {options.blocks} --blocks")
    torch = cuda()
    if isinstance(torch, str):
        print(json.dumps({"measured": False, "why": torch}) if options.json else f"nothing is measured: {torch}")
        return 0
    head = header(blocks=options.blocks, block_bytes=options.block_bytes, shards=options.shards, rounds=options.rounds)
    try:
        found = measure(torch, options)
    except ConfigError as error:
        raise SystemExit(str(error)) from None
    if options.json:
        print(json.dumps({"measured": True, "header": head, **found}))
        return 0
    print(f"{found['device']}: {options.blocks} blocks of {options.block_bytes} bytes over {options.transport}, GB/s")
    told = [f"{found['copies']} copies and launches", f"{found['slot_waits']} waits for a slot", found["error"]]
    print(", ".join(filter(None, told)))
    for way, speed in found["gb_per_s"].items():
        print(f"{way:<11} {speed['median']:6.2f} ({speed['min']:.2f}-{speed['max']:.2f})")
    return 0


if __name__ == "__main__":
    sys.exit(run(main))
