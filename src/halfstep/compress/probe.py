"""Runs of a model with a prefix whose K and V went through codecs, and what that changes in its answers.

A model is any callable:

    def model(tokens, prefix, recode):
        '''tokens: int64 [windows, tokens]. Returns logits of tokens[:, prefix:], [windows, tokens - prefix, vocabulary].'''

It computes K and V of the first `prefix` tokens, rounds them as its cache stores them, hands each layer's to
`recode(layer, plane, values)`, with values [windows, KV heads, prefix, dimensions] and plane "k" or "v", and goes on with what
it gets back. Values, and logits, are numpy arrays or torch tensors; what comes back is of the same make, and is the same object
where nothing is coded. It is called again and again with the same tokens, and may keep what it computed of them.

Losses are those of reuse: the prefix is stored and read back once, and new tokens run on top of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from halfstep.compress import LOSSY_ELEMENTS, Element
from halfstep.compress.policy import EXACT_TOKENS, Choice, Plane
from halfstep.compress.trial import bits_of, floats_of, tried
from halfstep.errors import ConfigError

Tokens = npt.NDArray[np.int64]
# A layer's K or V.
UnitName = tuple[int, Plane]
Recode = Callable[[int, Plane, Any], Any]
Model = Callable[[Tokens, int, Recode], Any]
Tick = Callable[[], None]


@dataclass(frozen=True)
class Terms:
    """How K and V are stored. element: of the cache. block_tokens: of a unit, which is one head's K or V of a block."""

    element: Element = "bf16"
    block_tokens: int = 16

    def __post_init__(self) -> None:
        if self.element not in LOSSY_ELEMENTS:
            raise ConfigError(
                f"element={self.element!r}: must be {' or '.join(LOSSY_ELEMENTS)}; others are coded exactly alone"
            )
        if self.block_tokens < 1:
            raise ConfigError(f"block_tokens={self.block_tokens}: must be at least 1")

    def blocks(self, prefix: int) -> range:
        """Those of a prefix that a policy may code lossily, by the number of their first token."""
        first = -(-EXACT_TOKENS // self.block_tokens) * self.block_tokens
        return range(first, prefix - self.block_tokens + 1, self.block_tokens)


@dataclass
class Coded:
    """What became of the parts of one unit."""

    values: int = 0
    stored_bytes: int = 0
    squares: float = 0.0
    squared_errors: float = 0.0

    @property
    def bits(self) -> float:
        """Of a value."""
        return 8 * self.stored_bytes / self.values if self.values else 0.0

    @property
    def error(self) -> float:
        """Root mean square, in the values' own unit."""
        return float((self.squared_errors / self.values) ** 0.5) if self.values else 0.0

    @property
    def relative_error(self) -> float:
        """As a share of the values' own root mean square."""
        return float((self.squared_errors / self.squares) ** 0.5) if self.squares else 0.0

    def add(self, part: npt.NDArray[Any], element: Element, choice: Choice) -> npt.NDArray[Any]:
        """A part through a choice: what comes back. part: [tokens, dimensions]."""
        trial = tried(part, element, part.shape[-1], choice)
        values = floats_of(part, element)
        self.values += part.size
        self.stored_bytes += trial.stored_bytes
        self.squares += float(np.square(values, dtype=np.float64).sum())
        if trial.back is not part:
            self.squared_errors += float(np.square(floats_of(trial.back, element) - values, dtype=np.float64).sum())
        return trial.back


@dataclass
class Recoder:
    """A `recode` that sends some units through their choices, and counts what became of them."""

    terms: Terms
    choices: Mapping[UnitName, Choice]
    coded: dict[UnitName, Coded] = field(default_factory=dict)

    def __call__(self, layer: int, plane: Plane, values: Any) -> Any:
        """See the module."""
        choice = self.choices.get((layer, plane))
        if choice is None:
            return values
        bits = _bits(values, self.terms.element)
        counted = self.coded.setdefault((layer, plane), Coded())
        for part in _parts(bits, self.terms):
            part[...] = counted.add(np.ascontiguousarray(part), self.terms.element, choice)
        return _like(values, floats_of(bits, self.terms.element))


@dataclass
class Sampler:
    """A `recode` that changes nothing and keeps some parts of each unit. parts_max: of a unit and run, evenly spread."""

    terms: Terms
    parts_max: int
    parts: dict[UnitName, list[npt.NDArray[Any]]] = field(default_factory=dict)

    def __call__(self, layer: int, plane: Plane, values: Any) -> Any:
        """See the module."""
        shape = tuple(values.shape)
        if len(shape) != 4:
            raise ConfigError(
                f"model: layer {layer} hands {plane} of shape {shape} to recode; must be [windows, heads, tokens, dimensions]"
            )
        if plane not in ("k", "v"):
            raise ConfigError(f"model: layer {layer} hands plane {plane!r} to recode; must be 'k' or 'v'")
        there = list(_parts(_bits(values, self.terms.element), self.terms))
        kept = np.linspace(0, len(there) - 1, min(self.parts_max, len(there))).astype(int)
        self.parts.setdefault((layer, plane), []).extend(np.ascontiguousarray(there[at]) for at in kept)
        return values


@dataclass
class Loss:
    """What codecs change in a model's answers. kl: nats a token. agreement: tokens whose first choice is the same."""

    tokens: int = 0
    kl_sum: float = 0.0
    agreed: int = 0

    @property
    def kl(self) -> float:
        """Mean divergence of the answer from the exact one."""
        return max(0.0, self.kl_sum / self.tokens) if self.tokens else 0.0

    @property
    def agreement(self) -> float:
        """A share."""
        return self.agreed / self.tokens if self.tokens else 1.0

    def add(self, exact: npt.NDArray[np.float64], other: npt.NDArray[np.float64]) -> None:
        """Logarithms of probabilities, [..., vocabulary]."""
        self.tokens += exact[..., 0].size
        self.kl_sum += float((np.exp(exact) * (exact - other)).sum())
        self.agreed += int((exact.argmax(-1) == other.argmax(-1)).sum())


def losses(
    model: Model,
    windows: Tokens,
    prefix: int,
    recoders: Sequence[Recode],
    *,
    batch: int,
    exact: Recode | None = None,
    tick: Tick = lambda: None,
) -> list[Loss]:
    """Of each recoder. batch: windows of a run. exact: sees K and V of the run that the others are compared with.

    tick: called after each run; there are 1 + len(recoders) of a batch.
    """
    told = [Loss() for _ in recoders]
    for some in _batches(windows, batch):
        base = _log_probabilities(model(some, prefix, exact or _unchanged), some, prefix)
        tick()
        for loss, recoder in zip(told, recoders, strict=True):
            loss.add(base, _log_probabilities(model(some, prefix, recoder), some, prefix))
            tick()
    return told


# ---- within ----


def _unchanged(_layer: int, _plane: Plane, values: Any) -> Any:
    return values


def _batches(windows: Tokens, batch: int) -> Iterator[Tokens]:
    return (windows[at : at + batch] for at in range(0, len(windows), batch))


def _parts(bits: npt.NDArray[Any], terms: Terms) -> Iterator[npt.NDArray[Any]]:
    """Views of the parts that a policy may code lossily."""
    for window in bits:
        for head in window:
            for first in terms.blocks(head.shape[0]):
                yield head[first : first + terms.block_tokens]


def _log_probabilities(logits: Any, windows: Tokens, prefix: int) -> npt.NDArray[np.float64]:
    values = _floats(logits)
    if values.ndim != 3 or values.shape[:2] != (len(windows), windows.shape[1] - prefix):
        raise ConfigError(
            f"model: returned logits of shape {values.shape}; must be [{len(windows)}, {windows.shape[1] - prefix}, "
            "vocabulary], those of the tokens behind the prefix"
        )
    shifted = values.astype(np.float64) - values.max(-1, keepdims=True)
    told: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    if not np.isfinite(told).all():
        raise ConfigError("model: returned logits that are no finite numbers; check its weights and dtype")
    return told


def _floats(values: Any) -> npt.NDArray[np.float32]:
    """As numpy has them. values: of numpy or torch, on any device."""
    if hasattr(values, "detach"):
        values = values.detach().float().cpu().numpy()
    return np.asarray(values, np.float32)


def _bits(values: Any, element: Element) -> npt.NDArray[np.uint16]:
    return bits_of(_floats(values), element)


def _like(values: Any, changed: npt.NDArray[np.float32]) -> Any:
    if hasattr(values, "detach"):
        import torch

        return torch.from_numpy(changed).to(device=values.device, dtype=values.dtype)
    return changed.astype(values.dtype)
