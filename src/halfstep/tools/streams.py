"""The process's standard streams: there from the start, able to say anything, and no reason for a trace.

Invariants: descriptors 0, 1 and 2 are open before a command opens anything: else its first file or socket gets one of these
numbers, and what is printed with it. What the encoding of a stream cannot say is escaped. What stderr does not take is lost.
What stdout does not take is an error of the command, because somebody asked for it.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from contextlib import suppress
from typing import Any, BinaryIO

import click

# What a stream may raise while it is written or flushed: the kernel's refusal, or that somebody closed the object.
_REFUSALS = (OSError, ValueError)


def open_standard() -> None:
    """Opens /dev/null for what was closed when the process began, and has both outputs escape what they cannot say."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            # The lowest free number is this one, as those below it are open.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            number = ("stdin", "stdout", "stderr").index(name)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 -- a descriptor
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with suppress(*_REFUSALS):
                stream.reconfigure(errors="backslashreplace")


def say(text: object = "", *, err: bool = False, end: str = "\n") -> None:
    """Writes to stdout or, with `err`, to stderr, at once.

    Errors: OSError where stdout refuses it. What stderr refuses is lost.
    """
    # The stream by name: click would take an ASCII one for a mistake and write UTF-8 all the same.
    if not err:
        click.echo(f"{text}{end}", nl=False, file=sys.stdout)
        return
    with suppress(*_REFUSALS):
        click.echo(f"{text}{end}", nl=False, file=sys.stderr)


def write_bytes(value: Any) -> None:
    """Bytes to stdout, all of them. Errors: OSError."""
    sys.stdout.buffer.write(value)
    sys.stdout.buffer.flush()


def read_blocking() -> BinaryIO:
    """Standard input as bytes. One that somebody made non-blocking would look as if it had ended wherever it pauses."""
    stream = sys.stdin.buffer
    with suppress(*_REFUSALS):
        os.set_blocking(stream.fileno(), True)
    return stream


def flush_standard() -> OSError | None:
    """What is still on its way to stdout and stderr goes out; what stdout refused, if it did.

    A stream that refuses is led to /dev/null, for the interpreter flushes once more when it ends, and would speak of it.
    """
    refused: OSError | None = None
    for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
        try:
            stream.flush()
        except ValueError:  # somebody closed it
            continue
        except OSError as error:
            if number == 1:
                refused = error
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, number)
            os.close(null)
    return refused
