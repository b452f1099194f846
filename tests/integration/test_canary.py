"""Exact siblings of some lossy blocks: which have one, that they change nothing, and that the live error is told."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.integration.commands import PATIENT

import halfstep
from halfstep.client.canary import SIBLING, Canary
from halfstep.compress.policy import Policy, Predicted, policy_of, written
from halfstep.errors import ConfigError
from halfstep.tier import Kind, KVLayout

pytestmark = pytest.mark.integration

LAYERS, BLOCKS, HEADS, TOKENS, VALUES = 4, 12, 2, 16, 64
KIND = Kind("full", tuple(range(LAYERS)), HEADS, (2 * VALUES, 2 * VALUES))
KEYS = [b"canary block %d" % number for number in range(BLOCKS)]
CODED: dict[str, Any] = {**PATIENT, "coding": "always", "required": True}
K_STEP, V_STEP = 0.15, 0.5  # of `compact`


def cache(seed: int, scale: float = 1) -> np.ndarray:
    """bf16 of that deviation, [layer, plane, block, head, token, value]."""
    drawn = np.random.default_rng(seed).standard_normal((LAYERS, 2, BLOCKS, HEADS, TOKENS, VALUES)).astype(np.float32) * scale
    return (drawn.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def put(client: halfstep.Client, layout: KVLayout, saved: np.ndarray) -> Any:
    with client.tier(layout) as tier, tier.memory([list(layer) for layer in saved]) as memory:
        return tier.prefix_of(KEYS).put(memory)


def canary(url: str, *options: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "halfstep.tools.cli", "compress", "canary", url, "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout) if done.stdout else {"stderr": done.stderr}


@pytest.fixture
def url(daemon: Any) -> Any:
    """Of a namespace of its own."""
    with halfstep.connect(daemon.url, required=True, **PATIENT) as operator:
        operator.admin.create_namespace("canaries")
    yield f"{daemon.url}/canaries"
    with halfstep.connect(daemon.url, required=True, **PATIENT) as operator:
        operator.admin.delete_namespace("canaries")


def calibrated(folder: Path, k_error: float, v_error: float) -> tuple[str, Policy]:
    """`compact` as a calibration would write it, with these errors predicted."""
    errors = {"k": (k_error,) * LAYERS, "v": (v_error,) * LAYERS}
    policy = Policy("mine", policy_of("compact").rules, Predicted(1e-3, 0.99, 1e-3, 0.99, 4.0, TOKENS, errors))
    path = folder / "mine.toml"
    path.write_text(written(policy))
    return str(path), policy_of(str(path))


def test_some_lossy_blocks_have_an_exact_sibling_and_the_live_error_is_told(url: str, tmp_path: Path) -> None:
    file, policy = calibrated(tmp_path, K_STEP / 12**0.5, V_STEP / 12**0.5)
    layout = KVLayout("m", "r", "bfloat16", TOKENS, (KIND,), policy=policy)
    saved = cache(1)
    with halfstep.connect(url, codecs=("ubq",), canary=1, **CODED) as client:
        stored = put(client, layout, saved)
        assert (stored.stored, stored.present, stored.refused) == (BLOCKS, 0, 0), "siblings are no blocks of the put"
        told = client.facts().canary
        assert (told.one_in, told.stored, told.present, told.refused) == (1, BLOCKS - 1, 0, 0), (
            "the first block is exact itself"
        )
        put(client, layout, saved)
        assert client.facts().canary.present == BLOCKS - 1
        exact = np.zeros((1, layout.block_bytes), np.uint8)
        cell = layout.cells("full")[0].component
        assert client.get([KEYS[3]], exact, layout=layout.layout, first_component=cell | SIBLING).ok.all()
        # Layer by layer, plane by plane, head by head.
        np.testing.assert_array_equal(exact.view(np.uint16).reshape(LAYERS, 2, HEADS, TOKENS, VALUES), saved[:, :, 3])
    status, document = canary(url, "--policy", file)
    assert (status, document["pairs"], document["alarms"], document["lost"]) == (0, BLOCKS - 1, 0, 0)
    assert {(one["layer"], one["plane"]) for one in document["planes"]} == {(n, p) for n in range(LAYERS) for p in "kv"}
    for one in document["planes"]:
        assert 0.9 < one["times"] < 1.1
        assert one["error_max"] > one["error_rms"] > 0


def test_an_error_of_more_than_one_and_a_half_times_the_calibrated_one_is_an_alarm(url: str, tmp_path: Path) -> None:
    # Calibrated on values half as large: the live error is twice what was told.
    file, policy = calibrated(tmp_path, K_STEP / 12**0.5 / 2, V_STEP / 12**0.5)
    layout = KVLayout("m", "r", "bfloat16", TOKENS, (KIND,), policy=policy)
    with halfstep.connect(url, codecs=("ubq",), canary=1, **CODED) as client:
        put(client, layout, cache(2))
    status, document = canary(url, "--policy", file)
    assert (status, document["alarms"]) == (1, LAYERS)
    assert {one["plane"] for one in document["planes"] if one["alarm"]} == {"k"}
    status, document = canary(url)
    assert (status, document["alarms"]) == (0, 0), "without a calibration nothing is too much"
    status, document = canary(url, "--policy", "compact")
    assert status == 3
    assert "predicts no error" in document["stderr"]
    with halfstep.connect(url, codecs=("ubq",), canary=1, **CODED) as client:
        other = KVLayout("m2", "r", "bfloat16", TOKENS, (KIND,), policy="balanced")
        put(client, other, cache(3))
    status, document = canary(url, "--policy", file)
    assert (document["pairs"], document["others"]) == (BLOCKS - 1, BLOCKS - 1)


def test_exact_blocks_and_clients_that_want_none_have_no_sibling(url: str) -> None:
    for options, codec in (({"canary": 1}, "bfx"), ({}, "ubq")):
        step = {"step": 0.1} if codec == "ubq" else {}
        layout = KVLayout(f"plain {codec}", "r", "bfloat16", TOKENS, (KIND,), codec=codec, **step)
        with halfstep.connect(url, codecs=(codec,), **options, **CODED) as client:
            assert put(client, layout, cache(4)).stored == BLOCKS
            told = client.facts().canary
            assert (told.stored, told.present, told.refused) == (0, 0, 0)
    assert canary(url)[1]["pairs"] == 0


def test_one_in_so_many_is_chosen_by_key_alone() -> None:
    layout = KVLayout("m", "r", "bfloat16", TOKENS, (KIND,), policy="compact").layout
    keys = [b"key %d" % number for number in range(20_000)]
    chosen = Canary(50).chosen(layout, keys, depth=7)
    assert 300 < len(chosen) < 500
    assert chosen == Canary(50).chosen(layout, keys, depth=9)
    assert Canary(0).chosen(layout, keys, depth=7) == []
    for wrong in (-1, 1.5, True, 10**7):
        with pytest.raises(ConfigError, match="canary="):
            Canary(wrong)  # type: ignore[arg-type]
