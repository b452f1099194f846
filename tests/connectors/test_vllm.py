"""The real vLLM engine on the CPU, its tiered offloading, and the tier under it: tokens as without it, whatever dies."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.connectors.conftest import Engine

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]

Prompts = Callable[..., list[list[int]]]
Start = Callable[..., Engine]
# Of prompts of 305, 340 and 441 tokens, in blocks of 128.
WHOLE_BLOCKS = [256, 256, 384]


@pytest.fixture
def start(tmp_path: Path, models: Path) -> Start:
    """start(url, **of the tier): an engine; url None = without a tier."""

    def begin(url: str | None, model: str = "qwen3", **options: Any) -> Engine:
        tier = {"type": "HalfstepTier", "module_path": "halfstep.connectors.vllm", "url": url, **options}
        tiers = [] if url is None else [tier]
        return Engine(tmp_path / "engine.log", "vllm_engine.py", str(models / model), json.dumps(tiers), engine="vllm")

    return begin


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Callable[[list[int]], list[int]]:
    """reference(prompt): tokens of an engine without a tier that computes all of it."""
    log = tmp_path_factory.mktemp("reference") / "engine.log"
    known: dict[tuple[int, ...], list[int]] = {}
    engine: list[Engine] = []

    def tokens(prompt: list[int]) -> list[int]:
        if tuple(prompt) not in known:
            if not engine:
                engine.append(Engine(log, "vllm_engine.py", str(models / "qwen3"), "[]", engine="vllm"))
            engine[0].reset()
            known[tuple(prompt)] = engine[0].generate(prompt)["tokens"]
        return known[tuple(prompt)]

    yield tokens
    for one in engine:
        one.end()


def test_a_new_process_restores_what_another_stored(
    start: Start, daemon: Any, prompts: Prompts, reference: Callable[[list[int]], list[int]]
) -> None:
    asked = prompts(7)
    with start(daemon.unix_url) as cold:
        first = [cold.generate(prompt) for prompt in asked]
    with start(daemon.unix_url) as warm:
        second = [warm.generate(prompt) for prompt in asked]
    expected = [reference(prompt) for prompt in asked]
    assert [one["tokens"] for one in first] == expected
    assert [one["tokens"] for one in second] == expected
    assert [one["cached"] for one in second] == WHOLE_BLOCKS
    assert second[-1]["counts"]["loads"] == 3, "two shared blocks, one of the longest prompt"
    assert second[-1]["counts"]["loads_failed"] == 0
