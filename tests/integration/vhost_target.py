"""A vhost-user-blk target for tests: qemu-storage-daemon over an image, and the blocks that are stored on it."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

PATIENCE_S = 60
IMAGE_BYTES = 160 << 20
BLOCK_BYTES = 50_000


QUEUES = 4  # as many shards as regions of memory allow


class Target:
    """A qemu-storage-daemon that exports an image at a socket; killed and started again."""

    def __init__(self, directory: Path, program: str, size: int = IMAGE_BYTES) -> None:
        self.image, self.socket = directory / "image", directory / "target.sock"
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None
        with self.image.open("wb") as file:
            file.truncate(size)
        self.start()

    @property
    def store(self) -> str:
        """As `--store` takes it."""
        return f"vhost-user:{self.socket}"

    def start(self) -> None:
        """Until it listens: its predecessor's socket is gone before."""
        self.socket.unlink(missing_ok=True)
        self._process = subprocess.Popen(
            [
                self._program,
                *("--blockdev", f"driver=file,node-name=f0,filename={self.image}"),
                *("--blockdev", "driver=raw,node-name=d0,file=f0"),
                "--export",
                f"type=vhost-user-blk,id=e0,node-name=d0,addr.type=unix,addr.path={self.socket},writable=on,num-queues={QUEUES}",
            ]
        )
        until = time.monotonic() + PATIENCE_S
        while not self.socket.exists():
            assert self._process.poll() is None, "qemu-storage-daemon ended"
            assert time.monotonic() < until, "qemu-storage-daemon does not listen"
            time.sleep(0.02)

    @property
    def pid(self) -> int:
        """Of the process that serves it now."""
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """With whatever it has in hand."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(PATIENCE_S)


def block_of(number: int) -> npt.NDArray[np.uint8]:
    """The content of block `number`: nobody else's."""
    return np.random.default_rng(number).integers(0, 256, BLOCK_BYTES, dtype=np.uint8)
