"""Child processes that end with their parent, even when it is killed."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

# Run with the number of its parent and a command: the command, which gets SIGTERM when that parent is gone.
# prctl(2): PR_SET_PDEATHSIG is 1. It is asked for here and not between fork and exec, where no Python may run safely.
_TOGETHER = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


def ending_with_us(command: Sequence[str]) -> list[str]:
    """`command`, a path and its arguments, for a child of this process: it gets SIGTERM when the thread that starts it ends."""
    return [sys.executable, "-P", "-c", _TOGETHER, str(os.getpid()), *command]
