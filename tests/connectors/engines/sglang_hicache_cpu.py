"""SGLang's HiCache on a machine without a GPU: copies by torch between its pools, and host memory that is not pinned.

Everything but these copies is SGLang's. Source: SGLang 0.5.23, srt/mem_cache/pool_host/{mha,mla}.py for what they have to do.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from our_calls import OurCalls
from sglang.srt.mem_cache.pool_host import base, common, mha, mla
from told import tell_after


def allocate(
    dims: Any, dtype: Any, device: Any, pin_memory: bool, allocator: Any, registration_granularity_bytes: Any = None
) -> Any:
    """Host memory as it comes."""
    return allocator.allocate(dims, dtype=dtype, device=device)


def by_token(src_layers: Any, dst_layers: Any, src_indices: Any, dst_indices: Any, page_size: int) -> None:
    """Layer by layer on both sides."""
    for source, target in zip(src_layers, dst_layers, strict=True):
        target[dst_indices] = source[src_indices].view(-1, *target.shape[1:])


def from_pages(src_ptrs: Any, dst_ptrs: Any, src_indices: Any, dst_indices: Any, layer_id: int, page_size: int) -> None:
    """One layer of pages [page, layer, token, ...] to the device's tensors of that layer."""
    pages = src_indices.view(-1, page_size)[:, 0] // page_size
    for source, target in zip(src_ptrs, dst_ptrs, strict=True):
        target[dst_indices] = source[pages, layer_id].reshape(-1, *target.shape[1:])


def to_pages(src_ptrs: Any, dst_ptrs: Any, src_indices: Any, dst_indices: Any, page_size: int) -> None:
    """All layers of the device's tensors to pages."""
    pages = dst_indices.view(-1, page_size)[:, 0] // page_size
    layers = len(src_ptrs) // len(dst_ptrs)
    for number, target in enumerate(dst_ptrs):
        for layer in range(layers):
            tokens = src_ptrs[number * layers + layer][src_indices]
            target[pages, layer] = tokens.view(len(pages), page_size, *target.shape[3:])


def tell_counts(path: Path) -> None:
    """The backend lives in the scheduler's process: what it has counted is in this file after each of its calls."""
    from halfstep.connectors.sglang import HalfstepHiCache

    def told(backend: Any) -> dict[str, Any]:
        ahead = backend._pages.ahead
        expected = 0 if ahead is None else ahead.counts()["turn"].asked
        return asdict(backend.counts) | {"expected": expected, "layout": backend._pages.layout.canonical.hex()}

    tell_after(HalfstepHiCache, ("batch_exists", "batch_get_v1", "batch_set_v1"), told, path)


def tell_steps(path: Path) -> None:
    """A line of JSON for each batch that the scheduler has computed, before it says the tokens.

    tokens: that it has computed. calls: of functions of ours on the scheduler's thread since the batch before, by module.
    """
    from sglang.srt.managers.scheduler import Scheduler

    from halfstep.tier import Counts

    loop, process = Scheduler.event_loop_normal, Scheduler.process_batch_result
    ours = OurCalls()
    calls = [ours.anew()]

    def watched(scheduler: Any) -> None:
        ours.start()
        str(Counts())
        seen, calls[0] = calls[0], ours.anew()
        assert seen.keys() == {"halfstep.tier.counts"}, "calls on this thread are seen"
        loop(scheduler)

    def telling(scheduler: Any, batch: Any, result: Any) -> Any:
        seen, calls[0] = calls[0], ours.anew()
        tokens = batch.extend_num_tokens if batch.forward_mode.is_extend() else len(batch.reqs)
        with path.open("a") as steps:
            print(json.dumps({"tokens": tokens, "calls": seen}), file=steps)
        return process(scheduler, batch, result)

    Scheduler.event_loop_normal, Scheduler.process_batch_result = watched, telling


def register() -> None:
    """Called by SGLang's plug-in entry point, or by who makes pools without an engine."""
    if "HALFSTEP_COUNTS" in os.environ:
        tell_counts(Path(os.environ["HALFSTEP_COUNTS"]))
    if "HALFSTEP_STEPS" in os.environ:
        tell_steps(Path(os.environ["HALFSTEP_STEPS"]))
    common.ALLOC_MEMORY_FUNCS.default_factory = lambda: allocate
    begin = base.HostKVCache.__init__

    def unpinned(self: Any, *arguments: Any, **named: Any) -> None:
        begin(self, *arguments, **named | {"pin_memory": False})

    base.HostKVCache.__init__ = unpinned
    for module in (mha, mla):
        module.transfer_kv_direct = by_token
        module.transfer_kv_per_layer_direct_pf_lf = from_pages
        module.transfer_kv_all_layer_direct_lf_pf = to_pages
    if not hasattr(torch.cpu.Stream, "synchronize"):
        torch.cpu.Stream.synchronize = lambda _self: None
