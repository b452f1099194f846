"""LMCache's storage manager with Halfstep below it: `python lmcache_store.py store|load ADAPTER_PARAMS_JSON COUNT [UNKNOWN]`.

store: COUNT objects, and waits until the tier has them. load: a fresh host memory asks for COUNT objects and UNKNOWN others.
Prints one line of JSON: {"stored": n} or {"hits": n, "equal": n, "overdue": n of our client's waits}.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

os.environ |= {"LMCACHE_DISABLE_BANNER": "1", "LMCACHE_TRACK_USAGE": "false"}

import torch
from lmcache.v1.distributed.api import GroupedObjectKeys, MemoryLayoutDesc, ObjectKey, PrefetchTaskSpec
from lmcache.v1.distributed.config import (
    EvictionConfig,
    L1ManagerConfig,
    L1MemoryManagerConfig,
    StorageManagerConfig,
)
from lmcache.v1.distributed.l2_adapters.config import L2AdaptersConfig
from lmcache.v1.distributed.l2_adapters.native_plugin_l2_adapter import NativePluginL2AdapterConfig
from lmcache.v1.distributed.storage_manager import StorageManager

import halfstep
from halfstep.connectors import lmcache as ours

# One chunk of 256 tokens: K and V, layers, tokens, hidden.
LAYOUT = MemoryLayoutDesc([torch.Size([2, 4, 256, 128])], [torch.bfloat16])
PATIENCE_S = 60
# Those that the adapter has made.
CLIENTS: list[ours.HalfstepClient] = []


class Remembered(ours.HalfstepClient):
    """Says where it is."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        CLIENTS.append(self)


def manager(parameters: dict[str, Any]) -> StorageManager:
    """As the server makes it of its command line."""
    ours.HalfstepClient = Remembered  # type: ignore[misc]
    adapter = NativePluginL2AdapterConfig.from_dict(
        {"module_path": ours.__name__, "class_name": "HalfstepClient", "adapter_params": parameters}
    )
    memory = L1MemoryManagerConfig(size_in_bytes=64 << 20, use_lazy=False, shm_name="")
    return StorageManager(
        StorageManagerConfig(
            l1_manager_config=L1ManagerConfig(memory),
            eviction_config=EvictionConfig("LRU"),
            l2_adapter_config=L2AdaptersConfig([adapter]),
        )
    )


def keys_of(count: int, first: int = 0) -> list[ObjectKey]:
    """Of the only rank."""
    rank = ObjectKey.ComputeKVRank(1, 0, 1, 0)
    return [ObjectKey(number.to_bytes(32, "big"), "tiny/qwen3", rank) for number in range(first, first + count)]


def content(count: int) -> list[torch.Tensor]:
    """The same in every process."""
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(LAYOUT.shapes[0], generator=draw).to(torch.bfloat16) for _ in range(count)]


def present(parameters: dict[str, Any]) -> int:
    """Blocks that the daemon has of these contents."""
    client = ours.HalfstepClient(**parameters)
    with halfstep.connect(parameters["url"], layout=client.layout, required=True, deadline_ms=30_000) as looking:
        found = sum(entry.layout_id == looking.layout.id for entry in looking.list())
    client.close()
    return found


def store(parameters: dict[str, Any], count: int) -> dict[str, Any]:
    """Into host memory; LMCache's store controller hands it down."""
    storage = manager(parameters)
    keys = keys_of(count)
    reserved = storage.reserve_write(keys, LAYOUT)
    for key, values in zip(keys, content(count), strict=True):
        reserved[key].tensor.copy_(values)
    storage.finish_write(keys)
    end = time.monotonic() + PATIENCE_S
    while present(parameters) < count and time.monotonic() < end:
        time.sleep(0.05)
    storage.close()
    return {"stored": present(parameters)}


def load(parameters: dict[str, Any], count: int, unknown: int) -> dict[str, Any]:
    """Up to the host's memory again."""
    storage = manager(parameters)
    keys = keys_of(count)
    handle = storage.submit_prefetch_task(PrefetchTaskSpec([GroupedObjectKeys(keys + keys_of(unknown, 1000), 0, LAYOUT, -1)]))
    storage.wait_prefetch_status(handle, PATIENCE_S)
    result = storage.query_prefetch_status(handle)
    hits = result.hit_cells[0].popcount()
    equal = 0
    if hits:
        with storage.read_prefetched_results(keys[:hits], result.l1_owners) as got:
            equal = sum(torch.equal(one.tensor, values) for one, values in zip(got, content(hits), strict=True))
        storage.finish_read_prefetched(keys[:hits], l1_owners=result.l1_owners)
    storage.close()
    return {"hits": hits, "equal": equal, "overdue": sum(client.counts.overdue for client in CLIENTS)}


def main() -> None:
    """One command."""
    mode, parameters, count = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
    unknown = int(sys.argv[4]) if len(sys.argv) > 4 else 0
    print(json.dumps(store(parameters, count) if mode == "store" else load(parameters, count, unknown)), flush=True)


if __name__ == "__main__":
    main()
