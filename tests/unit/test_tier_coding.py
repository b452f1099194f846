"""From one word of an engine's configuration to codecs and fields of a layout."""

from __future__ import annotations

from typing import Any

import pytest

import halfstep
from halfstep import ConfigError
from halfstep.compress import PartValues
from halfstep.layout import Layout
from halfstep.tier import Kind, KVLayout, codecs_of, coding_of, element_of, layout_of, values_of

DEEPSEEK_V32 = {
    "model_type": "deepseek_v32",
    "num_hidden_layers": 4,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "index_head_dim": 128,
    "torch_dtype": "bfloat16",
}

DENSE = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 256,
    "torch_dtype": "bfloat16",
}


def test_a_codec_is_one_word_and_none_is_nothing() -> None:
    assert codecs_of("") == ()
    assert codecs_of("bfx") == ("bfx",)
    assert coding_of("") == coding_of("", [PartValues("bf16")]) == {}
    assert coding_of("bfx", [PartValues("bf16", 64)]) == {"codec": "bfx", "codec.0": "bf16/64"}
    assert coding_of("bfx", [PartValues("bf16"), PartValues("e4m3", 8)])["codec.0"] == "bf16,e4m3/8"
    assert coding_of("bfx") == {"codec": "bfx"}
    assert coding_of("bfx", [PartValues("bf16"), None]) == {"codec": "bfx"}, "parts are told in turn, or not at all"


@pytest.mark.parametrize("codec", ["lz4", "raw", "BFX", "ubq", None, True, 1, ["bfx"], ("bfx",)])
def test_another_word_is_refused_with_those_that_there_are(codec: Any) -> None:
    for refuse in (codecs_of, coding_of):
        with pytest.raises(ConfigError, match=r"codec=.*: must be 'bfx', 'zstd', or \"\" for blocks as they are"):
            refuse(codec)
    # A layout may be lossy: an engine's one word may not.
    told = (
        "lossy and needs a step"
        if codec == "ubq"
        else r"codec=.*: must be 'bfx', 'ubq', 'zstd', or \"\" for blocks as they are"
    )
    with pytest.raises(ConfigError, match=told):
        KVLayout("m", "r", "bfloat16", 16, (Kind("full", (0,), 1, (64,)),), codec=codec)


@pytest.mark.parametrize(
    ("dtype", "element"),
    [
        ("torch.bfloat16", "bf16"),
        ("float16", "fp16"),
        ("fp8", "e4m3"),
        ("fp8_e4m3", "e4m3"),
        ("torch.float8_e4m3fn", "e4m3"),
        ("fp8_e5m2", "e5m2"),
        ("torch.float8_e5m2", "e5m2"),
        ("torch.uint8", None),
        ("fp8_ds_mla", None),
        ("float32", None),
        ("", None),
    ],
)
def test_engines_name_what_a_codec_knows_or_it_looks_for_itself(dtype: str, element: Any) -> None:
    assert element_of(dtype) == element
    assert values_of(dtype, 256) == (None if element is None else PartValues(element, 256 if element[0] == "e" else 128))


def test_a_row_that_is_no_row_of_values_is_not_told() -> None:
    assert values_of("bfloat16", 255) is None
    assert values_of("bfloat16", 1 << 20) == PartValues("bf16"), "longer than a row can be"
    assert values_of("fp8_e4m3") == PartValues("e4m3")


def test_a_kind_says_what_its_values_are_where_the_layout_cannot() -> None:
    def fields(kind_dtype: str, codec: str = "bfx") -> dict[str, str]:
        kind = Kind("full", (0, 1), 2, (128, 128), dtype=kind_dtype)
        return dict(KVLayout("m", "r", "uint8", 16, (kind,), codec=codec).layout.fields)

    assert fields("fp8_e5m2")["codec.0"] == "e5m2/128"
    assert "codec.0" not in fields(""), "uint8 is many formats"
    with pytest.raises(ConfigError, match="dtype=3"):
        Kind("full", (0,), 1, (64,), dtype=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("codec", ["", "bfx"])
def test_formats_of_equal_size_share_no_blocks(codec: str) -> None:
    def layout(kind_dtype: str, window: int = 0, dtype: str = "uint8") -> Layout:
        kind = Kind("full", (0, 1), 2, (128, 128), window=window, dtype=kind_dtype)
        return KVLayout("m", "r", dtype, 16, (kind,), codec=codec).layout

    formats = ["", "fp8_e4m3", "fp8_e5m2", "float8_e4m3fn", "float8_e4m3fnuz"]
    assert len({layout(one, window).id for one in formats for window in (0, 4)}) == 2 * len(formats)
    # What the layout says already is not said again: such blocks are those of layouts without a kind's dtype.
    assert layout("fp8_e5m2", dtype="fp8_e5m2").id == layout("", dtype="fp8_e5m2").id
    assert layout("uint8").fields["kind0"] == "full: 0-1, 2 heads, 1/1"
    assert layout("fp8_e5m2", 4).fields["kind0"] == "full: 0-1, 2 heads, 1/1, 4 tokens, dtype fp8_e5m2"


def test_a_models_indexer_is_fp8_whatever_the_cache_is() -> None:
    made = layout_of(DEEPSEEK_V32, model="m", weights_revision="r", codec="bfx")
    assert [kind.name for kind in made.kinds] == ["latent", "indexer"]
    assert made.layout.fields["codec.0"] == "bf16/576"
    assert made.layout.fields["codec.1"] == "e4m3/128,e4m3/4"
    plain = layout_of(DEEPSEEK_V32, model="m", weights_revision="r")
    assert "codec" not in plain.layout.fields
    assert plain.layout.id != made.layout.id


def test_a_model_quantised_by_a_step_is_one_call() -> None:
    def make(**coding: Any) -> Layout:
        return layout_of(DENSE, model="m", weights_revision="r", **coding).layout

    assert make(codec="ubq", step=0.1).fields["codec.0"] == "bf16/64/0.1"
    by_plane = make(codec="ubq", step=(0.05, 0.2)).fields["codec.0"].split(",")
    assert by_plane == ["bf16/64/0.05"] * 2 + ["bf16/64/0.2"] * 2, "K, then V, of two heads"
    with pytest.raises(ConfigError, match="needs a step"):
        make(codec="ubq")
    with pytest.raises(ConfigError, match="only a lossy codec has one"):
        make(codec="bfx", step=0.1)


def test_a_layout_of_another_builds_codec_is_refused_with_those_that_there_are() -> None:
    strange = Layout.opaque("m", codec="lz4")
    with (
        halfstep.connect("halfstep://127.0.0.1:1") as client,
        pytest.raises(ConfigError, match=r"names codec 'lz4', which is none of this build; it has bfx, ubq, zstd$"),
    ):
        client.values(strange)


def test_a_layout_with_a_codec_wants_a_client_that_speaks_it() -> None:
    coded = Layout.opaque("m", **coding_of("bfx"))
    with halfstep.connect("halfstep://127.0.0.1:1") as client:
        for make in (
            lambda: client.values(coded),
            lambda: client.tier(KVLayout("m", "r", "bfloat16", 16, (Kind("full", (0,), 1, (64,)),), codec="bfx")),
        ):
            with pytest.raises(ConfigError, match=r'layout names codec \'bfx\': open the client with codecs=\("bfx",\)'):
                make()
    with halfstep.tier.connect("halfstep://127.0.0.1:1", codecs=codecs_of("bfx")) as client:
        assert client.codecs == ("bfx",)
        client.values(coded).close()
        client.values(Layout.opaque("m")).close()
