"""KV cache of Hugging Face transformers through the tier: save a prompt's blocks, restore the longest prefix, go on.

    store = PromptCache(client, model)
    restored = store.restore(ids)                 # longest prefix that the tier holds, as a DynamicCache
    saved = store.prefill(ids, restored.cache)    # computes the other full blocks, saving them while it goes
    model.generate(ids, **cache_argument(model, restored.cache), ...)

or all three, with the blocks of what is generated saved while it runs: `store.generate(ids, max_new_tokens=...)`.

A block is `block_tokens` tokens of all layers in the tier's canonical order (halfstep.tier.shapes), as the cache holds them
after rotation; so a restore lands straight in the new cache's tensors, layer by layer. GQA and MLA models differ only in what K
and V are shaped like, which is read from one probing forward of a single token, not guessed from the configuration.

Batches are prompts of one length, or padded on the left. Their rows are saved and restored each by its own tokens; since a
cache has as many columns for one row as for another, a batch goes on from the shortest of what its rows have.

Covered: decoder-only models, dense `DynamicCache` layers on the CPU or on one CUDA device. Sliding-window, quantised and
state-space layers are refused by name: their caches do not hold every token of the prefix.

Source: transformers 5, `cache_utils.DynamicCache`; the cache is mutated by use, so a restore makes a fresh one each time.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import torch
from transformers import DynamicCache, StoppingCriteriaList
from transformers import __version__ as transformers_version

from halfstep.connectors.transformers_cache import (
    LayerShape,
    Stopwatch,
    cache_argument,
    config_digest,
    fill,
    fingerprint,
    probe,
    stream_of,
)
from halfstep.connectors.transformers_saver import Saved, Saver, Tensors, Watch, rows_of
from halfstep.connectors.versions import warn_of_version
from halfstep.errors import ConfigError
from halfstep.keys import PrefixChain
from halfstep.layout import Layout
from halfstep.tier import Connection, Kind, KVLayout, Memory, Policy, Prefix, Tier

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

__all__ = ["PREFILL_TOKENS", "Generated", "LayerShape", "PromptCache", "Restored", "Saved", "cache_argument", "fingerprint"]

# Whose caches were read. Another one is tried, with a word about it; its blocks are kept apart.
VERSIONS = ("5",)
# Tokens computed by one forward while prefilling: blocks of the last one are on their way while the next one computes.
PREFILL_TOKENS = 512

# Options of a generation, and the values of each that extend one sequence token by token.
# What generate() takes out of the arguments for the model's forward, though its signature does not name it.
_BESIDE = {"tokenizer", "assistant_tokenizer", "trust_remote_code"}
_PLAIN: dict[str, tuple[Any, ...]] = {
    "num_beams": (1, None),
    "num_return_sequences": (1, None),
    "use_cache": (True, None),
    "prompt_lookup_num_tokens": (None,),
    "assistant_model": (None,),
    "penalty_alpha": (None,),
    "dola_layers": (None,),
    "cache_implementation": (None,),
}


@dataclass
class Restored:
    """What `restore` found.

    cache: a fresh DynamicCache that holds the first `tokens` columns: of each row, those of its blocks that hit. hit_blocks,
    asked_blocks: of all rows together. bytes: what those that hit weigh. reason: why it ended before asked_blocks, or "".
    """

    cache: DynamicCache
    tokens: int
    hit_blocks: int
    asked_blocks: int
    bytes: int
    reason: str


@dataclass
class Generated:
    """What `generate` returns: what `model.generate` does, what was restored before, and what was saved while it ran."""

    output: Any
    restored: Restored
    saved: Saved


class PromptCache:
    """Saves and restores prompts of one model through one client.

    Errors: ConfigError for a model whose cache is not covered. A dead, full or slow tier is never an error: restore returns
    what came in time, save says what was not taken.
    """

    def __init__(
        self,
        client: Connection,
        model: PreTrainedModel,
        *,
        block_tokens: int = 16,
        weights_revision: str | None = None,
        salt: bytes = b"",
        ttl_s: int = 0,
        durability: Literal["cache", "persist"] = "cache",
        codec: str = "",
        step: float | tuple[float, ...] = 0.0,
        policy: str | Policy = "",
        plan: Literal["auto", "always"] = "always",
    ) -> None:
        """Probe the model's cache with a forward of one token.

        weights_revision: what tells these weights from others; `fingerprint(model)` when not given.
        salt: kept apart in the keys (a tenant, a LoRA adapter). ttl_s: of saved blocks; 0 = the namespace's default.
        codec: "bfx" stores blocks coded, exactly, for a client that was opened with it. "ubq" is lossy: what is restored
        differs from what was computed, by up to half a step; step: see KVLayout.
        policy: instead of both, by layer and plane: see KVLayout. Its codecs are the client's.
        plan: "auto" restores no more than ends before computing it would, once the model was seen to compute: docs/planner.md.
        """
        PrefixChain(block_tokens, salt=salt)  # refuses what makes no keys, before the model is asked
        warn_of_version("transformers", transformers_version, VERSIONS)
        self.client, self.model = client, model
        self.block_tokens = block_tokens
        self._codec, self._step, self._policy = codec, step, policy
        self._layers, self._dtype, self.device = probe(model)
        weights = fingerprint(model) if weights_revision is None else weights_revision
        self.tier: Tier = client.tier(self._make_layout(weights), salt=salt, ttl_s=ttl_s, durability=durability, plan=plan)
        self.block_bytes = self.tier.layout.block_bytes
        self._watch = Stopwatch(self.device, self.tier.computed)

    @property
    def layout(self) -> Layout:
        """Of its blocks: by the namespace's default policy, where neither codec nor policy was named."""
        return self.tier.layout.layout

    @property
    def config(self) -> PretrainedConfig:
        """The model's, for making a DynamicCache."""
        return self.model.config

    def keys(self, ids: torch.Tensor) -> list[bytes]:
        """Prefix-chained keys of the full blocks of one prompt, [tokens] or [1, tokens]. Errors: ConfigError (a batch)."""
        rows = rows_of(ids, None)
        if len(rows) != 1:
            raise ConfigError(f"ids has shape {tuple(ids.shape)}: keys are those of one prompt; pass ids[i]")
        return self.tier.prefix(rows[0].tokens).keys

    # ---- Restore ----

    def restore(
        self,
        ids: torch.Tensor,
        *,
        attention_mask: torch.Tensor | None = None,
        deadline_ms: float | None = None,
        goal_ms: float | None = None,
    ) -> Restored:
        """The longest verified prefix of `ids` that arrives before the deadline, as a fresh cache.

        ids: [tokens] or [batch, tokens]; attention_mask: of the same shape, 0 for padding, which is on the left. At least the
        last token stays to be computed, so that there are logits to go on from; so does a partial last block. deadline_ms: of
        all of it; the client's own for each call when not given, or what computing the prefix would take if that is longer.
        goal_ms: until the prompt is computed; with plan="auto" a fetch that fails does not spoil it where computing meets it.
        Errors: ConfigError (a wrong argument). A miss, a dead daemon and a late one are in the result.
        """
        rows = rows_of(ids, attention_mask)
        full = [max(0, (len(row.tokens) - 1) // self.block_tokens) for row in rows]
        prefixes = [self.tier.prefix(row.tokens[: count * self.block_tokens]) for row, count in zip(rows, full, strict=True)]
        return self._restore(prefixes, [row.pad for row in rows], ids.shape[-1], deadline_ms, goal_ms)

    def restore_keys(self, keys: Sequence[bytes], *, deadline_ms: float | None = None) -> Restored:
        """As `restore`, for keys of consecutive blocks of one prompt: the caller vouches for their order."""
        return self._restore([self.tier.prefix_of(keys)], [0], len(keys) * self.block_tokens, deadline_ms, None)

    def _restore(
        self,
        prefixes: Sequence[Prefix],
        pads: Sequence[int],
        columns: int,
        deadline_ms: float | None,
        goal_ms: float | None,
    ) -> Restored:
        cache = DynamicCache(config=self.model.config)
        asked = sum(prefix.blocks for prefix in prefixes)
        if asked == 0:
            return Restored(cache, 0, 0, 0, 0, "the prompt has no full block before its last token")
        planning = self.tier.planning
        if planning is not None and not planning.may_ask():
            return Restored(cache, 0, 0, asked, 0, "planned (circuit_open)")
        started = time.monotonic()
        asking = [prefix.begin_match(deadline_ms=deadline_ms) for prefix in prefixes]
        found = [one.result() for one in asking]
        spent_ms = (time.monotonic() - started) * 1e3
        if planning is not None:
            planning.matched(found, spent_ms / 1e3)
        column, blocks = self._common(pads, [one.blocks for one in found])
        why = next((one.reason for one in found if one.reason), "") or "miss"
        if not any(blocks):
            return Restored(cache, 0, 0, asked, 0, why)
        left_ms = None if deadline_ms is None else deadline_ms - (time.monotonic() - started) * 1e3
        if left_ms is not None and left_ms < 1:
            return Restored(cache, 0, 0, asked, 0, "late")
        planned = None
        if planning is not None:
            planned = planning.plan(
                max(blocks),
                columns,
                rows=len(prefixes),
                deadline_ms=left_ms,
                goal_ms=None if goal_ms is None else goal_ms - spent_ms,
            )
            if planned.blocks < max(blocks):
                why = planned.why
                column, blocks = self._common(pads, [min(count, planned.blocks) for count in blocks])
            if not any(blocks):
                return Restored(cache, 0, 0, asked, 0, why)
            if planned.deadline_ms is not None:
                left_ms = planned.deadline_ms
        ends = [pad + count * self.block_tokens for pad, count in zip(pads, blocks, strict=True)]
        tensors = self._empty(len(prefixes), max(ends), filled=len(prefixes) == 1 and not any(pads))
        memories = [
            self.memory(tensors, row, pad, count) if count else None
            for row, (pad, count) in enumerate(zip(pads, blocks, strict=True))
        ]
        began = time.monotonic()
        try:
            reading = [
                prefix.begin_get(memory, blocks=count, deadline_ms=left_ms, stream=stream_of(self.device))
                if memory is not None
                else None
                for prefix, memory, count in zip(prefixes, memories, blocks, strict=True)
            ]
            loaded = [None if one is None else one.result() for one in reading]
        finally:
            for memory in memories:
                if memory is not None:
                    memory.close()
        if planning is not None and planned is not None:
            planning.loaded(planned, [one for one in loaded if one is not None], time.monotonic() - began)
        column, blocks = self._common(pads, [0 if one is None else one.blocks for one in loaded])
        hit = sum(blocks)
        if hit > 0:
            fill(cache, tensors, column)
        reasons = [one.reason for one in loaded if one is not None and one.reason]
        reason = "" if hit == asked else reasons[0] if reasons else why
        return Restored(cache, column if hit else 0, hit, asked, hit * self.block_bytes, reason)

    def _common(self, pads: Sequence[int], blocks: Sequence[int]) -> tuple[int, list[int]]:
        """The last column that all rows reach, and of each row the blocks that lie before it or across it."""
        column = min(pad + count * self.block_tokens for pad, count in zip(pads, blocks, strict=True))
        needed = [max(0, -(-(column - pad) // self.block_tokens)) for pad in pads]
        return column, needed

    # ---- Save ----

    def save(
        self,
        ids: torch.Tensor,
        cache: DynamicCache,
        *,
        attention_mask: torch.Tensor | None = None,
        first_block: int = 0,
        deadline_ms: float | None = None,
    ) -> Saved:
        """Puts the full blocks of `ids` that `cache` holds, from `first_block` on. Waits until they are acknowledged.

        ids, attention_mask: as for restore, those that `cache` was computed from. Errors: ConfigError (a wrong argument).
        """
        saver = Saver(self, ids, attention_mask=attention_mask, first_block=first_block, deadline_ms=deadline_ms)
        try:
            saver.advance(cache)
            return saver.finish()
        finally:
            saver.close()

    def prefill(
        self,
        ids: torch.Tensor,
        cache: DynamicCache,
        *,
        attention_mask: torch.Tensor | None = None,
        deadline_ms: float | None = None,
        save: bool = True,
    ) -> Saved:
        """Computes the full blocks of `ids` that `cache` lacks, and saves them while the next ones compute.

        ids, attention_mask: as for restore; what `cache` holds of it already is not saved again. The tokens after the last full
        block, at least one, are left to the caller's `generate`. Pieces end at multiples of PREFILL_TOKENS (in whole blocks)
        wherever they begin: split alike, the same bits come out of a run that restored and one that did not.
        Errors: ConfigError (a wrong argument, a cache of more tokens than `ids` has).
        """
        saver = Saver(self, ids, attention_mask=attention_mask, deadline_ms=deadline_ms)
        try:
            self._prefill(ids, cache, attention_mask, saver if save else None)
            return saver.finish()
        finally:
            saver.close()

    def _prefill(
        self, ids: torch.Tensor, cache: DynamicCache, attention_mask: torch.Tensor | None, saver: Saver | None
    ) -> None:
        ids = ids.reshape(1, -1) if ids.dim() == 1 else ids
        length = ids.shape[1]
        start = cache.get_seq_length()
        if start > length:
            raise ConfigError(f"cache: holds {start} tokens, ids has {length}; a cache goes with the prompt it was made from")
        if saver is not None:
            saver.skip(start)
        last_full = max(0, length - 1) // self.block_tokens * self.block_tokens
        step = max(1, PREFILL_TOKENS // self.block_tokens) * self.block_tokens
        borders = [start, *range((start // step + 1) * step, last_full, step), last_full] if start < last_full else [start]
        positions = None if attention_mask is None else (attention_mask.reshape(ids.shape).cumsum(-1) - 1).clamp(min=0)
        for first, after in pairwise(borders):
            padded = (
                {}
                if attention_mask is None or positions is None
                else {"attention_mask": attention_mask.reshape(ids.shape)[:, :after], "position_ids": positions[:, first:after]}
            )
            self._watch.start()
            with torch.no_grad():
                self.model(ids[:, first:after], use_cache=True, logits_to_keep=1, **padded, **cache_argument(self.model, cache))
            rows = ids.shape[0]
            self._watch.stop(rows * (after - first), rows * first)
            if saver is not None:
                saver.advance(cache)

    # ---- All of it ----

    def generate(
        self,
        ids: torch.Tensor,
        *,
        attention_mask: torch.Tensor | None = None,
        deadline_ms: float | None = None,
        goal_ms: float | None = None,
        **options: Any,
    ) -> Generated:
        """Restore, prefill and `model.generate`; the full blocks of prompt and answer are saved while it runs.

        options: of `model.generate`. Refused, here and in its generation_config: a cache of its own, positions, and whatever
        keeps several continuations or guesses ahead (beams, assistants, prompt lookup), since blocks are of what was said.
        deadline_ms: of the restore, and of each save. goal_ms: as for restore. Errors: ConfigError.
        """
        self._check_options(options)
        ids = ids.reshape(1, -1) if ids.dim() == 1 else ids
        if attention_mask is None:
            # Said, since generate would guess one from ids that look like padding.
            attention_mask = torch.ones_like(ids)
        restored = self.restore(ids, attention_mask=attention_mask, deadline_ms=deadline_ms, goal_ms=goal_ms)
        saver = Saver(self, ids, attention_mask=attention_mask, deadline_ms=deadline_ms)
        cache = restored.cache
        try:
            self._prefill(ids, cache, attention_mask, saver)
            watch = StoppingCriteriaList([Watch(saver, cache, ids.shape[1]), *(options.pop("stopping_criteria", None) or ())])
            mask = {"attention_mask": attention_mask.reshape(ids.shape)}
            run: Any = self.model.generate  # transformers mixes it in where types do not see it
            with torch.no_grad():
                out = run(ids, stopping_criteria=watch, **mask, **cache_argument(self.model, cache), **options)
            said = out if isinstance(out, torch.Tensor) else out.sequences
            saver.extend(said[:, saver.columns :])
            # Its last token has no K and V yet; anything else is a cache whose columns are not the tokens'.
            if cache.get_seq_length() == said.shape[1] - 1:
                saver.advance(cache)
            return Generated(out, restored, saver.finish())
        finally:
            saver.close()

    # ---- Inside ----

    def _check_options(self, options: Mapping[str, Any]) -> None:
        if taken := sorted({"cache", "past_key_values", "cache_implementation", "position_ids"} & options.keys()):
            raise ConfigError(f"{taken[0]}: generate makes the cache itself; leave it out")
        run: Any = self.model.generate
        settings: Any = self.model.generation_config
        known = _BESIDE | inspect.signature(run).parameters.keys() | settings.to_dict().keys()
        if more := sorted(options.keys() - known):
            raise ConfigError(
                f"{more[0]}: is for the model's forward and changes what it computes; blocks are found by their tokens alone, "
                "so images, sounds, embeddings and token types are not covered"
            )
        configs = [
            options,
            *(vars(c) for c in (options.get("generation_config"), self.model.generation_config) if c is not None),
        ]
        for name, fine in _PLAIN.items():
            for config in configs:
                if name in config:
                    if config[name] not in fine:
                        raise ConfigError(
                            f"{name}={config[name]!r}: is not covered; blocks are of one sequence, token by token"
                        )
                    break  # what was said first counts

    def memory(self, tensors: Tensors, row: int, pad: int, blocks: int) -> Memory:
        """Where the first blocks of a row lie in the tensors of a cache: those whose first token is in column `pad`."""
        tokens = blocks * self.block_tokens
        planes = [
            [
                torch.unflatten(tensor[row, :, pad : pad + tokens], 1, (blocks, self.block_tokens)).permute(1, 0, 2, 3)
                for tensor in pair
            ]
            for pair in tensors
        ]
        return self.tier.memory(planes)

    def _make_layout(self, weights: str) -> KVLayout:
        kind = self.model.config.model_type
        item = self._dtype.itemsize
        shapes = set(self._layers)
        if len(shapes) != 1:
            raise ConfigError(f"model {kind}: its layers have {len(shapes)} cache shapes, only one is covered")
        shape = shapes.pop()
        if shape.key_heads != shape.value_heads:
            raise ConfigError(
                f"model {kind}: {shape.key_heads} heads of K, {shape.value_heads} of V; only equal ones are covered"
            )
        return KVLayout(
            model=str(kind),
            weights_revision=weights,
            dtype=str(self._dtype).removeprefix("torch."),
            block_tokens=self.block_tokens,
            kinds=(
                Kind(
                    "full",
                    tuple(range(len(self._layers))),
                    shape.key_heads,
                    (shape.key_dim * item, shape.value_dim * item),
                ),
            ),
            more={
                "engine": "transformers",
                # Rules of one forward's arithmetic differ between minor versions, so their bytes never meet.
                "engine_version": ".".join(transformers_version.split(".")[:2]),
                "config": config_digest(self.model.config),
                "attention": str(getattr(self.model.config, "_attn_implementation", "")),
            },
            codec=self._codec,
            step=self._step,
            policy=self._policy,
        )

    def _empty(self, batch: int, tokens: int, *, filled: bool) -> Tensors:
        # Columns of padding are seen by nobody, but what is in them must be numbers: nothing times NaN is NaN.
        make = torch.empty if filled else torch.zeros
        return [
            (
                make((batch, s.key_heads, tokens, s.key_dim), dtype=self._dtype, device=self.device),
                make((batch, s.value_heads, tokens, s.value_dim), dtype=self._dtype, device=self.device),
            )
            for s in self._layers
        ]
