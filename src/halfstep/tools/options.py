"""Shared by several commands: options that name a daemon, keys as text, tables and JSON."""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from halfstep.errors import ConfigError
from halfstep.tools.streams import say

if TYPE_CHECKING:
    from halfstep import Client, Layout

F = TypeVar("F", bound=Callable[..., Any])

URL_VARIABLE = "HALFSTEP_URL"
DEFAULT_URL = "halfstep://127.0.0.1:7350/default"

# How long a person waits for a daemon that is not there, and for one call of one that is.
CONNECT_MS, CALL_MS = 2000, 30_000
# Below this a bar would be gone before it is read.
PROGRESS_BYTES_MIN = 64 << 20

_HEX = "hex:"


def default_url() -> str:
    """$HALFSTEP_URL, or the daemon that `halfstep serve` starts without arguments."""
    return os.environ.get(URL_VARIABLE) or DEFAULT_URL


def url_option(function: F) -> F:
    """`--url URL` for commands whose arguments are keys or files."""
    option = click.option("-u", "--url", default=default_url, show_default=DEFAULT_URL, help="The daemon and namespace.")
    return option(function)


def url_argument(function: Callable[..., None]) -> Callable[..., None]:
    """`[URL]` for commands about a daemon as a whole; `--url URL` as everywhere else is the same."""

    @functools.wraps(function)
    def with_url(*arguments: Any, url: str | None, url_named: str | None, **options: Any) -> None:
        if url is not None and url_named is not None:
            raise click.UsageError("the URL is given twice: as an argument and with --url")
        function(*arguments, url=url or url_named or default_url(), **options)

    named = click.option("-u", "--url", "url_named", metavar="URL", help=f"The same as URL.  [default: {DEFAULT_URL}]")
    return click.argument("url", default=None, required=False)(named(with_url))


def json_option(function: F) -> F:
    """`--json`: the same facts, for programs."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")(function)


def connected(url: str, layout: Layout | None = None, call_ms: float = CALL_MS, codecs: Sequence[str] = ()) -> Client:
    """A client whose daemon is there. It sees what is there whatever $HALFSTEP_MODE says. Errors: Unavailable, ConfigError."""
    import halfstep
    from halfstep.client.recording import unrecorded

    with unrecorded():
        client = halfstep.connect(url, layout=layout, deadline_ms=call_ms, match_deadline_ms=call_ms, mode="on", codecs=codecs)
    try:
        client.wait_ready(min(CONNECT_MS, call_ms))
    except BaseException:
        client.close()
        raise
    return client


def key_of(text: str) -> bytes:
    """An engine key from the command line: its bytes as they were typed, or those of `hex:…`. Errors: ConfigError."""
    if text.startswith(_HEX):
        try:
            key = bytes.fromhex(text.removeprefix(_HEX))
        except ValueError:
            raise ConfigError(f"key {text!r}: after hex: come pairs of hexadecimal digits") from None
    else:
        key = text.encode(errors="surrogateescape")  # an argument, or a file's name, need not be UTF-8
    if not 1 <= len(key) <= 255:
        raise ConfigError(f"key {text[:40]!r}: has {len(key)} bytes; an engine key has 1 to 255")
    return key


def time_text(seconds: int) -> str:
    """A moment of the wall clock, in local time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def key_text(key: bytes) -> str:
    """The inverse of `key_of`: as text where that is unambiguous and printable, else hex."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return _HEX + key.hex()
    return text if text.isprintable() and not text.startswith(_HEX) else _HEX + key.hex()


def refusal(client: Client, reason: str, block_bytes: int) -> str:
    """The reason why a block was not taken, with its bound where it has one."""
    if reason != "rejected (too_large)":
        return reason
    return (
        f"{reason}: {block_bytes} bytes; this daemon takes blocks of up to {client.facts().block_bytes_max}, and a namespace "
        "none larger than its quota (`halfstep namespace ls`)"
    )


def print_json(value: object) -> None:
    """One JSON document on stdout."""
    say(json.dumps(value, indent=2, default=_plain))


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return value.hex()
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} has no JSON form")


def print_table(columns: Sequence[str | tuple[str, str]], rows: Iterable[Sequence[object]]) -> None:
    """A table on stdout. A column is a title, or (title, "right") for numbers."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        title, justify = column if isinstance(column, tuple) else (column, "left")
        table.add_column(title, justify="right" if justify == "right" else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))  # as a plain string it would lose what stands in brackets
    # Piped into a file or grep, a line must not be folded at 80 columns. The stream is named for its encoding: lines of ASCII
    # are drawn where it has no others.
    console = Console(file=sys.stdout)
    if not console.is_terminal:
        console = Console(file=sys.stdout, width=200)
    with console.capture() as drawn:  # rich itself would end the process with 1 when the reader is gone
        console.print(table)
    say(drawn.get(), end="")


@contextmanager
def progress_bar(label: str, total_bytes: int | None) -> Iterator[Callable[[int], None]]:
    """A bar on stderr, for people: at a terminal only, and only for what takes a while.

    total_bytes: None where it is not known. Yields a function that is told of more bytes.
    """
    if not sys.stderr.isatty() or (total_bytes is not None and total_bytes < PROGRESS_BYTES_MIN):
        yield lambda _more_bytes: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total_bytes)
        yield lambda more_bytes: bar.advance(task, more_bytes)
