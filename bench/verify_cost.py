#!/usr/bin/env python3
"""Question: what does one pass of verification cost? Nothing can switch it off, so it is measured apart.

Runs build/release/bench/halfstep_verify_bench (`make native` makes it): CPU time per GiB of the checksum that every part and
extent has, over pieces of 256 KiB that have just landed (hot) and over memory (cold), medians of 21 rounds, beside the copy
that lands a piece, in the same run. Exit status 1 if a hot pass costs more than 60 ms a GiB. --json: the document.
Takes the program's options: --rounds, --piece, --set; and --program PATH.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from index import measure, spread

PROGRAM = Path(__file__).parents[1] / "build" / "release" / "bench" / "halfstep_verify_bench"
HOT_MS_PER_GIB_MAX = 60.0
ROWS = {
    "hot_ms_per_gib": "a pass over what has just landed, ms of CPU a GiB",
    "cold_ms_per_gib": "a pass over memory, ms of CPU a GiB",
    "copy_ms_per_gib": "the copy that lands it, ms of CPU a GiB",
    "hot_to_copy": "hot pass / copy",
}


def print_report(document: dict[str, Any]) -> None:
    head = document["header"]
    print(f"halfstep {document['version']} ({document['build']}), commit {document['commit']}")
    print(f"kernel {head['kernel']}, {head['cpu']}, {head['cores']} cores; load {head['load_average'][0]:.1f} at the start")
    print(
        f"pieces of {document['piece_bytes'] >> 10} KiB out of {document['set_bytes'] >> 20} MiB, {document['rounds']} rounds"
    )
    for name, title in ROWS.items():
        print(f"{title:<52} {spread(document[name])}")


def main(arguments: list[str]) -> int:
    options = [argument for argument in arguments if argument != "--json"]
    program = PROGRAM
    if "--program" in options:
        at = options.index("--program")
        program = Path(options[at + 1])
        del options[at : at + 2]
    document = measure(program, options)
    if "--json" in arguments:
        print(json.dumps(document))
    else:
        print_report(document)
    hot = document["hot_ms_per_gib"]["median"]
    if hot > HOT_MS_PER_GIB_MAX:
        print(f"MISSED: {hot:.1f} ms a GiB, at most {HOT_MS_PER_GIB_MAX:.0f}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
