"""Throughput and latency over block size and depth, as a picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from halfstep.daemon.units import format_bytes
from halfstep.tools.bench.report import Report, Result
from halfstep.tools.picture import save_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# p50 to p99.9 of one line: the same colour, fainter.
_PERCENTILES = (("p50", "o-", 1.0), ("p99", "s--", 0.7), ("p999", "^:", 0.5))

Point = Callable[[Result], float]


class _Side(NamedTuple):
    """at: the value that is drawn over. apart: what tells lines of one scenario apart there."""

    title: str
    at: Point
    apart: Callable[[Result], str]


def _size_of(result: Result) -> float:
    return float(result.block_bytes)


def _depth_of(result: Result) -> float:
    return float(result.iodepth)


def plot(reports: Sequence[tuple[str, Report]], path: Path) -> None:
    """Above the throughput with its limit, below the latencies; on the left over block size, on the right over depth.

    `reports`: each with what its lines' names begin with. A side is left out where there is one value alone to draw over.
    """
    # Without pyplot: no display, no state of the process.
    from matplotlib.figure import Figure

    results = [(prefix, result) for prefix, report in reports for result in report.results]
    sides: list[_Side] = []
    if len({result.iodepth for _, result in results}) > 1:
        sides.append(_Side("iodepth", _depth_of, lambda result: format_bytes(result.block_bytes)))
    if len({result.block_bytes for _, result in results}) > 1 or not sides:
        sides.insert(0, _Side("block size", _size_of, lambda result: f"depth {result.iodepth}"))
    figure = Figure(figsize=(7 * len(sides), 8), layout="constrained")
    axes = figure.subplots(2, len(sides), squeeze=False)
    for column, side in enumerate(sides):
        lines: dict[str, list[Result]] = {}
        for prefix, result in results:
            lines.setdefault(f"{prefix}{result.name}, {side.apart(result)}", []).append(result)
        _throughput(axes[0][column], lines, side.at)
        _latencies(axes[1][column], lines, side.at)
        for one in axes[:, column]:
            _scale(one, side.title, sorted({side.at(result) for _, result in results}))
    save_picture(figure, path)


def _throughput(axes: Axes, lines: dict[str, list[Result]], at: Point) -> None:
    for label, line in lines.items():
        points = sorted((at(result), result.run.as_json()) for result in line if result.run.bytes_per_s is not None)
        if not points:
            continue  # a match moves no bytes
        drawn = axes.plot([x for x, _ in points], [run["gigabytes_per_s"] for _, run in points], "o-", label=label)
        limits = [(x, run["limit_gigabytes_per_s"]) for x, run in points if run["limit_gigabytes_per_s"] is not None]
        axes.plot([x for x, _ in limits], [limit for _, limit in limits], ":", color=drawn[0].get_color())
    axes.set_ylabel("GB/s (dotted: the limit)")
    axes.set_ylim(bottom=0)


def _latencies(axes: Axes, lines: dict[str, list[Result]], at: Point) -> None:
    for label, line in lines.items():
        ordered = sorted(line, key=at)
        colour: Any = None
        for name, style, alpha in _PERCENTILES:
            values = [result.run.as_json()["latency_us"][name] for result in ordered]
            drawn = axes.plot(
                [at(result) for result in ordered],
                values,
                style,
                color=colour,
                alpha=alpha,
                label=label if colour is None else None,
            )
            colour = drawn[0].get_color()
    axes.set_yscale("log")
    axes.set_ylabel("us a batch call: p50, p99 (dashed), p99.9 (dotted)")


def _scale(axes: Axes, title: str, values: Sequence[float]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xlabel(title)
    axes.set_xticks(values, [format_bytes(value) if title == "block size" else f"{value:.0f}" for value in values])
    axes.minorticks_off()
    axes.grid(visible=True, alpha=0.3)
    if axes.has_data():
        axes.legend(fontsize="small")
