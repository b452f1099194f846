"""A second opinion costs this process nothing, whatever the package does."""

from __future__ import annotations

import pytest

from halfstep.io.second_opinion import NEEDED, Opinion, ask


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "liburing ended by SIGILL"),
        ("raise ModuleNotFoundError(\"No module named 'liburing'\")", "pip install 'halfstep[doctor]'"),
        ("raise OSError(1, 'Operation not permitted')", "Operation not permitted"),
        ("print('hello')", "no list of operations"),
        ("print('[1]')", "no list of operations"),
    ],
)
def test_a_package_that_fails_is_no_opinion_and_says_why(program: str, says: str) -> None:
    found = ask(program)
    assert says in found.why_none
    assert found.operations == frozenset()


def test_what_the_package_says_is_compared_with_what_the_daemon_needs() -> None:
    told = ", ".join(f"'IORING_OP_{one}': True" for one in NEEDED if one != "FSYNC")
    found = ask(f"import json; print(json.dumps({{{told}, 'IORING_OP_FSYNC': False}}))")
    assert found.missing == ("FSYNC",)
    assert Opinion(frozenset(NEEDED)).missing == ()


def test_the_package_itself_where_it_is_installed() -> None:
    found = ask()
    if found.why_none:
        pytest.skip(found.why_none)
    assert "NOP" in found.operations
