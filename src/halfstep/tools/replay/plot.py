"""Hit ratio over capacity, as a picture."""

from __future__ import annotations

from pathlib import Path

from halfstep.daemon.units import format_bytes
from halfstep.tools.picture import save_picture
from halfstep.tools.replay.report import Report
from halfstep.tools.replay.run import Result


def _plain_share(result: Result, unique_blocks: int) -> float:
    """The capacity in plain blocks, so that coded ones stand above them."""
    return 100 * result.capacity_blocks / result.block.flash_ratio / unique_blocks


def plot(report: Report, path: Path) -> None:
    """One line a policy; yardsticks dashed; what of a store's hits came from memory dotted."""
    # Without pyplot: no display, no state of the process.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    unique = report.trace.unique_blocks
    for policy, block in dict.fromkeys((result.policy, result.block) for result in report.results):
        results = [result for result in report.results if (result.policy, result.block) == (policy, block)]
        points = sorted((_plain_share(result, unique), result.hit_ratio) for result in results)
        style = "o-" if results[0].is_store else "x--"
        label = f"{policy}, codec {block.ratio:g}" if block.coded else policy
        [line] = axes.plot([share for share, _ in points], [ratio for _, ratio in points], style, label=label)
        if report.plan.dram_bytes and results[0].is_store:
            in_dram = sorted((_plain_share(result, unique), result.hit_ratio_dram) for result in results)
            label = f"{label}, from {format_bytes(report.plan.dram_bytes)} of dram"
            axes.plot([x for x, _ in in_dram], [y for _, y in in_dram], "o:", color=line.get_color(), label=label)
    axes.axhline(report.trace.hit_ratio_max, color="grey", linewidth=0.8, linestyle=":", label="without eviction")
    axes.set_xscale("log")
    axes.set_xlabel("capacity, % of the trace's unique blocks")
    axes.set_ylabel("prefix hit ratio")
    axes.set_ylim(bottom=0)
    axes.set_title(report.trace.name)
    shares = sorted({100 * result.capacity_blocks_asked / unique for result in report.results})
    axes.set_xticks(shares, [f"{share:.3g}" for share in shares])
    axes.minorticks_off()
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    save_picture(figure, path)
