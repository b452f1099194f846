"""Pages of a host pool under a lossy policy: which piece is what, what is cut, and what is refused by name."""

from __future__ import annotations

import re

import pytest

from halfstep import ConfigError
from halfstep.compress.policy import Choice, Policy, Rule, policy_of
from halfstep.connectors.pages import depths_of, lossy_pages
from halfstep.tier import PartValues, Stride

LAYERS, TOKENS = 4, 16
ROW = PartValues("bf16", 128)
PIECE_BYTES = 128 * 2 * TOKENS


def pages(
    policy: str, layout: str, pieces: int, piece_bytes: int, values: PartValues | None = ROW
) -> tuple[dict[str, str], list[Stride]]:
    given = [Stride(1_000_000 * number, 64 * piece_bytes, piece_bytes) for number in range(pieces)]
    return lossy_pages(policy_of(policy), layout, given, layers=LAYERS, page_tokens=TOKENS, values=values)


def test_layer_by_layer_each_piece_has_the_step_of_its_layer_and_plane() -> None:
    fields, pieces = pages("balanced", "layer_first", 2 * LAYERS, PIECE_BYTES)
    assert fields["codec"] == "ubq"
    assert fields["codec.exact_blocks"] == "1"
    # Four layers: all of them are first or last ones.
    assert fields["codec.0"] == ",".join(["bf16/128/0.03,bf16/128/0.25"] * LAYERS)
    assert [piece.address for piece in pieces] == [1_000_000 * number for number in range(2 * LAYERS)], "as they were"


def test_a_page_that_holds_its_layers_one_after_the_other_is_cut_into_them() -> None:
    fields, pieces = pages("balanced", "page_first_direct", 2, LAYERS * PIECE_BYTES)
    assert fields["codec.0"] == "4*bf16/128/0.03,4*bf16/128/0.25", "K of all layers, then V"
    assert [(one.address, one.stride, one.bytes) for one in pieces] == [
        (1_000_000 * plane + layer * PIECE_BYTES, 64 * LAYERS * PIECE_BYTES, PIECE_BYTES)
        for plane in range(2)
        for layer in range(LAYERS)
    ]


@pytest.mark.parametrize("layout", ["page_first", "page_head"])
def test_a_page_whose_tokens_hold_all_layers_takes_a_policy_that_has_one_step_a_plane(layout: str) -> None:
    fields, pieces = pages("compact", layout, 2, LAYERS * PIECE_BYTES, PartValues("bf16", 512))
    assert fields["codec.0"] == "bf16/512/0.15,bf16/512/0.5"
    assert len(pieces) == 2
    some = Policy("some", (Rule(Choice("ubq", 0.1), ("k",), ("0",)),))
    with pytest.raises(ConfigError, match="has several steps for the layers' k, and a part of this pool holds all layers"):
        lossy_pages(some, layout, [Stride(0, 8, 8)] * 2, layers=LAYERS, page_tokens=TOKENS, values=ROW)


def test_two_policies_never_have_one_layout() -> None:
    one, other = (pages(name, "page_first_direct", 2, LAYERS * PIECE_BYTES)[0] for name in ("high", "compact"))
    assert one["policy.hash"] != other["policy.hash"]
    assert pages("compact", "page_first", 2, LAYERS * PIECE_BYTES)[0]["policy"] == "compact"


@pytest.mark.parametrize(
    ("layout", "pieces", "values", "said"),
    [
        ("layer_first", LAYERS, ROW, "nobody says which values are K and which are V"),
        ("layer_page_first", 2, ROW, "memory layout 'layer_page_first' with 2 pieces"),
        ("layer_first", 2 * LAYERS, None, "codes this pool's k parts lossily, and cannot: nobody says what its values are"),
        ("layer_first", 2 * LAYERS, PartValues("e4m3", 128), "codes bf16 and fp16, not e4m3"),
        ("layer_first", 2 * LAYERS, PartValues("bf16"), "has to know row_values"),
    ],
)
def test_what_a_lossy_policy_cannot_take_is_refused_by_name(
    layout: str, pieces: int, values: PartValues | None, said: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        pages("compact", layout, pieces, PIECE_BYTES, values)


def test_a_page_counts_those_that_lie_before_it_at_least() -> None:
    assert depths_of(3, None) == [0, 1, 2], "the first of a batch may be the first of its sequence"
    assert depths_of(2, ["a", "b", "c"]) == [3, 4]
    assert depths_of(0, ["a"]) == []
