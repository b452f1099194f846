#!/usr/bin/env python3
"""Question: does verification slow a cold read down? The same store and blocks, read with it and without it, in turns.

Runs build/release/bench/halfstep_cold_bench (`make native` makes it): the one program whose store can leave verification out,
since it is compiled with the faults that the simulator's mutants have. Exit status 1 if reads with verification reach less than
0.95 of those without (medians of 11 rounds). --json: the document. Takes the program's options: --blocks, --block-bytes,
--depth, --rounds; and --program PATH, --directory PATH (on the drive in question; 1.5 GiB free).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from index import measure, spread

PROGRAM = Path(__file__).parents[1] / "build" / "release" / "bench" / "halfstep_cold_bench"
RATIO_MIN = 0.95
ROWS = {
    "verified_mb_per_s": "with verification, MB/s",
    "unverified_mb_per_s": "without, MB/s",
    "verified_to_unverified": "with / without, round for round",
    "verified_cpu_ms_per_gib": "with, ms of CPU a GiB",
    "unverified_cpu_ms_per_gib": "without, ms of CPU a GiB",
}


def print_report(document: dict[str, Any]) -> None:
    head = document["header"]
    print(f"halfstep {document['version']} ({document['build']}), commit {document['commit']}")
    print(f"kernel {head['kernel']}, {head['cpu']}, {head['cores']} cores; load {head['load_average'][0]:.1f} at the start")
    print(
        f"{document['blocks']} blocks of {document['block_bytes'] >> 10} KiB, {document['depth']} at once, "
        f"engine {document['engine']}, {document['rounds']} rounds"
    )
    for name, title in ROWS.items():
        print(f"{title:<34} {spread(document[name])}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--program", type=Path, default=PROGRAM)
    parser.add_argument("--directory", type=Path, default=None)
    parser.add_argument("--json", action="store_true", dest="as_json")
    arguments, options = parser.parse_known_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        document = measure(arguments.program, ["--path", str(Path(directory) / "store.hs"), *options])
    if arguments.as_json:
        print(json.dumps(document))
    else:
        print_report(document)
    ratio = document["verified_to_unverified"]["median"]
    if ratio < RATIO_MIN:
        print(f"MISSED: {ratio:.3f} of the rate without verification, at least {RATIO_MIN}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
