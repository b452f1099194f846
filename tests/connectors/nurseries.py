"""Processes that have imported an engine, and fork one for each that a test wants: engines/nursery.py, seen from a test.

One for each environment of an engine, of this test process; they end with it.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NURSERY = Path(__file__).resolve().parent / "engines" / "nursery.py"
# What an engine's start imports in the end: the sooner, the less each child has to do itself.
MODULES = {
    "vllm": (
        "vllm",
        "vllm.entrypoints.llm",
        "vllm.v1.engine.core",
        "vllm.v1.worker.cpu_worker",
        "compressed_tensors",
        "vllm_engine",
        "vllm_direct",
    ),
    "sglang": (
        "sglang_engine",  # first: it says that there is no GPU
        "sglang",
        "sglang.srt.entrypoints.engine",
        "sglang.srt.managers.scheduler",
        "sglang.srt.managers.detokenizer_manager",
        "sglang.srt.models.registry",
    ),
}
# Several engines share the machine with their daemons: threads that wait for one another in a busy loop would take it all.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
MESSAGE_BYTES = 1 << 16
# To import an engine, on a machine that does much else.
START_S = 1200


class Child:
    """A forked process. As subprocess.Popen, as far as it is needed here."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self.pid = pid
        self._nursery = nursery
        self._descriptor = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Its exit status; None while it runs."""
        return self._nursery.code_of(self.pid, 0)

    def wait(self, timeout_s: float = 60) -> int:
        """Its exit status, once it has ended. Errors: TimeoutError."""
        code = self._nursery.code_of(self.pid, timeout_s)
        if code is None:
            raise TimeoutError(f"process {self.pid} has not ended after {timeout_s} s")
        return code

    def kill(self) -> None:
        """As the power does."""
        try:
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)
        except ProcessLookupError:
            return

    def close(self) -> None:
        """It has ended."""
        os.close(self._descriptor)


class Nursery:
    """One process that forks engines of one environment."""

    def __init__(self, interpreter: str, modules: Sequence[str], env: dict[str, str]) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  as long as it lives
        self._ended: dict[int, int] = {}
        self._socket = ours
        self._process = subprocess.Popen(
            [interpreter, str(NURSERY), str(theirs.fileno()), *modules],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            pass_fds=[theirs.fileno()],
            env=os.environ | ONE_THREAD | env,
        )
        theirs.close()

    def fork(self, program: str, arguments: Sequence[str], env: dict[str, str], descriptors: Sequence[int]) -> Child:
        """descriptors: its stdin, where it answers, its log."""
        asked = {"program": program, "arguments": list(arguments), "env": env}
        try:
            socket.send_fds(self._socket, [json.dumps(asked).encode()], list(descriptors))
        except OSError:
            self._fail()
        end_s = time.monotonic() + START_S
        while (told := self._told(end_s - time.monotonic())) is not None:
            if "pid" in told:
                return Child(self, told["pid"])
        raise AssertionError(f"no engine was forked in {START_S} s:\n{self._said()}")

    def code_of(self, pid: int, timeout_s: float) -> int | None:
        """Of a child that has ended; None: it has not, after `timeout_s`."""
        end_s = time.monotonic() + timeout_s
        while pid not in self._ended:
            if self._told(max(0.0, end_s - time.monotonic())) is None:
                return None
        return self._ended[pid]

    def close(self) -> None:
        """It ends. Its children end with their stdin."""
        self._socket.close()
        self._log.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _told(self, timeout_s: float) -> dict[str, Any] | None:
        self._socket.settimeout(max(timeout_s, 0.0) or 0.001)
        try:
            message = self._socket.recv(MESSAGE_BYTES)
        except TimeoutError:
            return None
        if not message:
            self._fail()
        told: dict[str, Any] = json.loads(message)
        if "ended" in told:
            self._ended[told["ended"]] = told["code"]
        return told

    def _fail(self) -> None:
        raise AssertionError(f"the process that forks engines ended:\n{self._said()}")

    def _said(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-4000:]


_open: dict[tuple[str, tuple[tuple[str, str], ...]], Nursery] = {}


def nursery(engine: str, interpreter: str, env: dict[str, str]) -> Nursery:
    """Of an engine's environment, with these variables. It stays for later tests."""
    key = engine, tuple(sorted(env.items()))
    if key not in _open:
        if not _open:
            atexit.register(_close_all)
        _open[key] = Nursery(interpreter, MODULES[engine], env)
    return _open[key]


def _close_all() -> None:
    while _open:
        _open.popitem()[1].close()
