"""From config.json to kinds: published numbers, and a refusal by name of whatever is not known."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from halfstep import ConfigError
from halfstep.tier import Grid, Kind, kinds_of, layout_of
from halfstep.tier.catalogue import COVERED, remarks_of

CONFIGS = Path(__file__).parent / "configs"
NAMES = sorted(path.stem for path in CONFIGS.glob("*.json"))

# What the file's fields make, by hand: bytes of a token, and of each kind in order. Values have 2 bytes (bfloat16).
TOKEN_BYTES: dict[str, dict[str, float]] = {
    "llama-3-70b": {"full": 80 * 8 * (128 + 128) * 2},  # 320 KiB
    "llama-3.1-405b": {"full": 126 * 8 * (128 + 128) * 2},  # 516,096
    "mistral-7b": {"sliding": 32 * 8 * (128 + 128) * 2},
    "qwen2.5-72b": {"full": 80 * 8 * (128 + 128) * 2},
    "qwen3-32b": {"full": 64 * 8 * (128 + 128) * 2},  # head_dim is 128, though 5120 / 64 is 80
    "qwen3-30b-a3b": {"full": 48 * 4 * (128 + 128) * 2},
    # 62 layers, each sixth full: 10 and 52.
    "gemma-3-27b": {"full": 10 * 16 * (128 + 128) * 2, "sliding": 52 * 16 * (128 + 128) * 2},
    # 34 layers: 5 and 29; heads and head_dim are those of the class behind the file, 4 and 256.
    "gemma-3-4b": {"full": 5 * 4 * (256 + 256) * 2, "sliding": 29 * 4 * (256 + 256) * 2},
    "gpt-oss-120b": {"full": 18 * 8 * (64 + 64) * 2, "sliding": 18 * 8 * (64 + 64) * 2},
    "deepseek-v3": {"latent": 61 * (512 + 64) * 2},  # 68.6 KiB
    "deepseek-v3.2": {"latent": 61 * (512 + 64) * 2, "indexer": 61 * (128 + 4)},
    # 43 layers have a window; from the third on, 4 and 128 take turns: 21 and 20.
    "deepseek-v4-flash": {
        "sliding": 43 * 512 * 2,
        "compressed-4": 21 * 512 * 2 / 4,
        "indexer-4": 21 * (128 + 4) / 4,
        "compressed-128": 20 * 512 * 2 / 128,
    },
    "glm-4.5": {"full": 92 * 8 * (128 + 128) * 2},
    "glm-5": {"latent": 78 * (512 + 64) * 2, "indexer": 78 * (128 + 4)},
    # Indexers in layers 0, 1, 2, 6, 10, ... 74: 21; 57 layers use the choice of the one before.
    "glm-5.2": {"latent": 78 * (512 + 64) * 2, "indexer": 21 * (128 + 4)},
}
SUMS = {
    "llama-3-70b": 320 * 1024,
    "llama-3.1-405b": 516_096,
    "deepseek-v3": 70_272,
    "deepseek-v3.2": 78_324,
    "deepseek-v4-flash": 50_261,
    "qwen3-32b": 256 * 1024,
    "gemma-3-27b": 496 * 1024,
    "gpt-oss-120b": 72 * 1024,
    "glm-4.5": 368 * 1024,
    "glm-5": 100_152,
    "glm-5.2": 92_628,
}


def config_of(name: str, **changes: Any) -> dict[str, Any]:
    """The file of that name; a change to `...` takes the field out. Changes go where the text model's fields are."""
    config: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text())
    if name == "gpt-oss-120b":
        config["torch_dtype"] = "bfloat16"  # the published file says none
    fields = config.get("text_config", config)
    for field, value in changes.items():
        if value is ...:
            del fields[field]
        else:
            fields[field] = value
    return config


def kinds_by_name(name: str, **changes: Any) -> dict[str, Kind]:
    return {kind.name: kind for kind in kinds_of(config_of(name, **changes))}


def test_every_file_has_its_numbers() -> None:
    assert set(NAMES) == set(TOKEN_BYTES)
    assert set(SUMS) <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_published_models_have_their_published_numbers(name: str) -> None:
    kinds = kinds_of(config_of(name))
    assert {kind.name: kind.token_bytes for kind in kinds} == TOKEN_BYTES[name]
    layout = layout_of(config_of(name), model=name, weights_revision="r")
    assert layout.token_bytes == sum(TOKEN_BYTES[name].values()) == SUMS.get(name, layout.token_bytes)
    assert layout.block_bytes == layout.token_bytes * layout.block_tokens
    assert layout.kinds == kinds
    assert layout.dtype == "bfloat16"


@pytest.mark.parametrize("name", NAMES)
def test_every_layer_is_in_a_kind(name: str) -> None:
    config = config_of(name)
    kinds = kinds_of(config)
    layers = range(config.get("text_config", config)["num_hidden_layers"])
    assert {layer for kind in kinds for layer in kind.layers} == set(layers)
    if all(kind.heads > 1 for kind in kinds):
        assert sum(len(kind.layers) for kind in kinds) == len(layers), "a layer with heads has one kind"


def test_windows_are_the_files() -> None:
    windows = {"mistral-7b": 4096, "gemma-3-27b": 1024, "gemma-3-4b": 1024, "gpt-oss-120b": 128, "deepseek-v4-flash": 128}
    for name in NAMES:
        found = {kind.name: kind.window for kind in kinds_of(config_of(name)) if kind.window}
        assert found == ({"sliding": windows[name]} if name in windows else {})


def test_a_block_is_as_long_as_its_kinds_need() -> None:
    assert layout_of(config_of("llama-3-70b"), model="m", weights_revision="r").block_tokens == 16
    v4 = config_of("deepseek-v4-flash")
    assert layout_of(v4, model="m", weights_revision="r").block_tokens == 128
    assert layout_of(v4, model="m", weights_revision="r", block_tokens=256).block_bytes == 2 * 6_433_408
    with pytest.raises(ConfigError, match=r"block_tokens=64.*128 tokens"):
        layout_of(v4, model="m", weights_revision="r", block_tokens=64)


def test_pages_of_v4_have_three_sizes_of_entries() -> None:
    # Of 256 tokens, as vLLM has them: 256, 64 and 2 entries of 1,024 bytes a layer.
    layout = layout_of(config_of("deepseek-v4-flash"), model="m", weights_revision="r", block_tokens=256)
    pages = {kind.name: layout.cells(kind.name)[0].block_bytes // len(kind.layers) for kind in layout.kinds}
    assert pages == {"sliding": 262_144, "compressed-4": 65_536, "indexer-4": 64 * 132, "compressed-128": 2_048}


def test_a_grid_cuts_heads_and_not_latents() -> None:
    llama = layout_of(config_of("llama-3-70b"), model="m", weights_revision="r", grid=Grid(heads=8, layers=2))
    assert len(llama.cells("full")) == 16
    deepseek = layout_of(config_of("deepseek-v3.2"), model="m", weights_revision="r", grid=Grid(heads=8))
    assert (len(deepseek.cells("latent")), len(deepseek.cells("indexer"))) == (1, 1)
    with pytest.raises(ConfigError, match="8 heads, which do not fall into 3 equal cells"):
        layout_of(config_of("llama-3-70b"), model="m", weights_revision="r", grid=Grid(heads=3))


# ---- dtypes ----


def test_a_quantised_cache_has_fewer_bytes() -> None:
    (full,) = kinds_of(config_of("llama-3-70b"), dtype="fp8")
    assert full.planes == (128, 128)
    latent, indexer = kinds_of(config_of("deepseek-v3.2"), dtype="fp8")
    assert latent.planes == (576,)
    assert indexer.planes == (128, 4), "an indexer's keys are fp8 with a scale anyhow"


def test_packed_latents_have_the_bytes_of_their_kernels() -> None:
    assert kinds_of(config_of("deepseek-v3.2"), dtype="fp8_ds_mla")[0].planes == (656,)
    packed = kinds_of(config_of("deepseek-v4-flash"), dtype="fp8_ds_mla")
    assert [kind.planes for kind in packed] == [(584,), (584,), (128, 4), (584,)]
    for name in ("llama-3-70b", "deepseek-v3"):
        with pytest.raises(ConfigError, match="dtype=fp8_ds_mla: packs"):
            kinds_of(config_of(name), dtype="fp8_ds_mla")


def test_two_names_of_a_dtype_make_one_layout() -> None:
    ids = {
        layout_of(config_of("llama-3-70b"), model="m", weights_revision="r", dtype=dtype).layout.id
        for dtype in ("fp8", "fp8_e4m3", "float8_e4m3fn", "torch.float8_e4m3fn")
    }
    assert len(ids) == 1


def test_a_dtype_that_nobody_names_is_not_guessed() -> None:
    config = config_of("llama-3-70b", torch_dtype=...)
    with pytest.raises(ConfigError, match="dtype, torch_dtype: neither is there"):
        kinds_of(config)
    assert kinds_of(config, dtype="float16")[0].planes == (256, 256)
    with pytest.raises(ConfigError, match="bfloat16, float32 are named"):
        kinds_of(config_of("llama-3-70b", dtype="float32"))


def test_a_file_that_quantises_the_cache_needs_a_dtype() -> None:
    config = config_of("llama-3-70b", quantization_config={"kv_cache_scheme": {"num_bits": 8, "type": "float"}})
    with pytest.raises(ConfigError, match=r"quantization_config\.kv_cache_scheme"):
        kinds_of(config)
    assert kinds_of(config, dtype="fp8")[0].planes == (128, 128)
    assert kinds_of(config_of("llama-3-70b", quantization_config={"quant_method": "mxfp4"}))


# ---- which layers ----


def test_windows_of_qwen_are_those_that_are_switched_on() -> None:
    assert list(kinds_by_name("qwen2.5-72b")) == ["full"]
    on = kinds_by_name("qwen2.5-72b", use_sliding_window=True, max_window_layers=70)
    assert on["full"].layers == tuple(range(70))
    assert (on["sliding"].layers, on["sliding"].window) == (tuple(range(70, 80)), 131_072)
    types = ["sliding_attention", "full_attention"] * 40
    with pytest.raises(ConfigError, match=r"layer_types.*use_sliding_window"):
        kinds_by_name("qwen2.5-72b", layer_types=types)
    listed = kinds_by_name("qwen2.5-72b", layer_types=types, use_sliding_window=True)
    assert listed["sliding"].layers == tuple(range(0, 80, 2))
    with pytest.raises(ConfigError, match="add layer_types"):
        kinds_by_name("qwen3-30b-a3b", use_sliding_window=True, sliding_window=4096)


def test_a_window_of_mistral_is_that_of_all_layers() -> None:
    assert list(kinds_by_name("mistral-7b", sliding_window=None)) == ["full"]
    with pytest.raises(ConfigError, match="sliding_window: is missing, and is not guessed"):
        kinds_by_name("mistral-7b", sliding_window=...)
    with pytest.raises(ConfigError, match="contradicts sliding_window=4096"):
        kinds_by_name("mistral-7b", layer_types=["full_attention"] * 32)


def test_the_pattern_of_gemma_is_the_files() -> None:
    assert len(kinds_by_name("gemma-3-27b", sliding_window_pattern=2)["full"].layers) == 31
    types = ["full_attention", *["sliding_attention"] * 61]
    assert kinds_by_name("gemma-3-27b", layer_types=types)["full"].layers == (0,)


def test_indexers_are_where_the_file_has_them() -> None:
    told = kinds_by_name("glm-5.2")["indexer"].layers
    assert told == (0, 1, 2, *range(6, 75, 4))
    types = ["full" if layer in told else "shared" for layer in range(78)]
    assert kinds_by_name("glm-5", indexer_types=types)["indexer"].layers == told
    pattern = "".join("F" if layer in told else "S" for layer in range(78))
    assert kinds_by_name("glm-5", index_topk_pattern=pattern)["indexer"].layers == told
    with pytest.raises(ConfigError, match="the first layer must have an indexer"):
        kinds_by_name("glm-5", indexer_types=["shared"] * 78)
    with pytest.raises(ConfigError, match=r"index_topk_freq=4: .*not covered"):
        kinds_by_name("deepseek-v3.2", index_topk_freq=4)


def test_v4_reads_both_forms_of_its_layers() -> None:
    types = ["sliding_attention"] * 2 + ["compressed_sparse_attention", "heavily_compressed_attention"] * 20
    types.append("compressed_sparse_attention")
    rates = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
    new = config_of("deepseek-v4-flash", compress_ratios=..., layer_types=types, compress_rates=rates)
    assert kinds_of(new) == kinds_of(config_of("deepseek-v4-flash"))
    with pytest.raises(ConfigError, match="contradicts compress_ratios"):
        kinds_of(config_of("deepseek-v4-flash", layer_types=["sliding_attention"] * 43))
    with pytest.raises(ConfigError, match="must have compressed_sparse_attention: 4"):
        kinds_of(config_of("deepseek-v4-flash", compress_ratios=..., layer_types=types))


def test_one_head_for_all_queries_is_one_head() -> None:
    assert kinds_by_name("llama-3-70b", num_key_value_heads=1)["full"].heads == 1


def test_old_llamas_have_as_many_keys_as_queries_and_a_remark_says_so() -> None:
    config = config_of("llama-3-70b", num_key_value_heads=...)
    assert kinds_of(config)[0].heads == 64
    assert "num_key_value_heads is not given: as many as num_attention_heads." in remarks_of(config)
    assert remarks_of(config_of("llama-3-70b")) == ()


def test_numbers_that_are_not_in_the_file_are_told() -> None:
    told = remarks_of(config_of("gemma-3-4b"))
    assert "head_dim is not given: 256, as in the model type's class." in told
    assert not any("not given" in remark for remark in remarks_of(config_of("gemma-3-27b")))


def test_remarks_say_what_is_not_counted() -> None:
    v4 = "\n".join(remarks_of(config_of("deepseek-v4-flash")))
    assert all(said in v4 for said in ("sliding", "indexer", "compressors", "num_nextn_predict_layers"))


# ---- what is refused ----


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("llama-3-70b", {"model_type": "unheard"}, "model_type='unheard': not covered; covered are llama, "),
        ("llama-3-70b", {"model_type": "qwen3_next"}, "not covered .layers with a recurrent state"),
        ("llama-3-70b", {"model_type": "gemma3n_text"}, "not covered .layers that use the cache of others"),
        ("llama-3-70b", {"model_type": ["llama"]}, "model_type=.'llama'.: must be a text, not a list"),
        ("llama-3-70b", {"model_type": ...}, "model_type: is missing, and is not guessed"),
        ("llama-3-70b", {"num_hidden_layers": ...}, "num_hidden_layers: is missing"),
        ("llama-3-70b", {"num_hidden_layers": None}, "num_hidden_layers: is null"),
        ("llama-3-70b", {"num_hidden_layers": 0}, "num_hidden_layers=0: must be a whole number of 1 to 4096"),
        ("llama-3-70b", {"num_hidden_layers": -80}, "num_hidden_layers=-80"),
        ("llama-3-70b", {"num_hidden_layers": 80.0}, "num_hidden_layers=80.0"),
        ("llama-3-70b", {"num_hidden_layers": "80"}, "num_hidden_layers='80'"),
        ("llama-3-70b", {"num_hidden_layers": True}, "num_hidden_layers=True"),
        ("llama-3-70b", {"num_hidden_layers": 10**9}, "num_hidden_layers=1000000000"),
        ("llama-3-70b", {"num_hidden_layers": 1 << 20_000}, "a number of 20001 bits"),
        ("llama-3-70b", {"num_key_value_heads": 7}, "must divide num_attention_heads=64"),
        ("llama-3-70b", {"hidden_size": 8190}, "hidden_size=8190: is no multiple of num_attention_heads=64"),
        ("llama-3-70b", {"num_kv_shared_layers": 10}, "num_kv_shared_layers=10: .*not covered with it"),
        ("llama-3-70b", {"sliding_window": 4096}, "sliding_window=4096: .*not covered with it"),
        ("llama-3-70b", {"kv_lora_rank": 512}, "kv_lora_rank=512"),
        ("llama-3-70b", {"torch_dtype": "int4"}, "torch_dtype='int4': must be one of float32, bfloat16"),
        ("llama-3-70b", {"layer_types": ["full_attention"] * 79}, "has 79 entries for 80 layers"),
        ("llama-3-70b", {"layer_types": ["linear_attention"] * 80}, r"layer_types\[0\]='linear_attention': not covered"),
        ("qwen3-32b", {"head_dim": ...}, "head_dim: is missing"),
        ("qwen3-32b", {"use_sliding_window": "no"}, "use_sliding_window='no': must be true or false"),
        ("gemma-3-27b", {"head_dim": 0}, "text_config.head_dim=0"),
        ("gpt-oss-120b", {"sliding_window": None}, "sliding_window: is null"),
        ("deepseek-v3", {"kv_lora_rank": ...}, "kv_lora_rank: is missing"),
        ("deepseek-v3", {"index_topk": 2048}, "index_topk=2048"),
        ("deepseek-v3", {"use_mla": False}, "use_mla=False"),
        ("deepseek-v3.2", {"index_head_dim": 100}, "index_head_dim=100: must be a multiple of 128"),
        ("deepseek-v3.2", {"layer_types": ["full_attention"] * 61}, "covered is indexed_attention"),
        ("deepseek-v4-flash", {"compress_ratios": [0, 8] * 22}, "ratio 8 is not covered"),
        ("deepseek-v4-flash", {"compress_ratios": [0] * 42}, "has 42 entries for 43 layers"),
        ("deepseek-v4-flash", {"compress_ratios": ...}, "compress_ratios: is missing, and so is layer_types"),
        ("deepseek-v4-flash", {"num_key_value_heads": 2}, "num_key_value_heads=2: must be 1"),
        ("deepseek-v4-flash", {"kv_source_layer_ids": [2, 8]}, "kv_source_layer_ids"),
    ],
)
def test_what_is_not_known_is_refused_by_name(name: str, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        kinds_of(config_of(name, **changes))


@pytest.mark.parametrize("config", [[], "llama", None, 7, {"text_config": []}, {}])
def test_what_is_no_config_is_refused(config: Any) -> None:
    with pytest.raises(ConfigError, match=r"config|model_type"):
        kinds_of(config)


def test_a_block_of_too_many_parts_asks_for_a_grid() -> None:
    many = config_of("llama-3-70b", num_hidden_layers=40, num_attention_heads=40, num_key_value_heads=40, hidden_size=5120)
    with pytest.raises(ConfigError, match="3200 parts in a block, at most 2560; cut it with a Grid"):
        layout_of(many, model="m", weights_revision="r")
    assert layout_of(many, model="m", weights_revision="r", grid=Grid(heads=2))


def test_the_covered_types_are_known_to_their_sources() -> None:
    """Where transformers is installed: a type that it does not know is a slip of the pen, but for those it never had."""
    auto = pytest.importorskip("transformers.models.auto.configuration_auto")
    known = {*auto.CONFIG_MAPPING_NAMES, *auto.SPECIAL_MODEL_TYPE_TO_MODULE_NAME, "kimi_k2"}
    assert [name for name in COVERED if name not in known] == []


# ---- anything at all ----

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(COVERED),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
FIELDS = sorted(
    {field for name in NAMES for held in [config_of(name)] for field in {*held, *held.get("text_config", {})}}
    | {"layer_types", "indexer_types", "index_topk_pattern", "compress_rates", "quantization_config", "use_mla"}
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(NAMES),
    st.lists(st.sampled_from(FIELDS), max_size=3),
    st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=3),
    st.sampled_from([None, None, "fp8", "bfloat16", "fp8_ds_mla", "int4"]),
)
def test_whatever_a_file_holds_is_a_layout_or_a_config_error(
    name: str, gone: list[str], changed: dict[str, Any], dtype: str | None
) -> None:
    config = config_of(name)
    for fields in (config, config.get("text_config", {})):
        for field in gone:
            fields.pop(field, None)
        fields.update(changed)
    given_to_it = copy.deepcopy(config)
    said = ""
    try:
        layout = layout_of(config, model="m", weights_revision="r", dtype=dtype)
        remarks_of(config)
        assert layout.block_bytes == layout.token_bytes * layout.block_tokens
    except ConfigError as error:
        said = str(error)
    assert "\n" not in said
    assert repr(config) == repr(given_to_it), "reading changes nothing"


@pytest.mark.parametrize("name", NAMES)
def test_a_field_that_is_taken_out_never_changes_a_number_in_silence(name: str) -> None:
    """Gone, a field is either missed, or it never counted, or a remark says what was taken instead."""
    whole = kinds_of(config_of(name))
    fields = config_of(name)
    for field in fields.get("text_config", fields):
        if field == "index_topk_freq":  # without it each layer has an indexer, as in files from before there was one
            continue
        config = config_of(name, **{field: ...})
        try:
            kinds = kinds_of(config)
        except ConfigError:
            continue
        assert kinds == whole or any("not given" in remark for remark in remarks_of(config)), field
