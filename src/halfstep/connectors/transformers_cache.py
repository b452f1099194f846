"""What a transformers model caches: its layers' shapes, and what tells its bytes from another model's.

Source: transformers 5, `cache_utils.DynamicCache`.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from halfstep.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

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


def layers_of(cache: DynamicCache) -> list[Any]:
    """A cache's layers, untyped: transformers declares their tensors optional, and `probe` admits only layers with them."""
    return list(cache.layers)


def fill(cache: DynamicCache, tensors: Sequence[tuple[torch.Tensor, torch.Tensor]], tokens: int) -> None:
    """Gives a fresh cache the first `tokens` tokens of `tensors` as they are: its `update` would copy them."""
    for layer, (keys, values) in zip(layers_of(cache), tensors, strict=True):
        layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys[:, :, :tokens], values[:, :, :tokens]


def probe(model: PreTrainedModel) -> tuple[list[LayerShape], torch.dtype, torch.device]:
    """Layer shapes, dtype and device from a forward of one token. Errors: ConfigError naming what is not covered."""
    kind = model.config.model_type
    if model.config.is_encoder_decoder:
        raise ConfigError(f"model {kind}: has an encoder; only decoder-only models are covered")
    if model.device.type not in ("cpu", "cuda"):
        raise ConfigError(f"model {kind}: is on {model.device}; only the CPU and CUDA devices are covered")
    cache = DynamicCache(config=model.config)
    layers = layers_of(cache)
    for number, layer in enumerate(layers):
        if type(layer) is not DynamicLayer:
            raise ConfigError(
                f"model {kind}: layer {number} caches as {type(layer).__name__}; "
                "only DynamicLayer (every token's K and V) is covered"
            )
    with torch.no_grad():
        model(torch.zeros((1, 1), dtype=torch.int64, device=model.device), use_cache=True, **cache_argument(model, cache))
    for number, layer in enumerate(layers):
        if not layer.is_initialized:
            raise ConfigError(
                f"model {kind}: layer {number} keeps no cache of its own; only models whose layers all do are covered"
            )
    places = {str(tensor.device) for layer in layers for tensor in (layer.keys, layer.values)}
    if places != {str(layers[0].keys.device)}:
        raise ConfigError(f"model {kind}: caches on {', '.join(sorted(places))}; only models on one device are covered")
    dtypes = {tensor.dtype for layer in layers for tensor in (layer.keys, layer.values)}
    if len(dtypes) != 1:
        raise ConfigError(f"model {kind}: caches as {', '.join(sorted(map(str, dtypes)))}; only one dtype is covered")
    shapes = [LayerShape(x.keys.shape[1], x.keys.shape[3], x.values.shape[1], x.values.shape[3]) for x in layers]
    return shapes, dtypes.pop(), layers[0].keys.device


def stream_of(device: torch.device) -> int | None:
    """What torch has this thread do on a CUDA device; None: on the CPU nothing is under way."""
    return int(torch.cuda.current_stream(device).cuda_stream) if device.type == "cuda" else None


class Stopwatch:
    """How long forwards took, told to `tell(tokens, seconds, position)`: on the CPU at once, of a CUDA device when it is known.

    Nothing here waits for the device.
    """

    def __init__(self, device: torch.device, tell: Callable[[int, float, int], None]) -> None:
        self._device, self._tell = device, tell
        self._began_s = 0.0
        # Events of torch, whose methods are not typed.
        self._began: Any = None
        self._ended: deque[tuple[Any, Any, int, int]] = deque()

    def start(self) -> None:
        """A forward is next."""
        self._began_s = time.monotonic()
        if self._device.type == "cuda":
            self._began = self._mark()

    def stop(self, tokens: int, position: int) -> None:
        """It was asked of the device, or is over."""
        if self._began is None:
            self._tell(tokens, time.monotonic() - self._began_s, position)
            return
        self._ended.append((self._began, self._mark(), tokens, position))
        while self._ended and self._ended[0][1].query():
            began, ended, some, before = self._ended.popleft()
            self._tell(some, began.elapsed_time(ended) / 1e3, before)

    def _mark(self) -> Any:
        make: Any = torch.cuda.Event
        event = make(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event
