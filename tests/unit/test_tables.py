"""Tables for people: a cell is shown as it is, whatever stands in it."""

from __future__ import annotations

import pytest

from halfstep.tools.options import print_table

CELLS = ["pip install 'halfstep[doctor]'", "[bold]", "a[/b]", ":warning:", "[link=x]key[/link]", "\\[x]"]


@pytest.mark.parametrize("cell", CELLS)
def test_a_cell_in_brackets_is_shown_whole(cell: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["what", ("value", "right")], [(cell, 1), ("other", cell)])
    assert capsys.readouterr().out.count(cell) == 2
