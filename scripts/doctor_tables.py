"""Writes the tables of findings in docs/doctor.md from the descriptions of the rules (halfstep.doctor)."""

from __future__ import annotations

import re
from pathlib import Path

from halfstep.doctor.examine import AREAS
from halfstep.doctor.finding import Area

PAGE = Path(__file__).parents[1] / "docs" / "doctor.md"
_TABLE = re.compile(r"(?<=<!-- findings -->\n).*?(?=<!-- end of findings -->)", re.DOTALL)


def section(area: Area) -> str:
    """Title and table of an area."""
    head = [f"### {area.title}", "", "| id | severity | should be | why | remedy |", "|---|---|---|---|---|"]
    return "".join(f"{line}\n" for line in [*head, *(rule.row for rule in area.rules), ""])


def with_tables(page: str) -> str:
    """The page with its tables as the rules are now."""
    tables = "".join(section(area) for area in AREAS)
    return _TABLE.sub(lambda _found: f"\n{tables}", page)


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
