#!/usr/bin/env python3
"""Question: what does the block index cost at its design load, in memory and against the memory's own speed?

Runs build/release/bench/halfstep_index_bench (`make native` makes it), which fills an index with 20 million blocks and matches
prefixes of 32, 256 and 1024 keys, all present and none. The limit is the same number of random pairs of cache lines, prefetched
as far ahead and read from a table of that size in the same run. Exit status 1 if a goal is missed. --json: the document.
Takes the program's options: --entries, --rounds, --seed; and --program PATH.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from script import about, alone, document_of, judged, of_rounds, run

PROGRAM = "halfstep_index_bench"
BYTES_PER_ENTRY_MAX = 32.0
# Prefix of this many keys, all present, against the limit.
KEYS_OF_THE_GOAL = 256
RATIO_MAX = 1.5
STATES = ("fresh", "used")


def print_report(document: dict[str, Any]) -> None:
    print(about(document))
    print(
        f"{document['entries']:,} blocks, load {document['entries'] / document['slots']:.2f}: "
        f"{bytes_per_entry(document):.2f} resident bytes a block"
    )
    print(f"{document['pages']} pages, {document['large_bytes'] / document['index_bytes']:.0%} of it large")
    print(f"ns of CPU time, median (least to most) of {document['rounds']} rounds; the keyed hash is not in a match")
    for state in STATES:
        print_matches(state, document[state])
    print(f"\nkeyed hash of {document['hash_message_bytes']} bytes: {of_rounds(document['hash_many_ns'])} a key, 256 at a time")
    print(f"one at a time: {of_rounds(document['hash_each_ns'])}")
    print(
        f"insert, empty to full: {document['insert_ns']:.0f}; asked for ahead: {document['insert_prefetched_ns']:.0f}; "
        f"erase and insert at the design load: {document['churn_ns']:.0f}"
    )


def print_matches(name: str, state: dict[str, Any]) -> None:
    titles = ("present/key", "limit/pair", "ratio", "absent/key", "ratio", "absent prefix/call")
    print(f"\n{name}, {state['strays']:.1%} strays")
    print(f"{'keys':>6}", *(f"{title:>21}" for title in titles))
    for match in state["matches"]:
        names = ("present_ns", "limit_ns", "present_ratio", "absent_ns", "absent_ratio", "first_absent_ns")
        print(f"{match['keys']:>6}", *(f"{of_rounds(match[name]):>21}" for name in names))


def bytes_per_entry(document: dict[str, Any]) -> float:
    return float(document["resident_bytes"]) / float(document["entries"])


def missed(document: dict[str, Any]) -> Iterator[str]:
    if bytes_per_entry(document) > BYTES_PER_ENTRY_MAX:
        yield f"{bytes_per_entry(document):.2f} bytes a block, at most {BYTES_PER_ENTRY_MAX}"
    for state in STATES:
        (match,) = [match for match in document[state]["matches"] if match["keys"] == KEYS_OF_THE_GOAL]
        if match["present_ratio"]["median"] > RATIO_MAX:
            ratio = match["present_ratio"]["median"]
            yield f"{state}: {ratio:.2f} of the limit at {KEYS_OF_THE_GOAL} keys, at most {RATIO_MAX}"
        if document["hash_many_ns"]["median"] >= match["present_ns"]["median"]:
            yield f"{state}: the keyed hash costs more than the lookup"


def main() -> int:
    options, own = alone(__doc__, PROGRAM)
    document = document_of(options.program, own)
    if options.json:
        print(json.dumps(document))
    else:
        print_report(document)
    return judged(list(missed(document)))


if __name__ == "__main__":
    run(main)
