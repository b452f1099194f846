"""SGLang's kernels for CPUs are in no package: names to import, none to call. SGLang goes on with torch's own operators."""

from __future__ import annotations

from typing import Any

__version__ = "0.0.0"


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*_: Any, **__: Any) -> None:
        raise NotImplementedError(f"sgl_kernel.{name}: there are no kernels for CPUs here")

    absent.__name__ = name
    return absent
