"""`halfstep serve`: flags to a ServeConfig."""

from __future__ import annotations

import click

from halfstep.tools.options import json_option


@click.command()
@click.option(
    "--store",
    type=click.Path(),
    help="The store's file or its directory, or a block device, blank or a store.  [default: the XDG state directory]",
)
@click.option(
    "--size",
    default="",
    help="Bytes of a new store, e.g. 512MiB or 2TiB.  [default: a quarter of the free space, at most 64 GiB]",
)
@click.option("--segment", default="", help="Bytes of a segment of a new store.  [default: chosen by size]")
@click.option(
    "--shards",
    type=click.IntRange(1, 16),
    help="Into how many shards a new store is divided, each with a thread and a port of its own; for good.  [default: 1]",
)
@click.option("--cores", default="", metavar="LIST", help="Cores the shards' threads run on, e.g. 0-3,8.  [default: any]")
@click.option(
    "--numa",
    default="auto",
    show_default=True,
    metavar="auto|off|NODES",
    help="Memory node of each shard, e.g. 0,1, one after the other; auto: that of its core, where --cores binds it.",
)
@click.option("--arena", default="256MiB", show_default=True, help="Memory for blocks in flight and hot ones, of all shards.")
@click.option(
    "--index",
    default="",
    help="Memory for the index, of all shards: 29 bytes a block.  [default: as for blocks of 256 KiB, or up to 16 MiB]",
)
@click.option("--listen", multiple=True, default=("127.0.0.1:7350",), show_default=True, help="host:port; may be given again.")
@click.option(
    "--unix",
    default="",
    help='Path of the unix socket, for shared memory with clients of this machine, or "none".  '
    "[default: halfstep.sock in the XDG runtime directory]",
)
@click.option(
    "--shm-ring",
    default="1MiB",
    show_default=True,
    help="Shared memory, each way, of a connection through the unix socket.",
)
@click.option(
    "--zero-copy",
    type=click.Choice(["auto", "off"]),
    default="auto",
    show_default=True,
    help="Sending to other machines without a copy by the kernel, as long as it need not copy all the same.",
)
@click.option(
    "--connections",
    type=int,
    default=4096,
    show_default=True,
    help="Connections of one shard at the most, a sixteenth of them for the unix socket alone; idle ones give way.",
)
@click.option("--insecure-listen", is_flag=True, help="Allow --listen beyond loopback, though clients are not authenticated.")
@click.option(
    "--engine",
    type=click.Choice(["auto", "uring", "pread"]),
    default="auto",
    show_default=True,
    help="How disk bytes move; auto falls back to pread and says why.",
)
@click.option(
    "--queue-depth",
    type=int,
    default=128,
    show_default=True,
    help="Requests at the device at once; all but gets have half of it.",
)
@click.option(
    "--latency-goal",
    default="2ms",
    show_default=True,
    metavar="TIME",
    help='Of reads that gets wait for at the device: what comes later makes writes and background work give way; "off".',
)
@click.option("--huge-pages/--no-huge-pages", default=True, show_default=True, help="Try 2 MiB pages for arena and index.")
@click.option("--require-direct", is_flag=True, help="Refuse to start where O_DIRECT is not to be had.")
@click.option(
    "--eviction",
    default="seg-adapt10",
    show_default=True,
    metavar="POLICY",
    help="What gives way when the store is full: seg-adapt10 keeps what is used; seg-low and seg-fifo to compare with.",
)
@click.option(
    "--rewrite-share",
    type=float,
    default=0.10,
    show_default=True,
    help="How much of what users write seg-adapt10 may write again to keep what is used.",
)
@click.option(
    "--daily-writes",
    default="",
    help="What the drives may be written in a day, e.g. 1.9TB for one drive write a day of 1.9 TB: "
    "quiet days may then keep more than --rewrite-share allows.",
)
@click.option(
    "--discard-rate",
    default="1GiB",
    show_default=True,
    help="On a block device: how much reclaimed flash the drive is told in a second to be empty; 0 for none.",
)
@click.option(
    "--scrub",
    default="auto",
    show_default=True,
    metavar="RATE",
    help='Verify stored blocks in the background, so many bytes a second, e.g. 8MiB/s; "auto": all within two weeks; "off".',
)
@click.option("--metrics", default="", metavar="HOST:PORT", help="Serve Prometheus text there, e.g. 127.0.0.1:9350.")
@json_option
def serve(
    store: str | None,
    size: str,
    segment: str,
    shards: int | None,
    cores: str,
    numa: str,
    arena: str,
    index: str,
    listen: tuple[str, ...],
    unix: str,
    shm_ring: str,
    zero_copy: str,
    connections: int,
    insecure_listen: bool,
    engine: str,
    queue_depth: int,
    latency_goal: str,
    huge_pages: bool,
    require_direct: bool,
    eviction: str,
    rewrite_share: float,
    daily_writes: str,
    discard_rate: str,
    scrub: str,
    metrics: str,
    as_json: bool,
) -> None:
    """Serve a store in the foreground until SIGTERM or Ctrl-C.

    Without arguments: a store in your state directory, made at the first start, on 127.0.0.1:7350 and a unix socket. The first
    lines say what is really in force. With --json they are one JSON object on one line.
    """
    from halfstep.daemon.config import (
        ServeConfig,
        parse_bytes,
        parse_cores,
        parse_latency_goal,
        parse_numa,
        parse_scrub,
        parse_size,
        store_path,
    )
    from halfstep.daemon.serve import run

    config = ServeConfig(
        store=store_path(store),
        size_bytes=parse_size(size, "size") if size else 0,
        segment_bytes=parse_size(segment, "segment") if segment else 0,
        shards=shards or 0,
        cores=parse_cores(cores) if cores else (),
        numa=parse_numa(numa),
        arena_bytes=parse_bytes(arena, "arena"),
        index_bytes=parse_size(index, "index") if index else 0,
        listen=listen,
        unix=unix,
        shm_ring_bytes=parse_bytes(shm_ring, "shm_ring"),
        zero_copy=zero_copy,
        connections_max=connections,
        insecure_listen=insecure_listen,
        engine=engine,
        queue_depth=queue_depth,
        latency_goal_us=parse_latency_goal(latency_goal),
        huge_pages=huge_pages,
        require_direct=require_direct,
        eviction=eviction,
        rewrite_share=rewrite_share,
        daily_writes_bytes=parse_bytes(daily_writes, "daily_writes") if daily_writes else 0,
        discard_rate_bytes=parse_bytes(discard_rate, "discard_rate"),
        scrub_bytes_per_s=parse_scrub(scrub),
        metrics=metrics,
    )
    raise SystemExit(run(config, as_json=as_json))
