"""Writes the tables of options in docs/configure.md from the descriptions of the settings (halfstep.daemon.config)."""

from __future__ import annotations

import re
from pathlib import Path

from halfstep.daemon.config import SETTINGS
from halfstep.daemon.mount_config import MOUNT_SETTINGS
from halfstep.daemon.setting import table

# What a mount shares with `serve` is described there.
DESCRIBED = (*SETTINGS, *(one for one in MOUNT_SETTINGS if one.section == "mount"))
PAGE = Path(__file__).parents[1] / "docs" / "configure.md"
_TABLE = re.compile(r"(?<=<!-- settings: )([a-z]+) -->\n.*?(?=<!-- end of settings -->)", re.DOTALL)


def with_tables(page: str) -> str:
    """The page with its tables as the settings are now."""
    return _TABLE.sub(lambda found: f"{found[1]} -->\n\n{table(DESCRIBED, found[1])}\n", page)


def sections(page: str) -> list[str]:
    """Whose tables are on the page."""
    return [found[1] for found in _TABLE.finditer(page)]


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
