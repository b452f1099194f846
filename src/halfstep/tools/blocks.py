"""`halfstep ls, put, get, rm, match`: blocks by hand.

A file is one engine key. It is cut into pieces of at most PIECE_BYTES_MAX; piece n is the key's component with cell n, and the
last one also carries LAST_CELL (V1 of the protocol: the number of a piece of an opaque value, last one flagged), so that a value
of any length is read back without its length being known.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from halfstep.errors import ConfigError, Unavailable
from halfstep.tools.options import json_option, key_of, key_text, print_json, print_table, url_option

if TYPE_CHECKING:
    from halfstep import Client, Layout, PutResult

PIECE_BYTES_MAX = 4 << 20
LAST_CELL = 1 << 19
# Pieces whose presence is asked for in one match, and the deadline of one call: this is a person at a terminal.
PIECES_PER_MATCH = 1024
DEADLINE_MS = 30_000


def file_layout() -> Layout:
    """What `put FILE` stores: bytes of unknown make."""
    from halfstep import Layout

    return Layout.opaque("file")


def _connect(url: str) -> Client:
    import halfstep

    return halfstep.connect(url, layout=file_layout(), required=True, deadline_ms=DEADLINE_MS, match_deadline_ms=DEADLINE_MS)


def _last(piece: int) -> int:
    return LAST_CELL | piece


@click.command()
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True))
@click.option("-k", "--key", default="", help="Its name; the file's name by default. hex:… for bytes.")
@click.option("--ttl", "ttl_s", type=click.IntRange(min=0), default=0, help="Seconds until it is dropped; 0 = the namespace's default.")
@click.option("--cache", is_flag=True, help="Acknowledge when readable, not when on media.")
@url_option
@json_option
def put(file: Path, key: str, ttl_s: int, cache: bool, url: str, as_json: bool) -> None:
    """Store FILE ("-" for standard input) under a key. A key that is there keeps its bytes: blocks are immutable."""
    import numpy as np

    if str(file) == "-" and not key:
        raise ConfigError("key: standard input has no name; give one with --key")
    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    if not data:
        raise ConfigError(f"{file}: is empty; a block has at least one byte")
    name = key_of(key or file.name)
    with _connect(url) as client:
        piece_bytes = min(PIECE_BYTES_MAX, client.facts().block_bytes_max)
        pieces = [np.frombuffer(data[at : at + piece_bytes], dtype=np.uint8) for at in range(0, len(data), piece_bytes)]
        results: list[PutResult] = []
        for number, piece in enumerate(pieces):
            cell = _last(number) if number == len(pieces) - 1 else number
            results.append(
                client.put([name], [piece], first_component=cell, ttl_s=ttl_s, durability="cache" if cache else "persist")
            )
            if not results[-1].ok.all():
                raise Unavailable(f"put {key_text(name)}: piece {number + 1} of {len(pieces)}: {results[-1].reason(0)}")
    present = sum(result.present for result in results)
    if as_json:
        print_json({"key": key_text(name), "bytes": len(data), "pieces": len(pieces), "present": present})
    else:
        was = "; was there already" if present == len(pieces) else ""
        click.echo(f"{key_text(name)}: {len(data)} bytes in {len(pieces)} piece(s){was}")


def _pieces(client: Client, name: bytes) -> list[tuple[int, int]] | None:
    """(component, bytes) of a value's pieces in order; None when it is not there whole."""
    sizes: list[tuple[int, int]] = []
    while True:
        found = client.match([name], first_component=len(sizes), components=PIECES_PER_MATCH, lengths=True)
        if not found.answered:
            raise Unavailable(f"match {key_text(name)}: {found.reason}")
        assert found.lengths is not None
        lengths = found.lengths.reshape(-1).tolist()
        run = lengths.index(0) if 0 in lengths else len(lengths)
        first = len(sizes)
        sizes += [(first + i, lengths[i]) for i in range(run)]
        if run < PIECES_PER_MATCH:
            break
    last = client.match([name], first_component=_last(len(sizes)), lengths=True)
    if not last.present.all():
        return None
    assert last.lengths is not None
    return [*sizes, (_last(len(sizes)), int(last.lengths.reshape(-1)[0]))]


@click.command()
@click.argument("key")
@click.option("-o", "--output", type=click.Path(path_type=Path, allow_dash=True), default=Path("-"), help='Where to; "-" is standard output.')
@url_option
def get(key: str, output: Path, url: str) -> None:
    """Read the value of KEY back, verified. Exit status 1 when it is not there, or not whole; then nothing is written."""
    import numpy as np

    name = key_of(key)
    with _connect(url) as client:
        pieces = _pieces(client, name)
        if pieces is None:
            click.echo(f"{key}: miss (absent)", err=True)
            raise SystemExit(1)
        value = np.empty(sum(size for _, size in pieces), dtype=np.uint8)
        at = 0
        for component, size in pieces:
            result = client.get([name], [value[at : at + size]], first_component=component)
            if not result.ok.all():
                click.echo(f"{key}: {result.reason(0)}", err=True)
                raise SystemExit(1)
            at += size
    if str(output) == "-":
        sys.stdout.buffer.write(value.tobytes())
        sys.stdout.buffer.flush()
    else:
        try:
            output.write_bytes(value.tobytes())
        except OSError as error:
            raise ConfigError(f"{output}: {error.strerror}") from None


@click.command()
@click.argument("keys", nargs=-1, required=True)
@url_option
@json_option
def rm(keys: tuple[str, ...], url: str, as_json: bool) -> None:
    """Delete values stored with `put`. Gone means gone: also after a restart. Exit status 1 when one was not there."""
    told = []
    with _connect(url) as client:
        for key in keys:
            name = key_of(key)
            pieces = _pieces(client, name)
            # The last piece goes first: a half-deleted value is a miss, never a short file.
            components = [component for component, _ in reversed(pieces or [])]
            for component in components:
                result = client.delete([name], first_component=component)
                if not result.ok.all() and not result.reason(0).startswith("miss"):
                    raise Unavailable(f"delete {key}: {result.reason(0)}")
            told.append({"key": key, "deleted": bool(components)})
    if as_json:
        print_json(told)
    else:
        for one in told:
            click.echo(f"{one['key']}: {'deleted' if one['deleted'] else 'miss (absent)'}")
    if not all(one["deleted"] for one in told):
        raise SystemExit(1)


@click.command()
@click.argument("keys", nargs=-1, required=True)
@url_option
@json_option
def match(keys: tuple[str, ...], url: str, as_json: bool) -> None:
    """Ask which KEYS stored with `put` are there whole. Exit status 1 unless all are."""
    rows = []
    with _connect(url) as client:
        for key in keys:
            pieces = _pieces(client, key_of(key))
            rows.append((key, pieces is not None, sum(size for _, size in pieces or [])))
    if as_json:
        print_json([{"key": key, "present": present, "bytes": size} for key, present, size in rows])
    else:
        print_table(["key", "present", ("bytes", "right")], [(key, "yes" if ok else "no", size) for key, ok, size in rows])
    if not all(present for _, present, _ in rows):
        raise SystemExit(1)


@click.command()
@click.option("--limit", type=click.IntRange(min=1), default=1000, show_default=True, help="Blocks to show at most.")
@url_option
@json_option
def ls(limit: int, url: str, as_json: bool) -> None:
    """List a namespace's blocks, of every layout."""
    with _connect(url) as client:
        entries = list(client.list(limit=limit))
    if as_json:
        print_json([entry._asdict() for entry in entries])
        return
    print_table(
        ["layout", "component", ("bytes", "right"), ("parts", "right"), "created", "expires", "key"],
        [
            (
                entry.layout_id.hex()[:8],
                f"{entry.component:#x}",
                entry.block_bytes,
                entry.parts,
                _time(entry.created_s),
                _time(entry.expiry_s) if entry.expiry_s else "never",
                key_text(entry.key),
            )
            for entry in entries
        ],
    )
    for line in _more(len(entries), limit):
        click.echo(line)


def _more(shown: int, limit: int) -> Iterator[str]:
    if shown == limit:
        yield f"{limit} shown; there may be more: --limit"


def _time(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
