"""KV cache of real (tiny) models through the tier: saved by one client, restored by another, bit for bit."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

import halfstep
from halfstep import ConfigError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from halfstep.connectors.transformers import (  # noqa: E402 -- needs both of them
    PREFILL_TOKENS,
    PromptCache,
    cache_argument,
    fingerprint,
)

# What the library warns of now, it refuses in a year, and those who run it see each warning.
pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("error:.*is deprecated:FutureWarning")]

DEADLINE_MS = 30_000
BLOCK_TOKENS = 16
VOCABULARY = 256
NEW_TOKENS = 12


def model_of(kind: str, *, seed: int = 7, **changes: Any) -> Any:
    """A model of two layers with random weights, spread so that its tokens depend on all of the context."""
    shared: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    if kind == "gqa":
        config = transformers.Qwen3Config(**shared | {"num_key_value_heads": 2, "head_dim": 16} | changes)
    elif kind == "mla":
        latent = {"q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
        experts = {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2, "n_shared_experts": 1}
        latent |= experts | {"moe_intermediate_size": 32, "first_k_dense_replace": 2, "num_key_value_heads": 4}
        config = transformers.DeepseekV3Config(**shared | latent | changes)
    else:
        config = transformers.MistralConfig(**shared | {"num_key_value_heads": 2, "head_dim": 16} | changes)
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.copy_(torch.randn_like(parameter) * (1.5 / parameter.shape[-1] ** 0.5))
    model.eval()
    model.generation_config.eos_token_id = None
    return model


def prompt_of(tokens: int, seed: int = 1) -> Any:
    """Token ids, [1, tokens]."""
    return torch.randint(3, VOCABULARY, (1, tokens), generator=torch.Generator().manual_seed(seed))


def empty_cache(store: PromptCache) -> Any:
    return transformers.DynamicCache(config=store.config)


def logits_after(store: PromptCache, ids: Any, cache: Any) -> Any:
    """The logits of what the cache lacks."""
    with torch.no_grad():
        return store.model(ids[:, cache.get_seq_length() :], **cache_argument(store.model, cache)).logits


def tokens_after(store: PromptCache, ids: Any, cache: Any) -> list[int]:
    """What greedy decoding goes on with."""
    argument = cache_argument(store.model, cache)
    output = store.model.generate(ids, max_new_tokens=NEW_TOKENS, do_sample=False, **argument)
    tokens: list[int] = output[0, ids.shape[1] :].tolist()
    return tokens


def same(one: Any, other: Any) -> bool:
    """Two caches hold the same bits."""
    pairs = zip(one.layers, other.layers, strict=True)
    return all(torch.equal(a.keys, b.keys) and torch.equal(a.values, b.values) for a, b in pairs)


@pytest.fixture(params=["gqa", "mla"])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def salt(request: pytest.FixtureRequest) -> bytes:
    """Keys that no other test has."""
    return request.node.nodeid.encode()


@pytest.fixture
def connect(daemon: Any) -> Iterator[Any]:
    """connect(): another client, as another process would have."""
    clients: list[halfstep.Client] = []

    def connect() -> halfstep.Client:
        clients.append(halfstep.connect(daemon.url, required=True, deadline_ms=DEADLINE_MS, match_deadline_ms=DEADLINE_MS))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


def test_a_fresh_model_goes_on_with_the_same_bits(connect: Any, kind: str, salt: bytes) -> None:
    ids = prompt_of(150)
    saver = PromptCache(connect(), model_of(kind), salt=salt, durability="persist")
    saved_cache = empty_cache(saver)
    saved = saver.prefill(ids, saved_cache)
    assert (saved.stored, saved.present, saved.refused, saved.reason) == (9, 0, 0, "")
    assert saved.bytes == 9 * saver.block_bytes
    assert saved_cache.get_seq_length() == 9 * BLOCK_TOKENS

    restorer = PromptCache(connect(), model_of(kind), salt=salt)
    assert restorer.layout == saver.layout
    restored = restorer.restore(ids)
    assert (restored.hit_blocks, restored.asked_blocks, restored.reason) == (9, 9, "")
    assert restored.tokens == 9 * BLOCK_TOKENS
    assert restored.bytes == saved.bytes
    assert same(restored.cache, saved_cache)
    again = restorer.restore(ids)
    assert torch.equal(logits_after(restorer, ids, again.cache), logits_after(saver, ids, saved_cache))
    saved_cache.crop(9 * BLOCK_TOKENS - saved_cache.get_seq_length())
    tokens = tokens_after(saver, ids, saved_cache)
    assert tokens_after(restorer, ids, restored.cache) == tokens
    assert len(set(tokens)) > NEW_TOKENS // 4, "tokens that hardly vary would hide a wrong cache"


def test_a_second_save_finds_everything_present(connect: Any, kind: str, salt: bytes) -> None:
    ids = prompt_of(70)
    store = PromptCache(connect(), model_of(kind), salt=salt)
    cache = empty_cache(store)
    assert store.prefill(ids, cache).stored == 4
    again = store.save(ids, cache)
    assert (again.stored, again.present, again.refused, again.bytes) == (0, 4, 0, 0)


def test_the_longest_prefix_is_restored_and_the_rest_computed_alike(connect: Any, kind: str, salt: bytes) -> None:
    ids = prompt_of(PREFILL_TOKENS + 100)
    client = connect()
    store = PromptCache(client, model_of(kind), salt=salt)
    whole = empty_cache(store)
    blocks = store.prefill(ids, whole).stored
    keys = store.keys(ids)
    # All of the second piece is gone: what is restored ends where a piece ends, so that the rest is split alike.
    first_gone = PREFILL_TOKENS // BLOCK_TOKENS
    assert client.delete([keys[first_gone], keys[-1]], layout=store.layout).ok.all()
    restored = store.restore(ids)
    assert (restored.hit_blocks, restored.asked_blocks) == (first_gone, blocks)
    assert restored.reason.startswith("miss")
    saved = store.prefill(ids, restored.cache)
    assert (saved.stored, saved.refused) == (2, 0), "the deleted blocks are stored again, the others were there"
    assert same(restored.cache, whole)
    assert store.restore(ids).hit_blocks == blocks


def test_pieces_end_at_the_same_tokens_wherever_a_restore_ended(connect: Any, kind: str, salt: bytes) -> None:
    ids = prompt_of(2 * PREFILL_TOKENS + 40)
    store = PromptCache(connect(), model_of(kind), salt=salt)
    ends: list[int] = []
    cache = empty_cache(store)
    handle = store.model.register_forward_hook(lambda *_: ends.append(cache.get_seq_length()))
    store.prefill(ids[:, : 3 * BLOCK_TOKENS + 1], cache, save=False)
    store.prefill(ids, cache, save=False)
    handle.remove()
    assert ends == [3 * BLOCK_TOKENS, PREFILL_TOKENS, 2 * PREFILL_TOKENS, 2 * PREFILL_TOKENS + 2 * BLOCK_TOKENS]


@pytest.mark.parametrize(("tokens", "blocks"), [(1, 0), (BLOCK_TOKENS, 0), (BLOCK_TOKENS + 1, 1), (2 * BLOCK_TOKENS + 5, 2)])
def test_the_last_token_and_a_partial_block_are_recomputed(connect: Any, salt: bytes, tokens: int, blocks: int) -> None:
    ids = prompt_of(tokens)
    store = PromptCache(connect(), model_of("gqa"), salt=salt)
    cache = empty_cache(store)
    assert store.prefill(ids, cache).stored == blocks
    restored = store.restore(ids)
    assert (restored.tokens, restored.hit_blocks, restored.asked_blocks) == (blocks * BLOCK_TOKENS, blocks, blocks)
    assert bool(restored.reason) == (blocks == 0)
    alone = tokens_after(store, ids, empty_cache(store)) if blocks == 0 else tokens_after(store, ids, cache)
    assert tokens_after(store, ids, restored.cache) == alone


def test_other_weights_settings_salts_and_block_sizes_miss(connect: Any, kind: str, salt: bytes) -> None:
    ids = prompt_of(70)
    client, model = connect(), model_of(kind)
    store = PromptCache(client, model, salt=salt)
    store.prefill(ids, empty_cache(store))
    assert store.restore(ids).hit_blocks == 4
    others = [
        PromptCache(client, model_of(kind, seed=8), salt=salt),
        PromptCache(client, model_of(kind, rope_parameters={"rope_type": "default", "rope_theta": 5e5}), salt=salt),
        PromptCache(client, model, salt=salt + b"other"),
        PromptCache(client, model, salt=salt, block_tokens=8),
        PromptCache(client, model, salt=salt, weights_revision="2"),
    ]
    for other in others:
        restored = other.restore(ids)
        assert (restored.hit_blocks, restored.tokens) == (0, 0)
        assert restored.reason.startswith("miss")


def test_a_fingerprint_is_of_the_weights() -> None:
    assert fingerprint(model_of("gqa")) == fingerprint(model_of("gqa"))
    assert fingerprint(model_of("gqa")) != fingerprint(model_of("gqa", seed=8))
    tuned = model_of("gqa")
    with torch.no_grad():
        tuned.model.layers[1].mlp.down_proj.weight.mul_(1.01)
    assert fingerprint(tuned) != fingerprint(model_of("gqa"))


def test_other_tokens_share_only_the_prefix(connect: Any, salt: bytes) -> None:
    ids = prompt_of(100)
    store = PromptCache(connect(), model_of("gqa"), salt=salt)
    store.prefill(ids, empty_cache(store))
    changed = ids.clone()
    changed[0, 3 * BLOCK_TOKENS + 4] += 1 if changed[0, 3 * BLOCK_TOKENS + 4] < VOCABULARY - 1 else -1
    assert store.restore(changed).hit_blocks == 3


def test_k_of_two_blocks_swapped_gives_other_tokens(connect: Any, kind: str, salt: bytes) -> None:
    ids = prompt_of(150)
    store = PromptCache(connect(), model_of(kind), salt=salt)
    store.prefill(ids, empty_cache(store))
    right, wrong = store.restore(ids).cache, store.restore(ids).cache
    one, other = (slice(block * BLOCK_TOKENS, (block + 1) * BLOCK_TOKENS) for block in (1, 7))
    for layer in wrong.layers:
        kept = layer.keys[:, :, one].clone()
        layer.keys[:, :, one] = layer.keys[:, :, other]
        layer.keys[:, :, other] = kept
    assert tokens_after(store, ids, wrong) != tokens_after(store, ids, right)


def padded(prompts: list[Any]) -> tuple[Any, Any]:
    """Ids and mask of a batch, padded on the left."""
    columns = max(prompt.shape[1] for prompt in prompts)
    rows = [torch.nn.functional.pad(prompt, (columns - prompt.shape[1], 0)) for prompt in prompts]
    masks = [torch.nn.functional.pad(torch.ones_like(prompt), (columns - prompt.shape[1], 0)) for prompt in prompts]
    return torch.cat(rows), torch.cat(masks)


@pytest.mark.parametrize("lengths", [(70, 70, 70), (70, 41, 90)])
def test_a_batch_goes_on_with_the_same_bits(connect: Any, kind: str, salt: bytes, lengths: tuple[int, ...]) -> None:
    ids, mask = padded([prompt_of(length, seed) for seed, length in enumerate(lengths)])
    pads = [ids.shape[1] - length for length in lengths]
    ids[1, pads[1] : pads[1] + 20] = ids[0, pads[0] : pads[0] + 20]  # two rows share their first block
    saver = PromptCache(connect(), model_of(kind), salt=salt)
    cold = saver.generate(ids, attention_mask=mask, max_new_tokens=NEW_TOKENS, do_sample=False)
    assert (cold.restored.hit_blocks, cold.saved.refused) == (0, 0)
    assert cold.saved.present == 1, "the shared block was stored once"
    restorer = PromptCache(connect(), model_of(kind), salt=salt)
    restored = restorer.restore(ids, attention_mask=mask)
    wanted = min(pad + (length - 1) // BLOCK_TOKENS * BLOCK_TOKENS for pad, length in zip(pads, lengths, strict=True))
    assert restored.tokens == wanted == restored.cache.get_seq_length()
    for row, pad in enumerate(pads):
        alone = restorer.restore(ids[row : row + 1, pad:])
        columns = min(wanted - pad, alone.tokens)
        assert columns > 0
        for one, other in zip(restored.cache.layers, alone.cache.layers, strict=True):
            assert torch.equal(one.keys[row, :, pad : pad + columns], other.keys[0, :, :columns])
            assert torch.equal(one.values[row, :, pad : pad + columns], other.values[0, :, :columns])
    if len(set(lengths)) == 1:
        # Split alike: what is left to compute begins where it began without a tier.
        warm = restorer.generate(ids, attention_mask=mask, max_new_tokens=NEW_TOKENS, do_sample=False)
        assert warm.restored.tokens == wanted
        assert torch.equal(warm.output, cold.output)
    else:
        warm = restorer.generate(ids, attention_mask=mask, max_new_tokens=1, do_sample=False)
        assert warm.restored.tokens == wanted
        assert torch.equal(warm.output, cold.output[:, : warm.output.shape[1]])


def test_an_answer_is_saved_while_it_is_generated(connect: Any, kind: str, salt: bytes) -> None:
    ids = prompt_of(70)
    store = PromptCache(connect(), model_of(kind), salt=salt)
    there: list[int] = []
    told = store.generate(ids, max_new_tokens=50, do_sample=False, streamer=_Counting(store, there))
    assert told.output.shape[1] == 120
    assert told.saved.stored == 7, "119 tokens have K and V"
    assert there[0] < there[-1] <= there[0] + 7, "blocks are stored while it runs, not at its end"
    again = PromptCache(connect(), model_of(kind), salt=salt)
    turn = torch.cat([told.output, prompt_of(30, 5)], dim=1)
    restored = again.restore(turn)
    assert (restored.hit_blocks, restored.tokens) == (7, 112), "the next turn goes on from prompt and answer"
    whole = empty_cache(store)
    with torch.no_grad():
        store.model(told.output, use_cache=True, **cache_argument(store.model, whole))
    for one, other in zip(restored.cache.layers, whole.layers, strict=True):
        for name in ("keys", "values"):
            apart = (getattr(one, name) - getattr(other, name)[:, :, :112]).abs().max()
            assert apart < 0.2, "as one forward of all of it computes them, but for rounding"


@pytest.mark.parametrize(
    "options",
    [
        {"use_cache": False},
        {"prompt_lookup_num_tokens": 4},
        {"position_ids": torch.arange(70)[None]},
        {"num_return_sequences": 2},
        {"generation_config": transformers.GenerationConfig(num_beams=2)},
    ],
)
def test_a_generation_whose_columns_are_not_its_tokens_is_refused(connect: Any, salt: bytes, options: dict[str, Any]) -> None:
    store = PromptCache(connect(), model_of("gqa"), salt=salt)
    with pytest.raises(ConfigError, match=r"not covered|leave it out"):
        store.generate(prompt_of(70), max_new_tokens=4, **options)
    store.model.generation_config.use_cache = False
    with pytest.raises(ConfigError, match="use_cache=False"):
        store.generate(prompt_of(70), max_new_tokens=4)


def test_columns_of_padding_are_numbers_in_a_batch_of_one(connect: Any, salt: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that is used again may hold what is none: nobody looks at it, and nothing times NaN is NaN."""
    store = PromptCache(connect(), model_of("gqa"), salt=salt)
    ids, mask = (both[:1] for both in padded([prompt_of(40), prompt_of(70)]))
    assert store.generate(ids, attention_mask=mask, max_new_tokens=1, do_sample=False).saved.stored > 0
    empty = torch.empty

    def used_before(*arguments: Any, **options: Any) -> Any:
        made = empty(*arguments, **options)
        return made.fill_(float("nan")) if made.is_floating_point() else made

    monkeypatch.setattr(torch, "empty", used_before)
    restored = store.restore(ids, attention_mask=mask)
    assert restored.hit_blocks > 0
    assert all(one.keys.isfinite().all() and one.values.isfinite().all() for one in restored.cache.layers)


@pytest.mark.parametrize("name", ["pixel_values", "inputs_embeds", "token_type_ids", "input_features"])
def test_what_the_keys_do_not_cover_is_refused(connect: Any, salt: bytes, name: str) -> None:
    store = PromptCache(connect(), model_of("gqa"), salt=salt)
    with pytest.raises(ConfigError, match=f"{name}: is for the model's forward"):
        store.generate(prompt_of(40), max_new_tokens=2, **{name: torch.zeros(1)})
    assert store.generate(prompt_of(40), max_new_tokens=2, do_sample=False, streamer=None, tokenizer=None).saved.stored > 0


def test_ids_that_look_like_padding_are_tokens(connect: Any, salt: bytes) -> None:
    store = PromptCache(connect(), model_of("gqa"), salt=salt)
    ids = prompt_of(70)
    ids[0, 10:20] = 0  # pad_token_id
    told = store.generate(ids, max_new_tokens=30, do_sample=False, stopping_criteria=None)
    restored = PromptCache(connect(), model_of("gqa"), salt=salt).restore(torch.cat([told.output, ids], dim=1))
    assert restored.tokens == 96
    whole = empty_cache(store)
    with torch.no_grad():
        store.model(told.output, use_cache=True, **cache_argument(store.model, whole))
    for one, other in zip(restored.cache.layers, whole.layers, strict=True):
        assert (one.keys - other.keys[:, :, :96]).abs().max() < 0.2


def test_a_long_answer_keeps_no_caches_of_its_past(connect: Any, salt: bytes) -> None:
    store = PromptCache(connect(), model_of("gqa"), salt=salt)
    flying: list[int] = []

    class Watching(_Counting):
        def put(self, _tokens: Any) -> None:
            flying.append(sum(len(memory.pieces) > 0 for memory in alive))

    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    make = store.memory

    def memory(*arguments: Any) -> Any:
        made = make(*arguments)
        alive.add(made)
        return made

    store.memory = memory  # type: ignore[method-assign]
    told = store.generate(prompt_of(40), max_new_tokens=300, do_sample=False, streamer=Watching(store, []))
    assert told.saved.stored == 21
    gc.collect()
    assert max(flying) < 12, "each keeps the whole cache of its moment"


class _Counting:
    """A streamer: how many blocks of the model the tier has at each token."""

    def __init__(self, store: PromptCache, there: list[int]) -> None:
        self._store, self._there = store, there

    def put(self, _tokens: Any) -> None:
        self._there.append(sum(entry.layout_id == self._store.layout.id for entry in self._store.client.list()))

    def end(self) -> None: ...


def test_a_dead_daemon_costs_a_reason_and_no_more(own_daemon: Any, salt: bytes) -> None:
    ids = prompt_of(70)
    with halfstep.connect(own_daemon.url, required=True, deadline_ms=2000, match_deadline_ms=2000) as client:
        store = PromptCache(client, model_of("gqa"), salt=salt)
        reference = empty_cache(store)
        assert store.prefill(ids, reference).stored == 4
        tokens = tokens_after(store, ids, reference)
        own_daemon.kill()
        restored = store.restore(ids, deadline_ms=300)
        assert (restored.tokens, restored.hit_blocks, restored.asked_blocks) == (0, 0, 4)
        assert restored.reason.split()[0] in {"unavailable", "late"}
        saved = store.prefill(ids, restored.cache, deadline_ms=300)
        assert (saved.stored, saved.refused) == (0, 4)
        assert saved.reason.split()[0] in {"unavailable", "late"}
        assert tokens_after(store, ids, restored.cache) == tokens


def test_a_cache_goes_by_the_name_that_the_model_has_for_it() -> None:
    class Newer:
        def forward(self, input_ids: Any, cache: Any = None, **kwargs: Any) -> None: ...

    class Older:
        def forward(self, input_ids: Any, past_key_values: Any = None, **kwargs: Any) -> None: ...

    newer, older, cache = Newer(), Older(), transformers.DynamicCache()
    for model, name in ((newer, "cache"), (older, "past_key_values")):
        argument = cache_argument(model, cache)  # type: ignore[arg-type]
        assert list(argument) == [name]
        assert argument[name] is cache


def test_a_sliding_window_is_refused_by_name(connect: Any) -> None:
    with pytest.raises(ConfigError, match=r"mistral: layer 0 caches as DynamicSlidingWindowLayer"):
        PromptCache(connect(), model_of("mistral", sliding_window=32))
    PromptCache(connect(), model_of("mistral", sliding_window=None))


def test_wrong_arguments_are_named(connect: Any) -> None:
    store = PromptCache(connect(), model_of("gqa"))
    cube, two = prompt_of(40).reshape(2, 4, 5), prompt_of(40).reshape(2, 20)
    for call in (
        lambda: store.restore(cube),
        lambda: store.save(cube, empty_cache(store)),
        lambda: store.prefill(cube, empty_cache(store)),
    ):
        with pytest.raises(ConfigError, match=r"\(2, 4, 5\).*\[batch, tokens\]"):
            call()
    with pytest.raises(ConfigError, match="keys are those of one prompt"):
        store.keys(two)
    gap = torch.ones_like(two)
    gap[1, 3] = 0
    with pytest.raises(ConfigError, match=r"attention_mask\[1\]: has a gap"):
        store.restore(two, attention_mask=gap)
    with pytest.raises(ConfigError, match="must be that of ids"):
        store.restore(two, attention_mask=gap[:1])
    with pytest.raises(ConfigError, match="num_beams=2"):
        store.generate(two, num_beams=2)
    with pytest.raises(ConfigError, match="past_key_values: generate makes"):
        store.generate(two, past_key_values=empty_cache(store))
    cache = empty_cache(store)
    store.prefill(prompt_of(40), cache, save=False)
    with pytest.raises(ConfigError, match="holds 32 tokens, ids has 20"):
        store.prefill(prompt_of(20), cache)
    with pytest.raises(ConfigError, match="block_tokens=0"):
        PromptCache(connect(), store.model, block_tokens=0)
