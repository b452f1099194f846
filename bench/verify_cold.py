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
import tempfile
from pathlib import Path
from typing import Any

from script import about, alone, document_of, judged, of_rounds, run

PROGRAM = "halfstep_cold_bench"
RATIO_MIN = 0.95
ROWS = {
    "verified_mb_per_s": "with verification, MB/s",
    "unverified_mb_per_s": "without, MB/s",
    "verified_to_unverified": "with / without, round for round",
    "verified_cpu_ms_per_gib": "with, ms of CPU a GiB",
    "unverified_cpu_ms_per_gib": "without, ms of CPU a GiB",
}


def print_report(document: dict[str, Any]) -> None:
    print(about(document))
    print(
        f"{document['blocks']} blocks of {document['block_bytes'] >> 10} KiB, {document['depth']} at once, "
        f"engine {document['engine']}, {document['rounds']} rounds"
    )
    for name, title in ROWS.items():
        print(f"{title:<34} {of_rounds(document[name])}")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--directory", type=Path, default=None, help="where the store lies")
    options, own = alone(__doc__, PROGRAM, parser)
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        document = document_of(options.program, ["--path", str(Path(directory) / "store.hs"), *own])
    if options.json:
        print(json.dumps(document))
    else:
        print_report(document)
    ratio = document["verified_to_unverified"]["median"]
    return judged([f"{ratio:.3f} of the rate without verification, at least {RATIO_MIN}"] if ratio < RATIO_MIN else [])


if __name__ == "__main__":
    run(main)
