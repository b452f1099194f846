"""Weights of one name are told apart, without reading all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from halfstep.connectors.weights import SAMPLE_BYTES, weights_revision_of


def model(folder: Path, weights: bytes, config: str = "{}") -> str:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(config)
    (folder / "model.safetensors").write_bytes(weights)
    return str(folder)


def test_the_same_files_have_the_same_revision_wherever_they_lie(tmp_path: Path) -> None:
    weights = bytes(5 * SAMPLE_BYTES)
    one, other = model(tmp_path / "one", weights), model(tmp_path / "other", weights)
    assert weights_revision_of(one) == weights_revision_of(other) is not None


@pytest.mark.parametrize("at", [0, SAMPLE_BYTES - 1, 4 * SAMPLE_BYTES, 5 * SAMPLE_BYTES - 1])
def test_a_byte_of_either_end_is_another_revision(tmp_path: Path, at: int) -> None:
    weights = bytearray(5 * SAMPLE_BYTES)
    before = weights_revision_of(model(tmp_path / "model", bytes(weights)))
    weights[at] = 1
    assert weights_revision_of(model(tmp_path / "model", bytes(weights))) != before


def test_another_length_or_configuration_is_another_revision(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    known = {
        weights_revision_of(model(folder, bytes(10))),
        weights_revision_of(model(folder, bytes(11))),
        weights_revision_of(model(folder, bytes(10), '{"rope_theta": 1}')),
    }
    assert len(known) == 3


def test_what_has_no_weights_has_no_revision(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert weights_revision_of(str(tmp_path)) is None
    assert weights_revision_of(str(tmp_path / "absent" / "and" / "deep")) is None
