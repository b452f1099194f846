"""`halfstep stat`: what the daemon counts, grouped for reading."""

from __future__ import annotations

from collections.abc import Mapping

import click

from halfstep.tools.options import connected, json_option, print_json, print_table, url_argument


@click.command()
@url_argument
@click.option("--all", "show_all", is_flag=True, help="Also what is zero.")
@json_option
def stat(url: str, show_all: bool, as_json: bool) -> None:
    """Show a daemon's counters and gauges, and the path this client uses to it."""
    with connected(url) as client:
        counters = client.stat()
        facts = client.facts()
        path = client.path
    if as_json:
        print_json({"path": path, "store_uuid": facts.store_uuid, "boot_id": facts.boot_id, "counters": counters})
        return
    click.echo(f"path   {path}")
    click.echo(f"store  {facts.store_uuid.hex()}, blocks up to {facts.block_bytes_max} bytes")
    click.echo(f"load   {facts.queue_depth} requests queued, {facts.queue_us} us wait, {facts.bytes_per_s / 1e9:.2f} GB/s")
    click.echo(f"scrub  {scrubbed(counters)}")
    rows = [(name.removeprefix("halfstep_"), _number(value)) for name, value in sorted(counters.items()) if show_all or value]
    print_table(["counter", ("value", "right")], rows)


def scrubbed(counters: Mapping[str, float]) -> str:
    """How far background verification is and what it found, in one line."""
    from halfstep.daemon.config import format_bytes

    def of(name: str) -> float:
        return counters.get(f"halfstep_store_scrub_{name}", 0)

    if not of("bytes_per_second"):
        return "off"
    errors = of('blocks_total{outcome="dropped_corrupt"}') + of('blocks_total{outcome="dropped_io"}') + of("pages_bad_total")
    passes = int(of("passes_total"))
    since = f"{passes:,} full passes, the last began" if passes else "no full pass yet, started"
    verified = f"{format_bytes(of('bytes_total'))} verified at up to {format_bytes(of('bytes_per_second'))}/s"
    return f"{verified}; {since} {of('age_seconds'):,.0f} s ago; {errors:,.0f} errors found"


def _number(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else f"{value:,.3f}"
