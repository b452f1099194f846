"""`halfstep bench`: flags to a Plan, progress, and the table."""

from __future__ import annotations

import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import click

from halfstep.tools.options import json_option, print_json, print_table


@click.command()
@click.argument("url", default="")
@click.option(
    "--rw", default="get,cold", show_default=True, help="What to measure, comma between: get, cold, put, mixed, match."
)
@click.option("--block", default="1MiB", show_default=True, help="Block sizes, comma between, e.g. 4KiB,64KiB,1MiB.")
@click.option("--batch", default=16, show_default=True, help="Blocks in one call.")
@click.option("--connections", default=1, show_default=True, help="Data connections of the client; also of the raw stream.")
@click.option("--in-flight", default=1, show_default=True, help="Batches at the client at once.")
@click.option("--read-share", default=0.7, show_default=True, help="Of the batches of `mixed`, those that are gets.")
@click.option("--durability", type=click.Choice(["cache", "persist"]), default="cache", show_default=True, help="Of puts.")
@click.option("--seconds", default=3.0, show_default=True, help="Of one timed run.")
@click.option("--repeat", default=3, show_default=True, help="Runs of each; the one with the median ratio is shown.")
@click.option("--hot-set", default="64MiB", show_default=True, help="What get, mixed and match ask for.")
@click.option("--cold-set", default="", help="What cold walks through.  [default: twice the daemon's memory for blocks]")
@click.option("--seed", default=1, show_default=True, help="Of the blocks' bytes and of the order.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=Path(),
    help="Where its own daemon's store goes: the drive to be measured.  [default: the temporary directory]",
)
@click.option("--arena", default="256MiB", show_default=True, help="Its own daemon's memory for blocks.")
@click.option(
    "--engine", type=click.Choice(["auto", "uring", "pread"]), default="auto", show_default=True, help="Its own daemon's."
)
@click.option("--pin/--no-pin", default=True, show_default=True, help="Daemon and client on a core each.")
@json_option
def bench(
    url: str,
    rw: str,
    block: str,
    batch: int,
    connections: int,
    in_flight: int,
    read_share: float,
    durability: str,
    seconds: float,
    repeat: int,
    hot_set: str,
    cold_set: str,
    seed: int,
    directory: Path,
    arena: str,
    engine: str,
    pin: bool,
    as_json: bool,
) -> None:
    """Measure a daemon, verify every block, and set the speed against what the machine can do.

    Without URL it starts a daemon of its own in a temporary directory and removes it. With one it works in a namespace of its
    own and removes that, but what it writes takes room: a daemon that serves others may evict their oldest blocks.

    \b
    get    blocks that are in the daemon's memory          limit: plain sockets, one process to another
    cold   blocks that are on flash alone                  limit: plain O_DIRECT reads of the same file
    put    blocks that were never there                    limit: plain sockets
    mixed  gets of the hot set among puts (--read-share)   limit: plain sockets
    match  presence, half of it absent                     no bytes move, so no limit

    Every limit is measured right before and after each timed run, as long as it, with the same block size, bytes in use,
    connections and congestion control; their mean counts. Read the ratio first: it holds on other machines, the speed does not.
    `cold` counts only if the daemon's engine and the block device say that they read the bytes.

    A block's bytes follow from its number. During a run one page of every block that comes is looked at, on top of the
    checksums that the client always verifies; afterwards whole blocks are compared.

    \b
    How near to the wire?           halfstep bench
    How fast is this drive?         halfstep bench --rw cold --directory /mnt/nvme --in-flight 4
    Small blocks, too               halfstep bench --rw get --block 4KiB,64KiB,1MiB --batch 64
    A daemon in service             halfstep bench halfstep://node7:7350 --rw get --seconds 1
    For a program                   halfstep bench --json | jq '.results[] | {name, ratio_to_limit}'

    Exit status 1 when a block was wrong or missing, or a scenario was refused.
    """  # noqa: D301
    from halfstep.daemon.config import parse_bytes
    from halfstep.tools.bench.measure import measure, steps_of
    from halfstep.tools.bench.plan import Plan

    plan = Plan(
        url=url,
        scenarios=tuple(name.strip() for name in rw.split(",")),
        block_bytes=tuple(parse_bytes(size, "block") for size in block.split(",")),
        batch=batch,
        connections=connections,
        in_flight=in_flight,
        read_share=read_share,
        durability=durability,
        seconds=seconds,
        repeat=repeat,
        seed=seed,
        hot_bytes=parse_bytes(hot_set, "hot_set"),
        cold_bytes=parse_bytes(cold_set, "cold_set") if cold_set else 0,
        directory=directory,
        arena_bytes=parse_bytes(arena, "arena"),
        engine=engine,
        pin=pin,
    ).validated()
    with _terminable(), _progress(steps_of(plan)) as tell:
        report = measure(plan, tell, shlex.join(["halfstep", *sys.argv[1:]]))
    if as_json:
        print_json(report.as_json())
    else:
        print_table(report.columns(), report.rows())
        for remark in report.remarks():
            click.echo(remark)
    if not report.sound:
        raise SystemExit(1)


@contextmanager
def _progress(steps: int) -> Iterator[Callable[[str], None]]:
    """What is being done, on a terminal only. Drawn between runs: a thread that draws would be measured, too."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _text: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, auto_refresh=False, transient=True) as progress:
        task = progress.add_task("", total=steps)

        def tell(text: str) -> None:
            progress.update(task, description=text, advance=1)
            progress.refresh()

        yield tell


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM cleans up as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
