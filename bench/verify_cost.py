#!/usr/bin/env python3
"""Question: what does one pass of verification cost? Nothing can switch it off, so it is measured apart.

Runs build/release/bench/halfstep_verify_bench (`make native` makes it): CPU time per GiB of the checksum that every part and
extent has, over pieces of 256 KiB that have just landed (hot) and over memory (cold), medians of 21 rounds, beside the copy
that lands a piece, in the same run. Exit status 1 if a hot pass costs more than 60 ms a GiB. --json: the document.
Takes the program's options: --rounds, --piece, --set; and --program PATH.
"""

from __future__ import annotations

import json
from typing import Any

from script import about, alone, document_of, judged, of_rounds, run

PROGRAM = "halfstep_verify_bench"
HOT_MS_PER_GIB_MAX = 60.0
ROWS = {
    "hot_ms_per_gib": "a pass over what has just landed, ms of CPU a GiB",
    "cold_ms_per_gib": "a pass over memory, ms of CPU a GiB",
    "copy_ms_per_gib": "the copy that lands it, ms of CPU a GiB",
    "hot_to_copy": "hot pass / copy",
}


def print_report(document: dict[str, Any]) -> None:
    print(about(document))
    print(
        f"pieces of {document['piece_bytes'] >> 10} KiB out of {document['set_bytes'] >> 20} MiB, {document['rounds']} rounds"
    )
    for name, title in ROWS.items():
        print(f"{title:<52} {of_rounds(document[name])}")


def main() -> int:
    options, own = alone(__doc__, PROGRAM)
    document = document_of(options.program, own)
    if options.json:
        print(json.dumps(document))
    else:
        print_report(document)
    hot = document["hot_ms_per_gib"]["median"]
    return judged([f"{hot:.1f} ms a GiB, at most {HOT_MS_PER_GIB_MAX:.0f}"] if hot > HOT_MS_PER_GIB_MAX else [])


if __name__ == "__main__":
    run(main)
