"""`halfstep explain KEY`: where a block is and since when, or when and why it went, as far as the daemon remembers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click

from halfstep.errors import ConfigError
from halfstep.tools.blocks import LAST_CELL
from halfstep.tools.options import connected, json_option, key_of, key_text, print_json, print_table, time_text, url_option
from halfstep.tools.streams import say

# What is looked up of every layout and group when nobody says better: the first cells of a grid, or pieces of a value that
# `halfstep put` stored. Others are found by their events, while these are remembered.
CELLS = 64
_TOUCHED = {"none": "not since written", "once": "once", "more": "more than once"}
_WENT = {
    "deleted": "a client deleted it",
    "expired": "its time was over",
    "evicted": "not worth keeping when its segment was reclaimed",
    "quota": "its namespace had too much",
    "corrupt": "its bytes failed their check",
    "io": "the device could not read or write it",
    "layout_cleared": "its layout was cleared",
    "namespace_deleted": "its namespace was deleted",
    "unnamed": "evicted or expired, perhaps: it is not among those that are remembered by name",
}


@click.command()
@click.argument("key")
@click.option("--component", type=click.IntRange(0, (1 << 32) - 1), help="Number of one piece of the key, group included.")
@click.option(
    "--layout", "layout_hex", default="", metavar="HEX", help="Only layouts whose id begins with these digits (`halfstep ls`)."
)
@url_option
@json_option
def explain(key: str, component: int | None, layout_hex: str, url: str, as_json: bool) -> None:
    """Say what the daemon knows of KEY: where its blocks are and what keeps them, or when and why they went.

    Without --component it looks at the first 64 cells of every group, and at what it remembers of the key besides. What went
    before the oldest event that is remembered, or before the daemon's start, cannot be explained; then it says so. Requests
    that wait for a block of it are named.

    KEY is text or hex:…. Exit status 1 when no block of it is there.
    """
    name = key_of(key)
    prefix = layout_hex.lower()
    if prefix.strip("0123456789abcdef") or len(prefix) > 32:
        raise ConfigError(f"layout={layout_hex!r}: must be up to 32 hexadecimal digits, the beginning of a layout's id")
    cells = [range(CELLS), range(LAST_CELL, LAST_CELL + CELLS)]
    with connected(url) as client:
        told = client.admin.explain(
            name, cells if component is None else [range(component, component + 1)], every_group=component is None
        )
    if told["lookups"] == 0 and not told["whole"]:  # of a mount: "never seen" would be a guess
        raise ConfigError(f"explain on {url}: a mount keeps no history; ask the daemon behind it")
    told["blocks"] = [block for block in told["blocks"] if block["layout"].startswith(prefix)]
    # An older daemon does not say.
    told["awaited"] = [block for block in told.get("awaited", []) if block["layout"].startswith(prefix)]
    verdict = verdict_of(told)
    if as_json:
        print_json({"key": key_text(name), "verdict": verdict, **told})
    else:
        for line in _lines(key_text(name), verdict, told):
            say(line)
        _print_blocks(told)
        _print_awaited(told)
    if verdict != "there":
        raise SystemExit(1)


def verdict_of(told: Mapping[str, Any]) -> str:
    """there, gone, or never_seen (as far as memory reaches)."""
    if any(block["there"] for block in told["blocks"]):
        return "there"
    return "gone" if told["blocks"] else "never_seen"


def departure_of(block: Mapping[str, Any], told: Mapping[str, Any]) -> tuple[int, str]:
    """When a block that is not there went, and the reason; (0, "") where nobody remembers."""
    last = block["events"][-1] if block["events"] else None
    if last is not None and last["kind"] != "stored":
        return int(last["time_s"]), str(last["reason"])
    if block["layout_cleared"]:
        since = last["number"] if last is not None else 0
        for clearing in told["cleared"]:
            if clearing["layout"] == block["layout"] and clearing["number"] > since:
                return int(clearing["time_s"]), str(clearing["reason"])
    expiry_s = block.get("expiry_s", 0)
    if 0 < expiry_s <= told["now_s"]:
        return int(expiry_s), "expired"
    stored = last["number"] if last is not None else 0
    return 0, "unnamed" if told["memory"].get("unnamed", {}).get("newest_event", 0) > stored else ""


def _lines(key: str, verdict: str, told: Mapping[str, Any]) -> Iterator[str]:
    there = sum(block["there"] for block in told["blocks"])
    gone = len(told["blocks"]) - there
    if verdict == "there":
        yield f"{key}: there, {there} block(s)" + (f"; {gone} more went" if gone else "")
    elif verdict == "gone":
        yield f"{key}: gone, {gone} block(s)"
    else:
        yield f"{key}: never seen, as far as memory reaches"
    if verdict != "there":
        yield from _horizon(told)
    if not told["whole"]:
        yield "there was more to look at than one question may; ask again with --component"


def _horizon(told: Mapping[str, Any]) -> Iterator[str]:
    memory = told["memory"]
    if memory["oldest_event"] > memory["newest_event"]:
        yield "nothing has come or gone since the daemon started"
        return
    since = time_text(memory["oldest_event_s"])
    yield f"remembered are events {memory['oldest_event']} to {memory['newest_event']}, since {since}"
    forgotten = {reason: count for reason, count in memory["forgotten"].items() if count}
    if forgotten:
        counts = ", ".join(f"{count:,} {reason}" for reason, count in forgotten.items())
        yield f"of those before only the number is known: {counts}"
    unnamed = memory.get("unnamed", {})
    if unnamed.get("blocks"):
        yield f"{unnamed['blocks']:,} blocks went unnamed, the last ones at {time_text(unnamed['newest_s'])}"
    for clearing in told["cleared"]:
        yield f"{time_text(clearing['time_s'])}  layout {clearing['layout'][:8]}: {_WENT[clearing['reason']]}, with all it held"


def _print_blocks(told: Mapping[str, Any]) -> None:
    present = [block for block in told["blocks"] if block["there"]]
    if present:
        columns: list[str | tuple[str, str]] = [
            "layout",
            "component",
            "where",
            ("bytes", "right"),
            ("on flash", "right"),
            "codec",
            "since",
            "touched",
            "holds",
            "expires",
        ]
        print_table(columns, [_row(block) for block in present])
    departed = [block for block in told["blocks"] if not block["there"]]
    if departed:
        print_table(["layout", "component", "stored", "went", "why"], [_departed_row(block, told) for block in departed])


def _print_awaited(told: Mapping[str, Any]) -> None:
    """Requests that wait for blocks of the key which nobody has stored yet."""
    rows = [row for block in told["awaited"] for row in _awaited_rows(block)]
    if rows:
        print_table(["layout", "component", "awaited by", ("since", "right"), ("ends in", "right")], rows)


def _awaited_rows(block: Mapping[str, Any]) -> Iterator[tuple[object, ...]]:
    name = block["layout"][:8], f"{block['component']:#x}"
    for waiter in block["waiters"]:
        yield *name, waiter["command"], f"{waiter['waited_ms'] / 1000:,.1f} s", f"{waiter['ends_in_ms'] / 1000:,.1f} s"
    if (more := block["waiting"] - len(block["waiters"])) > 0:
        yield *name, f"{more:,} more", "", ""


def _row(block: Mapping[str, Any]) -> tuple[object, ...]:
    return (
        block["layout"][:8],
        f"{block['component']:#x}",
        _place(block["where"]),
        f"{block['block_bytes']:,}",
        f"{block['extent_bytes']:,}",
        block.get("codec", ""),  # an older daemon does not say
        _since(block),
        _use(block),
        ", ".join(_hold(hold) for hold in block["holds"]) or "none",
        time_text(block["expiry_s"]) if block["expiry_s"] else "never",
    )


def _use(block: Mapping[str, Any]) -> str:
    """What is known of its use: so far, and from then on."""
    words = _TOUCHED.get(block["touched"], block["touched"])
    if block["touched"] != "none":
        words += f", {block['touch_age_capacities']:.2f} capacities of writes ago"
    hint = block.get("hint", "none")  # an older daemon does not say
    return words if hint == "none" else f"{words}; hinted {hint.replace('_', ' ')}"


def _departed_row(block: Mapping[str, Any], told: Mapping[str, Any]) -> tuple[object, ...]:
    when_s, why = departure_of(block, told)
    return (
        block["layout"][:8],
        f"{block['component']:#x}",
        _since(block),
        time_text(when_s) if when_s else "not remembered",
        _WENT.get(why, why) or "not remembered",
    )


def _since(block: Mapping[str, Any]) -> str:
    stored = [event["time_s"] for event in block["events"] if event["kind"] == "stored"]
    since = block.get("created_s") or (stored[-1] if stored else 0)
    return time_text(since) if since else "not remembered"


def _place(where: Mapping[str, Any]) -> str:
    if not where["flash"]:
        return "memory, not written yet"
    place = f"segment {where['segment']} page {where['page']}, stream {where['stream']}"
    return place + (", memory" if where["memory"] else "") + ("" if where["on_media"] else ", not flushed yet")


def _hold(hold: Mapping[str, Any]) -> str:
    kind = "pin" if hold["persistent"] else "lease"
    return kind if hold["ends_in_ms"] is None else f"{kind}, {hold['ends_in_ms'] / 1000:.0f} s left"
