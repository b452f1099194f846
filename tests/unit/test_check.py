"""`halfstep check` of a daemon whose device hangs: it ends when it said it would, and says what was not done."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pytest

from halfstep.tools.check import _steps

if TYPE_CHECKING:
    from halfstep import Client


class Hanging:
    """A daemon that answers the first `answers` calls at once, and then lets every call wait for its whole deadline."""

    def __init__(self, answers: int) -> None:
        self.now_s = 1000.0
        self.calls: list[str] = []
        self._answers = answers
        self._block = np.zeros(0, np.uint8)

    def clock(self) -> float:
        return self.now_s

    def facts(self) -> Any:
        return SimpleNamespace(block_bytes_max=1 << 20)

    def _hangs(self, call: str, deadline_ms: float) -> bool:
        self.calls.append(call)
        if len(self.calls) <= self._answers:
            return False
        self.now_s += deadline_ms / 1e3
        return True

    def _result(self, *, ok: bool, why: str) -> Any:
        return SimpleNamespace(ok=np.array([ok]), reason=lambda _at: why)

    def put(self, _keys: list[bytes], block: Any, *, durability: str, deadline_ms: float) -> Any:
        assert durability == "persist"
        hangs = self._hangs("put", deadline_ms)
        self._block = block
        return self._result(ok=not hangs, why="late" if hangs else "ok (stored)")

    def match(self, keys: list[bytes], *, deadline_ms: float) -> Any:
        hangs = self._hangs("match", deadline_ms)
        present = np.array([not hangs and "delete" not in self.calls and at == 0 for at in range(len(keys))])
        return SimpleNamespace(answered=not hangs, present=present, reason="late" if hangs else "")

    def get(self, _keys: list[bytes], back: Any, *, deadline_ms: float) -> Any:
        first = "get" not in self.calls
        hangs = self._hangs("get", deadline_ms)
        if first and not hangs:
            back[:] = self._block
        return self._result(ok=first and not hangs, why="late" if hangs else "ok" if first else "miss (absent)")

    def delete(self, _keys: list[bytes], *, deadline_ms: float) -> Any:
        hangs = self._hangs("delete", deadline_ms)
        return self._result(ok=not hangs, why="late" if hangs else "ok (deleted)")


@pytest.mark.parametrize("answers", range(6))
def test_a_check_of_a_hanging_device_ends_in_its_time(answers: int) -> None:
    daemon = Hanging(answers)
    steps = _steps(cast("Client", daemon), daemon.now_s + 10, clock=daemon.clock)
    assert daemon.now_s <= 1010.01
    assert [step.ok for step in steps] == [at < answers for at in range(4)] + [False]
    assert len(daemon.calls) <= answers + 2, "once a call has taken all the time that was left, no other one begins"
    assert steps[-1].seen.startswith("not tried" if answers < 4 else "late" if answers == 4 else "ok (deleted), not known")


def test_a_check_of_a_daemon_that_answers_passes() -> None:
    daemon = Hanging(answers=6)
    steps = _steps(cast("Client", daemon), daemon.now_s + 10, clock=daemon.clock)
    assert [step.ok for step in steps] == [True] * 5
    assert steps[-1].seen == "ok (deleted), gone"
