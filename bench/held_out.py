#!/usr/bin/env python3
"""Question: do settings that were chosen on half of a trace's sessions do as well on the other half?

TRACE is one of `halfstep replay`. Of the prefetch policy the lead, the window and the share at which a kind rests are chosen:
they are tried on one half of the sessions, shorter leads first, up to one that meets both goals. The choice is judged on the
other half, which had no part in it; then the halves change places. With --hints the same is done for what the store's policy is
told of final turns. All of it runs over the real store in virtual time: who runs it again gets the same figures. Each run is
told as it ends. Exit status 1 where a goal is missed on a judged half.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

from script import header, positive, run

from halfstep.client.ahead import Ahead
from halfstep.daemon.units import parse_bytes
from halfstep.tools.replay.flash import FlashCache
from halfstep.tools.replay.halves import halves
from halfstep.tools.replay.hints import Hints
from halfstep.tools.replay.prefetch import DRAM_PER_BUDGET, Run, Terms
from halfstep.tools.replay.trace import Trace, load

IN_TIME_MIN, UNUSED_MAX = 0.95, 0.2
SEGMENTS = 128


def arguments() -> argparse.Namespace:
    """Of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--capacity", type=float, default=0.1, help="of the store, in unique blocks of the half (default 0.1)")
    parser.add_argument("--block-bytes", default="64MiB", help="of a block of the trace (default 64MiB)")
    parser.add_argument("--budget", default="32GiB", help="of what is on its way or waits to be read (default 32GiB)")
    parser.add_argument("--memory", type=positive, default=DRAM_PER_BUDGET, help="of the store, in budgets")
    parser.add_argument("--lead", type=float, nargs="+", default=[0.5, 1.0, 2.0, 4.0], help="seconds to choose from")
    parser.add_argument("--window", type=positive, nargs="+", default=[256], help="blocks ahead to choose from")
    parser.add_argument("--rest", type=float, nargs="+", default=[0.3, 0.5], help="unused shares at which a kind rests")
    parser.add_argument("--wrong", type=float, default=0.05, help="announcements that nobody follows, by requests (0.05)")
    parser.add_argument("--seed", type=int, default=1, help="of the halves")
    parser.add_argument("--hints", action="store_true", help="choose whether the store is told of final turns, instead")
    parser.add_argument("--limit", type=int, default=0, help="requests (default: all)")
    return parser.parse_args()


def tell(what: str) -> None:
    """That a run has ended, to who waits for the others."""
    print(f"{time.process_time():7.0f} s of CPU  {what}", file=sys.stderr, flush=True)


def prefetched(options: argparse.Namespace, trace: Trace, lead_s: float, window: int, rest: float) -> dict[str, Any]:
    """What one setting does on one half."""
    block_bytes, budget_bytes = parse_bytes(options.block_bytes, "block_bytes"), parse_bytes(options.budget, "budget")
    terms = Terms(block_bytes, budget_bytes, window=window, lead_s=lead_s, wrong=options.wrong).validated()
    dram_blocks = options.memory * (budget_bytes // block_bytes)
    store = FlashCache(trace, int(trace.unique_blocks * options.capacity), segments=SEGMENTS, dram_blocks=dram_blocks)
    try:
        outcome = Run(trace, store, terms, Ahead(budget_bytes, unused_share_max=rest)).run()
    finally:
        store.close()
    setting = f"{trace.name}: lead {lead_s:g} s, window {window}, rest {rest:g}"
    tell(f"{setting}: in time {outcome.in_time_share:.4f}, unused {outcome.unused_share:.4f}")
    met = outcome.in_time_share >= IN_TIME_MIN and outcome.unused_share <= UNUSED_MAX
    return {"lead_s": lead_s, "window": window, "rest": rest, "met": met, **outcome.as_json()}


def hit_ratio(options: argparse.Namespace, trace: Trace, hinted: bool) -> dict[str, Any]:
    """Of a store of that capacity, by blocks."""
    hints = Hints(trace) if hinted else None
    store = FlashCache(trace, int(trace.unique_blocks * options.capacity), segments=SEGMENTS, hints=hints)
    try:
        hits = sum(store.request(index) for index in range(trace.requests))
    finally:
        store.close()
    tell(f"{trace.name}: {'final' if hinted else 'no'} hints: {hits / len(trace.blocks):.4f}")
    return {"hints": "final" if hinted else "none", "hit_ratio": hits / len(trace.blocks)}


def best_prefetch(tried: list[dict[str, Any]]) -> dict[str, Any]:
    """Of those that meet both goals the shortest lead, then the one that wastes least; if none does, the nearest to them."""
    meeting = [one for one in tried if one["met"]]
    if meeting:
        return min(meeting, key=lambda one: (one["lead_s"], one["unused_share"]))
    return max(tried, key=lambda one: min(one["in_time_share"] / IN_TIME_MIN, UNUSED_MAX / max(one["unused_share"], 1e-9)))


def prefetch_choices(options: argparse.Namespace, pairs: list[tuple[Trace, Trace]]) -> Iterator[dict[str, Any]]:
    """Of each pair (chosen on, judged on)."""
    for chosen_on, judged_on in pairs:
        tried: list[dict[str, Any]] = []
        for lead_s in sorted(options.lead):
            tried += [prefetched(options, chosen_on, lead_s, *others) for others in product(options.window, options.rest)]
            if any(one["met"] for one in tried):
                break  # a longer lead would not be chosen
        choice = best_prefetch(tried)
        judged = prefetched(options, judged_on, choice["lead_s"], choice["window"], choice["rest"])
        yield {"chosen_on": chosen_on.name, "judged_on": judged_on.name, "choice": choice, "judged": judged, "tried": tried}


def hint_choices(options: argparse.Namespace, pairs: list[tuple[Trace, Trace]]) -> Iterator[dict[str, Any]]:
    """Of each pair (chosen on, judged on)."""
    ratios = {of.name: [hit_ratio(options, of, hinted) for hinted in (False, True)] for of, _ in pairs}
    for chosen_on, judged_on in pairs:
        tried, judged = ratios[chosen_on.name], ratios[judged_on.name]
        choice = max(tried, key=lambda one: one["hit_ratio"])
        best = max(judged, key=lambda one: one["hit_ratio"])
        judged_choice = next(one for one in judged if one["hints"] == choice["hints"])
        met = choice["hints"] == best["hints"]
        yield {
            "chosen_on": chosen_on.name,
            "judged_on": judged_on.name,
            "choice": choice,
            "judged": judged_choice | {"met": met},
            "tried": tried,
            "on_judged": judged,
        }


def say(choice: dict[str, Any]) -> None:
    """For people."""
    print(f"chosen on {choice['chosen_on']}, judged on {choice['judged_on']}", file=sys.stderr)
    for what in ("choice", "judged"):
        one = choice[what]
        told = ", ".join(
            f"{name} {one[name]:.4f}" if isinstance(one[name], float) else f"{name} {one[name]}"
            for name in ("lead_s", "window", "rest", "demanded", "in_time_share", "unused_share", "hints", "hit_ratio", "met")
            if name in one
        )
        print(f"  {what}: {told}", file=sys.stderr)


def main() -> int:
    options = arguments()
    trace = load(options.trace, options.limit)
    first, second = halves(trace, options.seed)
    pairs = [(first, second), (second, first)]
    choose: Callable[..., Iterator[dict[str, Any]]] = hint_choices if options.hints else prefetch_choices
    results = []
    for choice in choose(options, pairs):
        say(choice)
        results.append(choice)
    print(json.dumps(header(trace=trace.name, hints=options.hints, results=results), indent=1))
    return 0 if all(one["judged"]["met"] for one in results) else 1


if __name__ == "__main__":
    run(main)
