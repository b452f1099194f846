"""Weights of one name are told apart, without reading all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from halfstep.connectors.weights import SAMPLE_BYTES, SAMPLES, folder_revision, hub_revision


def model(folder: Path, weights: bytes, config: str = "{}") -> str:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(config)
    (folder / "model.safetensors").write_bytes(weights)
    return str(folder)


def test_the_same_files_have_the_same_revision_wherever_they_lie(tmp_path: Path) -> None:
    weights = bytes(5 * SAMPLE_BYTES)
    one, other = model(tmp_path / "one", weights), model(tmp_path / "other", weights)
    assert folder_revision(one) == folder_revision(other) is not None


SIZE = 4 * SAMPLES * SAMPLE_BYTES


@pytest.mark.parametrize("at", [0, SAMPLE_BYTES - 1, SIZE - SAMPLE_BYTES, SIZE - 1])
def test_a_byte_of_either_end_is_another_revision(tmp_path: Path, at: int) -> None:
    weights = bytearray(SIZE)
    before = folder_revision(model(tmp_path / "model", bytes(weights)))
    weights[at] = 1
    assert folder_revision(model(tmp_path / "model", bytes(weights))) != before


@pytest.mark.parametrize("first", range(0, SIZE - 40 * SAMPLE_BYTES, SIZE // 7))
def test_a_tensor_within_is_another_revision(tmp_path: Path, first: int) -> None:
    weights = bytearray(SIZE)
    before = folder_revision(model(tmp_path / "model", bytes(weights)))
    weights[first : first + 40 * SAMPLE_BYTES] = bytes([1]) * (40 * SAMPLE_BYTES)
    assert folder_revision(model(tmp_path / "model", bytes(weights))) != before


def test_another_length_or_configuration_is_another_revision(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    known = {
        folder_revision(model(folder, bytes(10))),
        folder_revision(model(folder, bytes(11))),
        folder_revision(model(folder, bytes(10), '{"rope_theta": 1}')),
    }
    assert len(known) == 3


def test_what_has_no_weights_has_no_revision(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert folder_revision(str(tmp_path)) is None
    assert folder_revision(str(tmp_path / "absent" / "and" / "deep")) is None


def test_what_was_never_downloaded_has_no_commit(tmp_path: Path) -> None:
    assert hub_revision("somebody/a-model", None, str(tmp_path)) is None
    assert hub_revision("/no/name of a model", "main", str(tmp_path)) is None
