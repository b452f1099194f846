"""What a cache's keys have to tell apart besides tokens: adapters and tenants, each with blocks of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.connectors.conftest import Engine

# More arguments of vLLM's.
LORA = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8}


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


def tokens_of(answers: list[dict[str, Any]]) -> list[list[int]]:
    """Of each."""
    return [told["tokens"] for told in answers]
