"""`halfstep compress`: what the codecs make of real K and V."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import cast

import click

from halfstep.compress import ELEMENTS, Element
from halfstep.compress.analysis import LengthFigures, PlaneFigures, Speeds, measure, measure_blocks
from halfstep.compress.analysis import analyse as analyse_tensors
from halfstep.compress.analysis import analyse_blocks as analyse_stored
from halfstep.compress.tensors import read_tensors
from halfstep.errors import ConfigError
from halfstep.tools.options import connected, json_option, print_json, print_table
from halfstep.tools.picture import check_picture
from halfstep.tools.streams import say

_URLS = ("halfstep://", "halfstep+unix://")
_UNIT_TOKENS = "16,64,256"
BLOCKS_MAX = 100_000


@click.group()
def compress() -> None:
    """Codecs of KV: what they make of real values."""


@compress.command()
@click.argument("source", metavar="FILE|NAMESPACE")
@click.option("--unit-tokens", metavar="N,…", help=f"Tokens of a unit, of a file.  [default: {_UNIT_TOKENS}]")
@click.option(
    "--element",
    type=click.Choice(list(ELEMENTS)),
    help="Of unsigned integers in an npz, or of layouts without a dtype.  [default: bf16 for 16 bits]",
)
@click.option("--tensor", metavar="PATTERN", help="Names of a file's tensors, such as 'kv*'.  [default: all]")
@click.option(
    "--blocks",
    type=click.IntRange(1, BLOCKS_MAX),
    default=64,
    show_default=True,
    metavar="N",
    help="Blocks of a namespace to look at, at most; of 1 GiB in all.",
)
@click.option("--speed", is_flag=True, help="Measure this machine too; all else is the same everywhere.")
@click.option("--picture", type=click.Path(path_type=Path), help="Draw ratio and bound of each plane into a .png or .svg file.")
@json_option
def analyse(
    source: str,
    unit_tokens: str | None,
    element: str | None,
    tensor: str | None,
    blocks: int,
    speed: bool,
    picture: Path | None,
    as_json: bool,
) -> None:
    """Say how much smaller K and V become: of a file, or of the blocks that a running daemon has.

    FILE is an .npz or .safetensors of [..., heads, tokens, dimensions]. NAMESPACE is the URL of one, such as
    halfstep://flash-node/default: blocks are read as its listing begins, --blocks of them at most and 1 GiB, and their parts
    are coded as they are stored. The blocks' layout says what their values are. --speed takes the first 64 MiB of them.

    Flash counts pages, trailers and padding, for blocks of all layers. The bound is that of any code which looks at one
    exponent at a time. bfx is exact: there is no error to tell of.
    """
    if picture is not None:
        check_picture(picture, "picture")
    named = cast("Element | None", element)
    remarks: list[str] = []
    if source.startswith(_URLS):
        for option, given in (("--unit-tokens", unit_tokens), ("--tensor", tensor)):
            if given is not None:
                raise click.UsageError(f"{option}: is for files; a stored block's units are its parts")
        wholes, planes, speeds, remarks = _of_namespace(source, blocks, named, speed=speed)
    else:
        wholes, planes, speeds = _of_file(
            Path(source), _lengths(unit_tokens or _UNIT_TOKENS), tensor or "*", named, speed=speed
        )
    if picture is not None:
        from halfstep.tools.compress.plot import plot

        plot(planes, source, picture)
    if as_json:
        print_json(_document(wholes, planes, speeds) | ({"remarks": remarks} if remarks else {}))
        return
    _print(wholes, planes)
    for remark in remarks:
        say(remark)
    if speeds is not None:
        say(f"{speeds.path}: {speeds.encode_gb_s:.1f} GB/s in, {speeds.decode_gb_s:.1f} GB/s out, one core, one unit at a time")


def _of_file(
    file: Path, lengths: list[int], pattern: str, element: Element | None, *, speed: bool
) -> tuple[list[LengthFigures], list[PlaneFigures], Speeds | None]:
    tensors = [one for one in read_tensors(file, element=element) if fnmatchcase(one.name, pattern)]
    wholes, planes = analyse_tensors(tensors, lengths)
    if not wholes:
        raise ConfigError(f"{file}: has no tensor of bf16, fp16 or fp8 with {min(lengths)} tokens; see --element, --tensor")
    return wholes, planes, measure(tensors, wholes[-1].unit_tokens) if speed else None


def _of_namespace(
    url: str, blocks: int, element: Element | None, *, speed: bool
) -> tuple[list[LengthFigures], list[PlaneFigures], Speeds | None, list[str]]:
    from halfstep.tools.compress.stored import KEEP_BYTES, Sample, complaint, lines, sample

    taken = Sample(KEEP_BYTES if speed else 0)
    with connected(url, codecs=("bfx",)) as client:
        wholes, planes = analyse_stored(sample(client, blocks, taken, element=element))
    if not taken.blocks:
        raise complaint(taken, url)
    return wholes, planes, measure_blocks(taken.kept) if speed else None, list(lines(taken))


def _print(wholes: Iterable[LengthFigures], planes: Iterable[PlaneFigures]) -> None:
    print_table(
        [("tokens", "right"), ("raw bytes", "right"), ("stored", "right"), ("ratio", "right"), ("on flash", "right"), "policy"],
        [
            (
                _tokens(w.unit_tokens),
                f"{w.raw_bytes:,}",
                f"{w.stored_bytes:,}",
                f"{w.ratio:.3f}",
                f"{w.flash_ratio:.3f}",
                w.policy,
            )
            for w in wholes
        ],
    )
    print_table(
        ["plane", "element", ("tokens", "right"), ("ratio", "right"), ("bound", "right"), ("raw units", "right")],
        [
            (p.plane, p.element, _tokens(p.unit_tokens), f"{p.ratio:.3f}", f"{p.bound:.3f}", f"{p.raw_units} of {p.units}")
            for p in planes
        ],
    )


def _tokens(unit_tokens: int) -> str:
    return str(unit_tokens) if unit_tokens else "not said"


def _lengths(text: str) -> list[int]:
    try:
        lengths = [int(word) for word in text.split(",")]
    except ValueError:
        lengths = []
    if not lengths or min(lengths) < 1 or max(lengths) > 1 << 20:
        raise ConfigError(f"unit_tokens={text[:40]!r}: must be numbers from 1 to {1 << 20}, such as 16,64,256")
    return sorted(set(lengths))


def _document(wholes: list[LengthFigures], planes: list[PlaneFigures], speeds: Speeds | None) -> dict[str, object]:
    return {
        "lengths": [asdict(w) | {"ratio": w.ratio, "flash_ratio": w.flash_ratio, "policy": w.policy} for w in wholes],
        "planes": [asdict(p) | {"ratio": p.ratio} for p in planes],
        "speeds": None if speeds is None else asdict(speeds),
    }
