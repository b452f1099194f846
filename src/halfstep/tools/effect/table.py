"""The report as tables."""

from __future__ import annotations

from collections.abc import Mapping

from halfstep.daemon.units import format_bytes
from halfstep.tools.effect.figures import (
    AHEAD_ROWS,
    CLIENT_ROWS,
    DAEMON_ROWS,
    Figure,
    Figures,
    daemon_figures,
)
from halfstep.tools.effect.report import STEP_FIGURES, Report
from halfstep.tools.effect.spans import time_text
from halfstep.tools.options import print_table
from halfstep.tools.streams import say

_STEP_TITLES = ("asked", "hit, req.", "hit, tok.", "not spent", "moved", "waited")


def print_report(report: Report, *, steps: bool) -> None:
    """steps: also a line for each step of time."""
    width = max(len(column.name) for column in report.columns)
    for column in report.columns:
        say(f"{column.name:<{width}}  {column.about()}")
    for namespace in report.namespaces:
        say(f"\n{namespace}")
        _print_figures(report, [column.figures(namespace) for column in report.columns], CLIENT_ROWS)
    daemons = [daemon_figures(column.span) for column in report.columns]
    if any(not isinstance(value, str) for figures in daemons for value in figures.values()):
        say("\nthe whole daemon")
        _print_figures(report, daemons, DAEMON_ROWS)
    if steps:
        _print_steps(report)
    for remark in [*report.sources(), *report.remarks]:
        say(remark)


def _print_figures(report: Report, figures: list[Figures], rows: Mapping[str, tuple[str, str]]) -> None:
    names = list(dict.fromkeys([*rows, *(name for some in figures for name in some if name not in rows)]))
    print_table(
        ["figure", *((column.name, "right") for column in report.columns)],
        [_row(name, AHEAD_ROWS.get(name, rows.get(name, (f"decisions: {name}", "count"))), figures) for name in names],
    )


def _row(name: str, about: tuple[str, str], figures: list[Figures]) -> list[str]:
    title, unit = about
    return [title, *(text_of(some.get(name, "not counted"), unit) for some in figures)]


def _print_steps(report: Report) -> None:
    for column in report.columns:
        say(f"\n{column.name}, over time, {report.namespaces[-1]}")
        units = [CLIENT_ROWS[name][1] for name in STEP_FIGURES]
        print_table(
            ["from", *((title, "right") for title in _STEP_TITLES)],
            [
                [time_text(start)[:16], *(_short(figures[name], unit) for name, unit in zip(STEP_FIGURES, units, strict=True))]
                for start, figures in column.steps()
            ],
        )


def text_of(value: Figure, unit: str) -> str:
    """With its unit; a reason as it is."""
    if isinstance(value, str):
        return value
    if unit == "ratio":
        return f"{100 * value:.1f} %"
    if unit == "bytes":
        return format_bytes(value)
    return f"{value:,.1f} s" if unit == "s" else f"{value:,.0f}"


def _short(value: Figure, unit: str) -> str:
    return "-" if isinstance(value, str) else text_of(value, unit)
