#!/usr/bin/env python3
"""Question: what does the block index cost at its design load, in memory and against the memory's own speed?

Runs build/release/bench/halfstep_index_bench (`make native` makes it), which fills an index with 20 million blocks and matches
prefixes of 32, 256 and 1024 keys, all present and none. The limit is the same number of random pairs of cache lines, prefetched
as far ahead and read from a table of that size in the same run. Exit status 1 if a goal is missed. --json: the document.
Takes the program's options: --entries, --rounds, --seed; and --program PATH.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from halfstep.tools.bench.machine import cpu_name

PROGRAM = Path(__file__).parents[1] / "build" / "release" / "bench" / "halfstep_index_bench"
BYTES_PER_ENTRY_MAX = 32.0
# Prefix of this many keys, all present, against the limit.
KEYS_OF_THE_GOAL = 256
RATIO_MAX = 1.5
STATES = ("fresh", "used")


def measure(program: Path, options: list[str]) -> dict[str, Any]:
    if not program.exists():
        raise SystemExit(f"{program}: not built; run `make native`, or name another with --program")
    load_before = os.getloadavg()[0]
    command = [str(program), *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)
    machine = {
        "command": " ".join(command),
        "kernel": platform.release(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "load_average": [load_before, os.getloadavg()[0]],
    }
    document: dict[str, Any] = {"header": machine, **json.loads(done.stdout)}
    if document["build"] != "release":
        raise SystemExit(f"{program}: a {document['build']} build; its times mean nothing")
    return document


def print_report(document: dict[str, Any]) -> None:
    head = document["header"]
    print(f"halfstep {document['version']} ({document['build']}), commit {document['commit']}, seed {document['seed']}")
    print(f"kernel {head['kernel']}, {head['cpu']}, {head['cores']} cores; load {head['load_average'][0]:.1f} at the start")
    print(
        f"{document['entries']:,} blocks, load {document['entries'] / document['slots']:.2f}: "
        f"{bytes_per_entry(document):.2f} resident bytes a block"
    )
    print(f"{document['pages']} pages, {document['large_bytes'] / document['index_bytes']:.0%} of it large")
    print(f"ns of CPU time, median (least to most) of {document['rounds']} rounds; the keyed hash is not in a match")
    for state in STATES:
        print_matches(state, document[state])
    print(f"\nkeyed hash of {document['hash_message_bytes']} bytes: {spread(document['hash_many_ns'])} a key, 256 at a time")
    print(f"one at a time: {spread(document['hash_each_ns'])}")
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
        print(f"{match['keys']:>6}", *(f"{spread(match[name]):>21}" for name in names))


def spread(samples: dict[str, float]) -> str:
    return f"{samples['median']:.2f} ({samples['min']:.2f}-{samples['max']:.2f})"


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
    goals = list(missed(document))
    for goal in goals:
        print(f"MISSED: {goal}", file=sys.stderr)
    return 1 if goals else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
