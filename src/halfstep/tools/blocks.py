"""`halfstep ls, put, get, rm, match`: blocks by hand.

A file is one engine key. It is cut into pieces of at most PIECE_BYTES_MAX; piece n is the key's component with cell n, and the
last one also carries LAST_CELL (the number of a piece of an opaque value, last one flagged: docs/wire-protocol.md), so that a
value of any length is read back without its length being known.

Invariants: the last piece is put after all others and deleted before them, so that a value which was interrupted is a miss,
never a short file; pieces of an interrupted value are removed before another one takes its key, so that no two are mixed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NoReturn

import click

from halfstep.errors import ConfigError, Unavailable
from halfstep.tools.footprint import Footprint, by_layout, footprints
from halfstep.tools.options import (
    connected,
    json_option,
    key_of,
    key_text,
    print_json,
    print_table,
    progress_bar,
    refusal,
    time_text,
    url_option,
)
from halfstep.tools.streams import read_blocking, say, write_bytes

if TYPE_CHECKING:
    from halfstep import Client, Layout, PutResult, Ticket

PIECE_BYTES_MAX = 4 << 20
LAST_CELL = 1 << 19
# Pieces of one call, and calls under way at once: the next pieces are read and sent while the last ones reach the media.
PIECES_PER_CALL, CALLS_IN_FLIGHT = 4, 2
# Pieces whose presence is asked for in one match.
PIECES_PER_MATCH = 1024


def file_layout() -> Layout:
    """What `put FILE` stores: bytes of unknown make."""
    from halfstep import Layout

    return Layout.opaque("file")


def _last(piece: int) -> int:
    return LAST_CELL | piece


@click.command()
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@click.option("-k", "--key", default=None, help="Key of the value; hex:… for bytes.  [default: the file's name]")
@click.option("--ttl", "ttl_s", type=click.IntRange(min=0), default=0, help="Seconds until it is dropped; 0 = the default.")
@click.option("--cache", is_flag=True, help="Acknowledge when readable, not when on media.")
@url_option
@json_option
def put(file: Path, key: str | None, ttl_s: int, cache: bool, url: str, as_json: bool) -> None:
    """Store FILE ("-" for standard input) under a key. A key that is there keeps its bytes: blocks are immutable."""
    if str(file) == "-" and key is None:
        raise ConfigError("key: standard input has no name; give one with --key")
    name = key_of(file.name if key is None else key)
    try:
        with _opened(file) as stream, connected(url, file_layout()) as client:
            there = _pieces(client, name)
            if there is None:
                sizes = _put(client, name, stream, None if str(file) == "-" else file.stat().st_size, ttl_s, cache=cache)
                if len(sizes) > 1 and _pieces(client, name) is None:
                    raise Unavailable(
                        f"put {key_text(name)}: of its {len(sizes)} pieces, {sum(sizes)} bytes, the store does not keep all at "
                        "once, so it is a miss; a larger store, or a larger quota of the namespace, would"
                    )
            else:
                sizes = [size for _, size in there]
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    if not sizes:
        raise ConfigError(f"{file}: is empty; a block has at least one byte")
    present = 0 if there is None else len(sizes)
    if as_json:
        print_json({"key": key_text(name), "bytes": sum(sizes), "pieces": len(sizes), "present": present})
    else:
        was = "; was there already and keeps its bytes" if present else ""
        say(f"{key_text(name)}: {sum(sizes)} bytes in {len(sizes)} piece(s){was}")


def _opened(file: Path) -> BinaryIO:
    return read_blocking() if str(file) == "-" else file.open("rb")


def _put(client: Client, name: bytes, stream: BinaryIO, total_bytes: int | None, ttl_s: int, *, cache: bool) -> list[int]:
    """Puts what `stream` holds, piece by piece; returns the pieces' bytes. total_bytes: None where it is not known before."""
    piece_bytes = min(PIECE_BYTES_MAX, client.facts().block_bytes_max)
    _remove(client, name, _present(client, name, 0 if total_bytes is None else total_bytes // piece_bytes + 2))
    sizes: list[int] = []
    under_way: deque[Ticket[PutResult]] = deque()
    with client.queue() as queue, progress_bar(key_text(name), total_bytes) as advance:

        def submit(pieces: list[bytes], first_component: int) -> None:
            while len(under_way) >= CALLS_IN_FLIGHT:
                settle()
            ticket = queue.put(
                [name],
                pieces,
                first_component=first_component,
                components=len(pieces),
                ttl_s=ttl_s,
                durability="cache" if cache else "persist",
            )
            under_way.append(ticket)
            sizes.extend(len(piece) for piece in pieces)

        def settle() -> None:
            result = under_way.popleft().result()
            if not result.ok.all():
                why = refusal(client, result.reason(int(result.ok.argmin())), max(sizes))
                raise Unavailable(f"put {key_text(name)}: {why}; it is not there now")
            advance(result.keys * result.components * piece_bytes)

        # A piece is held back until another follows: the last one goes by itself, when all others are there.
        held: list[bytes] = []
        while piece := stream.read(piece_bytes):
            if len(held) == PIECES_PER_CALL:
                submit(held, len(sizes))
                held = []
            held.append(piece)
        if held[:-1]:
            submit(held[:-1], len(sizes))
        while under_way:
            settle()
        if held:
            submit(held[-1:], _last(len(sizes)))
            settle()
    return sizes


def _lengths(client: Client, name: bytes, first_component: int) -> list[int]:
    """Bytes of PIECES_PER_MATCH components of a key, 0 = not there. Errors: Unavailable where not all of them were answered."""
    found = client.match([name], first_component=first_component, components=PIECES_PER_MATCH, lengths=True)
    if not found.answered:
        raise Unavailable(f"match {key_text(name)}: {found.reason}")
    assert found.lengths is not None
    return [int(size) for size in found.lengths.reshape(-1)]


def _pieces(client: Client, name: bytes) -> list[tuple[int, int]] | None:
    """(component, bytes) of a value's pieces in order; None when it is not there whole."""
    sizes: list[int] = []
    run = PIECES_PER_MATCH
    while run == PIECES_PER_MATCH:
        lengths = _lengths(client, name, len(sizes))
        run = lengths.index(0) if 0 in lengths else len(lengths)
        sizes += lengths[:run]
    last = _lengths(client, name, _last(len(sizes)))[0]
    return [*enumerate(sizes), (_last(len(sizes)), last)] if last else None


def _present(client: Client, name: bytes, pieces_min: int) -> list[int]:
    """Components of a key that are there, whole value or not, the flagged ones first; looks at `pieces_min` places at least."""
    flagged: list[int] = []
    plain: list[int] = []
    for first in range(0, LAST_CELL - PIECES_PER_MATCH, PIECES_PER_MATCH):
        before = len(flagged) + len(plain)
        flagged += [_last(first) + at for at, size in enumerate(_lengths(client, name, _last(first))) if size]
        plain += [first + at for at, size in enumerate(_lengths(client, name, first)) if size]
        if first + PIECES_PER_MATCH >= pieces_min and len(flagged) + len(plain) == before:
            break
    return flagged + plain


def _remove(client: Client, name: bytes, components: list[int]) -> None:
    """Deletes components one after the other, in this order. Errors: Unavailable."""
    for component in components:
        result = client.delete([name], first_component=component)
        if not result.ok.all() and not result.reason(0).startswith("miss"):
            raise Unavailable(f"delete {key_text(name)}: {result.reason(0)}")


@click.command()
@click.argument("key")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, allow_dash=True),
    default=Path("-"),
    help='File to write; "-" is standard output.',
)
@url_option
def get(key: str, output: Path, url: str) -> None:
    """Read the value of KEY back, verified. Exit status 1 when it is not there, or not whole; then nothing is written."""
    import numpy as np

    name = key_of(key)
    with connected(url, file_layout()) as client:
        pieces = _pieces(client, name)
        if pieces is None:
            say(f"{key_text(name)}: miss (absent)", err=True)
            raise SystemExit(1)
        value = np.empty(sum(size for _, size in pieces), dtype=np.uint8)
        whole, last = pieces[:-1], pieces[-1:]
        # The last piece's component is not the next number, so it goes by itself.
        calls = [whole[at : at + PIECES_PER_CALL] for at in range(0, len(whole), PIECES_PER_CALL)] + [last]
        done = 0
        with progress_bar(key_text(name), len(value)) as advance:
            for call in calls:
                borders = list(accumulate((size for _, size in call), initial=done))
                targets = [value[start:end] for start, end in pairwise(borders)]
                result = client.get([name], targets, first_component=call[0][0], components=len(call))
                if not result.ok.all():
                    _end_without(name, result.reason(int(result.ok.argmin())))
                advance(borders[-1] - done)
                done = borders[-1]
    if str(output) == "-":
        write_bytes(value.data)
        return
    try:
        output.write_bytes(value.data)
    except OSError as error:
        raise ConfigError(f"{output}: {error.strerror}") from None


def _end_without(name: bytes, reason: str) -> NoReturn:
    """A miss is status 1; that the daemon did not say is none. Errors: Unavailable."""
    if not reason.startswith("miss"):
        raise Unavailable(f"get {key_text(name)}: {reason}")
    say(f"{key_text(name)}: {reason}", err=True)
    raise SystemExit(1)


@click.command()
@click.argument("keys", nargs=-1, required=True)
@url_option
@json_option
def rm(keys: tuple[str, ...], url: str, as_json: bool) -> None:
    """Delete values stored with `put`. Gone means gone: also after a restart. Exit status 1 when one was not there.

    What an interrupted `put` left of a key goes with it, though it was never there.
    """
    told = []
    with connected(url, file_layout()) as client:
        for name in map(key_of, keys):
            whole = _pieces(client, name) is not None
            _remove(client, name, _present(client, name, 0))
            told.append({"key": key_text(name), "deleted": whole})
    if as_json:
        print_json(told)
    else:
        for one in told:
            say(f"{one['key']}: {'deleted' if one['deleted'] else 'miss (absent)'}")
    if not all(one["deleted"] for one in told):
        raise SystemExit(1)


@click.command()
@click.argument("keys", nargs=-1, required=True)
@url_option
@json_option
def match(keys: tuple[str, ...], url: str, as_json: bool) -> None:
    """Check that the values of KEYS, stored with `put`, are there and whole. Exit status 1 unless all are."""
    rows = []
    with connected(url, file_layout()) as client:
        for name in map(key_of, keys):
            pieces = _pieces(client, name)
            rows.append((key_text(name), pieces is not None, sum(size for _, size in pieces or [])))
    if as_json:
        print_json([{"key": key, "present": present, "bytes": size} for key, present, size in rows])
    else:
        print_table(["key", "present", ("bytes", "right")], [(key, "yes" if ok else "no", size) for key, ok, size in rows])
    if not all(present for _, present, _ in rows):
        raise SystemExit(1)


@click.command()
@click.option("--limit", type=click.IntRange(min=1), default=1000, show_default=True, help="Blocks to show at most.")
@click.option("--flash", is_flag=True, help="Ask of each block what it takes on flash, and of which codecs its parts are.")
@url_option
@json_option
def ls(limit: int, flash: bool, url: str, as_json: bool) -> None:
    """List a namespace's blocks, of every layout. Bytes are those that were put, before any codec.

    With --flash also whole pages on flash, with trailer and padding, and sums by layout, group and codec: a request a block.
    """
    with connected(url, file_layout()) as client:
        entries = list(client.admin.list(limit=limit))
        told = list(footprints(client, entries)) if flash else []
    if as_json:
        more = [{"codec": one.codec, "flash_bytes": one.flash_bytes} for one in told] if flash else [{} for _ in entries]
        print_json([entry._asdict() | one for entry, one in zip(entries, more, strict=True)])
        return
    columns: list[str | tuple[str, str]] = ["layout", "component", ("bytes", "right"), ("parts", "right")]
    columns += [("on flash", "right")] if flash else []
    flash_cells = [[_flash_text(one)] for one in told] if flash else [[] for _ in entries]
    print_table(
        [*columns, "created", "expires", "key"],
        [
            (
                entry.layout_id.hex()[:8],
                f"{entry.component:#x}",
                entry.block_bytes,
                entry.parts,
                *cells,
                time_text(entry.created_s),
                time_text(entry.expiry_s) if entry.expiry_s else "never",
                key_text(entry.key),
            )
            for entry, cells in zip(entries, flash_cells, strict=True)
        ],
    )
    if flash:
        _print_layouts(told)
    for line in _more(len(entries), limit):
        say(line)


def _flash_text(one: Footprint) -> str:
    return "went" if one.flash_bytes is None else str(one.flash_bytes)


def _print_layouts(told: list[Footprint]) -> None:
    print_table(
        ["layout", "group", "codec", ("blocks", "right"), ("bytes", "right"), ("on flash", "right"), ("ratio", "right")],
        [
            (
                one.layout_id.hex()[:8],
                one.group,
                one.codec or "none",
                f"{one.blocks:,}",
                f"{one.logical_bytes:,}",
                f"{one.flash_bytes:,}",
                f"{one.ratio:.3f}",
            )
            for one in by_layout(told)
        ],
    )


def _more(shown: int, limit: int) -> Iterator[str]:
    if shown == limit:
        yield f"{limit} shown; there may be more: --limit"
