"""Which failures of ip are a reason to skip a test between two machines."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.integration.machines import machines


def ip_that_says(folder: Path, words: str) -> None:
    """An ip that refuses to make a namespace, and lists what it was asked for."""
    program = folder / "ip"
    program.write_text(f'#!/bin/sh\necho "$@" >> {folder}/asked\necho "{words}" >&2\nexit 1\n')
    program.chmod(0o755)


@pytest.mark.parametrize(
    "words", ["mkdir /run/netns failed: Permission denied", "mount --make-shared /run/netns failed: Operation not permitted"]
)
def test_a_missing_right_is_a_skip(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ip_that_says(tmp_path, words)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(pytest.skip.Exception, match=words), machines("10.0.0.5"):
        pytest.fail("there is no namespace")


def test_a_missing_tool_is_a_skip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(pytest.skip.Exception, match="there is no ip"), machines("10.0.0.5"):
        pytest.fail("there is no namespace")


def test_any_other_failure_fails_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ip_that_says(tmp_path, "Cannot create namespace file: File exists")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises((AssertionError, pytest.skip.Exception)) as told, machines("10.0.0.5"):
        pytest.fail("there is no namespace")
    assert told.type is AssertionError
    assert "netns add hs-" in str(told.value)
    assert str(told.value).endswith(": Cannot create namespace file: File exists")
    asked = (tmp_path / "asked").read_text().splitlines()
    assert [line.split()[:2] for line in asked] == [["netns", "add"], ["netns", "delete"]]
