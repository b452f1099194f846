"""Imports that Ctrl-C may fall into."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def signals_wait() -> Iterator[None]:
    """SIGINT and SIGTERM that come meanwhile count at the end of it.

    Code that runs when an extension module is imported may drop any exception, KeyboardInterrupt too (what Cython makes does,
    numpy.random for one): a command would go on as if nobody had pressed Ctrl-C.
    """
    if threading.current_thread() is not threading.main_thread():  # where no handler runs
        yield
        return
    came: list[int] = []
    # Not by a mask: a thread of some library that has none would get the signal, and this one's handler would run all the same.
    before = {
        number: signal.signal(number, lambda number, _frame: came.append(number)) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for once in dict.fromkeys(came):
            signal.raise_signal(once)
