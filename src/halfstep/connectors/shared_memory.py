"""Shared memory of engines that died: swept by the next one, and by nobody while its engine lives.

An engine's host memory is a file in /dev/shm, which stays when the engine is killed. Beside it lies a file of ours that
the engine's process keeps locked; the kernel lets go of the lock with the process, whatever ended it. Who finds one unlocked
removes both. A lock tells that across containers that share /dev/shm, where a process number would not.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

FOLDER = Path("/dev/shm")  # noqa: S108  where engines put it
SUFFIX = ".halfstep-owner"


class Owned:
    """Says that this process uses `name` in FOLDER, until close() or the process's end."""

    def __init__(self, name: str, folder: Path = FOLDER) -> None:
        self._mark = folder / (name + SUFFIX)
        self._descriptor = -1
        # Where it cannot be said, nothing is ever swept: no reason to refuse an engine.
        with contextlib.suppress(OSError):
            # Locked before it has a name: whoever finds one unlocked knows that its owner is dead, and a process that is killed
            # in between leaves nothing.
            self._descriptor = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(FileNotFoundError):
                self._mark.unlink()  # of an engine of this name that died
            there = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                # Only with a folder's descriptor does it follow the link to what is behind the number.
                os.link(f"/proc/self/fd/{self._descriptor}", self._mark.name, dst_dir_fd=there, follow_symlinks=True)
            finally:
                os.close(there)

    def close(self) -> None:
        """It is let go in order: what it marks is its engine's to remove. Idempotent."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                self._mark.unlink()
            os.close(self._descriptor)
            self._descriptor = -1


def sweep(folder: Path = FOLDER) -> list[str]:
    """Removes what dead processes of this user have marked. Returns the names."""
    swept = []
    for mark in folder.glob("*" + SUFFIX):
        name = mark.name.removesuffix(SUFFIX)
        try:
            descriptor = os.open(mark, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:  # another user's, or gone
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A mark that was made anew since it was opened has another owner.
            if os.fstat(descriptor).st_nlink == 0:
                continue
            with contextlib.suppress(FileNotFoundError):
                (folder / name).unlink()
                swept.append(name)
            mark.unlink()
        except OSError:
            continue  # it lives
        finally:
            os.close(descriptor)
    return swept
