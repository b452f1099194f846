"""`halfstep fsck`: check a store that no daemon serves; one sentence for each finding."""

from __future__ import annotations

import os
import sys
from collections import Counter
from typing import Any

import click

from halfstep.tools.options import json_option, print_json, print_table
from halfstep.tools.progress import bar
from halfstep.tools.streams import say

# A finding's kind, and what it says about the blocks.
KINDS = {
    "crash": "left behind by a kill or a power cut; nothing that was acknowledged as on media is missing",
    "damage": "a bad copy that another one stands in for; nothing is lost",
    "loss": "blocks are gone",
}
EXIT_FOUND = 1


@click.command()
@click.argument("store", type=click.Path(), required=False, metavar="[STORE]")
@click.option(
    "--payloads/--no-payloads", default=True, show_default=True, help="Read and verify the bytes of every live block."
)
@click.option("--segments", "show_segments", is_flag=True, help="A line for each segment in use.")
@json_option
def fsck(store: str | None, payloads: bool, show_segments: bool, as_json: bool) -> None:
    """Look over a STORE that no daemon serves: headers, logs, footers, frames and payloads. Writes nothing.

    STORE is the file or its directory; without one, that of `halfstep serve`. What it finds is of three kinds: crash (left
    behind by a kill or a power cut), damage (a bad copy that another one stands in for) and loss (blocks are gone). Nothing
    needs to be repaired: the next start mends what can be mended and drops the rest.

    Exit status: 0 nothing but what a crash leaves behind; 1 damage or loss.
    """
    from halfstep import _shard
    from halfstep.daemon.config import store_path
    from halfstep.daemon.refusals import error_of

    path = store_path(store)
    with bar("checking") as progress:
        try:
            report = _shard.fsck(os.fsencode(path), payloads=payloads, progress=progress)
        except _shard.StartError as error:
            raise error_of(error, path) from None
    if as_json:
        print_json(report)
    else:
        _print(report, show_segments=show_segments)
    if any(finding["kind"] != "crash" for finding in report["findings"]):
        sys.exit(EXIT_FOUND)


def _print(report: dict[str, Any], *, show_segments: bool) -> None:
    from halfstep.daemon.units import format_bytes

    header, blocks = report["header"], report["blocks"]
    states = Counter(segment["state"] for segment in report["segments"])
    say(f"store     {report['path']}, {header['uuid'].hex()}, format {header['version']}")
    shards = f", {header['shards']} shards" if header["shards"] > 1 else ""
    say(f"size      {format_bytes(header['device_bytes'])}, segments of {format_bytes(header['segment_bytes'])}{shards}")
    if report["bytes"] < header["device_bytes"]:
        say(f"cut       the file has {format_bytes(report['bytes'])}; what lay behind is gone, and told of below")
    say(f"started   last by {header['owner']}, start number {header['start_number']}")
    say(f"stopped   {'cleanly' if header['clean_stop'] else 'by a kill or a power cut'}")
    say(f"names     {', '.join(header['namespaces'])}; {header['layouts']} layouts")
    say(f"segments  {', '.join(f'{count} {state}' for state, count in sorted(states.items()))}")
    say(f"blocks    {blocks['live']:,} live with {format_bytes(blocks['bytes_live'])}; {_others(blocks)}")
    if blocks["payloads_checked"]:
        say(f"payloads  {blocks['payloads_checked']:,} read, {blocks['payloads_bad']} bad")
    if show_segments:
        _print_segments(report["segments"])
    if report["findings"]:
        print_table(["kind", "where", "what"], [(f["kind"], f["where"], f["what"]) for f in report["findings"]])
    kinds = {finding["kind"] for finding in report["findings"]}
    for kind, meaning in KINDS.items():
        if kind in kinds:
            say(f"{kind}: {meaning}")
    say("verdict   " + ("lost blocks" if "loss" in kinds else "damaged, nothing lost" if "damage" in kinds else "sound"))


def _others(blocks: dict[str, int]) -> str:
    names = {
        "superseded": "written again elsewhere",
        "deleted": "deleted",
        "expired": "expired",
        "dead_scope": "of cleared layouts or deleted namespaces",
        "unreadable": "unreadable",
    }
    return ", ".join(f"{blocks[name]:,} {text}" for name, text in names.items() if blocks[name]) or "no dead ones"


def _print_segments(segments: list[dict[str, Any]]) -> None:
    from halfstep.daemon.units import format_bytes

    divided = any(segment["shard"] for segment in segments)
    columns: list[str | tuple[str, str]] = [
        *(["shard"] if divided else []),
        "segment",
        "state",
        ("generation", "right"),
        ("frames", "right"),
        ("used", "right"),
    ]
    columns += [("blocks", "right"), ("live", "right"), ("bad pages", "right"), ("bad blocks", "right")]
    rows = [
        (
            *([segment["shard"]] if divided else []),
            segment["number"],
            segment["state"],
            segment["generation"],
            segment["frames"],
            format_bytes(segment["bytes_used"]),
            segment["entries"],
            segment["blocks_live"],
            segment["pages_bad"],
            segment["blocks_bad"],
        )
        for segment in segments
        if segment["state"] != "unused"
    ]
    print_table(columns, rows)
