"""What a line of a test says of a prompt, in vLLM's words: whose cache it is of, and with which adapter it is computed."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

from vllm.lora.request import LoRARequest


def prompt_of(asked: dict[str, Any], tokens: list[int]) -> dict[str, Any]:
    """salt: part of the keys of its blocks."""
    return {"prompt_token_ids": tokens} | ({"cache_salt": asked["salt"]} if "salt" in asked else {})


def adapter_of(asked: dict[str, Any]) -> LoRARequest | None:
    """lora: a folder, whose name is the adapter's."""
    if "lora" not in asked:
        return None
    name = Path(asked["lora"]).name
    return LoRARequest(name, zlib.crc32(name.encode()) % 1000 + 1, asked["lora"])
