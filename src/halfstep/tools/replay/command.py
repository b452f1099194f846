"""`halfstep replay`: options to a Plan, progress, tables."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from halfstep.tools.options import json_option, print_json, print_table

if TYPE_CHECKING:
    from halfstep.tools.replay.hints import HintName
    from halfstep.tools.replay.report import Report

EXIT_INTERRUPTED = 130


@click.command()
@click.argument("trace", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option(
    "--policy", default="seg-adapt10,leaf-lru", show_default=True, help="Policies of the list above, separated by commas."
)
@click.option(
    "--capacity",
    default="5%,10%,25%,50%",
    show_default=True,
    help="Shares of the trace's unique blocks, or 2000blocks, or 64GiB.",
)
@click.option("--block-bytes", default="64MiB", show_default=True, help="True size of the trace's blocks.")
@click.option(
    "--codec",
    "codec_ratio",
    default=1.0,
    metavar="RATIO",
    help="Replay also with blocks so many times smaller.  [default: no codec]",
)
@click.option("--dram", default="0", show_default=True, help="Bytes of memory before each store's flash.")
@click.option("--segments", default=128, show_default=True, help="Segments of each store, at least.")
@click.option(
    "--rewrite-share", default=0.1, show_default=True, help="Share of the requests' writes that seg-adapt10 may write again."
)
@click.option(
    "--store",
    default="memory",
    show_default=True,
    help="Place of the store: memory, or the path of a file that the replay makes and removes.",
)
@click.option(
    "--clock",
    type=click.Choice(["simulated", "real"]),
    default="simulated",
    show_default=True,
    help="simulated: the trace's time, as fast as it goes. real: requests wait for their time.",
)
@click.option("--speed", default=1.0, show_default=True, help="How many times faster than the trace the real clock goes.")
@click.option(
    "--parents",
    type=click.Choice(["given", "withheld"]),
    default="given",
    show_default=True,
    help="Whether the store is told which block each one follows.",
)
@click.option("--hints", default="", metavar="final", help="What the stores are told of blocks, as the whole trace tells it.")
@click.option("--limit", default=0, help="Replay only so many requests.  [default: all]")
@click.option("--seed", default=1, show_default=True, help="Seed of the blocks' bytes.")
@click.option(
    "--plot", "picture", type=click.Path(path_type=Path), help="Draw hit ratio over capacity into a .png or .svg file."
)
@json_option
def replay(
    trace: Path,
    policy: str,
    capacity: str,
    block_bytes: str,
    codec_ratio: float,
    dram: str,
    segments: int,
    rewrite_share: float,
    store: str,
    clock: str,
    speed: float,
    parents: str,
    hints: str,
    limit: int,
    seed: int,
    picture: Path | None,
    as_json: bool,
) -> None:
    """Replay a trace of requests against the real store, without a daemon, and report its hits.

    TRACE is a Mooncake trace or one in Halfstep's own format, JSON Lines, .zst too (docs/replay.md). Each policy starts with an
    empty store at each capacity. Blocks are stored small, but as many as the true ones would be; what is read is verified.

    \b
    The store's own:
      seg-adapt10  keeps what was touched of late, as far as --rewrite-share
                   goes: what `serve` does
      seg-low      keeps what was touched, whatever it costs
      seg-fifo     the oldest segment goes, with all that is in it
    Its memory alone:
      dram         the policy of the memory before flash, as if there were
                   nothing behind it
    Yardsticks, which evict single blocks in place:
      leaf-lru     a radix tree's: only leaves go, the one whose request is
                   longest ago first
      lru, fifo    blocks on their own, root first
      hazard       the three-class model of reuse
      min          knows the future: the bound

    \b
    How good is it here?
      halfstep replay conversation.jsonl.zst --plot hits.svg
    What memory adds
      halfstep replay trace.jsonl --dram 512GiB
    Against the bound
      halfstep replay trace.jsonl --policy seg-adapt10,min --capacity 1%,5%
    What compression adds (the ratio: halfstep compress analyse)
      halfstep replay trace.jsonl --codec 1.48
    What an application's word of last turns is worth
      halfstep replay trace.jsonl --capacity 10% --hints final
    For a program
      halfstep replay trace.jsonl --json | jq '.results[] | {policy, hit_ratio}'

    Ctrl-C prints what is complete. Exit status 1 when a block came back wrong.
    """  # noqa: D301
    from halfstep.daemon.units import parse_bytes
    from halfstep.tools.picture import check_picture
    from halfstep.tools.replay.plan import Capacity, Plan
    from halfstep.tools.replay.plot import plot
    from halfstep.tools.replay.report import Report
    from halfstep.tools.replay.run import run
    from halfstep.tools.replay.trace import load

    plan = Plan(
        trace=trace,
        policies=tuple(dict.fromkeys(name.strip() for name in policy.split(",") if name.strip())),
        capacities=tuple(dict.fromkeys(Capacity.parse(text) for text in capacity.split(",") if text.strip())),
        block_bytes=parse_bytes(block_bytes, "block_bytes"),
        dram_bytes=parse_bytes(dram, "dram"),
        segments=segments,
        rewrite_share=rewrite_share,
        codec_ratio=codec_ratio,
        store=None if store == "memory" else Path(store),
        real_clock=clock == "real",
        speed=speed,
        tell_parents=parents == "given",
        hints=cast("tuple[HintName, ...]", tuple(dict.fromkeys(name.strip() for name in hints.split(",") if name.strip()))),
        limit=limit,
        seed=seed,
    ).validated()
    if picture is not None:
        check_picture(picture)
    report = Report(plan, load(trace, limit))
    total = plan.results * report.trace.requests
    try:
        with _progress(total) as tell:
            for result in run(plan, report.trace, tell):
                report.results.append(result)
    except KeyboardInterrupt:
        report.interrupted = True
    if picture is not None and report.results:
        plot(report, picture)
    if as_json:
        print_json(report.as_json())
    else:
        _print_tables(report)
    if report.interrupted:
        raise SystemExit(EXIT_INTERRUPTED)
    if not report.sound:
        raise SystemExit(1)


def _print_tables(report: Report) -> None:
    if report.results:
        print_table(report.columns(), report.rows())
    if any(result.is_store for result in report.results):
        print_table(report.write_columns(), report.write_rows())
    for remark in report.remarks():
        click.echo(remark)


@contextmanager
def _progress(requests: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr, at a terminal only. Yields a function that is told of more requests."""
    if not sys.stderr.isatty():
        yield lambda _more_requests: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("requests", total=requests)
        yield lambda more_requests: bar.advance(task, more_requests)
