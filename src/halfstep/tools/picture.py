"""Figures that commands write to a file. matplotlib is looked for only when one is asked for."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from halfstep.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg")


def check_picture(path: Path, option: str = "plot") -> None:
    """Before hours are spent on what cannot be drawn. option: that named the file. Errors: ConfigError with the remedy."""
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{option}={path}: must end in {' or '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise ConfigError(f"{option}={path}: there is no folder {path.parent}")
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(f"{option}={path}: matplotlib is not installed; in the checkout of Halfstep: pip install '.[plot]'")


def save_picture(figure: Figure, path: Path, option: str = "plot") -> None:
    """The picture of the same results is the same, byte for byte. Errors: ConfigError."""
    try:
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    except OSError as error:
        raise ConfigError(f"{option}={path}: {error.strerror or error}") from None
