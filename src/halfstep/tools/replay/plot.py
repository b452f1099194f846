"""Hit ratio over capacity, as a picture."""

from __future__ import annotations

from pathlib import Path

from halfstep.tools.picture import save_picture
from halfstep.tools.replay.report import Report


def plot(report: Report, path: Path) -> None:
    """One line a policy; yardsticks dashed."""
    # Without pyplot: no display, no state of the process.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    for policy in dict.fromkeys(result.policy for result in report.results):
        results = [result for result in report.results if result.policy == policy]
        points = sorted((100 * result.capacity_blocks / report.trace.unique_blocks, result.hit_ratio) for result in results)
        style = "o-" if results[0].is_store else "x--"
        axes.plot([share for share, _ in points], [ratio for _, ratio in points], style, label=policy)
    axes.axhline(report.trace.hit_ratio_max, color="grey", linewidth=0.8, linestyle=":", label="without eviction")
    axes.set_xscale("log")
    axes.set_xlabel("capacity, % of the trace's unique blocks")
    axes.set_ylabel("prefix hit ratio")
    axes.set_ylim(bottom=0)
    axes.set_title(report.trace.name)
    shares = sorted({100 * result.capacity_blocks_asked / report.trace.unique_blocks for result in report.results})
    axes.set_xticks(shares, [f"{share:.3g}" for share in shares])
    axes.minorticks_off()
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    save_picture(figure, path)
