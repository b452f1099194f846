"""What a connector of ours has counted, where a test can read it: in files, since it is in a process of the engine's."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

_lock = threading.Lock()


def tell_after(connector: type, hooks: tuple[str, ...], told: Callable[[Any], dict[str, Any]], path: Path) -> None:
    """From now on `told` of a connector of that class is in the file after each of its hooks."""
    for name in hooks:
        setattr(connector, name, _telling(getattr(connector, name), told, path))


def _telling(hook: Callable[..., Any], told: Callable[[Any], dict[str, Any]], path: Path) -> Callable[..., Any]:
    @functools.wraps(hook)
    def telling(connector: Any, *arguments: Any, **named: Any) -> Any:
        try:
            return hook(connector, *arguments, **named)
        finally:
            with _lock:
                written = path.with_suffix(".new")
                written.write_text(json.dumps(told(connector)))
                written.rename(path)

    return telling
