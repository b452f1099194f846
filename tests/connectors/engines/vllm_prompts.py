"""What a line of a test says of a prompt, in vLLM's words: whose cache it is of, what it shows, and with which adapter."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from vllm.lora.request import LoRARequest

# Of an image's side, in pixels: that of models.py.
SIDE = 56


def prompt_of(asked: dict[str, Any], tokens: list[int]) -> dict[str, Any]:
    """salt: part of the keys of its blocks. image: the seed of the image that stands for its one image token."""
    prompt: dict[str, Any] = {"prompt_token_ids": tokens}
    if "salt" in asked:
        prompt["cache_salt"] = asked["salt"]
    if "image" in asked:
        pixels = np.random.default_rng(asked["image"]).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
        prompt["multi_modal_data"] = {"image": Image.fromarray(pixels)}
    return prompt


def adapter_of(asked: dict[str, Any]) -> LoRARequest | None:
    """lora: a folder, whose name is the adapter's."""
    if "lora" not in asked:
        return None
    name = Path(asked["lora"]).name
    return LoRARequest(name, zlib.crc32(name.encode()) % 1000 + 1, asked["lora"])
