"""Errors of lossy codecs on tensors whose figures can be worked out, and the policy that they recommend."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from halfstep.compress.analysis import Block, Unit, analyse, measure_blocks
from halfstep.compress.errors import Errors, bound_of, recommended
from halfstep.compress.policy import policy_of
from halfstep.compress.tensors import Tensor
from halfstep.compress.trial import bits_of, floats_of
from halfstep.errors import ConfigError
from halfstep.tools.cli import main

KV_FILE = Path(__file__).parent / "tensors" / "kv.npz"
POLICIES = [policy_of(name) for name in ("high", "balanced", "compact")]


def tensor(element: str = "bf16", seed: int = 1) -> Tensor:
    """[layers, K and V, heads, tokens, dimensions], of deviation one; V is ten times as large."""
    drawn = np.random.default_rng(seed).standard_normal((5, 2, 2, 64, 64)).astype(np.float32)
    drawn[:, 1] *= 10
    return Tensor("kv", element, bits_of(drawn, element))  # type: ignore[arg-type]


@pytest.mark.parametrize("element", ["bf16", "fp16"])
def test_errors_are_those_of_the_steps_and_no_value_leaves_its_bound(element: str) -> None:
    errors = Errors(POLICIES)
    analyse([tensor(element)], [64], errors.count)
    figures = errors.planes()
    assert {(one.plane[-1], one.step) for one in figures} == {
        *(("K", step) for step in (0.02, 0.03, 0.07, 0.15)),
        *(("V", step) for step in (0.08, 0.25, 0.5)),
    }
    for one in figures:
        assert one.exact_units == 0
        size = 10 if one.plane.endswith("V") else 1
        # A uniform error has a root mean square of a step / √12; bf16's own rounding comes on top of the finest.
        assert one.error_rms == pytest.approx(one.step * size / 12**0.5, rel=0.15 if element == "fp16" else 0.6)
        assert one.bound == pytest.approx(one.step * size / 2, rel=0.1)
        assert one.bound * 0.5 < one.error_max
        assert 0 < one.worst <= 1
        assert one.ratio < one.entropy_bound, "of a bell: the code costs a little more than its entropy"


def test_a_value_beyond_its_bound_is_seen() -> None:
    back = np.array([1.0, -3.0, 0.0, 100.0], np.float32)
    bound = bound_of(back, 0.1, "bf16")
    assert bound == pytest.approx(0.1 * 0.501 + np.array([2**-8, 2**-7, 2**-134, 2**-2]), rel=1e-5)


def test_a_policy_is_put_together_of_its_planes_and_recommended_within_a_casts_error() -> None:
    errors = Errors([*POLICIES, policy_of("exact"), policy_of("off")])
    analyse([tensor()], [16, 64], errors.count)
    told = errors.of_policies()
    assert [(one.policy, one.unit_tokens) for one in told] == [
        (name, tokens) for tokens in (16, 64) for name in ("high", "balanced", "compact", "exact")
    ], "off codes nothing"
    longest = {one.policy: one for one in told if one.unit_tokens == 64}
    assert longest["exact"].k_error == longest["exact"].v_error == 0
    assert longest["exact"].ratio < longest["high"].ratio < longest["balanced"].ratio < longest["compact"].ratio
    assert longest["high"].k_error < longest["balanced"].k_error < longest["compact"].k_error
    (cast, *_) = errors.fp8()
    assert 0.02 < cast.error_share < 0.03, "e4m3 has three bits of mantissa"
    assert cast.ratio == 2
    assert recommended(told) == "high"
    assert not longest["compact"].within_fp8
    assert recommended([longest["compact"]]) == ""


def test_planes_that_nobody_names_and_hazards_are_no_figures_of_an_error() -> None:
    values = floats_of(tensor().bits[0, 0], "bf16").copy()
    values[0, 0, 0] = np.nan
    unit = Unit("layer 0 K", "bf16", bits_of(values, "bf16"), 64)
    other = Unit("group 0", "bf16", bits_of(values, "bf16"), 64)
    fp8 = Unit("layer 0 K", "e4m3", np.zeros((64, 64), np.uint8), 64)
    errors = Errors(POLICIES)
    errors.count(Block(64, [unit, other, fp8]))
    assert {one.plane for one in errors.planes()} == {"layer 0 K"}
    for one in errors.planes():
        assert (one.exact_units, one.squared_errors, one.error_max) == (1, 0.0, 0.0), "NaN: the unit is exact"
        assert one.values == values.size - 1
    assert Errors([]).of_policies() == []


def test_the_command_tells_errors_in_table_and_json(tmp_path: Path) -> None:
    def run(*arguments: str) -> str:
        done = CliRunner().invoke(main, ["compress", "analyse", str(KV_FILE), *arguments], standalone_mode=False)
        assert done.exception is None, done.output
        return done.output

    told = json.loads(run("--json", "--unit-tokens", "32"))
    assert {one["policy"] for one in told["policies"]} == {"high", "balanced", "compact"}
    assert all(0 < one["worst"] <= 1 for one in told["errors"])
    assert told["recommended"]["exact"] == "exact"
    assert "cast to fp8" in run("--unit-tokens", "32")
    mine = tmp_path / "mine.toml"
    mine.write_text('[[rule]]\nplanes = ["v"]\ncodec = "ubq"\nstep = 0.3\n')
    assert {one["step"] for one in json.loads(run("--json", "--policy", str(mine)))["errors"]} == {0.3}
    assert json.loads(run("--json", "--policy", "none"))["errors"] == []
    wrong = CliRunner().invoke(main, ["compress", "analyse", str(KV_FILE), "--policy", "hihg"], standalone_mode=False)
    assert isinstance(wrong.exception, ConfigError)
    assert "did you mean high?" in str(wrong.exception)


def test_speed_is_of_units_that_the_codec_takes() -> None:
    unit = Unit("layer 0 K", "bf16", np.ascontiguousarray(tensor().bits[0, 0]), 64)
    block = Block(64, [unit, Unit("x", "bf16", unit.bits, 0), Unit("x", "e5m2", np.zeros((64, 64), np.uint8), 64)])
    quantised = measure_blocks([block], "ubq")
    assert quantised.codec == "ubq"
    assert quantised.encode_gb_s > 0
    assert measure_blocks([Block(64, [block.units[1]])], "ubq").encode_gb_s == 0, "a row of no known width is refused"
