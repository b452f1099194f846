"""`halfstep stat`: what the daemon counts, grouped for reading."""

from __future__ import annotations

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
    rows = [(name.removeprefix("halfstep_"), _number(value)) for name, value in sorted(counters.items()) if show_all or value]
    print_table(["counter", ("value", "right")], rows)


def _number(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else f"{value:,.3f}"
