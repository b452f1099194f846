"""A policy from its name to what comes back: exact where it must be, coarse where it says so, and nobody else's."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.integration.commands import PATIENT

from halfstep.tier import Grid, Kind, KVLayout, connect

pytestmark = pytest.mark.integration

LAYERS, BLOCKS, HEADS, TOKENS, VALUES = 8, 4, 2, 16, 64
KIND = Kind("full", tuple(range(LAYERS)), HEADS, (2 * VALUES, 2 * VALUES))
KEYS = [b"policy block %d" % number for number in range(BLOCKS)]
ENDS, MIDDLE = [0, 1, 6, 7], [2, 3, 4, 5]


def cache(seed: int) -> npt.NDArray[np.uint16]:
    """bf16 of deviation 1, [layer, plane, block, head, token, value]."""
    drawn = np.random.default_rng(seed).standard_normal((LAYERS, 2, BLOCKS, HEADS, TOKENS, VALUES), np.float32)
    return (drawn.view(np.uint32) >> 16).astype(np.uint16)


def values(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def restored(url: str, layout: KVLayout, saved: npt.NDArray[np.uint16] | None, policy: str) -> tuple[Any, int, int]:
    """What a get brings, how many blocks of it, and the bytes that were sent for a put."""
    into = np.zeros_like(cache(0))
    with connect(url, policy=policy, coding="always", **PATIENT) as client, client.tier(layout) as tier:
        prefix = tier.prefix_of(KEYS)
        sent = client.facts().bytes_sent  # type: ignore[attr-defined]
        if saved is not None:
            with tier.memory([list(layer) for layer in saved]) as memory:
                assert prefix.put(memory).refused == 0
        sent = client.facts().bytes_sent - sent  # type: ignore[attr-defined]
        with tier.memory([list(layer) for layer in into]) as memory:
            return into, prefix.get(memory).blocks, sent


@pytest.mark.parametrize("grid", [Grid(), Grid(heads=2, layers=2)], ids=["whole", "cells"])
def test_a_policy_codes_each_layer_and_plane_as_it_says(daemon: Any, grid: Grid, request: pytest.FixtureRequest) -> None:
    def layout(policy: str) -> KVLayout:
        return KVLayout(f"{request.node.name} {os.getpid()}", "r", "bfloat16", TOKENS, (KIND,), grid, policy=policy)

    saved = cache(1)
    back, blocks, sent = restored(daemon.url, layout("balanced"), saved, "balanced")
    assert blocks == BLOCKS
    np.testing.assert_array_equal(back[:, :, 0], saved[:, :, 0], "the first tokens of a sequence are exact")
    error = np.abs(values(back[:, :, 1:]) - values(saved[:, :, 1:]))
    # Half a step, of a deviation of about one, and bf16's own rounding of values up to four.
    rounding = np.abs(values(back[:, :, 1:])) / 256
    for layers, plane, step in ((ENDS, 0, 0.03), (MIDDLE, 0, 0.07), (ENDS, 1, 0.25), (MIDDLE, 1, 0.25)):
        assert (error[layers, plane] <= step / 2 * 1.15 + rounding[layers, plane]).all(), (layers, plane)
        assert error[layers, plane].max() > step / 2 * 0.8, "and it is no finer than it says"
    assert sent < saved.nbytes * 0.6

    exact, blocks, sent_exact = restored(daemon.url, layout("exact"), None, "balanced")
    assert blocks == 0, "who asked for exact meets no lossy block"
    exact, blocks, sent_exact = restored(daemon.url, layout("exact"), saved, "exact")
    assert blocks == BLOCKS
    np.testing.assert_array_equal(exact, saved)
    assert sent < sent_exact < saved.nbytes * 0.9
    plain, blocks, sent_plain = restored(daemon.url, layout("off"), saved, "off")
    assert blocks == BLOCKS
    np.testing.assert_array_equal(plain, saved)
    assert sent_plain >= saved.nbytes
