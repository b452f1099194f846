"""What `serve` says when it was stopped, by what its server says of it."""

from __future__ import annotations

import io
from typing import Any, cast

import pytest

from halfstep import _shard
from halfstep.daemon.config import ServeConfig
from halfstep.daemon.serve import _serve
from halfstep.daemon.signals import StopSignals
from halfstep.errors import DeviceError


class StoppedServer:
    """A server that was asked to stop; `why`: what it could not write."""

    def __init__(self, why: str = "") -> None:
        self._why = why

    def facts(self) -> dict[str, Any]:
        return {"created": True, "listening": [], "recovery": {"notes": [], "segments_left": 0}}

    def stop(self, _grace_ms: int) -> bool:
        return not self._why

    def why_stopped(self) -> str:
        return self._why

    def why_device_refused(self) -> str:
        return ""


class Asked:
    """A signal that has come already."""

    def wait(self, _seconds: float) -> bool:
        return True


def stopped(server: StoppedServer) -> int:
    config = ServeConfig(store="/somewhere/store.hs")
    return _serve(cast("_shard.Server", server), config, cast("StopSignals", Asked()), None, as_json=True, out=io.StringIO())


def test_a_clean_stop_is_no_error() -> None:
    assert stopped(StoppedServer()) == 0


def test_what_could_not_be_written_at_a_stop_is_said_with_its_cause_and_fails() -> None:
    why = "no_space: some blocks found no segment to be written to, all are held or bad"
    with pytest.raises(DeviceError) as failure:
        stopped(StoppedServer(why))
    said = str(failure.value)
    assert said.startswith(f"/somewhere/store.hs: {why}; ")
    assert "durability=cache may be lost" in said
    assert "halfstep fsck" in said
