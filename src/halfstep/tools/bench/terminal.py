"""A benchmark's terminal: the command line, progress, and its end by a signal."""

from __future__ import annotations

import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol


class Tell(Protocol):
    """Says what is being done. steps: how many of those that were announced begin with it; 0 = news of the present one."""

    def __call__(self, text: str, steps: int = 1, /) -> None:
        """On stderr, at a terminal."""
        ...


def asked() -> str:
    """The command line, as a shell takes it."""
    return shlex.join(["halfstep", *sys.argv[1:]])


@contextmanager
def progress(steps: int) -> Iterator[Tell]:
    """What is being done, on a terminal only. Drawn between runs: a thread that draws would be measured, too."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _text, _steps=1: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, auto_refresh=False, transient=True) as bar:
        task = bar.add_task("", total=steps)

        def tell(text: str, steps: int = 1) -> None:
            bar.update(task, description=text, advance=steps)
            bar.refresh()

        yield tell


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM cleans up as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
