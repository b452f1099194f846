#!/usr/bin/env python3
"""Question: how many blocks of announced requests are in memory when they are asked for, and what is brought for nothing?

TRACE is one of `halfstep replay`. The prefetch policy of the client runs over the real store in virtual time: nothing is timed,
and who runs it again gets the same figures. A table on stderr, JSON on stdout. Exit status 1 where a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from script import header, positive, run

from halfstep.daemon.units import format_bytes, parse_bytes
from halfstep.tools.replay.flash import FlashCache
from halfstep.tools.replay.prefetch import DRAM_PER_BUDGET, Terms, prefetch
from halfstep.tools.replay.trace import load

IN_TIME_MIN, UNUSED_MAX = 0.95, 0.2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--capacity", type=float, default=0.1, help="of the store, in unique blocks (default 0.1)")
    parser.add_argument("--block-bytes", default="64MiB", help="of a block of the trace (default 64MiB)")
    parser.add_argument("--budget", default="64GiB", help="of what is on its way or waits to be read (default 64GiB)")
    parser.add_argument(
        "--memory", type=positive, default=DRAM_PER_BUDGET, help=f"of the store, in budgets (default {DRAM_PER_BUDGET})"
    )
    parser.add_argument("--window", type=positive, default=256, help="blocks ahead of a reader (default 256)")
    parser.add_argument("--lead", type=float, nargs="+", default=[1.0], help="seconds from announcement to first read (1)")
    parser.add_argument("--wrong", type=float, default=0.05, help="announcements that nobody follows, by requests (0.05)")
    parser.add_argument("--device", default="12GB", help="bytes a second of the store's device (default 12GB)")
    parser.add_argument("--reader", default="6GB", help="bytes a second of each reader (default 6GB)")
    parser.add_argument("--limit", type=int, default=0, help="requests (default: all)")
    options = parser.parse_args()
    trace = load(options.trace, options.limit)
    block_bytes, budget_bytes = parse_bytes(options.block_bytes, "block_bytes"), parse_bytes(options.budget, "budget")
    results = []
    for lead_s in options.lead:
        terms = Terms(
            block_bytes,
            budget_bytes,
            window=options.window,
            lead_s=lead_s,
            wrong=options.wrong,
            device_bytes_per_s=parse_bytes(options.device, "device"),
            reader_bytes_per_s=parse_bytes(options.reader, "reader"),
        ).validated()
        dram_blocks = options.memory * (budget_bytes // block_bytes)
        store = FlashCache(trace, int(trace.unique_blocks * options.capacity), segments=128, dram_blocks=dram_blocks)
        try:
            outcome = prefetch(trace, store, terms)
        finally:
            store.close()
        met = outcome.in_time_share >= IN_TIME_MIN and outcome.unused_share <= UNUSED_MAX
        results.append({"lead_s": lead_s, "met": met, **outcome.as_json()})
        print(
            f"lead {lead_s:g} s: {outcome.demanded:,} blocks asked for, {outcome.memory:,} in memory as it was; of the others "
            f"{outcome.in_time_share:.4f} in time; {outcome.unused_share:.4f} of the bytes brought unused; "
            f"readers waited {outcome.stall_s:,.1f} s",
            file=sys.stderr,
        )
        for kind, counts in outcome.kinds.items():
            if counts.asked:
                figures = ("asked", "used", "late", "unused", "absent")
                told = ", ".join(f"{name} {format_bytes(getattr(counts, f'{name}_bytes'))}" for name in figures)
                print(f"  {kind}: {told}", file=sys.stderr)
    print(
        json.dumps(
            header(trace=trace.name, window=options.window, memory=options.memory, wrong=options.wrong, results=results),
            indent=2,
        )
    )
    return 0 if all(result["met"] for result in results) else 1


if __name__ == "__main__":
    run(main)
