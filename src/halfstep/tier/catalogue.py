"""From a model's config.json to the kinds of its KV cache.

A model type is covered when its cache's shape was read in published code; any other is refused by name. So is a field that
would change the shape and that the model type is not known to have. Numbers come from the file; the few that a file may leave
out are listed beside the model type, with their source.

Sources, by model type. "transformers" is `models/<type>/configuration_<type>.py` and `modeling_<type>.py` of Hugging Face
transformers 5; "vLLM" is the vLLM project's repository.

    llama, mistral, ministral3, mixtral     transformers: K and V of num_key_value_heads heads. `sliding_window` of the Mistral
                                            types is the window of all layers; llama has none.
    qwen2, qwen2_5_vl, qwen3, qwen3_moe     transformers: windows only with use_sliding_window; then layer_types, or the layers
                                            from max_window_layers on.
    qwen3_vl_text, qwen3_vl_moe_text        transformers: as qwen3, no windows.
    gemma2, gemma3_text, gpt_oss            transformers: layer_types, or a full layer at the end of each 2, 6 and 2.
    glm, glm4, glm4_moe                     transformers: K and V, no windows.
    deepseek_v2, deepseek_v3, kimi_k2,      vLLM model_executor/models/deepseek_v2.py: one latent of kv_lora_rank +
    glm4_moe_lite                           qk_rope_head_dim values a token and layer, the same for all heads.
    deepseek_v32, glm_moe_dsa               The same, and an indexer's key a token. DeepSeek's inference/model.py and vLLM keep
                                            it as fp8 with an fp32 scale for 128 values, whatever the latent's dtype.
                                            glm_moe_dsa has one only in layers that `indexer_types` calls "full".
    deepseek_v4                             transformers and vLLM models/deepseek_v4/: each layer has a window of one head whose
                                            V is its K; layers of ratio 4 also an entry and an indexer's key for 4 tokens,
                                            layers of ratio 128 an entry for 128 tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from halfstep.compress.policy import Plane, Policy
from halfstep.errors import ConfigError
from halfstep.tier.model_config import (
    DIM_MAX,
    DTYPE_BYTES,
    HEADS_MAX,
    LAYERS_MAX,
    PACKED_LATENT,
    WINDOW_MAX,
    ModelConfig,
)
from halfstep.tier.shapes import Grid, Kind, KVLayout

# Of a block, unless said otherwise: vLLM's own. Kinds that share entries may need a multiple.
BLOCK_TOKENS = 16

# An indexer's key has one fp32 scale for so many fp8 values.
_SCALED_VALUES, _SCALE_BYTES = 128, 4
_INDEXER: tuple[Plane, ...] = ("indexer", "indexer")
# vLLM's packed latent: 512 fp8 values, 4 fp32 scales, 64 rotated bfloat16 (MLAAttentionSpec, fp8_ds_mla).
_PACKED_LATENT_SHAPE, _PACKED_LATENT_BYTES = (512, 64), 512 + 4 * 4 + 64 * 2
# vLLM's DeepSeek V4: 448 fp8 values, 64 rotated bfloat16, 8 bytes of scales.
_PACKED_V4_SHAPE, _PACKED_V4_BYTES = (512, 64), 448 + 64 * 2 + 8

# DeepSeek V4's ratio -> the name that transformers 5 gives such a layer. No other ratio is published.
_V4_RATIOS: Mapping[int, str] = {
    0: "sliding_attention",
    1: "sliding_attention",
    4: "compressed_sparse_attention",
    128: "heavily_compressed_attention",
}

# Fields that change the cache's shape wherever they are obeyed.
_SHARED_LAYERS = ("num_kv_shared_layers", "cla_share_factor", "kv_source_layer_ids")
_OTHER_SHAPES = ("linear_attn_config", "attention_chunk_size", "global_head_dim", "num_global_key_value_heads")


@dataclass(frozen=True)
class _Heads:
    """How a model type with K and V heads reads its file.

    quotient: head_dim may be absent, and is hidden_size / num_attention_heads. all_heads: num_key_value_heads may be absent,
    and is num_attention_heads. windows: "" (none), "all" (of every layer), "qwen", or "pattern" (of all but each `period`th).
    null_window: sliding_window may be absent, and then there is none. defaults: fields that published files leave out.
    """

    quotient: bool = True
    all_heads: bool = False
    windows: str = ""
    null_window: bool = True
    period: int = 0
    defaults: Mapping[str, int] = field(default_factory=dict)


_QWEN3 = _Heads(quotient=False, windows="qwen")
# Gemma3TextConfig of transformers: google/gemma-3-4b-it's file has none of them.
_GEMMA3 = _Heads(
    quotient=False,
    windows="pattern",
    period=6,
    defaults={"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256},
)
_HEADS: Mapping[str, _Heads] = {
    "llama": _Heads(all_heads=True),
    "mistral": _Heads(windows="all", null_window=False),
    "ministral3": _Heads(windows="all"),
    "mixtral": _Heads(windows="all"),
    "qwen2": _Heads(windows="qwen"),
    "qwen2_5_vl": _Heads(windows="qwen"),
    "qwen2_5_vl_text": _Heads(windows="qwen"),
    "qwen3": _QWEN3,
    "qwen3_moe": _QWEN3,
    "qwen3_vl_text": _Heads(quotient=False),
    "qwen3_vl_moe_text": _Heads(quotient=False),
    "gemma2": _Heads(quotient=False, windows="pattern", period=2),
    "gemma3_text": _GEMMA3,
    "gpt_oss": _Heads(quotient=False, windows="pattern", period=2),
    "glm": _Heads(quotient=False),
    "glm4": _Heads(quotient=False),
    "glm4_moe": _Heads(),
}
# Whether there is an indexer.
_LATENT: Mapping[str, bool] = {
    "deepseek_v2": False,
    "deepseek_v3": False,
    "kimi_k2": False,
    "glm4_moe_lite": False,
    "deepseek_v32": True,
    "glm_moe_dsa": True,
}
_V4 = "deepseek_v4"
COVERED: tuple[str, ...] = (*_HEADS, *_LATENT, _V4)

_LINEAR = "layers with a recurrent state, which no kind here describes"
_SHARING = "layers that use the cache of others"
_REFUSED: Mapping[str, str] = {
    **dict.fromkeys(
        ("mamba", "mamba2", "falcon_mamba", "jamba", "bamba", "falcon_h1", "nemotron_h", "zamba2", "lfm2"), _LINEAR
    ),
    **dict.fromkeys(("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "kimi_linear", "minimax", "recurrent_gemma"), _LINEAR),
    **dict.fromkeys(("glm5_next", "glm5_next_text", "granitemoehybrid", "rwkv"), _LINEAR),
    **dict.fromkeys(("gemma3n_text", "gemma4_text", "deepseek_v41", "deepseek_v41_text"), _SHARING),
    "llama4_text": "layers of chunked attention",
    "mllama_text_model": "layers of cross-attention",
}


def kinds_of(config: Mapping[str, object], *, dtype: str | None = None) -> tuple[Kind, ...]:
    """The kinds of a model's KV cache, full attention first.

    config: a config.json; multimodal ones nest the text model in `text_config`. dtype: of the cache, where it is not the
    model's own; fp8 has 1 byte a value, and vLLM's fp8_ds_mla packs a latent. Kinds are named "full", "sliding" (which has a
    window), "latent", "indexer", "compressed-4", "indexer-4" and "compressed-128". Planes are in bytes.
    Errors: ConfigError (a model type or a field that is not covered; a missing, wrong or contradictory field).
    Source: see the head of this module; `remarks_of` says what is not counted.
    """
    model = ModelConfig(config)
    return _family(model)(model, model.dtype(dtype))


def layout_of(
    config: Mapping[str, object],
    *,
    model: str,
    weights_revision: str,
    block_tokens: int | None = None,
    grid: Grid = Grid(),  # noqa: B008 -- frozen
    dtype: str | None = None,
    more: Mapping[str, str | int] | None = None,
    codec: str = "",
    step: float | tuple[float, ...] = 0.0,
    policy: str | Policy = "",
) -> KVLayout:
    """What blocks of the model's KV cache mean.

    config, dtype: see `kinds_of`. block_tokens: of a block; None = the smallest multiple of 16 that all kinds allow. model,
    weights_revision, grid, more, codec, step, policy: see KVLayout.
    Errors: ConfigError.
    """
    read = ModelConfig(config)
    family = _family(read)  # first: of a model that is not covered, the dtype is no matter
    name = read.dtype(dtype)
    kinds = family(read, name)
    if block_tokens is None:
        block_tokens = math.lcm(BLOCK_TOKENS, *(kind.tokens_per_entry for kind in kinds))
    return KVLayout(model, weights_revision, name, block_tokens, kinds, grid, more or {}, codec, step, policy)


def remarks_of(config: Mapping[str, object]) -> tuple[str, ...]:
    """What the numbers of a model do not say, a sentence each: what is not counted, and what was assumed.

    Errors: ConfigError, as `kinds_of`.
    """
    model = ModelConfig(config)
    kinds = _family(model)(model, "bfloat16")
    family = _HEADS.get(model.model_type, _Heads())
    remarks = [
        f"{name} is not given: {value}, as in the model type's class."
        for name, value in family.defaults.items()
        if not model.has(name)
    ]
    if family.all_heads and not model.has("num_key_value_heads"):
        remarks.append("num_key_value_heads is not given: as many as num_attention_heads.")
    remarks += [
        f"{kind.name}: counted for every token; attention reads those of the last {kind.window} tokens alone."
        for kind in kinds
        if kind.window
    ]
    if model.model_type in _LATENT:
        remarks.append("latent: as engines with MLA kernels keep it; those without keep K and V of every head.")
    if any(kind.name.startswith("indexer") for kind in kinds):
        remarks.append(f"indexer: fp8 keys with an fp32 scale for {_SCALED_VALUES} values, whatever the dtype is.")
    if model.model_type == _V4:
        remarks.append("not counted: the state of the compressors, which an engine keeps beside the cache or computes anew.")
    if any(model.number(field, LAYERS_MAX, default=0, least=0) for field in ("num_nextn_predict_layers", "num_mtp_layers")):
        remarks.append("not counted: layers that predict further tokens (num_nextn_predict_layers), for speculative decoding.")
    return tuple(remarks)


def _family(model: ModelConfig) -> Callable[[ModelConfig, str], tuple[Kind, ...]]:
    if model.model_type in _HEADS:
        return _head_kinds
    if model.model_type in _LATENT:
        return _latent_kinds
    if model.model_type == _V4:
        return _v4_kinds
    why = f" ({_REFUSED[model.model_type]})" if model.model_type in _REFUSED else ""
    raise model.wrong("model_type", f"not covered{why}; covered are {', '.join(COVERED)}. Name the kinds by hand for others")


# ---- K and V of heads ----


def _head_kinds(model: ModelConfig, dtype: str) -> tuple[Kind, ...]:
    family = _HEADS[model.model_type]
    model.refuse(*_SHARED_LAYERS, *_OTHER_SHAPES, "kv_lora_rank", "v_head_dim", "index_topk", "compress_ratios")
    model.refuse("is_encoder_decoder", "add_cross_attention", "cross_attention_layers")
    heads = _key_heads(model, family)
    plane = _head_values(model, family) * _value_bytes(model, dtype)
    layers: dict[int, list[int]] = {}
    for layer, window in enumerate(_windows(model, family)):
        layers.setdefault(window, []).append(layer)
    return tuple(
        Kind("sliding" if window else "full", tuple(numbers), heads, (plane, plane), window=window)
        for window, numbers in sorted(layers.items())
    )


def _key_heads(model: ModelConfig, family: _Heads) -> int:
    queries = model.number("num_attention_heads", HEADS_MAX, family.defaults.get("num_attention_heads"))
    default = queries if family.all_heads else family.defaults.get("num_key_value_heads")
    heads = model.number("num_key_value_heads", HEADS_MAX, default)
    if queries % heads != 0:
        raise model.wrong("num_key_value_heads", f"must divide num_attention_heads={queries}; correct the file")
    return heads


def _head_values(model: ModelConfig, family: _Heads) -> int:
    if not family.quotient or model.has("head_dim"):
        return model.number("head_dim", DIM_MAX, family.defaults.get("head_dim"))
    hidden, queries = model.number("hidden_size", DIM_MAX), model.number("num_attention_heads", HEADS_MAX)
    if hidden % queries != 0:
        raise model.wrong("hidden_size", f"is no multiple of num_attention_heads={queries}, and head_dim is not there; add it")
    return hidden // queries


def _windows(model: ModelConfig, family: _Heads) -> list[int]:
    """Of each layer: its window in tokens, or 0. All windows of a model are equal."""
    count = model.number("num_hidden_layers", LAYERS_MAX)
    types = _layer_types(model, count) if model.has("layer_types") else None
    if family.windows == "all":
        return [_common_window(model, family, types)] * count
    if family.windows == "qwen":
        types = _qwen_types(model, count, types)
    elif types is None and family.windows == "pattern":
        period = family.period
        if model.model_type == "gemma3_text":
            period = model.number("sliding_window_pattern", LAYERS_MAX, period)
        types = [(layer + 1) % period != 0 for layer in range(count)]
    elif types is None:
        model.refuse("sliding_window")
        types = [False] * count
    if not any(types):
        return [0] * count
    window = model.number("sliding_window", WINDOW_MAX)
    return [window if slides else 0 for slides in types]


def _layer_types(model: ModelConfig, count: int) -> list[bool]:
    """Of each layer: whether it has a window."""
    known = {"full_attention": False, "sliding_attention": True}
    types = model.words("layer_types", count)
    for layer, name in enumerate(types):
        if name not in known:
            raise ConfigError(
                f"{model.name('layer_types')}[{layer}]={name!r}: not covered; covered are {', '.join(known)}. "
                "Name the kinds by hand for others"
            )
    return [known[name] for name in types]


def _common_window(model: ModelConfig, family: _Heads, types: list[bool] | None) -> int:
    if model.has("sliding_window"):
        window = model.number("sliding_window", WINDOW_MAX)
    elif model.states("sliding_window") or family.null_window:
        window = 0
    else:  # the class behind it would take 4096
        raise ConfigError(f"{model.name('sliding_window')}: is missing, and is not guessed; add null or the window's tokens")
    if types is not None and set(types) != {window > 0}:
        raise model.wrong("layer_types", f"contradicts sliding_window={window}, which all layers of this model type have")
    return window


def _qwen_types(model: ModelConfig, count: int, types: list[bool] | None) -> list[bool]:
    slides = model.flag("use_sliding_window")
    if types is not None:
        if any(types) and not slides:
            raise model.wrong("layer_types", "has sliding layers, and use_sliding_window is not true; correct one of them")
        return types
    if not slides:
        return [False] * count
    if model.model_type == "qwen3_moe":
        raise model.wrong("use_sliding_window", "engines differ in which layers of a qwen3_moe slide; add layer_types")
    first = model.number("max_window_layers", LAYERS_MAX, least=0)
    return [layer >= first for layer in range(count)]


# ---- latents and indexers ----


def _latent_kinds(model: ModelConfig, dtype: str) -> tuple[Kind, ...]:
    indexed = _LATENT[model.model_type]
    model.refuse(*_SHARED_LAYERS, *_OTHER_SHAPES, "compress_ratios", "sliding_window", "is_encoder_decoder")
    if model.states("use_mla") and not model.flag("use_mla"):
        raise model.wrong("use_mla", "without a latent this model type is not covered; name the kinds by hand")
    count = model.number("num_hidden_layers", LAYERS_MAX)
    shape = model.number("kv_lora_rank", DIM_MAX), model.number("qk_rope_head_dim", DIM_MAX)
    if dtype != PACKED_LATENT:
        plane = sum(shape) * _value_bytes(model, dtype)
    elif indexed and shape == _PACKED_LATENT_SHAPE:
        plane = _PACKED_LATENT_BYTES
    else:
        raise _not_packed(model, "an indexer, kv_lora_rank=512 and qk_rope_head_dim=64")
    latent = Kind("latent", tuple(range(count)), 1, (plane,))
    if not indexed:
        model.refuse("index_topk", "indexer_types")
        return (latent,)
    if model.has("layer_types"):
        for layer, name in enumerate(model.words("layer_types", count)):
            if name not in ("indexed_attention", "deepseek_sparse_attention"):
                raise ConfigError(f"{model.name('layer_types')}[{layer}]={name!r}: not covered; covered is indexed_attention")
    return latent, Kind("indexer", _indexer_layers(model, count), 1, _indexer_planes(model), dtype="fp8_e4m3", holds=_INDEXER)


def _indexer_planes(model: ModelConfig) -> tuple[int, int]:
    values = model.number("index_head_dim", DIM_MAX)
    if values % _SCALED_VALUES != 0:
        raise model.wrong("index_head_dim", f"must be a multiple of {_SCALED_VALUES}, the values that share a scale")
    return values, values // _SCALED_VALUES * _SCALE_BYTES


def _indexer_layers(model: ModelConfig, count: int) -> tuple[int, ...]:
    """Layers that have an indexer of their own; the others use the choice of the one before.

    Source: GlmMoeDsaConfig of transformers: indexer_types, else index_topk_pattern, else every index_topk_freq-th layer from
    index_skip_topk_offset on, and all before. DeepSeek V3.2 has one in each.
    """
    if model.model_type == "deepseek_v32":
        model.refuse("indexer_types", "index_topk_pattern")
        if model.number("index_topk_freq", LAYERS_MAX, 1) != 1:
            model.refuse("index_topk_freq")
        return tuple(range(count))
    if model.has("indexer_types"):
        own = _own(model, "indexer_types", model.words("indexer_types", count), "full", "shared")
    elif model.has("index_topk_pattern"):
        own = _own(model, "index_topk_pattern", model.letters("index_topk_pattern", count), "F", "S")
    else:
        every = model.number("index_topk_freq", LAYERS_MAX, 1)
        first = model.number("index_skip_topk_offset", LAYERS_MAX, 2 if every == 1 else None, least=0)
        own = [max(layer - first + 1, 0) % every == 0 for layer in range(count)]
    if not own[0]:
        raise model.wrong("indexer_types", "the first layer must have an indexer of its own; there is none before it")
    return tuple(layer for layer, has in enumerate(own) if has)


def _own(model: ModelConfig, name: str, words: Sequence[str], yes: str, no: str) -> list[bool]:
    if not set(words) <= {yes, no}:
        raise model.wrong(name, f"must be {yes!r} or {no!r} for each layer")
    return [word == yes for word in words]


# ---- DeepSeek V4 ----


def _v4_kinds(model: ModelConfig, dtype: str) -> tuple[Kind, ...]:
    model.refuse(*_SHARED_LAYERS, *_OTHER_SHAPES, "is_encoder_decoder")
    count = model.number("num_hidden_layers", LAYERS_MAX)
    if model.number("num_key_value_heads", HEADS_MAX) != 1:
        raise model.wrong("num_key_value_heads", "must be 1: V4 has one head, whose V is its K")
    values = model.number("head_dim", DIM_MAX)
    if dtype != PACKED_LATENT:
        plane = values * _value_bytes(model, dtype)
    elif (values, model.number("qk_rope_head_dim", DIM_MAX)) == _PACKED_V4_SHAPE:
        plane = _PACKED_V4_BYTES
    else:
        raise _not_packed(model, "head_dim=512 and qk_rope_head_dim=64")
    types = _v4_types(model, count)
    window = model.number("sliding_window", WINDOW_MAX)
    kinds = [Kind("sliding", tuple(range(count)), 1, (plane,), window=window)]
    if few := tuple(layer for layer, name in enumerate(types) if name == _V4_RATIOS[4]):
        kinds.append(Kind("compressed-4", few, 1, (plane,), 4))
        kinds.append(Kind("indexer-4", few, 1, _indexer_planes(model), 4, dtype="fp8_e4m3", holds=_INDEXER))
    if many := tuple(layer for layer, name in enumerate(types) if name == _V4_RATIOS[128]):
        kinds.append(Kind("compressed-128", many, 1, (plane,), 128))
    return tuple(kinds)


def _v4_types(model: ModelConfig, count: int) -> list[str]:
    """Of each layer: its type as transformers names it. Published files have ratios instead, those of MTP layers behind."""
    ratios = None
    if model.has("compress_ratios"):
        found = model.numbers("compress_ratios", 0, WINDOW_MAX, count)
        if unknown := sorted(set(found) - set(_V4_RATIOS)):
            raise model.wrong("compress_ratios", f"ratio {unknown[0]} is not covered; covered are 0, 1, 4 and 128")
        ratios = [_V4_RATIOS[ratio] for ratio in found[:count]]
    if not model.has("layer_types"):
        if ratios is None:
            raise ConfigError(
                f"{model.name('compress_ratios')}: is missing, and so is layer_types; one must name each layer's kind"
            )
        return ratios
    types = model.words("layer_types", count)
    if unknown_types := sorted(set(types) - set(_V4_RATIOS.values())):
        raise model.wrong(
            "layer_types", f"{unknown_types[0]!r} is not covered; covered are {', '.join(sorted(set(_V4_RATIOS.values())))}"
        )
    rates = model.table("compress_rates")
    for name, ratio in ((_V4_RATIOS[4], 4), (_V4_RATIOS[128], 128)):
        if name in types and ratios is None and rates.get(name) != ratio:
            raise model.wrong("compress_rates", f"must have {name}: {ratio}, the only ratio of such layers that is published")
    if ratios not in (None, types):
        raise model.wrong("layer_types", "contradicts compress_ratios; correct one of them")
    return types


def _value_bytes(model: ModelConfig, dtype: str) -> int:
    if dtype == PACKED_LATENT:
        raise _not_packed(model, "a latent")
    return DTYPE_BYTES[dtype]


def _not_packed(model: ModelConfig, needs: str) -> ConfigError:
    return ConfigError(
        f"dtype={PACKED_LATENT}: packs what has {needs}, which this {model.model_type} has not; take fp8 or bfloat16"
    )
