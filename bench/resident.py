#!/usr/bin/env python3
"""Question: what does a get of a block that is in memory cost the store, without a request or a network?

Runs build/release/bench/halfstep_resident_bench (`make native` makes it): blocks of 4 KiB are found, read and given back in
batches of neighbours, in random order, beside as many misses of the cache as the machine does at best. Most of it is
instructions, so the ratio is well above 1; it is for comparing builds. --json: the document.
"""

from __future__ import annotations

import argparse
import json

from script import header, positive, run, said_by, with_programs

PROGRAM = "halfstep_resident_bench"


def main() -> int:
    """The arguments, the run, and what it says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--blocks", type=positive, default=16_384, help="in memory (16,384)")
    parser.add_argument("--batch", type=positive, default=16, help="of one get (16)")
    parser.add_argument("--rounds", type=positive, default=41, help="all blocks once each (41)")
    parser.add_argument("--json", action="store_true", help="the result as one JSON object")
    options = with_programs(parser, PROGRAM)
    about = header(blocks=options.blocks, batch=options.batch, rounds=options.rounds)
    asked = {name: getattr(options, name) for name in ("blocks", "batch", "rounds")}
    said = said_by(options.programs / PROGRAM, asked)
    if options.json:
        print(json.dumps({"header": about, **said}))
        return 0
    print(f"{options.blocks:,} blocks of 4 KiB, {options.batch} a get; median (least to most) of {options.rounds} rounds")
    for name, title in (("get_ns", "a block, ns"), ("limit_ns", "its misses alone, ns"), ("ratio", "ratio")):
        print(f"{title:<24} {said[name]['median']:.1f} ({said[name]['min']:.1f} to {said[name]['max']:.1f})")
    return 0


if __name__ == "__main__":
    run(main)
