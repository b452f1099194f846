"""What the native core refuses, with the remedy that it cannot know."""

from __future__ import annotations

from pathlib import Path

import pytest

from halfstep.daemon.refusals import error_of
from halfstep.errors import ConfigError, DeviceError, InternalError

STORE = Path("/d/store.hs")


@pytest.mark.parametrize(
    ("sentence", "remedy"),
    [
        ("store header: ECANCELED (Operation canceled) at both ends", "ulimit -u, TasksMax="),
        ("opening /d/store.hs: EROFS (Read-only file system)", "mount it for writing, or name another store"),
        ("unix:/d/h.sock: in use by pid 1; choose another path", "with --unix, or none"),
    ],
)
def test_a_refusal_names_what_to_do(sentence: str, remedy: str) -> None:
    error = error_of(RuntimeError("io_error", sentence), STORE)
    assert isinstance(error, DeviceError)
    assert sentence in str(error)
    assert remedy in str(error)


def test_a_header_is_named_with_its_store() -> None:
    assert str(error_of(RuntimeError("corrupt", "store header: both copies are bad"), STORE)).startswith(
        "/d/store.hs: store header"
    )


def test_a_refusal_is_the_error_of_whoever_can_act() -> None:
    assert isinstance(error_of(RuntimeError("invalid", "x")), ConfigError)
    assert isinstance(error_of(RuntimeError("unheard of", "x")), InternalError)
    assert isinstance(error_of(RuntimeError("cancelled", "x")), KeyboardInterrupt)
