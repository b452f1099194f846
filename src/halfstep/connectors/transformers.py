"""KV cache of Hugging Face transformers through the tier: save a prompt's blocks, restore the longest prefix, go on.

    store = PromptCache(client, model)
    restored = store.restore(ids)                 # longest prefix that the tier holds, as a DynamicCache
    saved = store.prefill(ids, restored.cache)    # computes the other full blocks, saving them while it goes
    model.generate(ids, **cache_argument(model, restored.cache), ...)

A block is `block_tokens` tokens of all layers. Its parts are layer 0's K, layer 0's V, layer 1's K, …, each
[kv_heads, block_tokens, head_dim] as the cache holds it after rotation; so a restore lands straight in the new cache's
tensors, layer by layer. GQA and MLA models differ only in what K and V are shaped like, which is read from one probing forward
of a single token, not guessed from the configuration.

Covered: decoder-only models, batch size 1, dense `DynamicCache` layers on the CPU. Sliding-window, quantised and state-space
layers are refused by name: their caches do not hold every token of the prefix.

Source: transformers 5, `cache_utils.DynamicCache`; the cache is mutated by use, so a restore makes a fresh one each time.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from transformers import DynamicCache
from transformers import __version__ as transformers_version
from transformers.cache_utils import DynamicLayer

from halfstep.client import PARENT_ROOT, PARENT_UNKNOWN, Client, PartDescriptor, PutResult, Rows, Template, Ticket
from halfstep.errors import ConfigError
from halfstep.keys import PrefixChain, prefix_keys
from halfstep.layout import Group, Layout

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

# Tokens computed by one forward while prefilling: blocks of the last one are on their way while the next one computes.
PREFILL_TOKENS = 512
# Values that the fingerprint takes of each parameter.
SAMPLE_VALUES = 1024
# What a configuration says that does not change a cache's bytes, or differs where equal weights are kept in two places.
CONFIG_APART = {
    "_name_or_path",
    "transformers_version",
    "architectures",
    "use_cache",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
}


def cache_argument(model: PreTrainedModel, cache: DynamicCache) -> dict[str, DynamicCache]:
    """The keyword argument by which this model's forward and its `generate` take a cache.

    transformers 5.24 calls it `cache`, releases before it `past_key_values`, which 5.24 warns of.
    """
    return {"cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values": cache}


@dataclass(frozen=True)
class LayerShape:
    """One layer's cache: heads and last dimension of K and of V, which differ for MLA."""

    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int


@dataclass
class Restored:
    """What `restore` found.

    cache: a fresh DynamicCache that holds `tokens` tokens, those of the first hit_blocks blocks. asked_blocks: how many were
    asked for. bytes: what those that hit weigh. reason: why it ended before asked_blocks, or "".
    """

    cache: DynamicCache
    tokens: int
    hit_blocks: int
    asked_blocks: int
    bytes: int
    reason: str


@dataclass
class Saved:
    """What became of a prompt's full blocks: stored now, present before, or refused (throttled, dead daemon, …).

    bytes: of those stored now. reason: why the first refused one was refused, or "".
    """

    stored: int = 0
    present: int = 0
    refused: int = 0
    bytes: int = 0
    reason: str = ""


def fingerprint(model: PreTrainedModel) -> str:
    """16 hex digits that change with the weights: every parameter's name, shape, dtype and a sample of its values.

    Two processes that load the same weights agree; a fine-tune differs. Reads at most SAMPLE_VALUES values of each parameter,
    at equal distances: an edit of a few single values may go unseen, and is told apart by `weights_revision` instead.
    """
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        flat = parameter.detach().reshape(-1)
        step = max(1, flat.numel() // SAMPLE_VALUES)
        sample = flat[::step][:SAMPLE_VALUES].to(device="cpu", dtype=torch.float32).contiguous()
        digest.update(f"{name}{tuple(parameter.shape)}{parameter.dtype}".encode())
        digest.update(sample.numpy().tobytes())
    return digest.hexdigest()[:16]


def config_digest(config: PretrainedConfig) -> str:
    """16 hex digits of all that a configuration says about arithmetic, rotary settings above all: weights do not show those."""
    told = {name: value for name, value in config.to_dict().items() if name not in CONFIG_APART}
    return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()[:16]


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
        durability: Literal["cache", "persist"] = "cache",
    ) -> None:
        """Probe the model's cache with a forward of one token.

        weights_revision: what tells these weights from others; `fingerprint(model)` when not given.
        salt: kept apart in the keys (a tenant, a LoRA adapter). ttl_s: of saved blocks; 0 = the namespace's default.
        """
        PrefixChain(block_tokens, salt=salt)  # refuses what makes no keys, before the model is asked
        self.client, self.model = client, model
        self.block_tokens, self.ttl_s, self.durability = block_tokens, ttl_s, durability
        self._salt = salt
        self._layers, self._dtype = _probe(model)
        self.layout = self._make_layout(fingerprint(model) if weights_revision is None else weights_revision)
        self.block_bytes = self.layout.groups[0].block_bytes

    @property
    def config(self) -> PretrainedConfig:
        """The model's, for making a DynamicCache."""
        return self.model.config

    def keys(self, ids: torch.Tensor) -> list[bytes]:
        """Prefix-chained keys of the full blocks of `ids` ([tokens] or [1, tokens]). Errors: ConfigError (a larger batch)."""
        return prefix_keys(_flat(ids), self.block_tokens, salt=self._salt)

    # ---- Restore ----

    def restore(self, ids: torch.Tensor, *, deadline_ms: float | None = None) -> Restored:
        """The longest verified prefix of `ids` that arrives before the deadline, as a fresh cache.

        ids: [tokens] or [1, tokens]. At least the prompt's last token stays to be computed, so that there are logits to go on
        from; so does a partial last block. deadline_ms: of all of it; the client's own for each call when not given.
        Errors: ConfigError (a wrong argument). A miss, a dead daemon and a late one are in the result.
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
        started = time.monotonic()
        found = self.client.match(keys, layout=self.layout, stop_at_miss=True, deadline_ms=deadline_ms)
        if found.prefix == 0:
            return Restored(cache, 0, 0, asked, 0, found.reason or "miss")
        left_ms = None if deadline_ms is None else deadline_ms - (time.monotonic() - started) * 1e3
        if left_ms is not None and left_ms < 1:
            return Restored(cache, 0, 0, asked, 0, "late")
        tensors = self._empty(found.prefix * self.block_tokens)
        got = self.client.get(
            keys[: found.prefix],
            self.rows(tensors, 0, found.prefix),
            layout=self.layout,
            order="layer",
            stop_at_miss=True,
            deadline_ms=left_ms,
        )
        hit = got.prefix
        if hit > 0:
            _fill(cache, tensors, hit * self.block_tokens)
        reason = got.reason(hit) if hit < found.prefix else "" if hit == asked else found.reason or "miss"
        return Restored(cache, hit * self.block_tokens, hit, asked, hit * self.block_bytes, reason)

    # ---- Save ----

    def save(self, ids: torch.Tensor, cache: DynamicCache, *, first_block: int = 0, deadline_ms: float | None = None) -> Saved:
        """Puts the full blocks of `ids` that `cache` holds, from `first_block` on. Waits until they are acknowledged.

        ids: [tokens] or [1, tokens], those that `cache` was computed from. Errors: ConfigError (a wrong argument).
        """
        saver = Saver(self, ids, first_block=first_block, deadline_ms=deadline_ms)
        try:
            saver.advance(cache)
            return saver.finish()
        finally:
            saver.close()

    def prefill(self, ids: torch.Tensor, cache: DynamicCache, *, deadline_ms: float | None = None, save: bool = True) -> Saved:
        """Computes the full blocks of `ids` that `cache` lacks, and saves them while the next ones compute.

        ids: [tokens] or [1, tokens]; what `cache` holds of it already is not saved again. The tokens after the last full block,
        at least one, are left to the caller's `generate`. Pieces end at multiples of PREFILL_TOKENS (in whole blocks) wherever
        they begin: split alike, the same bits come out of a run that restored and one that did not.
        Errors: ConfigError (a wrong argument, a cache of more tokens than `ids` has).
        """
        length = len(_flat(ids))
        ids = ids.reshape(1, length)
        start = cache.get_seq_length()
        if start > length:
            raise ConfigError(f"cache: holds {start} tokens, ids has {length}; a cache goes with the prompt it was made from")
        last_full = max(0, length - 1) // self.block_tokens * self.block_tokens
        step = max(1, PREFILL_TOKENS // self.block_tokens) * self.block_tokens
        borders = [start, *range((start // step + 1) * step, last_full, step), last_full] if start < last_full else [start]
        saver = Saver(self, ids, first_block=start // self.block_tokens, deadline_ms=deadline_ms)
        try:
            for first, after in pairwise(borders):
                with torch.no_grad():
                    self.model(ids[:, first:after], use_cache=True, logits_to_keep=1, **cache_argument(self.model, cache))
                if save:
                    saver.advance(cache)
            return saver.finish()
        finally:
            saver.close()

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
            kind = self.model.config.model_type
            raise ConfigError(f"model {kind}: its layers have {len(sizes)} cache shapes, only one is covered")
        fields: dict[str, str | int] = {
            "engine": "transformers",
            "engine_version": minor,
            "model": str(self.model.config.model_type),
            "weights": weights,
            "config": config_digest(self.model.config),
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

    def rows(self, tensors: Sequence[tuple[torch.Tensor, torch.Tensor]], first_block: int, blocks: int) -> Rows:
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

    Invariant: the cache concatenates, so each `advance` sees new tensors: those of a ticket stay alive, and unchanged, until it
    ended. Thread: one at a time.
    """

    def __init__(
        self, store: PromptCache, ids: torch.Tensor, *, first_block: int = 0, deadline_ms: float | None = None
    ) -> None:
        """first_block: those before it are saved already. deadline_ms: of each put."""
        self._store = store
        self._keys = store.keys(ids)
        self._next = first_block
        self._deadline_ms = deadline_ms
        self._queue = store.client.queue()
        self._tickets: list[Ticket[PutResult]] = []

    def advance(self, cache: DynamicCache) -> int:
        """Submits the full blocks that `cache` holds and were not submitted yet; returns how many."""
        store = self._store
        held: int = min(cache.get_seq_length() // store.block_tokens, len(self._keys))
        first, count = self._next, held - self._next
        if count <= 0:
            return 0
        tensors = [(_dense(layer, "keys"), _dense(layer, "values")) for layer in _layers(cache)]
        ticket = self._queue.put(
            self._keys[first:held],
            store.rows(tensors, first, count),
            layout=store.layout,
            parents=[PARENT_ROOT if first == 0 else PARENT_UNKNOWN, *range(count - 1)],
            depths=np.arange(first, held).clip(max=0xFFFF).astype(np.uint16),
            ttl_s=store.ttl_s,
            durability=store.durability,
            deadline_ms=self._deadline_ms,
        )
        self._tickets.append(ticket)
        self._next = held
        return count

    def finish(self) -> Saved:
        """Waits for every ticket (each has its deadline) and adds them up; then it is closed."""
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
        self.close()
        return saved

    def close(self) -> None:
        """Calls off what is still under way, and waits for its end. Idempotent."""
        self._queue.close()


def _flat(ids: torch.Tensor) -> npt.NDArray[np.int64]:
    if ids.dim() not in (1, 2) or (ids.dim() == 2 and ids.shape[0] != 1):
        raise ConfigError(
            f"ids has shape {tuple(ids.shape)}: must be [tokens] or [1, tokens]; save and restore one prompt at a time"
        )
    flat: npt.NDArray[np.int64] = ids.reshape(-1).to(device="cpu", dtype=torch.int64).numpy()
    return flat


def _layers(cache: DynamicCache) -> list[Any]:
    """A cache's layers, untyped: transformers declares their tensors optional, and `_probe` admits only layers with them."""
    return list(cache.layers)


def _dense(layer: Any, name: str) -> torch.Tensor:
    tensor: torch.Tensor = getattr(layer, name)
    return tensor.detach().contiguous()


def _fill(cache: DynamicCache, tensors: Sequence[tuple[torch.Tensor, torch.Tensor]], tokens: int) -> None:
    """Gives a fresh cache the first `tokens` tokens of `tensors` as they are: its `update` would copy them."""
    for layer, (keys, values) in zip(_layers(cache), tensors, strict=True):
        layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys[:, :, :tokens], values[:, :, :tokens]


def _probe(model: PreTrainedModel) -> tuple[list[LayerShape], torch.dtype]:
    """Layer shapes and dtype from a forward of one token. Errors: ConfigError naming the first layer that is not covered."""
    kind = model.config.model_type
    if model.config.is_encoder_decoder:
        raise ConfigError(f"model {kind}: has an encoder; only decoder-only models are covered")
    if model.device.type != "cpu":
        raise ConfigError(f"model {kind}: is on {model.device}; only the CPU is covered yet: load it there")
    cache = DynamicCache(config=model.config)
    layers = _layers(cache)
    for number, layer in enumerate(layers):
        if type(layer) is not DynamicLayer:
            raise ConfigError(
                f"model {kind}: layer {number} caches as {type(layer).__name__}; "
                "only DynamicLayer (every token's K and V) is covered"
            )
    with torch.no_grad():
        model(torch.zeros((1, 1), dtype=torch.int64), use_cache=True, **cache_argument(model, cache))
    for number, layer in enumerate(layers):
        if not layer.is_initialized:
            raise ConfigError(
                f"model {kind}: layer {number} keeps no cache of its own; only models whose layers all do are covered"
            )
    dtypes = {tensor.dtype for layer in layers for tensor in (layer.keys, layer.values)}
    if len(dtypes) != 1:
        raise ConfigError(f"model {kind}: caches as {', '.join(sorted(map(str, dtypes)))}; only one dtype is covered")
    shapes = [LayerShape(x.keys.shape[1], x.keys.shape[3], x.values.shape[1], x.values.shape[3]) for x in layers]
    return shapes, dtypes.pop()
