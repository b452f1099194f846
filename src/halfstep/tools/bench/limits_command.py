"""`halfstep bench device` and `halfstep bench wire`: the limits alone, measured with code that is not ours."""

from __future__ import annotations

from pathlib import Path

import click

from halfstep.tools.bench.jobs import listed, size_of, whole
from halfstep.tools.bench.terminal import asked, progress, terminable
from halfstep.tools.imports import signals_wait
from halfstep.tools.options import json_option, print_json, print_table


@click.command()
@click.argument("path", type=click.Path(path_type=Path, dir_okay=False, exists=True), required=False)
@click.option(
    "--rw",
    default="randread",
    show_default=True,
    help="Patterns, separated by commas: read, randread, write, mixed (at random).",
)
@click.option("--bs", default="1MiB", show_default=True, help="Sizes of a transfer, separated by commas.")
@click.option("--iodepth", default="16", show_default=True, help="Transfers at the device at once, separated by commas.")
@click.option("--rwmixread", default="70", show_default=True, help="Percentage of reads among the transfers of `mixed`.")
@click.option(
    "--size", default="1GiB", show_default=True, help="Bytes of its own file, or bytes to read from the start of PATH."
)
@click.option("--runtime", type=float, default=3.0, show_default=True, help="Seconds of one timed run.")
@click.option("--repeat", type=int, default=3, show_default=True, help="Runs of each case. The median is shown.")
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the order.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Directory of its own file, on the drive to be measured.  [default: the temporary directory]",
)
@click.option(
    "--tool",
    type=click.Choice(["auto", "fio", "preadv", "liburing"]),
    default="auto",
    show_default=True,
    help="auto: fio if there is one, else preadv. liburing: that Python package, as a second opinion.",
)
@json_option
def device(
    path: Path | None,
    rw: str,
    bs: str,
    iodepth: str,
    rwmixread: str,
    size: str,
    runtime: float,
    repeat: int,
    seed: int,
    directory: Path | None,
    tool: str,
    as_json: bool,
) -> None:
    """Measure a drive by fio with io_uring and O_DIRECT, or by plain preadv without fio.

    Without PATH it writes a file of its own, measures that and removes it. PATH, a file or a block device, is read and never
    written to. What the kernel says the device read is set beside what came, so that no cache passes for a drive.

    \b
    How fast can cold gets be?
      halfstep bench device --directory /mnt/nvme --bs 64k,1m --iodepth 4,16
    What does it stand at 70/30?
      halfstep bench device --directory /mnt/nvme --rw mixed --bs 128k
    A store as it lies
      halfstep bench device /var/lib/halfstep/store.hs
    """  # noqa: D301
    with signals_wait():
        from halfstep.tools.bench.device_limit import COLUMNS, DevicePlan, measure_device, remarks

    plan = DevicePlan(
        path=path,
        directory=directory,
        tool=tool,
        modes=tuple(listed(rw)),
        block_bytes=tuple(size_of(value, "bs") for value in listed(bs)),
        iodepth=tuple(whole(value, "iodepth") for value in listed(iodepth)),
        read_percent=whole(rwmixread, "rwmixread"),
        size_bytes=size_of(size, "size"),
        seconds=runtime,
        repeat=repeat,
        seed=seed,
    ).validated()
    with terminable(), progress(plan.steps) as tell:
        header, results = measure_device(plan, tell, asked())
    if as_json:
        print_json({"header": header, "results": [result.as_json() for result in results]})
        return
    print_table(COLUMNS, [row for result in results for row in result.rows()])
    for remark in remarks(header, results):
        click.echo(remark)


@click.command()
@click.option("--over", default="tcp,unix", show_default=True, help="Kinds of sockets, separated by commas.")
@click.option("--bs", default="256KiB", show_default=True, help="Bytes of one send, separated by commas.")
@click.option("--batch", type=int, default=16, show_default=True, help="Sends that the receiver has memory for.")
@click.option("--connections", default="1", show_default=True, help="Connections at once, separated by commas.")
@click.option("--ping", default="64", show_default=True, help="Bytes of a message there and back, separated by commas.")
@click.option(
    "--size", default="64MiB", show_default=True, help="Bytes of the buffer that the sender sends from, over and over."
)
@click.option("--congestion", default="", help="Congestion control of tcp.  [default: the system's]")
@click.option("--runtime", type=float, default=3.0, show_default=True, help="Seconds of one timed run.")
@click.option("--repeat", type=int, default=3, show_default=True, help="Runs of each case. The median is shown.")
@click.option("--pin/--no-pin", default=True, show_default=True, help="Bind sender and receiver to a core each.")
@json_option
def wire(
    over: str,
    bs: str,
    batch: int,
    connections: str,
    ping: str,
    size: str,
    congestion: str,
    runtime: float,
    repeat: int,
    pin: bool,
    as_json: bool,
) -> None:
    """Measure plain sockets between two processes of this machine: a stream, and small messages there and back.

    \b
    What can a hot get reach?
      halfstep bench wire --bs 64k,256k,1m --connections 1,4
    What does a question cost?
      halfstep bench wire --ping 64,4k
    """  # noqa: D301
    with signals_wait():
        from halfstep.tools.bench import wire_limit

    plan = wire_limit.WirePlan(
        over=tuple(listed(over)),
        block_bytes=tuple(size_of(value, "bs") for value in listed(bs)),
        batch=batch,
        connections=tuple(whole(value, "connections") for value in listed(connections)),
        ping_bytes=tuple(size_of(value, "ping") for value in listed(ping)),
        set_bytes=size_of(size, "size"),
        congestion=congestion,
        seconds=runtime,
        repeat=repeat,
        pin=pin,
    ).validated()
    with terminable(), progress(plan.steps) as tell:
        header, streams, pings = wire_limit.measure_wire(plan, tell, asked())
    if as_json:
        print_json(wire_limit.document(header, streams, pings))
        return
    print_table(wire_limit.STREAM_COLUMNS, [wire_limit.stream_row(one) for one in streams])
    print_table(wire_limit.PING_COLUMNS, [wire_limit.ping_row(one) for one in pings])
    for remark in wire_limit.remarks(header):
        click.echo(remark)
