"""From a policy to a layout: which parts are coded by what, and who is told that it cannot be."""

from __future__ import annotations

import pickle
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import halfstep
from halfstep import ConfigError
from halfstep.compress import PartValues
from halfstep.compress.policy import BUILT_IN
from halfstep.layout import Layout
from halfstep.tier import Grid, Kind, KVLayout, coding_of, connect, layout_of

FULL = Kind("full", tuple(range(8)), 2, (128, 128))


def layout(*kinds: Kind, dtype: str = "bfloat16", tokens: int = 16, grid: Grid | None = None, **coding: Any) -> KVLayout:
    return KVLayout("m", "r", dtype, tokens, kinds or (FULL,), grid or Grid(), **coding)


def codings(made: KVLayout) -> dict[str, str]:
    return {name: value for name, value in made.layout.fields.items() if name.split(".")[0] in ("codec", "policy")}


def test_without_a_policy_a_layout_is_what_it_was() -> None:
    assert layout().layout.id.hex() == "3287673d88bb2622a08738a6bf740790"
    assert layout(codec="bfx").layout.id.hex() == "3e0d42a212d1d4181df00e8d42d69dd3"
    assert layout(codec="ubq", step=(0.05, 0.2)).layout.id.hex() == "f22dfa33f19df4b8c3d47f2baa95e9a2"


def test_two_policies_are_two_layouts_and_none_is_another(tmp_path: Path) -> None:
    (tmp_path / "exact-too.toml").write_text("")
    named = [layout(policy=name) for name in BUILT_IN]
    mine = layout(policy=str(tmp_path / "exact-too.toml"))
    coded = [layout(), layout(codec="bfx")]
    assert len({one.layout.id for one in [*named, mine, *coded]}) == len(BUILT_IN) + 3
    assert codings(mine) == codings(layout(policy="exact")) | {"policy": "exact-too"}, "rules alike, and a name of its own"


def test_an_exact_policy_codes_as_the_codec_does() -> None:
    told = codings(layout(policy="exact"))
    assert told == codings(layout(codec="bfx")) | {"policy": "exact", "policy.hash": BUILT_IN["exact"].hash}
    assert codings(layout(policy="off")) == {"policy": "off", "policy.hash": BUILT_IN["off"].hash}
    # What nobody knows the codec looks at, as it does without a policy.
    assert codings(layout(dtype="uint8", policy="exact")).get("codec.0") is None


def test_a_lossy_policy_tells_layers_and_planes_apart() -> None:
    told = codings(layout(policy="balanced"))
    ends, middle = "2*bf16/64/0.03,2*bf16/64/0.25", "2*bf16/64/0.07,2*bf16/64/0.25"
    assert told["codec"] == "ubq"
    assert told["codec.0"] == f"2*({ends}),4*({middle}),2*({ends})"
    assert "codec.0.head_cells" not in told
    assert codings(layout(policy="compact"))["codec.0"] == "2*bf16/64/0.15,2*bf16/64/0.5", "every layer alike"


def test_the_first_four_tokens_of_a_sequence_are_exact() -> None:
    for tokens, blocks in ((1, "4"), (2, "2"), (3, "2"), (4, "1"), (16, "1"), (256, "1")):
        assert codings(layout(tokens=tokens, policy="compact"))["codec.exact_blocks"] == blocks, tokens
    assert "codec.exact_blocks" not in codings(layout(policy="exact"))


def test_planes_of_two_sizes_lie_head_by_head() -> None:
    made = layout(Kind("uneven", (0, 1, 2), 3, (64, 32)), policy="compact")
    assert codings(made)["codec.0"] == "3*(bf16/32/0.15,bf16/16/0.5)"


def test_cells_of_layers_say_how_many_lie_beside_each_other() -> None:
    grid = Grid(heads=2, layers=4)
    assert codings(layout(grid=grid, policy="balanced"))["codec.0.head_cells"] == "2"
    assert codings(layout(grid=grid, policy="balanced"))["codec.0"].startswith("2*(bf16/64/0.03,bf16/64/0.25),4*(")
    assert "codec.0.head_cells" not in codings(layout(grid=grid, policy="compact")), "all cells are alike"


def test_the_last_layers_are_the_models_and_not_a_kinds() -> None:
    kinds = Kind("full", (0, 2, 4), 1, (64, 64)), Kind("sliding", (1, 3, 5), 1, (64, 64), window=64)
    told = codings(layout(*kinds, policy="balanced"))
    fine, coarse, v = "bf16/32/0.03", "bf16/32/0.07", "bf16/32/0.25"
    assert told["codec.0"] == f"{fine},{v},{coarse},{v},{fine},{v}"
    assert told["codec.1"] == told["codec.0"]


LATENT = Kind("latent", (0, 1), 1, (1024, 128), holds=("latent", "rotary"))


def test_of_mla_the_latent_may_be_lossy_and_the_rotary_part_never(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text('[[rule]]\nplanes = ["latent"]\ncodec = "ubq"\nstep = 0.1')
    policy = str(tmp_path / "p.toml")
    indexer = Kind("indexer", (0, 1), 1, (128, 4), dtype="fp8_e4m3", holds=("indexer", "indexer"))
    told = codings(layout(LATENT, indexer, policy=policy))
    assert told["codec.0"] == "bf16/512/0.1,bf16/64"
    assert told["codec.1"] == "e4m3/128,e4m3/4"
    mixed = replace(LATENT, planes=(1152,), holds=())
    with pytest.raises(ConfigError, match=r"is lossy, and fits no part of this layout, whose planes hold mixed; take an exact"):
        layout(mixed, policy=policy)


def test_a_recurrent_state_is_exact_where_nobody_says_what_its_planes_are() -> None:
    made = layout(FULL, Kind("ssm", (8, 9), 1, (64, 64), window=1), policy="compact")
    assert codings(made)["codec.1"] == "bf16/32"


def test_a_models_latent_and_indexer_stay_exact() -> None:
    config = {
        "model_type": "deepseek_v32",
        "num_hidden_layers": 4,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "index_head_dim": 128,
        "torch_dtype": "bfloat16",
    }
    with pytest.raises(ConfigError, match="whose planes hold indexer, mixed"):
        layout_of(config, model="m", weights_revision="r", policy="compact")
    told = codings(layout_of(config, model="m", weights_revision="r", policy="exact"))
    assert (told["codec"], told["codec.0"], told["codec.1"]) == ("bfx", "bf16/576", "e4m3/128,e4m3/4")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: layout(policy="balence"), "policy='balence': did you mean balanced?"),
        (lambda: layout(codec="bfx", policy="exact"), "codec='bfx', policy='exact': a policy says which codec; take one of"),
        (lambda: layout(step=0.1, policy="exact"), "step=0.1: only a lossy codec has one"),
        (lambda: layout(policy="exact", more={"policy": "x"}), "more: policy of the layout are said already"),
        (lambda: layout(policy=3), "policy=3: must be exact"),
        (
            lambda: layout(dtype="fp8_e4m3", policy="compact"),
            "policy 'compact': codes k of kind 'full' lossily, and cannot: codec 'ubq' codes bf16 and fp16, not e4m3; take",
        ),
        (lambda: layout(dtype="uint8", policy="compact"), "and cannot: nobody says what its values are; take policy 'exact'"),
        (lambda: replace(FULL, holds=("k",)), "holds=('k',); must be one for each of the 2 planes, of k, v, latent"),
        (lambda: replace(FULL, holds=("k", "w")), "holds=('k', 'w'); must be"),
        (lambda: replace(FULL, holds="kv"), "holds='kv': must be a sequence"),
        (lambda: coding_of("", policy="high"), "policy 'high': tells planes or layers apart, and here nobody says which part"),
        (lambda: coding_of("bfx", policy="off"), "codec='bfx', policy='off'"),
        (lambda: connect("halfstep://127.0.0.1:1", policy="ofl"), "policy='ofl': did you mean off?"),
    ],
)
def test_a_policy_that_cannot_be_is_refused_with_a_remedy(make: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        make()


def test_values_of_which_nobody_tells_layers_take_a_policy_of_one_choice() -> None:
    named = {"policy": "exact", "policy.hash": BUILT_IN["exact"].hash}
    assert coding_of("", [PartValues("bf16", 64)], "exact") == named | {"codec": "bfx", "codec.0": "bf16/64"}
    assert coding_of("", [None], "exact") == named | {"codec": "bfx"}
    assert coding_of("", [PartValues("bf16", 64)], "off") == {"policy": "off", "policy.hash": BUILT_IN["off"].hash}


def test_a_connection_speaks_the_codecs_of_its_policy_and_a_layout_wants_them() -> None:
    for name, codecs in (("exact", ("bfx",)), ("off", ()), ("balanced", ("bfx", "ubq"))):
        with connect("halfstep://127.0.0.1:1", policy=name) as client:
            assert client.codecs == codecs
            client.tier(layout(policy=name)).close()
    with halfstep.connect("halfstep://127.0.0.1:1", codecs=("bfx",)) as client:
        with pytest.raises(ConfigError, match=r"names codec 'ubq': open the client with codecs=\(\"ubq\",\)"):
            client.tier(layout(policy="high"))
        client.values(Layout.opaque("m", **coding_of("", policy="exact"))).close()


def test_a_layout_keeps_the_policy_that_it_was_made_with(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_text('[[rule]]\nplanes = ["k"]\ncodec = "ubq"\nstep = 0.1')
    made = layout(policy=str(path))
    path.unlink()
    assert pickle.loads(pickle.dumps(made)) == made == replace(made)
