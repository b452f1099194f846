"""A bar of progress on stderr, for commands whose native call takes a while."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def bar(title: str) -> Iterator[Callable[[str, int, int], bool]]:
    """For a call's progress(step, done, total). Nothing is drawn where nobody watches."""
    if not sys.stderr.isatty():
        yield lambda _step, _done, _total: True  # called for Ctrl-C's sake
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as drawn:
        task = drawn.add_task(title)

        def progress(_step: str, done: int, total: int) -> bool:
            drawn.update(task, completed=done, total=total)
            return True

        yield progress
