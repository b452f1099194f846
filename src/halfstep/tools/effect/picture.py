"""The report over time, as a picture: spans side by side, each from its own start."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from halfstep.tools.effect.figures import Figures
from halfstep.tools.effect.report import Column, Report
from halfstep.tools.picture import save_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class _Panel(NamedTuple):
    title: str
    figures: tuple[str, ...]
    scale: float


_RATIOS = _Panel("hit ratio, %", ("hit_ratio_requests", "hit_ratio_tokens"), 100)
_TIMES = _Panel("seconds in a step", ("prefill_s_not_spent", "prefill_s_found", "wait_s"), 1)
_BYTES = _Panel("MB moved in a step", ("load_bytes",), 1e-6)
_LABELS = {
    "hit_ratio_requests": "by requests",
    "hit_ratio_tokens": "by tokens",
    "prefill_s_not_spent": "prefill not spent",
    "prefill_s_found": "prefill of what was found",
    "wait_s": "requests waited",
    "load_bytes": "for loads",
}
_STYLES = ("o-", "s--", "^:")


def plot(report: Report, path: Path) -> None:
    """Into a file. Errors: ConfigError."""
    save_picture(drawn(report), path, "picture")


def drawn(report: Report) -> Figure:
    """A column of panels for each span. What is not known at a time is a gap in its line."""
    # Without pyplot: no display, no state of the process.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5 * len(report.columns), 8), layout="constrained")
    # One scale for both spans, or they could not be compared.
    axes = figure.subplots(3, len(report.columns), squeeze=False, sharey="row")
    for number, column in enumerate(report.columns):
        steps = column.steps()
        for one, panel in zip(axes[:, number], (_RATIOS, _TIMES, _BYTES), strict=True):
            _draw(one, panel, column, steps)
        axes[0][number].set_title(f"{column.name}: {column.about()}", fontsize="small", wrap=True)
        axes[2][number].set_xlabel("hours from the span's start")
    # Once all lines are there: a limit that is set ends the search for the other one.
    axes[0][0].set_ylim(0, 100)
    for row in axes[1:]:
        row[0].set_ylim(bottom=0)
    return figure


def _draw(axes: Axes, panel: _Panel, column: Column, steps: list[tuple[float, Figures]]) -> None:
    # A step's figures are of its whole length, and stand at its middle.
    hours = [(start + column.step_s / 2 - column.span.from_s) / 3600 for start, _ in steps]
    for style, name in zip(_STYLES, panel.figures, strict=False):
        values = [figures[name] for _, figures in steps]
        numbers = [float("nan") if isinstance(value, str) else value * panel.scale for value in values]
        if any(number == number for number in numbers):
            axes.plot(hours, numbers, style, label=_LABELS[name], markersize=4)
    axes.set_ylabel(panel.title)
    axes.grid(visible=True, alpha=0.3)
    if axes.has_data():
        axes.legend(fontsize="small")
