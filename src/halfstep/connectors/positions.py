"""What a vLLM's settings make of positions: K and V differ by it, and neither weights nor config.json show it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

# Rotary settings that give the same numbers however long a request may be.
OF_ANY_LENGTH = {"default", "linear", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling", "mrope"}
# Beyond this Llama 4 scales queries by their positions, if nothing else says so.
LLAMA4_TUNED_TOKENS = 32768


def positions_of(model: Any) -> str:
    """16 hex digits, the same in every process of an engine; "" where a model and its folder say it all. model: a ModelConfig.

    LongRoPE takes its long or its short factors by max_model_len, Llama 4 scales queries by it. Rotary settings that are not
    known here may do as much, and count with the length as it is. --hf-config-path takes the settings from another folder.
    Not looked at: what a model writes into its configuration while it is loaded, since not every process loads it.
    Source: vLLM 0.32, layers/rotary_embedding/phi3_long_rope_scaled_rope.py, models/llama4.py, config/model.py.
    """
    text, length = model.hf_text_config, int(model.max_model_len)
    # Asked for as -1 it is fitted to the memory once the model is made, and so not the length that the model was made for.
    fitted = getattr(model, "original_max_model_len", None) == -1
    told: dict[str, str] = {}
    for rope in _ropes(text):
        kind = str(rope.get("rope_type") or rope.get("type") or "default")
        if kind == "longrope":
            trained = rope.get("original_max_position_embeddings") or getattr(text, "original_max_position_embeddings", None)
            if fitted:  # to what stands in the configuration itself, and else to the longest that there is
                told[kind] = "short" if getattr(text, "original_max_position_embeddings", None) else "fitted"
            else:
                told[kind] = "long" if length > int(trained or 0) else "short"
        elif kind not in OF_ANY_LENGTH:
            told[kind] = "fitted" if fitted else str(length)
    if str(getattr(text, "model_type", "")).startswith("llama4"):
        said = {**model.try_get_generation_config(), **model.override_generation_config}
        told["tuning"] = str(said.get("attn_temperature_tuning", "fitted" if fitted else length > LLAMA4_TUNED_TOKENS))
    if path := getattr(model, "hf_config_path", None):
        file = Path(path) / "config.json"
        told["config"] = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else str(path)
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16] if told else ""


def _ropes(config: Any) -> Iterator[Mapping[str, Any]]:
    """Rotary settings of all kinds of layers."""
    for name in ("rope_parameters", "rope_scaling"):
        found = getattr(config, name, None)
        if isinstance(found, Mapping):
            nested = [one for one in found.values() if isinstance(one, Mapping)]
            yield from nested or [found]
