"""`halfstep stat`: the daemon's counters and gauges, grouped for reading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from halfstep.client.entries import Choices, Stock, choices_of, stocks_of, totals_of
from halfstep.tools.options import connected, json_option, print_json, print_table, url_argument
from halfstep.tools.streams import say


@click.command()
@url_argument
@click.option("--all", "show_all", is_flag=True, help="Show zeros, too.")
@json_option
def stat(url: str, show_all: bool, as_json: bool) -> None:
    """Show a daemon's counters and gauges, of all its shards and of each, and the path this client uses to it."""
    with connected(url) as client:
        shards = client.admin.stat_by_shard()
        facts = client.facts()
        path = client.path
    counters = totals_of(shards.values())
    each = shards if len(shards) > 1 else {}
    if as_json:
        told = {"path": path, "store_uuid": facts.store_uuid, "boot_id": facts.boot_id, "counters": counters}
        told["stocks"] = [one._asdict() for one in stocks_of(counters)]
        told["choices"] = [one._asdict() for one in choices_of(counters)]
        told["load"] = [load._asdict() for load in facts.shards]
        print_json(told | ({"shards": list(each.values())} if each else {}))
        return
    say(f"path   {path}")
    say(f"store  {facts.store_uuid.hex()}, blocks up to {facts.block_bytes_max} bytes")
    say(f"load   {facts.queue_depth} requests queued, {facts.queue_us} us wait, {facts.bytes_per_s / 1e9:.2f} GB/s")
    say(f"flash  {stored(counters)}")
    say(f"scrub  {scrubbed(counters)}")
    say(f"sends  {sent(counters)}")
    if stocks := stocks_of(counters):
        _print_stocks(stocks)
    if choices := choices_of(counters):
        _print_choices(choices)
    columns: list[str | tuple[str, str]] = ["counter", ("value", "right")]
    columns += [(f"shard {number}", "right") for number in each]
    print_table(
        columns,
        [
            (name.removeprefix("halfstep_"), _number(value), *(_number(of_one.get(name, 0)) for of_one in each.values()))
            for name, value in sorted(counters.items())
            if show_all or value
        ],
    )


def _print_stocks(stocks: Sequence[Stock]) -> None:
    print_table(
        ["namespace", "group", "codec", *((one, "right") for one in ("blocks", "logical", "stored", "on flash", "ratio"))],
        [
            (
                one.namespace,
                one.group,
                one.codec,
                f"{one.blocks:,}",
                *(f"{size:,}" for size in (one.logical_bytes, one.stored_bytes, one.flash_bytes)),
                f"{one.logical_bytes / one.flash_bytes:.3f}" if one.flash_bytes else "",
            )
            for one in stocks
        ],
    )


def _print_choices(choices: Sequence[Choices]) -> None:
    def speed(bytes_per_s: int) -> str:
        return f"{bytes_per_s / 1e9:.2f}" if bytes_per_s else "?"

    say("blocks of puts that a codec was for, and what the client of the newest put knew, GB/s:")
    print_table(
        [
            "namespace",
            *((one, "right") for one in ("coded", "raw")),
            "why",
            *((one, "right") for one in ("encode", "decode", "link", "service", "ratio")),
        ],
        [
            (
                one.namespace,
                f"{one.coded:,}",
                f"{one.raw:,}",
                ", ".join(
                    f"{why} {count:,}" for why, count in sorted(one.reasons.items(), key=lambda each: (-each[1], each[0]))
                ),
                *map(speed, (one.encode_bytes_per_s, one.decode_bytes_per_s, one.link_bytes_per_s, one.service_bytes_per_s)),
                f"{one.ratio:.3f}" if one.ratio else "?",
            )
            for one in choices
        ],
    )


def stored(counters: Mapping[str, float]) -> str:
    """What blocks take on flash, and what was written for them, in one line."""
    from halfstep.daemon.units import format_bytes

    def of(cause: str) -> float:
        return counters.get(f'halfstep_store_bytes_written_total{{of="{cause}"}}', 0)

    live = f"{format_bytes(int(counters.get('halfstep_store_bytes_live', 0)))} of blocks, trailers and padding included"
    if not of("user"):
        return live
    words = (("user", "of puts as they are stored"), ("padding", "trailers and padding"), ("metadata", "metadata"))
    parts = [f"{format_bytes(int(of(cause)))} {text}" for cause, text in words]
    parts += [f"{format_bytes(int(of('rewritten')))} again by reclaim"] if of("rewritten") else []
    return f"{live}; written {', '.join(parts)}"


def scrubbed(counters: Mapping[str, float]) -> str:
    """How far background verification is and what it found, in one line."""
    from halfstep.daemon.units import format_bytes

    def of(name: str) -> float:
        return counters.get(f"halfstep_store_scrub_{name}", 0)

    if not of("bytes_per_second"):
        return "off"
    errors = of('blocks_total{outcome="dropped_corrupt"}') + of('blocks_total{outcome="dropped_io"}') + of("pages_bad_total")
    passes = int(of("passes_total"))
    since = f"{passes:,} full passes, the last began" if passes else "no full pass yet, started"
    verified = f"{format_bytes(of('bytes_total'))} verified at up to {format_bytes(of('bytes_per_second'))}/s"
    return f"{verified}; {since} {of('age_seconds'):,.0f} s ago; {errors:,.0f} errors found"


def sent(counters: Mapping[str, float]) -> str:
    """Whether payload leaves without a copy by the kernel, and how much did, in one line."""
    from halfstep.daemon.units import format_bytes

    if not counters.get("halfstep_zero_copy_on", 0):
        return "with copies"

    def of(outcome: str) -> str:
        return format_bytes(counters.get(f'halfstep_zero_copy_bytes_total{{outcome="{outcome}"}}', 0))

    connections = counters.get("halfstep_connections_zero_copy", 0)
    return f"{connections:,.0f} connections without a copy, {of('sent')} so far; {of('copied')} were copied all the same"


def _number(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else f"{value:,.3f}"
