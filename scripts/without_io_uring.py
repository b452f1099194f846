#!/usr/bin/env python3
"""Runs a command with io_uring refused, as default container profiles refuse it: `without_io_uring.py make test`.

A seccomp filter answers EPERM to the three io_uring calls, in the command and in everything that it starts. No privilege is
needed: the process gives up gaining any.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys

# linux/prctl.h, linux/seccomp.h, linux/filter.h
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
RET_ALLOW, RET_ERRNO = 0x7FFF0000, 0x00050000
LOAD_WORD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
# The same numbers on every architecture: asm-generic/unistd.h.
IO_URING_CALLS = (425, 426, 427)


class SockFprog(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def filter_program() -> bytes:
    """Loads the call's number, and answers EPERM when it is one of the three."""
    refused = len(IO_URING_CALLS)
    program = [struct.pack("<HBBI", LOAD_WORD, 0, 0, 0)]
    program += [struct.pack("<HBBI", JUMP_IF_EQUAL, refused - i, 0, call) for i, call in enumerate(IO_URING_CALLS)]
    program += [struct.pack("<HBBI", RETURN, 0, 0, RET_ALLOW), struct.pack("<HBBI", RETURN, 0, 0, RET_ERRNO | errno.EPERM)]
    return b"".join(program)


def refuse_io_uring() -> None:
    """Installs the filter for this process and its children. Errors: OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    program = filter_program()
    code = SockFprog(len(program) // 8, program)
    for arguments in ((PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(code), 0, 0)):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), f"prctl({arguments[0]}): {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: without_io_uring.py COMMAND [ARGUMENT ...]")
    refuse_io_uring()
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606 - running the command is the point
