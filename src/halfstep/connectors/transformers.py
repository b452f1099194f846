"""KV cache of Hugging Face transformers through the tier: save a prompt's blocks, restore the longest prefix, go on.

    store = PromptCache(client, model)
    restored = store.restore(ids)                 # longest prefix that the tier holds, as a DynamicCache
    saver = store.prefill(ids, restored.cache)    # computes the rest, saving full blocks while it goes
    model.generate(ids, past_key_values=restored.cache, ...)

A block is `block_tokens` tokens of all layers. Its parts are layer 0's K, layer 0's V, layer 1's K, …, each
[kv_heads, block_tokens, head_dim] as the cache holds it after rotation; so a restore lands straight in the new cache's
tensors, layer by layer. GQA and MLA models differ only in what K and V are shaped like (an MLA cache holds the latent
as K and the rotary part as V), which is read from one probing forward of a single token, not guessed from the configuration.

Covered: batch size 1, dense `DynamicCache` layers on the CPU. Sliding-window, quantised and state-space layers are refused by
name: their caches do not hold every token of the prefix.

Source: transformers 5, `cache_utils.DynamicCache`; the cache is mutated by use, so a restore makes a fresh one each time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import DynamicCache
from transformers import __version__ as transformers_version
from transformers.cache_utils import DynamicLayer

from halfstep.client import PARENT_ROOT, PARENT_UNKNOWN, Client, PartDescriptor, PutResult, Rows, Template, Ticket
from halfstep.errors import ConfigError
from halfstep.keys import prefix_keys
from halfstep.layout import Group, Layout

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

# Tokens computed by one forward while prefilling: blocks of the last one are on their way while the next one computes.
PREFILL_TOKENS = 512


@dataclass(frozen=True)
class LayerShape:
    """One layer's cache: heads and last dimension of K and of V, which differ for MLA."""

    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int


@dataclass
class Restored:
    """What `restore` found. cache: a fresh DynamicCache with `tokens` tokens in it. hit_blocks: verified blocks in it.

    asked_blocks: how many the prompt has. bytes: payload landed. reason: why it ended before asked_blocks, or "".
    """

    cache: DynamicCache
    tokens: int
    hit_blocks: int
    asked_blocks: int
    bytes: int
    reason: str


@dataclass
class Saved:
    """What became of a prompt's full blocks: stored now, present before, or not taken (throttled, dead daemon, …)."""

    stored: int = 0
    present: int = 0
    refused: int = 0
    bytes: int = 0
    reason: str = ""


def fingerprint(model: PreTrainedModel) -> str:
    """16 hex digits that change with the weights: every parameter's name, shape, dtype and a sample of its values.

    Two processes that load the same weights agree; a fine-tune differs. Reads at most 4 KiB of each parameter.
    """
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        flat = parameter.detach().reshape(-1)
        step = max(1, flat.numel() // 1024)
        sample = flat[::step][:1024].to(device="cpu", dtype=torch.float32).contiguous()
        digest.update(f"{name}{tuple(parameter.shape)}{parameter.dtype}".encode())
        digest.update(sample.numpy().tobytes())
    return digest.hexdigest()[:16]


class PromptCache:
    """Saves and restores prompts of one model through one client.

    Errors: ConfigError for a model whose cache is not covered. A dead, full or slow tier is never an error: restore returns
    what came in time, save says what was not taken.
    """

    def __init__(
        self,
        client: Client,
        model: PreTrainedModel,
        *,
        block_tokens: int = 16,
        weights_revision: str | None = None,
        salt: bytes = b"",
        ttl_s: int = 0,
        durability: str = "cache",
    ) -> None:
        """weights_revision: what tells these weights from others; `fingerprint(model)` when not given.

        salt: kept apart in the keys (a tenant, a LoRA adapter).
        """
        if block_tokens < 1:
            raise ConfigError(f"block_tokens={block_tokens}: must be at least 1")
        self.client, self.model = client, model
        self._salt, self._ttl_s, self._durability = salt, ttl_s, durability
        self.block_tokens = block_tokens
        self._layers, self._dtype = _probe(model)
        self.layout = self._make_layout(weights_revision or fingerprint(model))
        self.block_bytes = self.layout.groups[0].block_bytes

    @property
    def config(self) -> PretrainedConfig:
        """The model's, for making a DynamicCache."""
        return self.model.config

    def keys(self, ids: torch.Tensor) -> list[bytes]:
        """Prefix-chained keys of the full blocks of `ids` ([tokens] or [1, tokens])."""
        return prefix_keys(_flat(ids), self.block_tokens, salt=self._salt)

    # ---- Restore ----

    def restore(self, ids: torch.Tensor, *, deadline_ms: float | None = None) -> Restored:
        """The longest verified prefix of `ids` that arrives before the deadline, as a fresh cache.

        At least the prompt's last token stays to be computed, so that there are logits to go on from; so does a partial last
        block. Errors: none but wrong arguments.
        """
        tokens = len(_flat(ids))
        keys = self.keys(ids)[: max(0, (tokens - 1) // self.block_tokens)]
        return self.restore_keys(keys, deadline_ms=deadline_ms)

    def restore_keys(self, keys: Sequence[bytes], *, deadline_ms: float | None = None) -> Restored:
        """As `restore`, for keys of consecutive blocks: the caller vouches for their order."""
        cache = DynamicCache(config=self.model.config)
        asked = len(keys)
        if asked == 0:
            return Restored(cache, 0, 0, 0, 0, "the prompt has no full block before its last token")
        found = self.client.match(keys, layout=self.layout, deadline_ms=deadline_ms)
        if found.prefix == 0:
            return Restored(cache, 0, 0, asked, 0, found.reason or "miss")
        tensors = self._empty(found.prefix * self.block_tokens)
        got = self.client.get(
            keys[: found.prefix],
            self._rows(tensors, 0, found.prefix),
            layout=self.layout,
            order="layer",
            stop_at_miss=True,
            deadline_ms=deadline_ms,
        )
        hit = got.prefix
        reason = "" if hit == asked else (got.reason(hit) if hit < found.prefix else "miss")
        if hit > 0:
            count = hit * self.block_tokens
            for layer, (keys_tensor, values_tensor) in enumerate(tensors):
                cache.update(keys_tensor[:, :, :count], values_tensor[:, :, :count], layer)
        return Restored(cache, hit * self.block_tokens, hit, asked, hit * self.block_bytes, reason)

    # ---- Save ----

    def save(self, ids: torch.Tensor, cache: DynamicCache, *, first_block: int = 0, deadline_ms: float | None = None) -> Saved:
        """Puts the full blocks of `ids` that `cache` holds, from `first_block` on. Waits until they are acknowledged."""
        saver = Saver(self, ids, first_block=first_block, deadline_ms=deadline_ms)
        saver.advance(cache)
        return saver.finish()

    def prefill(
        self, ids: torch.Tensor, cache: DynamicCache, *, deadline_ms: float | None = None, save: bool = True
    ) -> Saved:
        """Computes what `cache` lacks of `ids` but its last token, saving full blocks while the next ones compute.

        Goes by whole blocks up to the last full one, then the rest, so that a run that restored the prefix computes the same
        pieces as the run that saved it: split alike, the same bits come out.
        """
        ids = ids.reshape(1, -1)
        start, end = cache.get_seq_length(), ids.shape[1] - 1
        last_full = end // self.block_tokens * self.block_tokens
        saver = Saver(self, ids, first_block=start // self.block_tokens, deadline_ms=deadline_ms)
        step = max(1, PREFILL_TOKENS // self.block_tokens) * self.block_tokens
        borders = [*range(start, last_full, step), last_full] if start < last_full else [start]
        with torch.no_grad():
            for first, after in zip(borders, borders[1:], strict=False):
                self.model(ids[:, first:after], past_key_values=cache, use_cache=True, logits_to_keep=1)
                if save:
                    saver.advance(cache)
        return saver.finish()

    # ---- Inside ----

    def _make_layout(self, weights: str) -> Layout:
        # Rules of one forward's arithmetic differ between minor versions, so their bytes never meet.
        minor = ".".join(transformers_version.split(".")[:2])
        item = self._dtype.itemsize
        sizes = {
            (s.key_heads * s.key_dim * self.block_tokens * item, s.value_heads * s.value_dim * self.block_tokens * item)
            for s in self._layers
        }
        if len(sizes) != 1:
            raise ConfigError(f"model {self.model.config.model_type}: its layers have {len(sizes)} cache shapes, only one is covered")
        fields = {
            "engine": "transformers",
            "engine_version": minor,
            "model": str(self.model.config.model_type),
            "weights": weights,
            "dtype": str(self._dtype).removeprefix("torch."),
            "block_tokens": self.block_tokens,
            "layers": len(self._layers),
            "attention": str(getattr(self.model.config, "_attn_implementation", "")),
        }
        return Layout(fields, [Group(part_count=2 * len(self._layers), part_bytes=next(iter(sizes)))])

    def _empty(self, tokens: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [
            (
                torch.empty((1, s.key_heads, tokens, s.key_dim), dtype=self._dtype),
                torch.empty((1, s.value_heads, tokens, s.value_dim), dtype=self._dtype),
            )
            for s in self._layers
        ]

    def _rows(self, tensors: Sequence[tuple[torch.Tensor, torch.Tensor]], first_block: int, blocks: int) -> Rows:
        """Row r = tokens [r * block_tokens, (r + 1) * block_tokens) of every tensor; its parts in the layout's order."""
        template = Template(self._part(tensor) for pair in tensors for tensor in pair)
        return Rows(template, np.arange(first_block, first_block + blocks, dtype=np.int64))

    def _part(self, tensor: torch.Tensor) -> PartDescriptor:
        _, heads, tokens, dim = tensor.shape
        token_bytes = dim * tensor.element_size()
        return PartDescriptor(
            region=self.client.register(tensor),
            offset=0,
            row_stride=self.block_tokens * token_bytes,
            inner_count=heads,
            inner_bytes=self.block_tokens * token_bytes,
            inner_stride=tokens * token_bytes,
        )


class Saver:
    """Puts a prompt's blocks as its cache grows. Tickets run while the model computes; `finish` collects them.

    The cache concatenates, so each `advance` sees new tensors: those of a ticket stay alive, and unchanged, until it ended.
    """

    def __init__(self, store: PromptCache, ids: torch.Tensor, *, first_block: int = 0, deadline_ms: float | None = None) -> None:
        self._store = store
        self._keys = store.keys(ids)
        self._next = first_block
        self._deadline_ms = deadline_ms
        self._queue = store.client.queue()
        self._tickets: list[Ticket[PutResult]] = []

    def advance(self, cache: DynamicCache) -> int:
        """Submits the full blocks that `cache` holds and were not submitted yet; returns how many."""
        store = self._store
        held = min(cache.get_seq_length() // store.block_tokens, len(self._keys))
        first, count = self._next, held - self._next
        if count <= 0:
            return 0
        tensors = [(_dense(layer, "keys"), _dense(layer, "values")) for layer in cache.layers]
        ticket = self._queue.put(
            self._keys[first:held],
            store._rows(tensors, first, count),  # noqa: SLF001
            layout=store.layout,
            parents=[PARENT_ROOT if first == 0 else PARENT_UNKNOWN, *range(count - 1)],
            depths=np.arange(first, held).clip(max=0xFFFF).astype(np.uint16),
            ttl_s=store._ttl_s,  # noqa: SLF001
            durability=store._durability,  # noqa: SLF001
            deadline_ms=self._deadline_ms,
        )
        self._tickets.append(ticket)
        self._next = held
        return count

    def finish(self) -> Saved:
        """Waits for every ticket (each has its deadline) and adds them up."""
        saved = Saved()
        for ticket in self._tickets:
            result = ticket.result()
            saved.stored += result.stored
            saved.present += result.present
            refused = len(result.ok) - int(np.count_nonzero(result.ok))
            if refused:
                saved.refused += refused
                saved.reason = saved.reason or result.reason(int(np.argmin(result.ok)))
        saved.bytes = saved.stored * self._store.block_bytes
        self._queue.close()
        return saved


def _flat(ids: torch.Tensor) -> np.ndarray[Any, np.dtype[np.int64]]:
    if ids.dim() == 2 and ids.shape[0] != 1:
        raise ConfigError(f"ids: batch size {ids.shape[0]}; save and restore one prompt at a time")
    return ids.reshape(-1).to(device="cpu", dtype=torch.int64).numpy()


def _dense(layer: Any, name: str) -> torch.Tensor:
    tensor: torch.Tensor = getattr(layer, name)
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def _probe(model: PreTrainedModel) -> tuple[list[LayerShape], torch.dtype]:
    """Layer shapes and dtype from a forward of one token. Errors: ConfigError naming the first layer that is not covered."""
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(torch.zeros((1, 1), dtype=torch.int64, device=model.device), past_key_values=cache, use_cache=True)
    shapes = []
    for number, layer in enumerate(cache.layers):
        if type(layer) is not DynamicLayer:
            raise ConfigError(f"layer {number} caches as {type(layer).__name__}; only DynamicLayer (every token's K and V) is covered")
        if layer.keys.device.type != "cpu":
            raise ConfigError(f"layer {number} caches on {layer.keys.device}; only the CPU is covered yet: load the model there")
        shapes.append(LayerShape(layer.keys.shape[1], layer.keys.shape[3], layer.values.shape[1], layer.values.shape[3]))
    return shapes, cache.layers[0].keys.dtype
