"""What a start that takes its time says: to people at every tenth, to systemd before it loses patience."""

from __future__ import annotations

import io
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from halfstep.daemon.log import Log
from halfstep.daemon.notify import notify
from halfstep.daemon.serve import EXTEND_S, TELL_EVERY_S, _progress
from halfstep.daemon.signals import StopSignals


class Quiet:
    """No signal came."""

    received: tuple[signal.Signals, ...] = ()


@pytest.fixture
def supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """What systemd listens on; its path is of any bytes."""
    address = bytes(tmp_path) + b"/\xff"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(address)
        listening.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", os.fsdecode(address))
        yield listening


def heard(supervisor: socket.socket) -> list[dict[str, str]]:
    """The messages that came, as fields."""
    messages = []
    while True:
        try:
            text = supervisor.recv(4096).decode()
        except BlockingIOError:
            return messages
        messages.append(dict(line.split("=", 1) for line in text.split("\n")))


def test_systemd_is_asked_for_time_though_nothing_moves(supervisor: socket.socket) -> None:
    now_s = 0.0
    progress = _progress(cast("StopSignals", Quiet()), None, clock=lambda: now_s)
    gaps, last_s = [], 0.0
    while now_s < 600:
        assert progress("allocating the store", 1 << 20, 1 << 40)
        for message in heard(supervisor):
            assert int(message["EXTEND_TIMEOUT_USEC"]) == EXTEND_S * 1_000_000
            assert message["STATUS"] == "allocating the store: 1 MiB of 1 TiB"
            gaps.append(now_s - last_s)
            last_s = now_s
        now_s += 1
    assert len(gaps) >= 100
    assert max(gaps) <= TELL_EVERY_S < EXTEND_S


def test_each_tenth_is_said_once(supervisor: socket.socket) -> None:
    out = io.StringIO()
    progress = _progress(cast("StopSignals", Quiet()), Log(out), clock=lambda: 0.0)
    for done in range(101):
        progress("allocating the store", done << 20, 100 << 20)
    assert out.getvalue().count("\n") == 11
    assert len(heard(supervisor)) == 11


def test_a_value_is_one_field_whatever_it_holds(supervisor: socket.socket) -> None:
    assert notify(STATUS="serving unix:/a\nREADY=1\udcff", READY="0")
    assert heard(supervisor) == [{"STATUS": "serving unix:/a READY=1\\udcff", "READY": "0"}]


def test_a_supervisor_that_is_gone_is_nobody(supervisor: socket.socket) -> None:
    supervisor.close()
    assert not notify(READY="1")
