#!/usr/bin/env python3
"""Question: do hot and cold gets of 1 MiB blocks by 16 reach their share of what the machine can do?

Prints one line per target and the whole document with --json; exit status 1 when a target is missed, a scenario refused or a
byte wrong. Further options go to `halfstep bench`.
"""

from __future__ import annotations

import json
import subprocess
import sys

# Share of the limit that was measured in the same run: plain sockets for get, plain O_DIRECT reads for cold.
TARGETS = {"get": 0.75, "cold": 0.85}


def main(arguments: list[str]) -> int:
    command = [sys.executable, "-m", "halfstep.tools.cli", "bench", "--json", "--rw", ",".join(TARGETS), "--repeat", "5"]
    passed_on = [argument for argument in arguments if argument != "--json"]
    done = subprocess.run([*command, *passed_on], stdout=subprocess.PIPE, text=True, check=False)
    if not done.stdout:
        return done.returncode or 1
    document = json.loads(done.stdout)
    if "--json" in arguments:
        print(done.stdout)
    missed = bool(document["refused"]) or done.returncode != 0
    for result in document["results"]:
        target, ratio = TARGETS[result["name"]], result["ratio_to_limit"]
        reached = ratio is not None and ratio >= target and result["verified"]
        missed |= not reached
        told = "no limit was measured" if ratio is None else f"{ratio:.2f} of {result['limit_gigabytes_per_s']:.2f} GB/s"
        print(
            f"{result['name']:5} {told} ({result['limit']}), target {target}: {'reached' if reached else 'MISSED'}",
            file=sys.stderr,
        )
    for refusal in document["refused"]:
        print(f"{refusal['name']}: refused: {refusal['why']}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
