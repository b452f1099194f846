#!/usr/bin/env python3
"""Question: what does a start over a full store cost: how long against the plain read of its footers, how much memory a block?

Runs build/release/bench/halfstep_recovery_bench (`make native` makes it) twice: it makes a sparse file with the footers of
1,000 segments of 1 GiB, 4 million blocks of 256 KiB, and opens it in a process of its own, after it has read the same footers
plainly. Then twice more with real blocks: 200,000 of 4 KiB are put, and opened as a daemon does, which serves while it
recovers: when was the block that was put last there, and when all of them? Exit status 1 if a goal is missed. --json: the
document. Takes the program's options for the sparse file: --segments, --blocks, --block-bytes, --seed; and --real-blocks N (0:
leave that out), --program PATH, --directory PATH (with sparse files; half a gigabyte free, and 1.5 for the real blocks).
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from script import about, alone, document_of, run

PROGRAM = "halfstep_recovery_bench"
BYTES_PER_BLOCK_MAX = 32.0
READ_RATIO_MAX = 1.5
SECONDS_BESIDE = 0.5
REAL_BLOCK_BYTES = 4096


def goals(document: dict[str, Any]) -> list[tuple[str, float, float]]:
    """Name, value, bound."""
    return [
        ("resident bytes a block", document["resident_bytes"] / document["blocks"], BYTES_PER_BLOCK_MAX),
        ("recovery, seconds", document["recovery_s"], READ_RATIO_MAX * document["plain_read_s"] + SECONDS_BESIDE),
    ]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--directory", type=Path, default=None, help="where the store lies")
    parser.add_argument("--real-blocks", type=int, default=200_000, help="that are put and recovered, too; 0 for none")
    options, own = alone(__doc__, PROGRAM, parser)
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        store = Path(directory) / "store.hs"

        def phase(name: str, more: list[str]) -> dict[str, Any]:
            return document_of(options.program, ["--phase", name, "--path", str(store), *more])

        phase("make", own)
        document = phase("open", own)
        if options.real_blocks:
            store.unlink()
            blocks = ["--blocks", str(options.real_blocks), "--block-bytes", str(REAL_BLOCK_BYTES)]
            phase("fill", blocks)
            document["real"] = phase("serve", blocks)
    if options.json:
        print(json.dumps(document, indent=2))
    else:
        direct = "O_DIRECT" if document["direct"] else "buffered"
        tebibytes, mebibytes = document["bytes"] / 2**40, document["footer_bytes"] / 2**20
        print(about(document))
        print(
            f"{document['engine']}, {direct}: {document['blocks']:,} blocks, {tebibytes:.2f} TiB, footers {mebibytes:.0f} MiB"
        )
        print(f"plain read {document['plain_read_s']:.3f} s; open {document['open_s']:.3f} s, {document['cpu_s']:.3f} s CPU")
        if real := document.get("real"):
            print(
                f"{real['blocks']:,} real blocks of {REAL_BLOCK_BYTES} bytes: open {real['open_s']:.3f} s, first get "
                f"{real['first_get_s']:.3f} s, all of them {real['recovered_s']:.3f} s, {real['cpu_s']:.3f} s CPU; "
                f"{real['footers']} footers, {real['walked']} segments walked"
            )
        for name, value, bound in goals(document):
            print(f"{name}: {value:.2f}, at most {bound:.2f}: {'met' if value <= bound else 'MISSED'}")
    return 0 if all(value <= bound for _, value, bound in goals(document)) else 1


if __name__ == "__main__":
    run(main)
