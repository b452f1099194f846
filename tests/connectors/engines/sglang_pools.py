"""SGLang's host pools without an engine: `python sglang_pools.py URL MODEL [CODEC]`. One line of JSON for each pool and layout.

{"kind", "layout", "pieces": pointers of a page, "set", "get", "equal": pages that came back whole, "exists": the leading run,
 "coding": what the codec is told of the values, "sent": bytes for each byte of the pages}
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ["SGLANG_USE_CPU_ENGINE"] = "1"

import sglang_hicache_cpu
import torch

sglang_hicache_cpu.register()

from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig  # noqa: E402
from sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler import _build_mha_mla_host_pool  # noqa: E402
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool  # noqa: E402
from sglang.srt.mem_cache.storage import StorageBackendFactory  # noqa: E402

PAGE, LAYERS, PAGES = 16, 4, 3
COMMON = {
    "size": 256,
    "page_size": PAGE,
    "dtype": torch.bfloat16,
    "layer_num": LAYERS,
    "device": "cpu",
    "enable_memory_saver": False,
}


def backend(url: str, model: str, kind: str, layout: str, pool: Any, codec: str, *, pointers: bool) -> Any:
    """As SGLang attaches it."""
    config = HiCacheStorageConfig(
        tp_rank=0,
        tp_size=1,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=kind == "mla",
        enable_storage_metrics=False,
        is_page_first_layout=layout == "page_first",
        model_name=model,
        extra_config={
            "backend_name": "halfstep",
            "module_path": "halfstep.connectors.sglang",
            "class_name": "HalfstepHiCache",
            "interface_v1": int(pointers),
            "url": url,
            "match_deadline_ms": 30_000,
            "deadline_ms": 30_000,
            "codec": codec,
            "coding": "always",
        },
    )
    made = StorageBackendFactory.create_backend("dynamic", config, pool)
    made.register_mem_pool_host(pool)
    return made


def page_of(pool: Any, index: Any) -> Any:
    """Its bytes, flat."""
    return pool.get_data_page(int(index)).contiguous().view(torch.uint8).reshape(-1)


def round_trip(url: str, model: str, kind: str, layout: str, device: Any, codec: str) -> dict[str, Any]:
    """Pages to the daemon and into other places of the pool."""
    pool = _build_mha_mla_host_pool(
        pool=device, host_to_device_ratio=2.0, page_size=PAGE, layout=layout, allocator_type="default", pool_label="kv"
    )
    one = backend(url, model, kind, layout, pool, codec, pointers=True)
    source, target = pool.alloc(PAGES * PAGE), pool.alloc(PAGES * PAGE)
    if codec:
        pool.kv_buffer.normal_()
    else:
        pool.kv_buffer.view(torch.uint8).random_(0, 255)
    keys = [f"{number:064x}" for number in range(PAGES)]
    pointers, _ = pool.get_page_buffer_meta(source)
    before = one.batch_exists(keys)
    sent = one._connection.facts().bytes_sent
    stored = one.batch_set_v1(keys, source)
    sent = one._connection.facts().bytes_sent - sent
    loaded = one.batch_get_v1(keys, target)
    there = one.batch_exists([*keys[:2], "f" * 64, keys[2]])
    equal = sum(torch.equal(page_of(pool, a), page_of(pool, b)) for a, b in zip(source[::PAGE], target[::PAGE], strict=True))
    absent = one.batch_get_v1([keys[0], "e" * 64], target[: 2 * PAGE])
    flat = backend(url, model, kind, layout, pool, codec, pointers=False)
    pages = [page_of(pool, index).clone() for index in source[::PAGE]]
    unknown = flat.batch_exists(keys)
    flat_stored = flat.batch_set(keys, pages)
    came = flat.batch_get(keys, [torch.zeros_like(page) for page in pages])
    flat_equal = sum(page is not None and torch.equal(page, back) for page, back in zip(pages, came, strict=True))
    for made in (one, flat):
        made.clear()
    cleared = one.batch_exists(keys) + flat.batch_exists(keys)
    for made in (one, flat):
        made.close()
    return {
        "kind": kind,
        "layout": layout,
        "pieces": len(pointers) // PAGES,
        "before": before,
        "set": stored,
        "get": loaded,
        "equal": equal,
        "exists": there,
        "absent": absent,
        "flat": [unknown, flat_stored, flat_equal],
        "cleared": cleared,
        "coding": one._pages.layout.fields.get("codec.0", ""),
        "sent": sent / (PAGES * one._memory.row_bytes),
    }


def main() -> None:
    """Every pool and layout that can be made on a CPU."""
    url, model, *codec = sys.argv[1:]
    devices = {
        "mha": MHATokenToKVPool(head_num=2, head_dim=64, **COMMON),
        "mla": MLATokenToKVPool(kv_lora_rank=512, qk_rope_head_dim=64, **COMMON),
    }
    for kind, device in devices.items():
        for layout in ("layer_first", "page_first", "page_first_direct", "page_head"):
            if (kind, layout) != ("mla", "page_head"):
                print(json.dumps(round_trip(url, model, kind, layout, device, *(codec or [""]))), flush=True)


if __name__ == "__main__":
    main()
