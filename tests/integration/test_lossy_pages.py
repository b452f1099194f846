"""Pages of a host pool under a lossy policy, through a daemon: exact where a sequence begins, coarse where it says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.integration.commands import PATIENT

from halfstep.compress.policy import policy_of
from halfstep.connectors.pages import depths_of, lossy_pages
from halfstep.errors import ConfigError
from halfstep.layout import Group, Layout
from halfstep.tier import PartValues, Stride, connect

pytestmark = pytest.mark.integration

LAYERS, TOKENS, ROW, PAGES = 6, 16, 128, 4
PATIENT_CODED: dict[str, Any] = {**PATIENT, "coding": "always"}
KEYS = [b"lossy page %d" % number for number in range(PAGES)]
# Of `balanced` at these layers: K of the first and last two, K of the others, V.
K_ENDS, K_MIDDLE, V_STEP = 0.03, 0.07, 0.25


def pool(seed: int) -> np.ndarray:
    """bf16 of deviation one, [K and V, pages, layers, tokens, values]: page_first_direct."""
    drawn = np.random.default_rng(seed).standard_normal((2, 2 * PAGES, LAYERS, TOKENS, ROW)).astype(np.float32)
    return (drawn.view(np.uint32) >> 16).astype(np.uint16)


def floats(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def layout_of(memory: np.ndarray, name: str) -> tuple[Layout, list[Stride]]:
    page_bytes = memory[0, 0].nbytes
    whole = [Stride(memory[plane].ctypes.data, page_bytes, page_bytes) for plane in range(2)]
    fields, pieces = lossy_pages(
        policy_of("balanced"), "page_first_direct", whole, layers=LAYERS, page_tokens=TOKENS, values=PartValues("bf16", ROW)
    )
    return Layout({"name": name} | fields, [Group(len(pieces), (page_bytes // LAYERS,))]), pieces


def test_pages_are_lossy_by_layer_and_plane_and_exact_where_a_sequence_begins(daemon: Any) -> None:
    memory = pool(1)
    layout, pieces = layout_of(memory, "lossy pages")
    rows = list(range(PAGES))
    with (
        connect(daemon.url, policy="balanced", **PATIENT_CODED) as client,
        client.values(layout) as values,
        values.memory([memory], pieces) as there,
    ):
        assert values.put(KEYS, there, rows=rows, depths=depths_of(PAGES, None)).ok.all()
        sent = client.facts().bytes_sent  # type: ignore[attr-defined]
        into = [PAGES + row for row in rows]
        assert values.get(KEYS, there, rows=into).ok.all()
    assert sent < memory[:, :PAGES].nbytes * 0.6
    saved, back = memory[:, :PAGES], memory[:, PAGES:]
    np.testing.assert_array_equal(back[:, 0], saved[:, 0], "the first tokens of a sequence are exact")
    error = np.abs(floats(back[:, 1:]) - floats(saved[:, 1:]))
    rounding = np.abs(floats(back[:, 1:])) / 256
    ends, middle = [0, 1, LAYERS - 2, LAYERS - 1], [2, 3]
    for plane, layers, step in ((0, ends, K_ENDS), (0, middle, K_MIDDLE), (1, ends, V_STEP), (1, middle, V_STEP)):
        off, may = error[plane][:, layers], rounding[plane][:, layers]
        assert (off <= step / 2 * 1.15 + may).all(), (plane, layers)
        assert off.max() > step / 2 * 0.8, "and it is no finer than it says"


def test_pages_of_which_nobody_says_what_lies_before_them_are_exact(daemon: Any) -> None:
    memory = pool(2)
    layout, pieces = layout_of(memory, "pages of unknown depth")
    with (
        connect(daemon.url, policy="balanced", **PATIENT_CODED) as client,
        client.values(layout) as values,
        values.memory([memory], pieces) as there,
    ):
        assert values.put(KEYS, there, rows=range(PAGES)).ok.all()
        assert values.get(KEYS, there, rows=range(PAGES, 2 * PAGES)).ok.all()
        with pytest.raises(ConfigError, match="depths: shape"):
            values.put(KEYS, there, rows=range(PAGES), depths=[1, 2])
    np.testing.assert_array_equal(memory[:, PAGES:], memory[:, :PAGES])
