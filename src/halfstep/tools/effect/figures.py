"""Figures of what was counted in a span.

A figure is a number, or the reason why there is none: what was not counted is not 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from halfstep.client.ahead import ENDS, KINDS
from halfstep.tools.effect.records import Increment
from halfstep.tools.effect.spans import Span

NOT_COUNTED = "not counted"
NO_RATE = "rate not known"
NO_TOKENS = "no tokens known"

Figure = float | str
Figures = dict[str, Figure]

# Of each figure of clients: its title and unit. A planner's decisions follow, by reason.
CLIENT_ROWS = {
    "lookups": ("requests that asked", "count"),
    "hit_ratio_requests": ("hit ratio by requests", "ratio"),
    "hit_ratio_tokens": ("hit ratio by tokens", "ratio"),
    "hit_ratio_blocks": ("hit ratio by blocks", "ratio"),
    "lookups_unanswered": ("requests without a whole answer", "count"),
    "tokens_found": ("tokens found", "count"),
    "tokens_restored": ("tokens restored", "count"),
    "prefill_s_found": ("prefill time of tokens found", "s"),
    "prefill_s_not_spent": ("prefill time not spent", "s"),
    "load_bytes": ("bytes moved for loads", "bytes"),
    "load_ratio_blocks": ("blocks loaded, of those asked for", "ratio"),
    "wait_s": ("time that requests waited", "s"),
    "wait_lookup_s": ("  for lookups", "s"),
    "wait_load_s": ("  for loads", "s"),
    "blocks_stored": ("blocks stored", "count"),
    "prefetch_blocks": ("blocks that prefetches asked for", "count"),
    "circuit_openings": ("circuit openings", "count"),
}
DAEMON_ROWS = {
    "prefetch_staged": ("blocks prefetched", "count"),
    "prefetch_used": ("  used", "count"),
    "prefetch_late": ("  late", "count"),
    "prefetch_unused": ("  unused", "count"),
    "get_bytes": ("bytes that gets moved", "bytes"),
    "put_bytes": ("bytes that puts moved", "bytes"),
    "hits_memory": ("blocks read from memory", "count"),
    "hits_flash": ("blocks read from flash", "count"),
}
_OF_DAEMON = {
    "prefetch_staged": "halfstep_store_staged_blocks_total",
    "prefetch_used": 'halfstep_store_staged_ended_total{as="used"}',
    "prefetch_late": 'halfstep_store_staged_ended_total{as="late"}',
    "prefetch_unused": 'halfstep_store_staged_ended_total{as="unused"}',
    "get_bytes": 'halfstep_payload_bytes_total{command="get"}',
    "put_bytes": 'halfstep_payload_bytes_total{command="put"}',
    "hits_memory": 'halfstep_store_hits_total{from="memory"}',
    "hits_flash": 'halfstep_store_hits_total{from="flash"}',
}
# What a sample keeps of a daemon's counters.
DAEMON_COUNTERS = tuple(_OF_DAEMON.values())
# A planner counts what it decided under names that begin so.
PLAN_PREFIX = "plan_"
# What tiers brought ahead, by what for, and how it ended there.
AHEAD_ROWS = {f"ahead_{kind}_{how}_bytes": (f"brought ahead, {kind}: {how}", "bytes") for kind in KINDS for how in ENDS}


class Rate(NamedTuple):
    """What an engine computes of prompts. source: where the figure came from, for people."""

    tokens_per_s: float
    source: str


def rates_of(span: Span, other: Span | None, other_name: str, given_tokens_per_s: float | None) -> dict[str, Rate]:
    """Of each namespace of `span` whose rate is known: given, else measured in the span, else in the other one."""
    rates: dict[str, Rate] = {}
    for namespace in span.namespaces:
        if given_tokens_per_s is not None:
            rates[namespace] = Rate(given_tokens_per_s, "given with --prefill-rate")
            continue
        for where, name in ((span, "this span"), (other, other_name)):
            sums = _sums(one for one in where.increments if one.namespace == namespace) if where is not None else {}
            tokens, seconds = sums.get("prefill_tokens", 0), sums.get("prefill_s", 0)
            if tokens and seconds:
                measured = f"measured by clients in {name}: {tokens:,.0f} tokens in {seconds:,.1f} s"
                rates[namespace] = Rate(tokens / seconds, measured)
                break
    return rates


def client_figures(span: Span, namespace: str, rates: Mapping[str, Rate]) -> Figures:
    """Of one namespace."""
    own = [one for one in span.increments if one.source == "client" and one.namespace == namespace]
    figures = _pooled(own)
    rate = rates.get(namespace)
    for name, tokens in (("prefill_s_found", figures["tokens_found"]), ("prefill_s_not_spent", figures["tokens_restored"])):
        if isinstance(tokens, str) or tokens == 0:
            figures[name] = tokens
        else:
            figures[name] = NO_RATE if rate is None else tokens / rate.tokens_per_s
    return {name: figures[name] for name in [*CLIENT_ROWS, *(name for name in figures if name not in CLIENT_ROWS)]}


def total_figures(span: Span, rates: Mapping[str, Rate]) -> Figures:
    """Of all namespaces; prefill time is the sum of those whose rate is known."""
    figures = _pooled([one for one in span.increments if one.source == "client"])
    each = [client_figures(span, namespace, rates) for namespace in span.namespaces]
    for name in ("prefill_s_found", "prefill_s_not_spent"):
        known = [value for one in each if not isinstance(value := one[name], str)]
        figures[name] = sum(known) if known else next((one[name] for one in each), NOT_COUNTED)
    return {name: figures[name] for name in [*CLIENT_ROWS, *(name for name in figures if name not in CLIENT_ROWS)]}


def daemon_figures(span: Span) -> Figures:
    """Of whole daemons: they do not count by namespace. All of them together."""
    sums = _sums(one for one in span.increments if one.source == "daemon")
    return {name: sums.get(counter, NOT_COUNTED) for name, counter in _OF_DAEMON.items()}


def _pooled(increments: list[Increment]) -> Figures:
    """All that needs no rate."""
    sums = _sums(increments)
    # In shadow mode an engine hears of no hit and restores nothing, whatever was read.
    seen = _sums(one for one in increments if one.mode != "shadow")
    shadow_alone = bool(increments) and all(one.mode == "shadow" for one in increments)

    def ratio(hits: str, asked: str, none: str) -> Figure:
        if asked not in sums or hits not in sums:
            return NOT_COUNTED
        return sums[hits] / sums[asked] if sums[asked] else none

    def tokens(of: Mapping[str, float], name: str, blocks: str) -> Figure:
        if name not in of:
            return NOT_COUNTED
        # Blocks of calls that know of no tokens are none of 0 tokens.
        return NO_TOKENS if of[name] == 0 and of.get(blocks, 0) else of[name]

    lookup, load = sums.get("lookup_wait_s", NOT_COUNTED), sums.get("load_wait_s", NOT_COUNTED)
    figures: Figures = {
        "lookups": sums.get("lookups", NOT_COUNTED),
        "hit_ratio_requests": ratio("lookups_hit", "lookups", "no requests"),
        "hit_ratio_tokens": ratio("lookup_tokens_hit", "lookup_tokens", NO_TOKENS),
        "hit_ratio_blocks": ratio("lookup_blocks_hit", "lookup_blocks", "no requests"),
        "lookups_unanswered": sums.get("lookups_unanswered", NOT_COUNTED),
        "tokens_found": tokens(sums, "lookup_tokens_hit", "lookup_blocks_hit"),
        "tokens_restored": 0.0 if shadow_alone else tokens(seen, "load_tokens_ok", "load_blocks_ok"),
        "load_bytes": sums.get("load_bytes", NOT_COUNTED),
        "load_ratio_blocks": ratio("load_blocks_ok", "load_blocks", "no loads"),
        "wait_s": lookup + load if not isinstance(lookup, str) and not isinstance(load, str) else NOT_COUNTED,
        "wait_lookup_s": lookup,
        "wait_load_s": load,
        "blocks_stored": sums.get("store_blocks_written", NOT_COUNTED),
        "prefetch_blocks": sums.get("prefetch_blocks", NOT_COUNTED),
        "circuit_openings": sums.get("circuit_openings", NOT_COUNTED),
    }
    decisions: Figures = {name: value for name, value in sorted(sums.items()) if name.startswith(PLAN_PREFIX)}
    ahead: Figures = {}
    for kind in KINDS:
        names = [f"ahead_{kind}_{how}_bytes" for how in ENDS]
        if any(sums.get(name) for name in names):
            ahead |= {name: sums[name] for name in names if name in sums}
    return figures | ahead | decisions


def _sums(increments: Iterable[Increment]) -> dict[str, float]:
    """By counter; what no line has is not in it."""
    sums: dict[str, float] = {}
    for one in increments:
        for name, value in one.more.items():
            sums[name] = sums.get(name, 0) + value
    return sums
