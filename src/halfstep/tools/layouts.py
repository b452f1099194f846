"""`halfstep layout show`: shape and size of a model's KV cache, from its config.json alone. Asks no daemon and no network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from halfstep.errors import ConfigError
from halfstep.tier.catalogue import layout_of, remarks_of
from halfstep.tier.shapes import Grid, Kind, KVLayout
from halfstep.tools.options import json_option, print_json, print_table
from halfstep.tools.streams import say

# A config.json has some kilobytes. What is larger is another file, such as the weights.
_FILE_BYTES_MAX = 8 << 20
_TIB = 1 << 40
# Stands for the revision where none is named; the layout's id is not shown then.
NO_REVISION = "-"


@click.group()
def layout() -> None:
    """Layouts: what a block of KV cache holds."""


@layout.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option(
    "--block-tokens", type=int, metavar="N", help="Tokens of a block.  [default: 16, or a multiple that all kinds allow]"
)
@click.option("--grid-heads", type=int, default=1, show_default=True, metavar="N", help="Head cells: ranks that write.")
@click.option("--grid-layers", type=int, default=1, show_default=True, metavar="N", help="Layer cells: pipeline stages.")
@click.option("--dtype", metavar="D", help="Dtype of the cache, such as fp8.  [default: the model's]")
@click.option("--model", metavar="NAME", help="The model's name in the layout.  [default: the folder's]")
@click.option("--revision", metavar="R", help="Revision of the weights. The layout's id is shown with it.")
@json_option
def show(
    config: Path,
    block_tokens: int | None,
    grid_heads: int,
    grid_layers: int,
    dtype: str | None,
    model: str | None,
    revision: str | None,
    as_json: bool,
) -> None:
    """Show kinds, blocks and bytes of a model's cache, from its config.json.

    CONFIG is a file or a folder, as Hugging Face has them. Capacities are those of the payload alone.
    """
    fields = read_config(config)
    named = layout_of(
        fields,
        model=name_of(config) if model is None else model,
        weights_revision=NO_REVISION if revision is None else revision,
        block_tokens=block_tokens,
        grid=Grid(grid_heads, grid_layers),
        dtype=dtype,
    )
    facts = _facts(named, remarks_of(fields))
    if revision is not None:
        facts["layout_id"] = named.layout.id.hex()
    if as_json:
        print_json(facts)
    else:
        _tell(named, facts)


def read_config(path: Path) -> dict[str, object]:
    """The fields of a config.json, or of that in a folder. Errors: ConfigError; OSError, which names the file."""
    if path.is_dir():
        path /= "config.json"
    with path.open("rb") as file:
        text = file.read(_FILE_BYTES_MAX + 1)
    if len(text) > _FILE_BYTES_MAX:
        raise ConfigError(f"{path}: over {_FILE_BYTES_MAX} bytes, which no config.json has; name that file, or its folder")
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: is no JSON ({error}); name a model's config.json") from None
    if not isinstance(fields, dict):
        raise ConfigError(f"{path}: holds a {type(fields).__name__}, not an object; name a model's config.json")
    return fields


def name_of(path: Path) -> str:
    """The name of a model whose file is called config.json: its folder's; else the file's."""
    if path.is_dir():
        path /= "config.json"
    return (path.resolve().parent.name if path.name == "config.json" else path.stem) or path.name


def _facts(named: KVLayout, remarks: tuple[str, ...]) -> dict[str, Any]:
    blocks = _TIB // named.block_bytes
    return {
        "model": named.model,
        "dtype": named.dtype,
        "block_tokens": named.block_tokens,
        "grid": {"heads": named.grid.heads, "layers": named.grid.layers},
        "kinds": [_kind_facts(named, kind) for kind in named.kinds],
        "token_bytes": _exact(named.token_bytes),
        "block_bytes": named.block_bytes,
        "blocks_per_tib": blocks,
        "tokens_per_tib": blocks * named.block_tokens,
        "remarks": list(remarks),
    }


def _kind_facts(named: KVLayout, kind: Kind) -> dict[str, Any]:
    cells = named.cells(kind.name)
    return {
        "name": kind.name,
        "layers": list(kind.layers),
        "heads": kind.heads,
        "planes": list(kind.planes),
        "tokens_per_entry": kind.tokens_per_entry,
        "window": kind.window,
        "token_bytes": _exact(kind.token_bytes),
        "block_bytes": sum(cell.block_bytes for cell in cells),
        "cells": len(cells),
        "cell_bytes": cells[0].block_bytes,
        "cell_parts": cells[0].parts,
    }


def _exact(number: float) -> int | float:
    return int(number) if number == int(number) else number


def _tell(named: KVLayout, facts: dict[str, Any]) -> None:
    grid = f", {named.grid.heads} head x {named.grid.layers} layer cells" if named.grid != Grid() else ""
    say(f"{named.model}: {named.dtype}, blocks of {named.block_tokens} tokens{grid}")
    kinds = facts["kinds"]
    rows = [
        ("layers", [len(kind["layers"]) for kind in kinds]),
        ("heads", [kind["heads"] for kind in kinds]),
        ("bytes of planes", ["+".join(map(str, kind["planes"])) for kind in kinds]),
        ("tokens per entry", [kind["tokens_per_entry"] for kind in kinds]),
        ("window in tokens", [kind["window"] or "none" for kind in kinds]),
        ("bytes a token", [f"{kind['token_bytes']:,}" for kind in kinds]),
        ("bytes of a block", [f"{kind['block_bytes']:,}" for kind in kinds]),
        ("cells", [kind["cells"] for kind in kinds]),
        ("bytes of a cell", [f"{kind['cell_bytes']:,}" for kind in kinds]),
        ("parts of a cell", [kind["cell_parts"] for kind in kinds]),
    ]
    # Kinds side by side: there are few, and a row for each would not fit a terminal.
    print_table(["kind", *((kind["name"], "right") for kind in kinds)], [(title, *cells) for title, cells in rows])
    say(f"a token  {facts['token_bytes']:,} bytes ({facts['token_bytes'] / 1024:,.1f} KiB)")
    say(f"a block  {facts['block_bytes']:,} bytes")
    say(f"a TiB    {facts['blocks_per_tib']:,} blocks, {facts['tokens_per_tib']:,} tokens")
    if "layout_id" in facts:
        say(f"layout   {facts['layout_id']}")
    for remark in facts["remarks"]:
        say(f"note: {remark}")
