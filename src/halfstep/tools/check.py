"""`halfstep check`: one block through everything, in a second."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click
import numpy as np

from halfstep.tools.options import connected, json_option, print_json, print_table, url_argument
from halfstep.tools.streams import say

if TYPE_CHECKING:
    from halfstep import Client

# A small store takes no blocks of this size: then its largest.
BLOCK_BYTES_MAX = 1 << 20


@dataclass
class Step:
    """One thing tried: what, whether it held, how long it took, and what was seen."""

    name: str
    ok: bool
    milliseconds: float
    seen: str


@click.command()
@url_argument
@json_option
def check(url: str, as_json: bool) -> None:
    """Put a block, find it, read it back, miss a wrong key, delete it; say which path the bytes took.

    Exit status 1 when any of it fails. The block is of random bytes under a random key and is gone afterwards.
    """
    import halfstep

    with connected(url, halfstep.Layout.opaque("halfstep-check")) as client:
        steps = _steps(client)
        path = client.path
    ok = all(step.ok for step in steps)
    if as_json:
        print_json({"ok": ok, "path": path, "steps": [step.__dict__ for step in steps]})
    else:
        print_table(
            ["step", "", ("ms", "right"), "seen"],
            [(step.name, "ok" if step.ok else "FAILED", f"{step.milliseconds:.1f}", step.seen) for step in steps],
        )
        say(f"path in use: {path}")
    if not ok:
        raise SystemExit(1)


def _steps(client: Client) -> list[Step]:
    name = b"check-" + os.urandom(12)
    wrong = b"check-" + os.urandom(12)
    block_bytes = min(BLOCK_BYTES_MAX, client.facts().block_bytes_max)
    block = np.frombuffer(os.urandom(block_bytes), dtype=np.uint8)
    back = np.zeros(block_bytes, dtype=np.uint8)
    steps: list[Step] = []

    def attempt(step: str, action: Callable[[], tuple[bool, str]]) -> None:
        started = time.perf_counter()
        ok, seen = action()
        steps.append(Step(step, ok, (time.perf_counter() - started) * 1e3, seen))

    def put() -> tuple[bool, str]:
        result = client.put([name], block, durability="persist")
        return bool(result.ok.all()), result.reason(0)

    def match() -> tuple[bool, str]:
        found = client.match([name, wrong])
        return found.present.tolist() == [True, False], f"present {found.present.tolist()} {found.reason}".strip()

    def get() -> tuple[bool, str]:
        result = client.get([name], back)
        same = bool((back == block).all())
        return bool(result.ok.all()) and same, f"{result.reason(0)}, bytes {'identical' if same else 'DIFFER'}"

    def get_wrong() -> tuple[bool, str]:
        result = client.get([wrong], back)
        return not result.ok.any(), result.reason(0)

    def delete() -> tuple[bool, str]:
        result = client.delete([name])
        gone = not client.match([name]).present.any()
        return bool(result.ok.all()) and gone, f"{result.reason(0)}, {'gone' if gone else 'STILL THERE'}"

    attempt(f"put {block_bytes >> 10} KiB, on media", put)
    attempt("match", match)
    attempt("get", get)
    attempt("get a wrong key", get_wrong)
    attempt("delete", delete)
    return steps
