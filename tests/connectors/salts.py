"""What a cache's keys have to tell apart besides tokens: adapters, tenants and images, each with blocks of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.connectors.conftest import Engine

# More arguments of vLLM's.
LORA = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8}
# vLLM's own LLaVA asks for torchvision; with the one of transformers, cache and keys are the same.
SEEING = {"skip_tokenizer_init": False, "model_impl": "transformers"}
IMAGE_TOKEN = 511


def told_apart(start: Callable[[], Engine], models: Path, prompt: list[int]) -> None:
    """One prompt, computed for each, comes back to each in a new process; another adapter and another tenant find nothing."""
    adapter, other = str(models / "lora-a"), str(models / "lora-b")
    terms: list[dict[str, str]] = [{}, {"lora": adapter}, {"salt": "one tenant"}, {"lora": adapter, "salt": "one tenant"}]
    with start() as cold:
        first = [cold.generate(prompt, **one) for one in terms]
        cold.reset()  # waits for the stores
    with start() as warm:
        strangers = [warm.generate(prompt, **one) for one in ({"lora": other}, {"salt": "another tenant"})]
        second = [warm.generate(prompt, **one) for one in terms]
    assert [told["cached"] for told in first + strangers] == [0] * (len(terms) + 2)
    assert [told["cached"] for told in second] == [256] * len(terms)
    assert tokens_of(second) == tokens_of(first)
    plain, adapted, tenant, _ = tokens_of(first)
    assert plain == tenant != adapted, "an adapter changes what is computed, and a tenant does not"
    assert tokens_of(strangers)[0] not in (plain, adapted)


def seen_apart(start: Callable[[], Engine], prompt: list[int]) -> None:
    """An image in the second of two blocks: the same image finds both in a new process, another one the block before it.

    What another image computed is stored, and comes back to it alone.
    """
    tokens = [token for token in prompt if token != IMAGE_TOKEN][:289]
    tokens[150] = IMAGE_TOKEN
    with start() as cold:
        first = cold.generate(tokens, image=1)
        cold.reset()  # waits for the stores
    with start() as warm:
        other = warm.generate(tokens, image=2)
        warm.reset()
        again = warm.generate(tokens, image=1)
        warm.reset()
        back = warm.generate(tokens, image=2)
    assert [told["cached"] for told in (first, other, again, back)] == [0, 128, 256, 256]
    assert tokens_of([again, back]) == tokens_of([first, other])
    assert first["tokens"] != other["tokens"], "an image changes what is computed"


def tokens_of(answers: list[dict[str, Any]]) -> list[list[int]]:
    """Of each."""
    return [told["tokens"] for told in answers]
