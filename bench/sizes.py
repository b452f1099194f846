#!/usr/bin/env python3
"""Question: from which block size on does the cost per block, not per byte, decide?

Hot gets, puts and matches from 4 KiB to 1 MiB, 64 blocks a call. Further options go to `halfstep bench`, e.g. --json.
"""

from __future__ import annotations

import os
import sys

SIZES = "4KiB,16KiB,64KiB,256KiB,1MiB"

if __name__ == "__main__":
    command = ["bench", "--rw", "get,put,match", "--bs", SIZES, "--batch", "64", "--runtime", "2", *sys.argv[1:]]
    os.execv(sys.executable, [sys.executable, "-m", "halfstep.tools.cli", *command])
