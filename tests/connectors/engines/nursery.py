"""Engines that are forked from a process which has imported them: to import one takes longer than to start it.

    python nursery.py SOCKET MODULE...

Imports the modules, then answers on the inherited SOCKET, a line of JSON each:
{"program": name of a module here, "arguments": [...], "env": {...}} with descriptors of stdin, of answers, and of a log
    -> {"pid": N}: the program runs in a child, its answers' descriptor in $ANSWERS
and says {"ended": pid, "code": exit status, negative for a signal} of each child. It ends with the socket.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

MESSAGE_BYTES = 1 << 20
Child = Callable[[], None]


def become(asked: dict[str, Any], descriptors: list[int]) -> Child:
    """What a child does."""
    for target, descriptor in zip((0, 2), (descriptors[0], descriptors[2]), strict=True):
        os.dup2(descriptor, target)
    os.dup2(2, 1)
    sys.stdin = os.fdopen(0, closefd=False)
    os.environ |= asked["env"] | {"ANSWERS": str(descriptors[1])}
    sys.argv = [asked["program"], *asked["arguments"]]
    return lambda: importlib.import_module(asked["program"]).main()


def reaped(ours: socket.socket) -> None:
    """Says which children have ended."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        ours.send(json.dumps({"ended": pid, "code": os.waitstatus_to_exitcode(status)}).encode())


def serve(ours: socket.socket) -> Child | None:
    """Returns in each child, with what it does, and in the parent once nobody asks any more."""
    woken, waking = os.pipe()
    os.set_blocking(waking, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
    while True:
        ready, _, _ = select.select([ours, woken], [], [])
        if woken in ready:
            os.read(woken, 4096)
            reaped(ours)
        if ours not in ready:
            continue
        message, descriptors, _, _ = socket.recv_fds(ours, MESSAGE_BYTES, 3)
        if not message:
            return None
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for one in (woken, waking):
                os.close(one)
            ours.close()
            return become(json.loads(message), descriptors)
        for one in descriptors:
            os.close(one)
        ours.send(json.dumps({"pid": pid}).encode())


def main() -> None:
    """As the command line says."""
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    for name in sys.argv[2:]:
        importlib.import_module(name)
    child = serve(socket.socket(fileno=int(sys.argv[1])))
    if child is not None:
        child()


if __name__ == "__main__":
    main()
