"""`halfstep size`: from blocks, or a model and tokens, to flash, memory and the line to serve them. Asks no daemon."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path

import click

from halfstep.daemon.config import DEFAULT_ARENA_BYTES, setting_named
from halfstep.daemon.sizing import Blocks, Sizing, size_store
from halfstep.daemon.units import MIB, TIB, format_bytes, parse_size
from halfstep.errors import ConfigError
from halfstep.tier.catalogue import layout_of
from halfstep.tier.shapes import Grid
from halfstep.tools.layouts import NO_REVISION, name_of, read_config
from halfstep.tools.options import json_option, print_json, print_table
from halfstep.tools.settings import fields_of, setting_options
from halfstep.tools.streams import say

SHARDS, ARENA = setting_named("shards"), setting_named("arena")
_COUNTS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9, "t": 10**12}


def parse_count(text: str, name: str) -> int:
    """A number of "2000", "50M", "1.5G". Errors: ConfigError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgbt]?)\s*", text.replace(",", "").replace("_", ""), re.IGNORECASE)
    count = round(float(match[1]) * _COUNTS[match[2].lower()]) if match else 0
    if not 1 <= count <= 10**15:
        raise ConfigError(f"{name}={text[:40]!r}: must be a number from 1 to 10^15, such as 2000, 50M or 1.5G")
    return count


@click.command()
@click.argument("config", type=click.Path(path_type=Path), required=False)
@click.option("--tokens", metavar="N", help="Tokens to keep, such as 50M, of the model that CONFIG describes.")
@click.option("--block-tokens", type=int, metavar="N", help="The engine's block size.  [default: as `layout show`]")
@click.option("--dtype", metavar="D", help="Dtype of the cache, such as fp8.  [default: the model's]")
@click.option("--grid-heads", type=int, default=1, show_default=True, metavar="N", help="Head cells: ranks that write.")
@click.option("--grid-layers", type=int, default=1, show_default=True, metavar="N", help="Layer cells: pipeline stages.")
@click.option("--blocks", metavar="N", help="Number of blocks to keep, instead of a model and tokens.")
@click.option("--block-bytes", metavar="BYTES", help="Size of each block, such as 256KiB.")
@click.option(
    "--parts", type=click.IntRange(1, 2560), default=1, show_default=True, help="Parts of each block, of equal length."
)
@setting_options([SHARDS, ARENA])
@json_option
def size(
    config: Path | None,
    tokens: str | None,
    block_tokens: int | None,
    dtype: str | None,
    grid_heads: int,
    grid_layers: int,
    blocks: str | None,
    block_bytes: str | None,
    parts: int,
    shards: str | None,
    arena: str | None,
    as_json: bool,
) -> None:
    """Compute the flash and memory for a cache, and the command that serves it.

    \b
    halfstep size CONFIG --tokens 50M      CONFIG: a config.json, or its folder
    halfstep size --blocks 4M --block-bytes 256KiB

    Every block is counted at its worst, alone in a frame. The rest is room to spare.
    """  # noqa: D301
    if (
        (config is None) == (blocks is None)
        or (tokens is None) != (config is None)
        or (block_bytes is None) != (blocks is None)
    ):
        raise click.UsageError("name CONFIG and --tokens, or --blocks and --block-bytes")
    if config is not None:
        assert tokens is not None
        named = layout_of(
            read_config(config),
            model=name_of(config),
            weights_revision=NO_REVISION,
            block_tokens=block_tokens,
            grid=Grid(grid_heads, grid_layers),
            dtype=dtype,
        )
        count = -(-parse_count(tokens, "tokens") // named.block_tokens)
        wanted = [Blocks(count, cell.block_bytes, cell.parts) for kind in named.kinds for cell in named.cells(kind.name)]
        keys = count
        what = f"{count * named.block_tokens:,} tokens of {named.model} in {count:,} blocks of {named.block_bytes:,} bytes"
    else:
        assert blocks is not None
        assert block_bytes is not None
        wanted = [Blocks(parse_count(blocks, "blocks"), parse_size(block_bytes, "block_bytes"), parts)]
        keys = wanted[0].blocks
        what = f"{wanted[0].blocks:,} blocks of {wanted[0].block_bytes:,} bytes"
    given = fields_of([SHARDS, ARENA], {"shards": shards, "arena": arena})
    sizing = size_store(_merged(wanted), keys=keys, **given)
    if as_json:
        print_json({**asdict(sizing), "serve": _serve(sizing)})
        return
    say(what)
    more = f"{sizing.store_bytes / sizing.payload_bytes - 1:.1%}"
    rows = [
        ("payload", sizing.payload_bytes, "the blocks themselves"),
        ("flash", sizing.store_bytes, f"{more} more: headers, logs, free segments"),
        ("index", sizing.index_memory_bytes, "29 bytes a block" if sizing.index_bytes else "the default of this size"),
        ("arena", sizing.arena_bytes, "blocks in flight and hot ones"),
        ("memory", sizing.memory_bytes, "all, but 2 MiB a local connection"),
    ]
    print_table(["of", ("bytes", "right"), ("", "right"), ""], [(of, f"{n:,}", format_bytes(n), why) for of, n, why in rows])
    say(_serve(sizing))
    say("on a drive of at least that size: --store DEVICE instead of --size")


def _merged(wanted: list[Blocks]) -> list[Blocks]:
    """Cells of one size counted together."""
    counts: dict[tuple[int, int], int] = {}
    for one in wanted:
        counts[one.block_bytes, one.parts] = counts.get((one.block_bytes, one.parts), 0) + one.blocks
    return [Blocks(count, block_bytes, parts) for (block_bytes, parts), count in counts.items()]


def _serve(sizing: Sizing) -> str:
    """The command that makes such a store."""
    words = ["halfstep serve --size", _bytes_text(sizing.store_bytes)]
    if sizing.shards > 1:
        words += ["--shards", str(sizing.shards)]
    if sizing.index_bytes is not None:
        words += ["--index", _bytes_text(sizing.index_bytes)]
    if sizing.arena_bytes != DEFAULT_ARENA_BYTES:
        words += ["--arena", _bytes_text(sizing.arena_bytes)]
    return " ".join(words)


def _bytes_text(count: int) -> str:
    """At least so many, in whole MiB or TiB."""
    return f"{count // TIB}TiB" if count % TIB == 0 else f"{-(-count // MIB)}MiB"
