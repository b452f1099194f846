"""Layouts: the published bytes, what is refused, and how blocks are cut."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfstep import ConfigError, Group, Layout, ProtocolError, component
from halfstep.layout import BLOCK_BYTES_MAX, LAYOUT_BYTES_MAX, PARTS_MAX

VECTORS = dict(
    line.split(" = ", 1)
    for line in (Path(__file__).with_name("vectors") / "wire.txt").read_text().splitlines()
    if " = " in line and not line.startswith("#")
)

GROUPS = [Group(0, (262144,)), Group(4, (4096, 2048))]
FIELDS = {"model": "tiny", "dtype": "bf16", "engine": "example 1.0"}


def test_canonical_form_and_id_are_the_published_ones() -> None:
    layout = Layout(FIELDS, GROUPS)
    assert layout.canonical.hex() == VECTORS["layout canonical"]
    assert layout.id.hex() == VECTORS["layout id"]


def test_the_canonical_form_is_read_back() -> None:
    published = bytes.fromhex(VECTORS["layout canonical"])
    layout = Layout.of_canonical(published)
    assert (layout, dict(layout.fields), list(layout.groups)) == (Layout(FIELDS, GROUPS), FIELDS, GROUPS)
    bad = [published[:size] for size in range(len(published))]
    bad += [
        published + b"\0",
        b"\2" + published[1:],
        published.replace(b"dtype", b"zzype"),
        published.replace(b"tiny", b"\xff\xfe\xfd\xfc"),
    ]
    for canonical in bad:
        with pytest.raises(ProtocolError, match="canonical form"):
            Layout.of_canonical(canonical)


def test_order_of_fields_does_not_matter_and_values_do() -> None:
    assert Layout(dict(reversed(FIELDS.items())), GROUPS) == Layout(FIELDS, GROUPS)
    assert Layout({**FIELDS, "dtype": "fp8"}, GROUPS).id != Layout(FIELDS, GROUPS).id
    assert Layout(FIELDS, GROUPS[::-1]).id != Layout(FIELDS, GROUPS).id


def test_whole_numbers_are_written_in_decimal() -> None:
    assert Layout({"layers": 32, "negative": -7}, GROUPS) == Layout({"layers": "32", "negative": "-7"}, GROUPS)


def test_names_are_sorted_by_bytes_not_by_code_units() -> None:
    # U+FF5E sorts after U+1F600 in UTF-16, before it in UTF-8.
    layout = Layout({"\U0001f600": "a", "\uff5e": "b", "Z": "c", "a": "d"}, GROUPS)
    assert list(layout.fields) == ["Z", "a", "\uff5e", "\U0001f600"]


@pytest.mark.parametrize(
    ("fields", "groups", "says"),
    [
        ({"flag": True}, GROUPS, "whole number"),
        ({"ratio": 0.5}, GROUPS, "whole number"),
        ({"": "x"}, GROUPS, "1 to"),
        ({"x": "\ud800"}, GROUPS, "UTF-8"),
        ({"\ud800": "x"}, GROUPS, "UTF-8"),
        ({"x": "y" * (LAYOUT_BYTES_MAX + 1)}, GROUPS, "at most|must be"),
        ({f"{n}": "y" * 1000 for n in range(20)}, GROUPS, "at most 16384"),
        ({}, [], "1 to 256"),
        ({}, [Group(1, (1,))] * 257, "1 to 256"),
    ],
)
def test_what_has_no_canonical_form_is_refused_in_a_sentence(fields: dict[str, object], groups: list[Group], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Layout(fields, groups)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("part_count", "part_bytes"),
    [
        (1.5, (1,)),
        (1, (1.5,)),
        (-1, (1,)),
        (PARTS_MAX + 1, (1,)),
        (1, ()),
        (1, (1,) * 5),
        (1, (0,)),
        (1, (BLOCK_BYTES_MAX + 1,)),
        (2560, (1 << 20,)),
    ],
)
def test_a_shape_that_no_block_can_have_is_refused(part_count: Any, part_bytes: Any) -> None:
    with pytest.raises(ConfigError):
        Group(part_count, part_bytes)


def test_counted_parts_fix_the_length() -> None:
    group = Group(4, (4096, 2048))
    assert group.block_bytes == 12288
    assert group.parts_of(12288) == 4
    assert group.parts_of(12287) == group.parts_of(12289) == group.parts_of(0) == 0


def test_uncounted_parts_follow_until_the_length_ends() -> None:
    group = Group(0, (100, 10))
    assert [group.parts_of(n) for n in (0, 1, 100, 101, 110, 111, 220, 221)] == [0, 1, 1, 2, 2, 3, 4, 5]
    with pytest.raises(ConfigError, match="any length"):
        _ = group.block_bytes


@given(sizes=st.lists(st.integers(1, 300), min_size=1, max_size=4), block_bytes=st.integers(0, 20_000))
def test_parts_cover_the_block_exactly(sizes: list[int], block_bytes: int) -> None:
    parts = Group(0, tuple(sizes)).parts_of(block_bytes)
    starts, at = [], 0
    while at < block_bytes:
        starts.append(at)
        at += sizes[(len(starts) - 1) % len(sizes)]
    assert parts == (len(starts) if len(starts) <= PARTS_MAX else 0)


@given(st.dictionaries(st.text(min_size=1, max_size=20), st.text(max_size=20), max_size=8))
def test_any_text_survives_pickling_and_stays_the_same_layout(fields: dict[str, str]) -> None:
    layout = Layout(fields, GROUPS)
    again = pickle.loads(pickle.dumps(layout))
    assert again == layout
    assert hash(again) == hash(layout)
    assert layout.id == hashlib.sha256(layout.canonical).digest()[:16]


def test_opaque_is_one_group_of_256_kib_parts() -> None:
    layout = Layout.opaque("files", revision=3)
    assert layout.fields == {"name": "files", "revision": "3"}
    assert layout.groups == (Group(0, (256 * 1024,)),)
    assert layout != Layout.opaque("files", revision=4)


def test_a_layout_cannot_be_changed() -> None:
    layout = Layout(FIELDS, GROUPS)
    with pytest.raises(TypeError):
        layout.fields["model"] = "other"  # type: ignore[index]
    with pytest.raises(AttributeError):
        layout.id = b""  # type: ignore[misc]


def test_component_packs_group_variant_and_cell() -> None:
    assert component() == 0
    assert component(group=1, cell=7) == 16777223
    assert component(255, 15, (1 << 20) - 1) == 4294967295
    for wrong in ({"group": 256}, {"variant": 16}, {"cell": 1 << 20}, {"cell": -1}, {"cell": 1.5}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            component(**wrong)
