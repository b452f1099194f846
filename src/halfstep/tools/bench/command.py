"""`halfstep bench`: options to a Plan, progress, and the table. Its subcommands are in limits_command.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from halfstep.tools.bench.limits_command import device, wire
from halfstep.tools.bench.plan import DURABILITIES, ENGINES, TRANSPORTS
from halfstep.tools.bench.terminal import asked, progress, terminable
from halfstep.tools.imports import signals_wait
from halfstep.tools.options import json_option, print_json, print_table


class _BenchGroup(click.Group):
    """`halfstep bench device`, `halfstep bench wire`; everything else is about a daemon, and so needs no word."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """That of a subcommand's group where one is named, else that of `sweep`."""
        if args and args[0] in self.commands:
            return super().make_context(info_name, args, parent, **extra)
        return sweep.make_context(info_name, args, parent, **extra)


def _complete_url(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Subcommands stand where a URL may."""
    return [name for name in bench.commands if name.startswith(incomplete)]


@click.command("bench")
@click.argument("url", default="", shell_complete=_complete_url)
@click.option(
    "--rw",
    default="get,cold",
    show_default=True,
    help="Scenarios, separated by commas: get, cold, put, mixed, coldmixed, match, layerwise.",
)
@click.option(
    "--bs", default="1MiB", show_default=True, help="Block sizes, separated by commas, such as 4k,64k,1m (k, m, g are binary)."
)
@click.option("--batch", type=int, default=16, show_default=True, help="Blocks in one call.")
@click.option(
    "--iodepth",
    default="1",
    show_default=True,
    help="Batches at the client at once; several, separated by commas, are a sweep.",
)
@click.option(
    "--connections",
    type=int,
    default=1,
    show_default=True,
    help="Data connections of the client, and of the raw stream beside it.",
)
@click.option(
    "--rate",
    type=float,
    default=0.0,
    help="Calls a second of each client, at random moments.  [default: one after the other]",
)
@click.option("--numjobs", type=int, default=1, show_default=True, help="Clients that do the same at once, a process each.")
@click.option("--parts", type=int, default=32, show_default=True, help="Parts of a block of `layerwise`, one a layer.")
@click.option(
    "--rwmixread",
    type=int,
    default=70,
    show_default=True,
    help="Percentage of gets among the calls of `mixed` and `coldmixed`.",
)
@click.option(
    "--durability",
    type=click.Choice(DURABILITIES),
    default="cache",
    show_default=True,
    help="Acknowledge puts when they are readable (cache) or on media (persist).",
)
@click.option("--runtime", type=float, default=3.0, show_default=True, help="Seconds of one timed run.")
@click.option("--ramp", type=float, default=0.0, show_default=True, help="Seconds of untimed work before the first timed run.")
@click.option(
    "--repeat", type=int, default=3, show_default=True, help="Runs of each scenario. The one with the median ratio is shown."
)
@click.option(
    "--size", default="64MiB", show_default=True, help="Bytes of the set that get, layerwise, mixed and match ask for."
)
@click.option(
    "--cold-size",
    default="",
    help="Bytes of the set that cold and coldmixed walk through.  "
    "[default: 12 times the daemon's memory; six times --rwmixread of it]",
)
@click.option(
    "--latency-goal",
    default="",
    metavar="TIME",
    help="Name the fastest depth whose p99 is within this time, such as 500us or 2ms.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the blocks' bytes and of their order.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Directory of its own daemon's store, on the drive to be measured.  [default: the temporary directory]",
)
@click.option("--arena", default="256MiB", show_default=True, help="Memory for blocks of its own daemon.")
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    default="auto",
    show_default=True,
    help="Engine of its own daemon; noop: no drive, to measure the software alone.",
)
@click.option(
    "--transport",
    type=click.Choice(TRANSPORTS),
    default=TRANSPORTS[0],
    show_default=True,
    help="Path to its own daemon: loopback, shared memory, or RDMA. With rdma the daemon listens on the address of this "
    "machine's device, where others could reach it while it runs.",
)
@click.option("--pin/--no-pin", default=True, show_default=True, help="Bind daemon and client to a core each.")
@click.option(
    "--job",
    "job_file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Measure the jobs of a TOML file. Options of the command line hold for all of them.",
)
@click.option(
    "--plot",
    "picture",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Draw throughput and latency over block size and depth, .svg or .png.",
)
@json_option
def sweep(job_file: Path | None, picture: Path | None, as_json: bool, **options: Any) -> None:
    """Measure a daemon, verify every block, and set the speed against what the machine can do.

    Without URL it starts a daemon of its own in a temporary directory and removes it. With one it works in a namespace of its
    own and removes that, but what it writes takes room: a daemon that serves others may evict their oldest blocks.

    \b
    get        blocks that are in the daemon's memory; limit: plain sockets, one
               process to another; over shared memory: memcpy
    cold       blocks that are on flash alone; limit: plain O_DIRECT reads of
               the same file
    put        blocks that were never there; limit: that of get
    mixed      gets of the hot set among puts (--rwmixread); limit: that of get
    coldmixed  gets from flash among puts that go round the store, so that it is
               reclaimed meanwhile; limit: none
    match      presence, half of it absent; no bytes move, so no limit
    layerwise  gets of blocks of --parts, layer by layer; limit: that of get

    Every limit is measured right before and after each timed run, as long as it, with the same block size, bytes in use,
    connections and congestion control; their mean counts. Read the ratio first: it holds on other machines, the speed does not.
    `cold` and `coldmixed` count only if the daemon's engine and the block device say that they read the bytes, `coldmixed` also
    only if segments were reclaimed.

    With --rate calls come when they are due and not when the one before has ended; --iodepth is how many may be at the client
    at once. A latency then begins when its call was due: to wait for a free place counts.

    A block's bytes follow from its number. During a run one page of every block that comes is looked at, on top of the
    checksums that the client always verifies; afterwards whole blocks are compared. That cannot be switched off.

    \b
    How near to the wire?
      halfstep bench
    How fast is this drive?
      halfstep bench --rw cold --directory /mnt/nvme --iodepth 4
    One picture of it all
      halfstep bench --rw get,put --bs 4k,1m --iodepth 1,4,16 --plot sweep.svg
    How deep can I go?
      halfstep bench --rw get --bs 64k --iodepth 1,2,4,8 --latency-goal 2ms
    How late at a given load?
      halfstep bench --rw get --bs 64k --batch 1 --iodepth 16 --rate 5000
    Do clients share fairly?
      halfstep bench --rw get --bs 64k --numjobs 4
    A daemon in service
      halfstep bench halfstep://node7:7350 --rw get --runtime 1
    For a program
      halfstep bench --json | jq '.results[] | {name, ratio_to_limit}'

    The limits alone, by code that is not ours: halfstep bench device --help, halfstep bench wire --help.

    A job file holds tables of these options: [global] for all jobs, one more table for each job (docs/benchmarking.md).

    Exit status 1 when a block was wrong or missing, or a scenario was refused.
    """  # noqa: D301
    with signals_wait():
        from halfstep.tools.bench.jobs import Job, jobs_of
        from halfstep.tools.bench.measure import measure, steps_of
        from halfstep.tools.bench.plot import plot
        from halfstep.tools.picture import check_picture

    jobs = jobs_of(job_file, options) if job_file else [Job("", options)]
    plans = [(job.name, job.plan()) for job in jobs]
    if picture is not None:
        check_picture(picture)
    with terminable(), progress(sum(steps_of(plan) for _, plan in plans)) as tell:
        reports = [(name, measure(plan, _titled(tell, name), asked())) for name, plan in plans]
    if picture is not None:
        plot([(f"{name}: " if name else "", report) for name, report in reports], picture)
    if as_json:
        print_json(
            {"jobs": [{"job": name, **report.as_json()} for name, report in reports]} if job_file else reports[0][1].as_json()
        )
    else:
        for name, report in reports:
            if name:
                click.echo(name)
            print_table(report.columns(), report.rows())
            for remark in report.remarks():
                click.echo(remark)
    if not all(report.sound for _, report in reports):
        raise SystemExit(1)


def _titled(tell: Callable[[str], None], name: str) -> Callable[[str], None]:
    return (lambda text: tell(f"{name}: {text}")) if name else tell


bench = _BenchGroup("bench", commands=[device, wire], help=sweep.help)
