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
# A device that hangs answers nothing: a check that waited for each call's own deadline would take minutes to say so.
TIMEOUT_S = 10.0


@dataclass
class Step:
    """One thing tried: what, whether it held, how long it took, and what was seen."""

    name: str
    ok: bool
    milliseconds: float
    seen: str


@click.command()
@url_argument
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0.1, max=3600),
    default=TIMEOUT_S,
    show_default=True,
    help="Seconds for all steps. A step that is not done by then has failed.",
)
@json_option
def check(url: str, timeout_s: float, as_json: bool) -> None:
    """Put a block, find it, read it back, miss a wrong key, delete it; say which path the bytes took.

    Exit status 1 when any of it fails. The block is of random bytes under a random key and is gone afterwards.
    """
    import halfstep

    ends_s = time.monotonic() + timeout_s
    with connected(url, halfstep.Layout.opaque("halfstep-check"), timeout_s * 1000) as client:
        steps = _steps(client, ends_s)
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


def _steps(client: Client, ends_s: float, clock: Callable[[], float] = time.monotonic) -> list[Step]:
    """All of them, in order; none begins after `ends_s` of the clock, and none waits for longer."""
    name = b"check-" + os.urandom(12)
    wrong = b"check-" + os.urandom(12)
    block_bytes = min(BLOCK_BYTES_MAX, client.facts().block_bytes_max)
    block = np.frombuffer(os.urandom(block_bytes), dtype=np.uint8)
    back = np.zeros(block_bytes, dtype=np.uint8)
    steps: list[Step] = []

    def left_ms() -> float:
        return max((ends_s - clock()) * 1e3, 1.0)

    def attempt(step: str, action: Callable[[], tuple[bool, str]]) -> None:
        started = clock()
        ok, seen = action() if started < ends_s else (False, "not tried: the time is over (--timeout)")
        steps.append(Step(step, ok, (clock() - started) * 1e3, seen))

    def put() -> tuple[bool, str]:
        result = client.put([name], block, durability="persist", deadline_ms=left_ms())
        return bool(result.ok.all()), result.reason(0)

    def match() -> tuple[bool, str]:
        found = client.match([name, wrong], deadline_ms=left_ms())
        return found.present.tolist() == [True, False], f"present {found.present.tolist()} {found.reason}".strip()

    def get() -> tuple[bool, str]:
        result = client.get([name], back, deadline_ms=left_ms())
        same = bool((back == block).all())
        return bool(result.ok.all()) and same, f"{result.reason(0)}, bytes {'identical' if same else 'DIFFER'}"

    def get_wrong() -> tuple[bool, str]:
        result = client.get([wrong], back, deadline_ms=left_ms())
        return result.reason(0).startswith("miss"), result.reason(0)

    def delete() -> tuple[bool, str]:
        result = client.delete([name], deadline_ms=left_ms())
        found = client.match([name], deadline_ms=left_ms())
        there = "not known whether it is gone" if not found.answered else "STILL THERE" if found.present.any() else "gone"
        return bool(result.ok.all()) and there == "gone", f"{result.reason(0)}, {there}"

    attempt(f"put {block_bytes >> 10} KiB, on media", put)
    attempt("match", match)
    attempt("get", get)
    attempt("get a wrong key", get_wrong)
    attempt("delete", delete)
    return steps
