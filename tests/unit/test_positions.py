"""Settings of vLLM that change K and V without a trace in weights and config.json: each has a layout of its own."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from halfstep.connectors.positions import positions_of

LONG = {"rope_type": "longrope", "long_factor": [2.0], "short_factor": [1.0]}


def model(length: int, *, text: dict[str, Any] | None = None, generation: dict[str, Any] | None = None, **more: Any) -> Any:
    return SimpleNamespace(
        hf_text_config=SimpleNamespace(**(text or {})),
        max_model_len=length,
        try_get_generation_config=lambda: dict(generation or {}),
        override_generation_config=more.pop("override", {}),
        **more,
    )


@pytest.mark.parametrize(
    "text",
    [
        {},
        {"rope_parameters": None},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
        {"rope_scaling": {"type": "yarn", "factor": 4.0}},
        {"rope_parameters": {"full_attention": {"rope_type": "llama3"}, "sliding_attention": {"rope_type": "default"}}},
    ],
)
def test_most_models_have_the_same_blocks_at_any_length(text: dict[str, Any]) -> None:
    assert positions_of(model(4096, text=text)) == positions_of(model(131072, text=text)) == ""


@pytest.mark.parametrize(
    "text",
    [
        {"rope_scaling": LONG, "original_max_position_embeddings": 4096},
        {"rope_parameters": LONG | {"original_max_position_embeddings": 4096}},
        {
            "rope_parameters": {"full_attention": LONG, "sliding_attention": {"rope_type": "default"}},
            "original_max_position_embeddings": 4096,
        },
    ],
)
def test_longrope_takes_its_factors_by_the_longest_request(text: dict[str, Any]) -> None:
    short, also_short, long, longer = (positions_of(model(length, text=text)) for length in (2048, 4096, 4097, 32768))
    assert short == also_short != long == longer
    assert "" not in (short, long)


def test_rotary_settings_that_nobody_knows_count_with_the_length() -> None:
    text = {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}
    assert positions_of(model(4096, text=text)) != positions_of(model(8192, text=text))
    assert positions_of(model(4096, text=text)) == positions_of(model(4096, text=text))


def test_llama_4_scales_by_the_longest_request_unless_it_is_told() -> None:
    text = {"model_type": "llama4_text"}
    short, long = positions_of(model(32768, text=text)), positions_of(model(32769, text=text))
    assert short != long
    assert positions_of(model(65536, text=text, override={"attn_temperature_tuning": False})) == short
    assert positions_of(model(1024, text=text, generation={"attn_temperature_tuning": True})) == long


def test_a_length_that_is_fitted_later_is_not_the_one_that_the_model_was_made_for() -> None:
    for text in ({"model_type": "llama4_text"}, {"rope_parameters": {"rope_type": "dynamic"}}):
        one, other = (positions_of(model(length, text=text, original_max_model_len=-1)) for length in (1024, 65536))
        assert one == other, "processes of an engine may know it before and after"
        assert one not in (positions_of(model(1024, text=text)), positions_of(model(65536, text=text)))
    text = {"rope_scaling": LONG, "original_max_position_embeddings": 4096}
    assert positions_of(model(4096, text=text, original_max_model_len=-1)) == positions_of(model(4096, text=text))
    nested = {"rope_parameters": LONG | {"original_max_position_embeddings": 4096}}
    fitted = positions_of(model(4096, text=nested, original_max_model_len=-1))
    assert fitted not in (positions_of(model(4096, text=nested)), positions_of(model(4097, text=nested))), (
        "not where vLLM looks"
    )


def test_a_config_from_another_folder_counts_by_its_bytes(tmp_path: Path) -> None:
    for name, content in (("a", "{}"), ("b", "{}"), ("c", '{"rope_theta": 1}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(content)
    a, b, c, hub = (positions_of(model(1, hf_config_path=str(tmp_path / name))) for name in ("a", "b", "c", "d"))
    assert a == b
    assert len({a, c, hub, ""}) == 4
