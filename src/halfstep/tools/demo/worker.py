"""One client process of the demo, one JSON object on stdout: `… worker ROLE KIND URL TOKENS NEW [CODEC]`, CODEC such as bfx.

Roles: `save` prefills and saves, then generates; `restore` restores and generates; `swap` restores with two blocks in each
other's place, which must give other tokens. All three compute what the tier does not give in the same pieces, so that equal
caches give equal bits. `fill` saves the prompt's blocks under one salt after another until the store gives blocks up.

What is swapped are the two blocks' K, as if each had come under the other's name. Whole blocks in each other's place would
prove nothing: their positions are rotated into K, and attention over a set of (K, V) pairs does not depend on the set's order.
(Measured on these models: logits move by 0 to 0.06 then, which is rounding, and by 1.4, a standard deviation, with K alone.)
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
from transformers import DynamicCache

import halfstep
from halfstep.connectors.transformers import PromptCache, cache_argument
from halfstep.tools.demo.models import build, prompt

BLOCK_TOKENS = 16
# Far above what a loaded machine needs: the demo judges tokens, not time.
DEADLINE_MS = 20_000
# Of raw blocks: fills the demo's smallest store several times.
FILL_BYTES_MAX = 1 << 30


def main(role: str, kind: str, url: str, tokens: int, new_tokens: int, codec: str = "") -> dict[str, Any]:
    """What this process did, for the table."""
    torch.set_num_threads(max(1, torch.get_num_threads() - 1))  # leave a core to the daemon, which shares the machine here
    model, ids = build(kind), prompt(kind, tokens)
    codecs = (codec,) if codec else ()
    with halfstep.connect(url, required=True, deadline_ms=DEADLINE_MS, codecs=codecs, coding="always") as client:
        store = PromptCache(client, model, block_tokens=BLOCK_TOKENS, durability="persist", codec=codec)
        told: dict[str, Any] = {"role": role, "kind": kind, "prompt_tokens": tokens, "block_bytes": store.block_bytes}
        if role == "fill":
            return told | _fill(store, ids)
        told |= _save(store, ids) if role == "save" else _restore(store, ids, swap=role == "swap")
        cache = told.pop("cache")
        with torch.no_grad():
            generate: Any = model.generate  # transformers mixes it in where types do not see it
            output = generate(ids, max_new_tokens=new_tokens, do_sample=False, **cache_argument(model, cache))
        told["tokens"] = output[0, tokens:].tolist()
        told["path"] = client.path
        told["bytes_sent"], told["decode_failures"] = client.facts().bytes_sent, client.facts().decode_failures
        return told


def _save(store: PromptCache, ids: torch.Tensor) -> dict[str, Any]:
    warm = DynamicCache(config=store.config)
    store.prefill(ids[:, : 4 * BLOCK_TOKENS], warm, save=False)  # the first forwards of a process pay for its set-up
    alone = DynamicCache(config=store.config)
    started = time.perf_counter()
    store.prefill(ids, alone, save=False)
    prefill_s = time.perf_counter() - started

    cache = DynamicCache(config=store.config)
    started = time.perf_counter()
    saved = store.prefill(ids, cache, deadline_ms=DEADLINE_MS)
    with_save_s = time.perf_counter() - started
    # The same bytes again, under a salt of their own: how fast saving is when no model runs beside it.
    codec = store.tier.layout.codec
    other = PromptCache(store.client, store.model, block_tokens=BLOCK_TOKENS, salt=b"speed", durability="persist", codec=codec)
    started = time.perf_counter()
    again = other.save(ids, cache, deadline_ms=DEADLINE_MS)
    save_s = time.perf_counter() - started
    return {
        "cache": cache,
        "prefill_s": prefill_s,
        "prefill_with_save_s": with_save_s,
        "saved_blocks": saved.stored + saved.present,
        "refused_blocks": saved.refused + again.refused,
        "reason": saved.reason or again.reason,
        "bytes": (saved.stored + saved.present) * store.block_bytes,
        "save_bytes_per_s": again.bytes / save_s,
    }


def _fill(store: PromptCache, ids: torch.Tensor) -> dict[str, Any]:
    """Blocks that a store holds which has given blocks up twice as often as the prompt has them."""
    cache = DynamicCache(config=store.config)
    store.prefill(ids, cache, save=False)
    codec = store.tier.layout.codec
    prompt_blocks = len(store.keys(ids))
    for number in range(FILL_BYTES_MAX // (prompt_blocks * store.block_bytes) + 1):
        saved = PromptCache(
            store.client,
            store.model,
            block_tokens=BLOCK_TOKENS,
            weights_revision="fill",  # not taken from the weights each time
            salt=b"fill %d" % number,
            durability="persist",
            codec=codec,
        )
        saved.save(ids, cache, deadline_ms=DEADLINE_MS)
        counters = store.tier.client.stat()
        gone = sum(value for name, value in counters.items() if name.startswith("halfstep_store_blocks_evicted"))
        if gone > 2 * prompt_blocks:
            return {"held_blocks": int(counters["halfstep_store_blocks"]), "fills": number + 1}
    raise SystemExit(f"the store gave no block up for {FILL_BYTES_MAX} bytes; is it larger than the demo's?")


def _swap_key_planes(store: PromptCache, cache: DynamicCache, one: int, other: int) -> None:
    """The test hook: in every layer, block `one` gets block `other`'s K and the other way round; V stays."""
    tokens = [slice(block * store.block_tokens, (block + 1) * store.block_tokens) for block in (one, other)]
    layers: list[Any] = list(cache.layers)  # transformers declares their tensors optional
    for layer in layers:
        kept = layer.keys[:, :, tokens[0]].clone()
        layer.keys[:, :, tokens[0]] = layer.keys[:, :, tokens[1]]
        layer.keys[:, :, tokens[1]] = kept


def _restore(store: PromptCache, ids: torch.Tensor, *, swap: bool) -> dict[str, Any]:
    started = time.perf_counter()
    restored = store.restore(ids, deadline_ms=DEADLINE_MS)
    restore_s = time.perf_counter() - started
    if swap and restored.hit_blocks >= 4:
        _swap_key_planes(store, restored.cache, 1, restored.hit_blocks - 2)
    store.prefill(ids, restored.cache, save=False)
    return {
        "cache": restored.cache,
        "restore_s": restore_s,
        "prefill_with_tier_s": time.perf_counter() - started,
        "hit_blocks": restored.hit_blocks,
        "asked_blocks": restored.asked_blocks,
        "bytes": restored.bytes,
        "reason": restored.reason,
        "restore_bytes_per_s": restored.bytes / restore_s,
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]), *sys.argv[6:])))
