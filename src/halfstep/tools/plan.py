"""`halfstep plan`: what the planner would fetch of a prefix, from given figures or with a daemon's loads, and why."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from statistics import median
from typing import Any

import click

from halfstep.client.facts import ShardLoad
from halfstep.client.planner import Curves, Plan, Reason, Terms, Work, curves, plan
from halfstep.client.speeds import FetchSpeed, PrefillSpeed
from halfstep.daemon.units import format_bytes, parse_micros, parse_size
from halfstep.errors import ConfigError
from halfstep.tools.options import connected, json_option, print_json, print_table
from halfstep.tools.streams import say

# Rows of the table, beside the chosen one.
ROWS = 8
# Round trips that are measured; the median counts.
PINGS = 5
# Of a sequence.
TOKENS_MAX = 1 << 40
SECONDS_MAX = 86_400

_WORDS = {
    Reason.NOTHING: "there is nothing to fetch",
    Reason.PREFILL_UNKNOWN: "the engine's speed is not known, so that all is fetched",
    Reason.LINK_UNKNOWN: "the link's speed is not known, so that all is fetched",
    Reason.FETCH: "fetching all ends first",
    Reason.FETCH_SOME: "fetching the first ones and computing the others ends first",
    Reason.RECOMPUTE: "computing all ends first, or fetching gains less than a twentieth",
}


@click.command("plan")
@click.option("--blocks", type=click.IntRange(0, 1 << 20), required=True, metavar="N", help="Blocks that the tier has.")
@click.option("--block-bytes", required=True, metavar="BYTES", help="Size of a block as it is stored, such as 5MiB.")
@click.option("--block-tokens", type=click.IntRange(1, 1 << 20), default=16, show_default=True, metavar="N")
@click.option(
    "--before",
    type=click.IntRange(0, TOKENS_MAX),
    default=0,
    metavar="N",
    help="Tokens that the engine has already.  [default: 0]",
)
@click.option(
    "--after", type=click.IntRange(0, TOKENS_MAX), default=0, metavar="N", help="Tokens behind the last block.  [default: 0]"
)
@click.option(
    "--prefill", metavar="N", type=click.FloatRange(1e-3, 1e12), help="Tokens a second that the engine computes at first."
)
@click.option(
    "--growth",
    metavar="X",
    type=click.FloatRange(0, 1),
    default=0.0,
    help="A token at position p costs 1 + X * p times as much.  [default: 0]",
)
@click.option("--link", metavar="BYTES", help="Bytes a second of a transfer, such as 2GB.")
@click.option("--round-trip", metavar="TIME", help="Of a question, such as 200us.  [default: as measured, or 0]")
@click.option("--queue", metavar="TIME", help="How long a request waits for its turn.  [default: as told, or 0]")
@click.option("--deadline", metavar="TIME", default="2s", show_default=True, help="Of the fetch.")
@click.option("--goal", metavar="TIME", help="Until all is there.")
@click.option(
    "--layers",
    type=click.IntRange(1, 1024),
    default=1,
    show_default=True,
    metavar="N",
    help="Pieces that an engine goes on in.",
)
@click.option("-u", "--url", metavar="URL", help="A daemon whose loads and round trip count where none are given.")
@click.option("--explain", is_flag=True, help="Show the choices beside the one that is made.")
@json_option
def plan_command(
    blocks: int,
    block_bytes: str,
    block_tokens: int,
    before: int,
    after: int,
    prefill: float | None,
    growth: float,
    link: str | None,
    round_trip: str | None,
    queue: str | None,
    deadline: str,
    goal: str | None,
    layers: int,
    url: str | None,
    explain: bool,
    as_json: bool,
) -> None:
    """Say how much of a prefix to fetch, and how much to compute again.

    \b
    halfstep plan --blocks 500 --block-bytes 5MiB --prefill 8000 \\
                  --link 2GB --explain

    The figures are those that a connector with plan="auto" learns while it runs.
    """  # noqa: D301
    for name, value in (("prefill", prefill), ("growth", growth)):
        if value is not None and math.isnan(value):  # which is in no range, and out of none
            raise ConfigError(f"{name}=nan: must be a number; leave it out where it is not known")
    work = Work(blocks, block_tokens, parse_size(block_bytes, "block-bytes"), before, after)
    terms = Terms(_seconds(deadline, "deadline"), None if goal is None else _seconds(goal, "goal"), layers)
    engine = PrefillSpeed(0.0 if prefill is None else 1 / prefill, growth)
    trip_s, loads = _told(url)
    fetch = FetchSpeed(
        trip_s if round_trip is None else _seconds(round_trip, "round-trip"), 0.0 if link is None else parse_size(link, "link")
    )
    if queue is not None:
        queue_us = round(1e6 * _seconds(queue, "queue"))
        # At the rate of the link it is the time that was given.
        loads = (ShardLoad(1, queue_us, max(1, int(fetch.bytes_per_s))),)
    made = plan(work, terms, engine, fetch, loads)
    known = engine.token_s > 0 and fetch.bytes_per_s > 0
    each = curves(work, engine, fetch, loads, layers=layers) if known and explain else None
    if as_json:
        facts = {"work": asdict(work), "terms": asdict(terms), "prefill": engine._asdict(), "link": fetch._asdict()}
        told = facts | {"shards": [load._asdict() for load in loads], "plan": asdict(made)}
        print_json(told if each is None else told | {"choices": list(_choices(each, made, terms.deadline_s))})
        return
    for line in _lines(work, terms, engine, fetch, made):
        say(line)
    if each is not None:
        columns: list[str | tuple[str, str]] = [
            ("fetched", "right"),
            ("fetch", "right"),
            ("compute", "right"),
            ("all there", "right"),
            "",
        ]
        print_table(
            columns,
            [
                (
                    one["blocks"],
                    _time(one["fetch_s"]),
                    _time(one["compute_s"]),
                    _time(one["end_s"]),
                    "chosen" if one["blocks"] == made.blocks else "after the deadline" if one["late"] else "",
                )
                for one in _choices(each, made, terms.deadline_s)
            ],
        )


def _told(url: str | None) -> tuple[float, tuple[ShardLoad, ...]]:
    """The round trip to a daemon, and its shards' loads."""
    if url is None:
        return 0.0, ()
    with connected(url) as client:
        return median(client.ping() for _ in range(PINGS)), client.facts().shards


def _choices(each: Curves, made: Plan, deadline_s: float) -> Iterator[dict[str, Any]]:
    """Numbers of blocks from none to all, the chosen one among them."""
    last = len(each.end_s) - 1
    for k in sorted({round(last * at / ROWS) for at in range(ROWS + 1)} | {made.blocks}):
        yield {
            "blocks": k,
            "fetch_s": float(each.fetch_s[k]),
            "compute_s": float(each.compute_s[k]),
            "end_s": float(each.end_s[k]),
            "late": bool(each.fetch_s[k] > deadline_s),
        }


def _lines(work: Work, terms: Terms, engine: PrefillSpeed, fetch: FetchSpeed, made: Plan) -> Iterator[str]:
    tokens = work.blocks * work.block_tokens
    blocks = f"{work.blocks:,} blocks of {format_bytes(work.block_bytes)}"
    yield f"prefix   {tokens:,} tokens in {blocks}; {work.after_tokens:,} tokens behind it"
    rate = f"{1 / engine.token_s:,.0f} tokens/s at first, growth {engine.growth:g} a token" if engine.token_s else "not known"
    yield f"engine   {rate}"
    moving = f"{fetch.bytes_per_s / 1e9:.2f} GB/s" if fetch.bytes_per_s else "not known"
    yield f"link     {moving}, round trip {_time(fetch.round_trip_s)}, queue {_time(made.queue_s)}"
    yield f"plan     fetch {made.blocks:,} of {work.blocks:,} blocks within {_time(made.deadline_s)}: {_WORDS[made.reason]}"
    if made.recompute_s:
        end = f"all there after {_time(made.end_s)}; " if made.end_s else ""
        goal = "" if terms.goal_s is None else f"; the goal of {_time(terms.goal_s)} is {'met' if made.in_goal else 'missed'}"
        yield f"time     {end}by computing alone {_time(made.recompute_s)}{goal}"


def _seconds(text: str, name: str) -> float:
    seconds = parse_micros(text, name) / 1e6
    if seconds > SECONDS_MAX:  # of too many digits it is infinite
        raise ConfigError(f"{name}={text[:40]!r}: must be at most {SECONDS_MAX}s; write for example 500us, 2ms or 0.1s")
    return seconds


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:,.1f} ms"
