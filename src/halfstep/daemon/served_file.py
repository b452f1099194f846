"""The store's file while it is served: whether its path still leads to it.

A file that is removed or replaced goes on being written by the daemon that has it open, and is gone with it.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path


class ServedFile:
    """The file or device that `path` leads to now. One that cannot be looked at is never said to be gone."""

    def __init__(self, path: Path) -> None:
        self._path = Path(path)
        try:
            # A handle alone: it neither reads nor takes part in locks, but it keeps the number of the file from another one.
            self._handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            self._handle = -1

    def why_gone(self) -> str:
        """What became of the file; empty while its path leads to it."""
        if self._handle < 0:
            return ""
        try:
            ours = os.fstat(self._handle)
            there = self._path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return f"{self._path} was removed" if ours.st_nlink == 0 else f"{self._path} was moved away"
        except OSError:
            return ""
        return "" if _same(ours, there) else f"{self._path} was replaced by another file"

    def close(self) -> None:
        """No more questions."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def _same(one: os.stat_result, other: os.stat_result) -> bool:
    if stat.S_ISBLK(one.st_mode):  # its node may be made anew
        return stat.S_ISBLK(other.st_mode) and one.st_rdev == other.st_rdev
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
