"""bench/cores.py: what is timed again, and that nothing but the cores decides it."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("click")

NEAR, APART = 55.0, 300.0


@pytest.fixture
def module(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """bench/cores.py, which is no part of the package, and never waits here."""
    monkeypatch.syspath_prepend(str(repository / "bench"))
    cores = importlib.import_module("cores")
    monkeypatch.setattr(cores, "PAUSE_S", 0.0)
    monkeypatch.setattr(cores, "FIRST_LOOKS", 1)
    return cores


@pytest.fixture
def cores_of(module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Two cores that are as far from each other as they are told, look by look; the last of them for good."""
    (tmp_path / module.DISTANCE_PROGRAM).touch()

    def make(*distances: float) -> Any:
        told = list(distances)

        def said(_program: Path, options: dict[str, int]) -> dict[str, Any]:
            assert options == {"core": 0, "other-core": 1}
            return {"there_and_back_ns": {"median": told.pop(0) if len(told) > 1 else told[0]}}

        monkeypatch.setattr(module, "said_by", said)
        return module.Cores(tmp_path, 0, 1)

    return make


def works(returned: list[str]) -> Any:
    return lambda: returned.pop(0)


def test_what_ran_between_two_looks_at_near_cores_counts(cores_of: Any) -> None:
    cores = cores_of(NEAR)
    assert cores.steadily(works(["first", "second"])) == "first"
    assert cores.as_json() == {"shortest_ns": NEAR, "timed": 1, "again": 0, "apart": 0}


def test_what_ended_with_the_cores_apart_is_made_again(cores_of: Any) -> None:
    cores = cores_of(NEAR, NEAR, APART, APART, NEAR)
    assert cores.steadily(works(["first", "second"])) == "second"
    assert cores.as_json() == {"shortest_ns": NEAR, "timed": 1, "again": 1, "apart": 0}


def test_cores_that_stay_apart_are_the_machine_that_there_is(
    cores_of: Any, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.0)
    cores = cores_of(NEAR, APART)
    assert cores.steadily(works([str(number) for number in range(9)])) == str(module.TRIES - 1)
    assert cores.as_json() == {"shortest_ns": NEAR, "timed": 1, "again": module.TRIES - 1, "apart": 1}
    assert "4 made again because the host had them apart, 1 counted all the same" in cores.text()


def test_cores_that_are_always_as_far_are_near(cores_of: Any) -> None:
    cores = cores_of(APART)
    assert cores.steadily(works(["first"])) == "first"
    assert cores.as_json()["again"] == 0


def test_what_counted_before_the_cores_were_ever_near_is_told(cores_of: Any) -> None:
    cores = cores_of(APART, APART, APART, NEAR)
    assert cores.steadily(works(["first"])) == "first"
    assert cores.as_json()["apart"] == 0, "nothing else was seen yet"
    assert cores.steadily(works(["second"])) == "second"
    assert cores.as_json() == {"shortest_ns": NEAR, "timed": 2, "again": 0, "apart": 1}


def test_who_waited_in_vain_waits_no_more_until_they_were_near(
    cores_of: Any, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(module.time, "sleep", lambda _s: clock.__setitem__(0, clock[0] + module.PATIENCE_S))
    cores = cores_of(NEAR, APART)
    cores.steadily(works(["made"] * module.TRIES))
    waited = clock[0]
    assert waited >= module.TRIES * module.PATIENCE_S
    cores.steadily(works(["made"] * module.TRIES))
    assert clock[0] == waited
    assert cores.as_json()["apart"] == 2


def test_one_core_is_not_looked_at(module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "said_by", lambda *_arguments: pytest.fail("there is nothing to look at"))
    for pair in ((None, None), (0, None), (0, 0)):
        cores = module.Cores(tmp_path, *pair)
        assert cores.steadily(works(["first"])) == "first"
        assert cores.as_json() is None
        assert "no two cores" in cores.text()


def test_a_program_that_is_missing_is_named(module: Any, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="halfstep_distance_bench: not built; run `make native`"):
        module.Cores(tmp_path, 0, 1)
