"""Saves the blocks of prompts while a model computes: puts are on their way beside the next forward.

Used by halfstep.connectors.transformers alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import DynamicCache, StoppingCriteria

from halfstep.connectors.transformers_cache import layers_of, stream_of
from halfstep.errors import ConfigError
from halfstep.tier import Memory, Pending, Stored

if TYPE_CHECKING:
    from halfstep.connectors.transformers import PromptCache

# Of a put from a GPU, which goes through pinned memory of the client as a whole: 256 MiB there are.
DEVICE_PUT_BYTES = 64 * 1024 * 1024

# K and V of each layer, [batch, heads, tokens, dim].
Tensors = Sequence[tuple[torch.Tensor, torch.Tensor]]


@dataclass
class Saved:
    """What became of the full blocks: stored now, there already (or put by another row), or refused (throttled, dead, …).

    bytes: of those stored now. reason: why the first refused one was refused, or "".
    """

    stored: int = 0
    present: int = 0
    refused: int = 0
    bytes: int = 0
    reason: str = ""


@dataclass(frozen=True)
class Row:
    """One prompt of a batch: its tokens without padding, and in which column of the cache they begin."""

    tokens: npt.NDArray[np.int64]
    pad: int


class Saver:
    """Puts the blocks of prompts as their cache grows. Puts are on their way while the model computes; `finish` collects them.

    Invariant: the cache concatenates, so each `advance` sees new tensors: those of a put stay alive, and unchanged, until it
    ended and the next `advance` has seen that. Thread: one at a time.
    """

    def __init__(
        self,
        store: PromptCache,
        ids: torch.Tensor,
        *,
        attention_mask: torch.Tensor | None = None,
        first_block: int = 0,
        deadline_ms: float | None = None,
    ) -> None:
        """first_block: those before it are saved already. deadline_ms: of each put."""
        self._store = store
        self.block_tokens = store.block_tokens
        rows = rows_of(ids, attention_mask)
        self.columns = ids.shape[-1]
        self._pads = [row.pad for row in rows]
        self._chains = [store.tier.chain() for _ in rows]
        for chain, row in zip(self._chains, rows, strict=True):
            chain.extend(row.tokens)
        self._next = [first_block for _ in rows]
        self._deadline_ms = deadline_ms
        self._flying: list[tuple[Pending[Stored], Memory]] = []
        self._put: set[bytes] = set()
        self._saved = Saved()

    def skip(self, columns: int) -> None:
        """What the first columns hold was restored: it is there."""
        there = [(columns - pad) // self._store.block_tokens for pad in self._pads]
        self._next = [max(pair) for pair in zip(self._next, there, strict=True)]

    def extend(self, ids: torch.Tensor) -> None:
        """Tokens that came after. ids: [batch, tokens]."""
        if ids.shape[1]:
            for chain, row in zip(self._chains, ids, strict=True):
                chain.extend(row.to(device="cpu", dtype=torch.int64).numpy())
            self.columns += ids.shape[1]

    def advance(self, cache: DynamicCache) -> int:
        """Submits the full blocks that `cache` holds and were not submitted yet; returns how many."""
        store, length = self._store, cache.get_seq_length()
        self._collect()
        tensors = None
        count = 0
        for row, (pad, chain) in enumerate(zip(self._pads, self._chains, strict=True)):
            held = min((length - pad) // store.block_tokens, chain.token_count // store.block_tokens)
            first = self._next[row]
            if held <= first:
                continue
            keys = chain.keys
            self._next[row] = held
            # What rows share is put once: the second would find the first one still under way.
            while first < held and keys[first] in self._put:
                first += 1
                self._saved.present += 1
            if first == held:
                continue
            self._put.update(keys[first:held])
            if tensors is None:
                tensors = [(layer.keys.detach(), layer.values.detach()) for layer in layers_of(cache)]
            prefix = store.tier.prefix_of(keys)
            step = held if store.device.type == "cpu" else max(1, DEVICE_PUT_BYTES // store.block_bytes)
            for begin in range(first, held, step):
                end = min(begin + step, held)
                memory = store.memory(tensors, row, pad, end)
                options: dict[str, Any] = {"deadline_ms": self._deadline_ms, "stream": stream_of(store.device)}
                self._flying.append((prefix.begin_put(memory, first=begin, blocks=end, **options), memory))
            count += held - first
        return count

    def finish(self) -> Saved:
        """Waits for every put (each has its deadline) and adds them up; then it is closed."""
        for put, _ in self._flying:
            put.result()
        self._collect()
        self.close()
        return self._saved

    def _collect(self) -> None:
        """Lets go of what is over: each put keeps the whole cache of its moment."""
        if not self._flying:
            return
        self._store.tier.poll()
        flying, self._flying = self._flying, []
        saved = self._saved
        for put, memory in flying:
            if not put.done:
                self._flying.append((put, memory))
                continue
            told = put.result()
            saved.stored += told.stored
            saved.present += told.present
            saved.refused += told.refused
            saved.bytes += told.bytes
            saved.reason = saved.reason or told.reason
            memory.close()

    def close(self) -> None:
        """Calls off what is still under way, and waits for its end. Idempotent."""
        for _, memory in self._flying:
            memory.close()
        self._flying = []


class Watch(StoppingCriteria):
    """Sees each step of a generation, stops nothing, and saves what has become whole."""

    def __init__(self, saver: Saver, cache: DynamicCache, columns: int) -> None:
        self._saver = saver
        self._cache = cache
        self._block = columns // saver.block_tokens

    def __call__(self, input_ids: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """As StoppingCriteria; input_ids: [batch, tokens]. Returns: False for each sequence."""
        # One look a block: a step within one has no more than this comparison.
        block = input_ids.shape[1] // self._saver.block_tokens
        if block != self._block:
            self._block = block
            self._saver.extend(input_ids[:, self._saver.columns :])
            # The newest token has no K and V yet; anything else is a cache whose columns are not the tokens'.
            if self._cache.get_seq_length() == input_ids.shape[1] - 1:
                self._saver.advance(self._cache)
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


def rows_of(ids: torch.Tensor, attention_mask: torch.Tensor | None) -> list[Row]:
    """The prompts of a batch, [tokens] or [batch, tokens] and padded on the left. Errors: ConfigError."""
    if not isinstance(ids, torch.Tensor) or ids.is_floating_point():
        raise ConfigError(f"ids ({getattr(ids, 'dtype', type(ids).__name__)}): must be a tensor of whole numbers")
    if ids.dim() not in (1, 2):
        raise ConfigError(f"ids has shape {tuple(ids.shape)}: must be [tokens] or [batch, tokens]")
    flat = ids.reshape(1, -1) if ids.dim() == 1 else ids
    numbers: npt.NDArray[np.int64] = flat.to(device="cpu", dtype=torch.int64).numpy()
    if attention_mask is None:
        return [Row(row, 0) for row in numbers]
    if attention_mask.shape not in (ids.shape, flat.shape):
        raise ConfigError(f"attention_mask has shape {tuple(attention_mask.shape)}: must be that of ids, {tuple(ids.shape)}")
    masks = attention_mask.reshape(flat.shape).to(device="cpu").numpy() != 0
    rows = []
    for number, (row, mask) in enumerate(zip(numbers, masks, strict=True)):
        pad = len(mask) - int(mask.sum())
        if mask[:pad].any():
            raise ConfigError(f"attention_mask[{number}]: has a gap; padding must be on the left, then a 1 for each token")
        rows.append(Row(row[pad:], pad))
    return rows
