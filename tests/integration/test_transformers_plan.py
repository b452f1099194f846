"""PromptCache with plan="auto": what computing beats is not restored, and a daemon that stops costs one deadline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import halfstep
from halfstep.client.circuit import PAUSE_S_MAX
from halfstep.tier.face import DEADLINE_MS_MAX

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.integration.test_transformers import (  # noqa: E402
    DEADLINE_MS,
    empty_cache,
    model_of,
    prompt_of,
)

from halfstep.connectors.transformers import PromptCache, cache_argument  # noqa: E402 -- needs both of them

pytestmark = pytest.mark.integration

TOKENS, BLOCKS = 150, 9


@pytest.fixture
def store(own_daemon: Any) -> Iterator[PromptCache]:
    """One that has restored its prompt once, so that it knows the link."""
    with halfstep.connect(own_daemon.url, required=True, deadline_ms=DEADLINE_MS, match_deadline_ms=DEADLINE_MS) as client:
        store = PromptCache(client, model_of("gqa"), plan="auto")
        saved = store.save(prompt_of(TOKENS), computed(store))
        assert saved.stored == BLOCKS
        restored = store.restore(prompt_of(TOKENS))
        assert (restored.hit_blocks, restored.reason) == (BLOCKS, ""), "an engine that nobody measured restores all"
        yield store


def computed(store: PromptCache) -> Any:
    """The prompt's cache, by an engine of which the tier is told nothing."""
    cache = empty_cache(store)
    store.model(prompt_of(TOKENS), use_cache=True, **cache_argument(store.model, cache))
    return cache


def tell(store: PromptCache, token_s: float) -> None:
    """What a token costs the engine; the first one is passed over."""
    for _ in range(4):
        store.tier.computed(1000, 1000 * token_s)


def told(store: PromptCache) -> dict[str, int]:
    assert store.tier.planning is not None
    return {why: count for why, count in store.tier.planning.planner.counts().items() if count}


def is_open(store: PromptCache) -> bool:
    assert store.tier.planning is not None
    return store.tier.planning.planner.is_open


def test_what_computing_beats_is_not_restored(store: PromptCache) -> None:
    tell(store, 1e-9)
    quick = store.restore(prompt_of(TOKENS))
    assert (quick.tokens, quick.hit_blocks, quick.asked_blocks, quick.bytes) == (0, 0, BLOCKS, 0)
    assert quick.reason == "planned (recompute)"
    tell(store, 1.0)
    slow = store.restore(prompt_of(TOKENS))
    assert (slow.hit_blocks, slow.reason) == (BLOCKS, "")
    assert told(store) == {"prefill_unknown": 1, "recompute": 1, "fetch": 1}


def test_rows_of_a_batch_are_planned_together(store: PromptCache) -> None:
    padded = torch.cat([torch.zeros(1, 20, dtype=torch.int64), prompt_of(TOKENS)[:, : TOKENS - 20]], dim=1)
    ids = torch.cat([prompt_of(TOKENS), padded])
    mask = torch.ones_like(ids)
    mask[1, :20] = 0
    tell(store, 1e-9)
    assert store.restore(ids, attention_mask=mask).reason == "planned (recompute)"
    tell(store, 1.0)
    both = store.restore(ids, attention_mask=mask)
    assert (both.tokens, both.hit_blocks) == (BLOCKS * 16, BLOCKS + 8)


def test_a_goal_that_computing_meets_shortens_the_wait(store: PromptCache, monkeypatch: pytest.MonkeyPatch) -> None:
    tell(store, 1.0)
    planning = store.tier.planning
    assert planning is not None
    within_s: list[float] = []
    plan = planning.planner.plan

    def noting(*arguments: Any) -> Any:
        made = plan(*arguments)
        within_s.append(made.deadline_s)
        return made

    monkeypatch.setattr(planning.planner, "plan", noting)
    store.restore(prompt_of(TOKENS))
    store.restore(prompt_of(TOKENS), goal_ms=(TOKENS + 20) * 1e3)
    assert within_s[0] == DEADLINE_MS_MAX / 1e3, "as long as computing its blocks takes, up to that"
    assert within_s[1] <= 20


def test_a_daemon_that_stops_after_its_match_costs_what_computing_costs_and_comes_back(
    store: PromptCache, own_daemon: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    planning = store.tier.planning
    assert planning is not None
    now_s = [0.0]
    monkeypatch.setattr(planning.planner, "_clock", lambda: now_s[0])
    tell(store, 0.02)  # 2.9 s for all blocks
    plan, made = planning.plan, []

    def then_stops(*arguments: Any, **named: Any) -> Any:
        made.append(plan(*arguments, **named))
        own_daemon.pause()
        return made[-1]

    with monkeypatch.context() as patched:
        patched.setattr(planning, "plan", then_stops)
        lost = store.restore(prompt_of(TOKENS))
    assert lost.hit_blocks == 0
    assert lost.reason.startswith("late")
    assert made[0].deadline_ms == pytest.approx(0.02 * BLOCKS * 16 * 1e3, rel=0.01), "and not the client's"
    assert is_open(store)
    assert store.restore(prompt_of(TOKENS)).reason == "planned (circuit_open)"

    own_daemon.resume()
    for _ in range(50):  # a machine that is busy may be late for a probe, too
        now_s[0] += PAUSE_S_MAX
        store.restore(prompt_of(TOKENS))
        if not is_open(store):
            break
    assert not is_open(store)
    assert told(store)["opened"] == 1
    tell(store, 1.0)
    assert store.restore(prompt_of(TOKENS)).hit_blocks == BLOCKS


def test_a_word_that_is_no_plan_is_refused(store: PromptCache) -> None:
    with pytest.raises(halfstep.ConfigError, match="plan='never': must be 'auto' or 'always'"):
        PromptCache(store.client, store.model, plan="never")  # type: ignore[arg-type]
