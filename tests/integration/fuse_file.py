"""A FUSE file system of one file, served by this script until its mount is gone: `fuse_file.py FILE MOUNTPOINT`.

The file at MOUNTPOINT has FILE's name and bytes. Stopped with SIGSTOP, it is a server that does not answer. Needs root.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import sys
from pathlib import Path

LOOKUP, FORGET, GETATTR, SETATTR, OPEN, READ, WRITE, STATFS, RELEASE, FSYNC, FLUSH, INIT = (
    1,
    2,
    3,
    4,
    14,
    15,
    16,
    17,
    18,
    20,
    25,
    26,
)
ACCESS, INTERRUPT, DESTROY, BATCH_FORGET = 34, 36, 38, 42
UNANSWERED = (FORGET, INTERRUPT, DESTROY, BATCH_FORGET)
IN_HEADER, OUT_HEADER = struct.Struct("<IIQQIIIHH"), struct.Struct("<IiQ")
TRANSFER = struct.Struct("<QQIIQII")  # fuse_read_in, fuse_write_in
BIG_WRITES, MAX_PAGES = 1 << 5, 1 << 22
ROOT, FILE = 1, 2
VALID_S = 3600
LARGEST = 1 << 20


class OneFile:
    """What the kernel asks of it. `path` is the file behind it."""

    def __init__(self, path: str) -> None:
        self.file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self.name = Path(path).name.encode()

    def attributes(self, node: int) -> bytes:
        about = os.fstat(self.file)
        mode, size = (stat.S_IFDIR | 0o755, 4096) if node == ROOT else (stat.S_IFREG | 0o600, about.st_size)
        return struct.pack("<6Q10I", node, size, size // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)

    def answer(self, opcode: int, node: int, body: bytes) -> bytes:
        """The answer's body. Errors: OSError."""
        if opcode == INIT:
            # No asynchronous reads, as of plain servers: whoever hands a request over waits for its answer.
            flags = BIG_WRITES | MAX_PAGES
            return struct.pack("<IIIIHHIIHHI7I", 7, 31, LARGEST, flags, 64, 48, LARGEST, 1, LARGEST // 4096, 0, 0, *[0] * 7)
        if opcode == LOOKUP:
            if body.rstrip(b"\0") != self.name:
                raise OSError(errno.ENOENT, "no such file")
            return struct.pack("<QQQQII", FILE, 0, VALID_S, VALID_S, 0, 0) + self.attributes(FILE)
        if opcode in (GETATTR, SETATTR):
            return struct.pack("<QII", VALID_S, 0, 0) + self.attributes(node)
        if opcode == OPEN:
            return struct.pack("<QII", 1, 0, 0)
        if opcode == READ:
            _, offset, size, *_ = TRANSFER.unpack_from(body)
            return os.pread(self.file, size, offset)
        if opcode == WRITE:
            _, offset, size, *_ = TRANSFER.unpack_from(body)
            return struct.pack("<II", os.pwrite(self.file, body[TRANSFER.size : TRANSFER.size + size], offset), 0)
        if opcode == STATFS:
            return struct.pack("<5Q4I6I", 1 << 20, 1 << 20, 1 << 20, 9, 9, 4096, 255, 4096, 0, *[0] * 6)
        if opcode in (RELEASE, FLUSH, ACCESS, FSYNC):
            if opcode == FSYNC:
                os.fdatasync(self.file)
            return b""
        raise OSError(errno.ENOSYS, "not served")


def main(path: str, mountpoint: str) -> None:
    """Mounts, says so on stdout, and serves."""
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    if libc.mount(b"halfstep-test", os.fsencode(mountpoint), b"fuse", 0, options) != 0:
        sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")
    print("mounted", flush=True)
    one = OneFile(path)
    while True:
        try:
            request = os.read(device, LARGEST + 8192)
        except OSError as error:
            if error.errno == errno.ENODEV:  # unmounted
                return
            if error.errno in (errno.EINTR, errno.ENOENT):
                continue
            raise
        _, opcode, unique, node, *_ = IN_HEADER.unpack_from(request)
        if opcode in UNANSWERED:
            continue
        code, body = 0, b""
        try:
            body = one.answer(opcode, node, request[IN_HEADER.size :])
        except OSError as error:
            code = -(error.errno or errno.EIO)
        os.write(device, OUT_HEADER.pack(OUT_HEADER.size + len(body), code, unique) + body)


if __name__ == "__main__":
    main(*sys.argv[1:])
