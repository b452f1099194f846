"""A store on FUSE whose server stops: what needs no disk goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import halfstep
from halfstep.errors import HalfstepError
from halfstep.tools.daemon_process import DaemonProcess

PATIENCE_S = 60
ARGUMENTS = ("--size", "132MiB", "--arena", "32MiB", "--scrub", "off")
BLOCK = np.arange(50_000, dtype=np.uint8)


@pytest.fixture
def fuse(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """A store with one block, "cold", as a file of a FUSE file system, and the process that serves that."""
    (tmp_path / "real").mkdir()
    (tmp_path / "mounted").mkdir()
    daemon = DaemonProcess(tmp_path / "real", *ARGUMENTS)
    daemon.start()
    with halfstep.connect(daemon.url, required=True, deadline_ms=30_000) as client:
        assert client.put([b"cold"], BLOCK).ok.all()
    assert daemon.end(signal.SIGTERM) == 0
    script = str(Path(__file__).with_name("fuse_file.py"))
    command = [sys.executable, script, str(tmp_path / "real" / "store.hs"), str(tmp_path / "mounted")]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert server.stdout is not None
    assert server.stderr is not None
    try:
        if server.stdout.readline() != "mounted\n":
            pytest.skip(f"no FUSE can be mounted here: {server.stderr.read().strip()}")
        yield tmp_path / "mounted", server
    finally:
        if server.poll() is None:
            os.kill(server.pid, signal.SIGCONT)
        subprocess.run(["umount", "--lazy", str(tmp_path / "mounted")], check=False, capture_output=True)
        server.kill()
        server.wait(PATIENCE_S)
        server.stdout.close()
        server.stderr.close()


def test_a_fuse_server_that_stops_does_not_stop_what_is_in_memory(fuse: tuple[Path, subprocess.Popen[str]]) -> None:
    mounted, server = fuse
    daemon = DaemonProcess(mounted.parent, *ARGUMENTS, "--engine", "uring")
    daemon.store = mounted / "store.hs"
    try:
        daemon.start()
    except HalfstepError as error:
        if "io_uring" in str(error):
            pytest.skip(f"no io_uring here: {error}")
        raise
    try:
        assert any("lies on FUSE" in note for note in daemon.facts["recovery"]["notes"]), daemon.facts["recovery"]
        back = np.zeros_like(BLOCK)
        with (
            halfstep.connect(daemon.url, required=True, deadline_ms=30_000, match_deadline_ms=30_000) as client,
            halfstep.connect(daemon.url, required=True, deadline_ms=3_000) as other,
        ):
            assert client.put([b"warm"], BLOCK, durability="persist").ok.all()
            os.kill(server.pid, signal.SIGSTOP)
            os.waitpid(server.pid, os.WUNTRACED)
            elsewhere = np.zeros_like(BLOCK)
            answers: list[bool] = []
            waiting = threading.Thread(target=lambda: answers.append(bool(other.get([b"cold"], elsewhere).ok.all())))
            waiting.start()
            waiting.join()  # its deadline: the device does not answer, and the daemon has the read in its hands
            assert answers == [False]
            assert client.match([b"warm", b"none"]).present.tolist() == [True, False]
            assert client.get([b"warm"], back).ok.all()
            assert (back == BLOCK).all()
            os.kill(server.pid, signal.SIGCONT)
            assert client.get([b"cold"], back).ok.all()
            assert (back == BLOCK).all()
    finally:
        os.kill(server.pid, signal.SIGCONT)
        daemon.end(signal.SIGKILL)
