"""Tiny models with random weights, the same in every process: a GQA one and an MLA one.

Weights are scaled up so that greedy decoding depends on the whole context; with the usual initialisation the output is nearly
constant and a wrong cache would go unseen.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, DeepseekV3Config, PretrainedConfig, PreTrainedModel, Qwen3Config

VOCABULARY = 2048
SEED = 20260
# Times the spread that keeps a layer's output as large as its input.
WEIGHT_GAIN = 1.4


def config_of(kind: str) -> PretrainedConfig:
    """kind: "gqa" (Qwen3: 8 query heads on 2 KV heads) or "mla" (DeepSeek-V3: a latent of 128 and 32 rotary dimensions)."""
    shared: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    if kind == "gqa":
        return Qwen3Config(
            hidden_size=384,
            intermediate_size=768,
            num_hidden_layers=6,
            num_attention_heads=8,
            num_key_value_heads=2,
            head_dim=64,
            **shared,
        )
    return DeepseekV3Config(
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=4,
        q_lora_rank=96,
        kv_lora_rank=128,
        qk_nope_head_dim=64,
        qk_rope_head_dim=32,
        v_head_dim=64,
        n_routed_experts=4,
        n_group=1,
        topk_group=1,
        num_experts_per_tok=2,
        n_shared_experts=1,
        moe_intermediate_size=128,
        first_k_dense_replace=6,
        **shared,
    )


def build(kind: str) -> PreTrainedModel:
    """The model, in bfloat16, ready to run."""
    torch.manual_seed(SEED)
    auto: Any = AutoModelForCausalLM  # its methods are not typed
    model: PreTrainedModel = auto.from_config(config_of(kind), dtype=torch.bfloat16)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.copy_(torch.randn_like(parameter) * (WEIGHT_GAIN / parameter.shape[-1] ** 0.5))
    model.train(mode=False)
    # Only what generate() would otherwise take from a checkpoint; an end token would cut the comparison short.
    model.generation_config.pad_token_id = 0
    model.generation_config.eos_token_id = None
    return model


def prompt(kind: str, tokens: int) -> torch.Tensor:
    """`tokens` token ids, [1, tokens], the same in every process."""
    generator = torch.Generator().manual_seed(SEED + len(kind))
    return torch.randint(3, VOCABULARY, (1, tokens), generator=generator)
