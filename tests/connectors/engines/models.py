"""Tiny random models on disk, for engines: `python models.py FOLDER`. Nothing is downloaded.

qwen3, llama: GQA, 4 layers, 8 heads, 2 KV heads of 64. dsv3: MLA with the one latent that vLLM's CPU backend has, without
experts; its rope is yarn, as real ones' is: with the default one that backend's prefill and decode disagree.

lora-a, lora-b: adapters of qwen3, each of which changes most tokens.

llava: qwen3's kind of language model that sees images of 56 by 56 pixels, 16 tokens each; its last token stands for one.

Weights are scaled so that every token depends on the whole context: with the usual ones greedy decoding says almost the same
whatever the cache holds, and wrong bytes would not show.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import (
    AutoModelForCausalLM,
    CLIPVisionConfig,
    DeepseekV3Config,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

COMMON = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64}
# Of images: pixels of a side, and of a patch's, which is one token.
SIDE, PATCH = 56, 14
IMAGE_TOKEN = COMMON["vocab_size"] - 1


def configs() -> dict[str, PretrainedConfig]:
    """By name."""
    latent = {
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "q_lora_rank": 96,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 4,
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 128,
        "first_k_dense_replace": 4,
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 2.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "beta_fast": 32,
            "beta_slow": 1,
            "rope_theta": 10000.0,
            "original_max_position_embeddings": 1024,
        },
    }
    return {
        "qwen3": Qwen3Config(**HEADS, **COMMON),
        "llama": LlamaConfig(**HEADS, **COMMON),
        "dsv3": DeepseekV3Config(**latent, **COMMON),
    }


def save_adapter(folder: Path, seed: int) -> None:
    """Of rank 8, on what attention asks and answers with."""
    folder.mkdir(parents=True)
    draw = torch.Generator().manual_seed(seed)
    hidden, rank, widths = 256, 8, {"q_proj": 512, "v_proj": 128}
    weights = {}
    for layer in range(COMMON["num_hidden_layers"]):
        for name, width in widths.items():
            at = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            weights[f"{at}.lora_A.weight"] = torch.randn(rank, hidden, generator=draw) / hidden**0.5
            weights[f"{at}.lora_B.weight"] = torch.randn(width, rank, generator=draw) / rank**0.5
    save_file({name: values.to(torch.bfloat16) for name, values in weights.items()}, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": list(widths), "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config | {"task_type": "CAUSAL_LM"}))


def save_weights(folder: Path, model: PreTrainedModel) -> None:
    """Random ones, with what vLLM reads of how to generate."""
    with torch.no_grad():
        for values in model.parameters():
            if values.dim() >= 2:
                values.copy_(torch.randn_like(values) * (1.4 / values.shape[-1] ** 0.5))
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": 2}))


def save_seeing_model(folder: Path) -> None:
    """A model that sees, and what makes tokens of an image. An image asks for a tokenizer, whose words are numbers."""
    vision = CLIPVisionConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2, image_size=SIDE, patch_size=PATCH
    )
    config = LlavaConfig(
        vision_config=vision,
        text_config=Qwen3Config(**HEADS, **COMMON),
        image_token_index=IMAGE_TOKEN,
        vision_feature_select_strategy="default",
        vision_feature_layer=-1,
    )
    words = {f"t{number}": number for number in range(IMAGE_TOKEN)} | {"<image>": IMAGE_TOKEN}
    tokens = Tokenizer(WordLevel(words, unk_token="t0"))
    tokens.pre_tokenizer = WhitespaceSplit()
    special = {"unk_token": "t0", "pad_token": "t0", "bos_token": "t1", "eos_token": "t2"}
    LlavaProcessor(
        image_processor=CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}),
        tokenizer=PreTrainedTokenizerFast(tokenizer_object=tokens, extra_special_tokens=["<image>"], **special),
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        image_token="<image>",
        num_additional_image_tokens=1,
    ).save_pretrained(folder)
    save_weights(folder, LlavaForConditionalGeneration(config))


def main(folder: Path) -> None:
    """Writes each that is not there."""
    for seed, name in enumerate(("lora-a", "lora-b")):
        if not (folder / name).exists():
            save_adapter(folder / name, seed)
    for name, config in configs().items():
        if (folder / name / "config.json").exists():
            continue
        torch.manual_seed(1234)
        save_weights(folder / name, AutoModelForCausalLM.from_config(config, dtype=torch.float32))
    if not (folder / "llava" / "config.json").exists():
        torch.manual_seed(1234)
        save_seeing_model(folder / "llava")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
