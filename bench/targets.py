#!/usr/bin/env python3
"""Question: do hot and cold gets of 1 MiB blocks by 16 reach their share of what the machine can do?

One line per target on stderr; the documents on stdout with --json, one per line. Exit status 1 when a target is missed, a
scenario refused or a byte wrong. Further options go to `halfstep bench`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

# Scenario -> its share of the limit (plain sockets; plain O_DIRECT reads), and batches in flight. A cold get has two: with one,
# the device has nothing to do while the end of a batch travels, and nobody reads cold prefixes one after the other.
TARGETS = {"get": (0.75, 1), "cold": (0.85, 2)}


def measure(scenario: str, in_flight: int, options: list[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "halfstep.tools.cli", "bench", "--json", "--rw", scenario, "--iodepth", str(in_flight)]
    done = subprocess.run([*command, "--repeat", "5", *options], stdout=subprocess.PIPE, text=True, check=False)
    if not done.stdout:
        raise SystemExit(done.returncode or 1)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def reached(scenario: str, document: dict[str, Any]) -> bool:
    target = TARGETS[scenario][0]
    for refusal in document["refused"]:
        print(f"{scenario}: refused: {refusal['why']}", file=sys.stderr)
        return False
    (result,) = document["results"]
    ratio = result["ratio_to_limit"]
    if ratio is None:
        print(f"{scenario}: no limit could be measured", file=sys.stderr)
        return False
    well = ratio >= target and result["verified"]
    print(
        f"{scenario:5} {result['gigabytes_per_s']:.2f} GB/s, {ratio:.2f} of {result['limit']}, "
        f"target {target}, {'verified' if result['verified'] else 'NOT VERIFIED'}: {'reached' if well else 'MISSED'}",
        file=sys.stderr,
    )
    return well


def main(arguments: list[str]) -> int:
    options = [argument for argument in arguments if argument != "--json"]
    verdicts = []
    for scenario, (_, in_flight) in TARGETS.items():
        document = measure(scenario, in_flight, options)
        if "--json" in arguments:
            print(json.dumps(document))
        verdicts.append(reached(scenario, document))
    return 0 if all(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
