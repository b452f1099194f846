"""Ratio, bound and errors of each plane, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from halfstep.compress.analysis import PlaneFigures
from halfstep.compress.errors import ErrorFigures
from halfstep.tools.picture import save_picture


def plot(planes: Sequence[PlaneFigures], errors: Sequence[ErrorFigures], title: str, path: Path) -> None:
    """One line a unit length over the planes, the bound dotted; below one a step, of the longest units, where there are."""
    # Without pyplot: no display, no state of the process.
    from matplotlib.figure import Figure

    labels = list(dict.fromkeys(one.plane for one in planes))
    figure = Figure(figsize=(max(8.0, 0.25 * len(labels)), 9 if errors else 5), layout="constrained")
    axes = figure.add_subplot(2 if errors else 1, 1, 1)
    for tokens, element in dict.fromkeys((one.unit_tokens, one.element) for one in planes):
        some = [one for one in planes if (one.unit_tokens, one.element) == (tokens, element)]
        name = f"{element}, units of {tokens} tokens" if tokens else f"{element}, units of parts"
        at = [labels.index(one.plane) for one in some]
        axes.plot(at, [one.ratio for one in some], "o-", label=name)
        if tokens == max(one.unit_tokens for one in planes if one.element == element):
            axes.plot(at, [one.bound for one in some], "_:", color="grey", label=f"{element}, bound")
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.set_xticks(range(len(labels)), labels, rotation=90 if len(labels) > 8 else 0, fontsize=8)
    axes.set_ylabel("ratio: raw bytes by stored ones")
    axes.set_title(title)
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    longest = [one for one in errors if one.unit_tokens == max(each.unit_tokens for each in errors)]
    if longest:
        below = figure.add_subplot(2, 1, 2)
        for step in sorted({one.step for one in longest}):
            of_step = [one for one in longest if one.step == step and one.plane in labels]
            at = [labels.index(one.plane) for one in of_step]
            below.plot(at, [one.error_share for one in of_step], "o-", label=f"step {step:g}")
        below.set_xticks(range(len(labels)), labels, rotation=90 if len(labels) > 8 else 0, fontsize=8)
        below.set_ylabel("error, root mean square, as a share of the values'")
        below.set_yscale("log")
        below.grid(visible=True, alpha=0.3)
        below.legend(fontsize=8)
    save_picture(figure, path, "picture")
