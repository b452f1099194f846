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
from halfstep.compress.errors import DEFAULT_POLICIES, ErrorFigures, Errors, PolicyFigures, recommended
from halfstep.compress.policy import policy_of
from halfstep.compress.tensors import read_tensors
from halfstep.errors import ConfigError
from halfstep.tools.compress.canary import canary
from halfstep.tools.options import connected, json_option, print_json, print_table
from halfstep.tools.picture import check_picture
from halfstep.tools.streams import say

_URLS = ("halfstep://", "halfstep+unix://")
_UNIT_TOKENS = "16,64,256"
BLOCKS_MAX = 100_000


@click.group()
def compress() -> None:
    """Codecs of KV: what they make of real values."""


compress.add_command(canary)


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
@click.option(
    "--policy",
    "policies",
    metavar="NAME|FILE,…",
    help=f"Lossy policies to try; none: exact coding alone.  [default: {','.join(DEFAULT_POLICIES)}]",
)
@click.option("--speed", is_flag=True, help="Measure this machine too; all else is the same everywhere.")
@click.option(
    "--picture", type=click.Path(path_type=Path), help="Draw ratio, bound and errors of each plane into a .png or .svg file."
)
@json_option
def analyse(
    source: str,
    unit_tokens: str | None,
    element: str | None,
    tensor: str | None,
    blocks: int,
    policies: str | None,
    speed: bool,
    picture: Path | None,
    as_json: bool,
) -> None:
    """Say how much smaller K and V become: of a file, or of the blocks that a running daemon has.

    FILE is an .npz or .safetensors of [..., heads, tokens, dimensions]. NAMESPACE is the URL of one, such as
    halfstep://flash-node/default: blocks are read as its listing begins, --blocks of them at most and 1 GiB, and their parts
    are coded as they are stored. The blocks' layout says what their values are. --speed takes the first 64 MiB of them.

    Flash counts pages, trailers and padding, for blocks of all layers. The bound is that of any code which looks at one
    exponent at a time. bfx is exact. Of lossy policies the second half tells, where planes are K and V of a layer: the error,
    its root mean square as a share of the values' and the largest, and how far a value may be off; the same of a cast to fp8.
    """
    if picture is not None:
        check_picture(picture, "picture")
    named = cast("Element | None", element)
    remarks: list[str] = []
    errors = Errors([policy_of(name) for name in _names(policies)])
    if source.startswith(_URLS):
        for option, given in (("--unit-tokens", unit_tokens), ("--tensor", tensor)):
            if given is not None:
                raise click.UsageError(f"{option}: is for files; a stored block's units are its parts")
        wholes, planes, speeds, remarks = _of_namespace(source, blocks, named, errors, speed=speed)
    else:
        wholes, planes, speeds = _of_file(
            Path(source), _lengths(unit_tokens or _UNIT_TOKENS), tensor or "*", named, errors, speed=speed
        )
    if picture is not None:
        from halfstep.tools.compress.plot import plot

        plot(planes, errors.planes(), source, picture)
    if as_json:
        print_json(_document(wholes, planes, errors, speeds) | ({"remarks": remarks} if remarks else {}))
        return
    _print(wholes, planes)
    _print_errors(errors)
    for remark in remarks:
        say(remark)
    for one in speeds or ():
        said = f"{one.encode_gb_s:.1f} GB/s in, {one.decode_gb_s:.1f} GB/s out"
        say(f"{one.codec}, {one.path}: {said}, one core, one unit at a time")


def _of_file(
    file: Path, lengths: list[int], pattern: str, element: Element | None, errors: Errors, *, speed: bool
) -> tuple[list[LengthFigures], list[PlaneFigures], list[Speeds] | None]:
    tensors = [one for one in read_tensors(file, element=element) if fnmatchcase(one.name, pattern)]
    wholes, planes = analyse_tensors(tensors, lengths, errors.count)
    if not wholes:
        raise ConfigError(f"{file}: has no tensor of bf16, fp16 or fp8 with {min(lengths)} tokens; see --element, --tensor")
    length = wholes[-1].unit_tokens
    return wholes, planes, [measure(tensors, length, codec) for codec in _timed_codecs(errors)] if speed else None


def _of_namespace(
    url: str, blocks: int, element: Element | None, errors: Errors, *, speed: bool
) -> tuple[list[LengthFigures], list[PlaneFigures], list[Speeds] | None, list[str]]:
    from halfstep.tools.compress.stored import KEEP_BYTES, Sample, complaint, lines, sample

    taken = Sample(KEEP_BYTES if speed else 0)
    with connected(url, codecs=("bfx",)) as client:
        wholes, planes = analyse_stored(sample(client, blocks, taken, element=element), errors.count)
    if not taken.blocks:
        raise complaint(taken, url)
    speeds = [measure_blocks(taken.kept, codec) for codec in _timed_codecs(errors)] if speed else None
    return wholes, planes, speeds, list(lines(taken))


def _timed_codecs(errors: Errors) -> list[str]:
    return ["bfx", "ubq"] if errors.planes() else ["bfx"]


def _names(policies: str | None) -> list[str]:
    if policies is None:
        return list(DEFAULT_POLICIES)
    return [] if policies == "none" else [name for name in policies.split(",") if name]


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


def _print_errors(errors: Errors) -> None:
    policies = errors.of_policies()
    if not policies:
        return
    longest = max(one.unit_tokens for one in errors.planes())
    right = "right"
    print_table(
        [
            "plane",
            ("step", right),
            ("ratio", right),
            ("bound", right),
            ("error, rms", right),
            ("largest", right),
            ("half a step", right),
            "exact units",
        ],
        [_error_row(one, f"{one.step:g}") for one in errors.planes() if one.unit_tokens == longest]
        + [_error_row(one, "fp8") for one in errors.fp8() if one.unit_tokens == longest],
    )
    print_table(
        ["policy", ("tokens", right), ("ratio", right), ("error of K", right), ("of V", right), "within that of a cast to fp8"],
        [
            (p.policy, _tokens(p.unit_tokens), f"{p.ratio:.3f}", f"{p.k_error:.4f}", f"{p.v_error:.4f}", _yes(p.within_fp8))
            for p in policies
        ],
    )
    best = recommended(policies)
    if best:
        say(
            f"recommended: exact; {best} where the error of a cast to fp8 may be had; what it costs a model: halfstep calibrate"
        )
    else:
        say("recommended: exact; all lossy ones tried are off by more than a cast to fp8; see halfstep calibrate")


def _error_row(one: ErrorFigures, step: str) -> tuple[str, ...]:
    exact = f"{one.exact_units} of {one.units}"
    bound = f"{one.bound:.3g}" if one.bound else ""
    entropy = f"{one.entropy_bound:.3f}" if one.entropy_bound else ""
    return one.plane, step, f"{one.ratio:.3f}", entropy, f"{one.error_share:.4f}", f"{one.error_max:.3g}", bound, exact


def _yes(told: bool) -> str:
    return "yes" if told else "no"


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


def _document(
    wholes: list[LengthFigures], planes: list[PlaneFigures], errors: Errors, speeds: list[Speeds] | None
) -> dict[str, object]:
    policies: list[PolicyFigures] = errors.of_policies()
    return {
        "lengths": [asdict(w) | {"ratio": w.ratio, "flash_ratio": w.flash_ratio, "policy": w.policy} for w in wholes],
        "planes": [asdict(p) | {"ratio": p.ratio} for p in planes],
        "errors": [_error_document(one) for one in errors.planes()],
        "fp8": [_error_document(one) for one in errors.fp8()],
        "policies": [asdict(one) for one in policies],
        "recommended": {"exact": wholes[-1].policy, "lossy": recommended(policies)},
        "speeds": None if speeds is None else [asdict(one) for one in speeds],
    }


def _error_document(one: ErrorFigures) -> dict[str, object]:
    told = asdict(one)
    del told["level_counts"]
    return told | {name: getattr(one, name) for name in ("ratio", "entropy_bound", "error_rms", "error_share")}
