"""SIGKILL at random moments under full load, then a restart, again and again on one store that wraps.

After each restart (load.py, oracle.py): no wrong byte, no acknowledged `persist` block lost before its time, no deleted or
expired block back, no held block evicted, and never a refused start.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from tests.torture.load import Tally, report, run_rounds

from halfstep.tools.daemon_process import DaemonProcess

STORE, ARENA = "132MiB", "32MiB"
LOAD_S = (0.05, 0.6)


class KilledDaemon(DaemonProcess):
    """One that is cut off by SIGKILL: what the kernel has taken is on media."""

    def cut(self) -> None:
        """As the kernel does when memory runs out."""
        self.end(signal.SIGKILL)

    def stop(self) -> None:
        """As an operator does."""
        assert self.end() == 0, self.log_end()


def run(rounds: int, seed: int, directory: Path, *serve_arguments: str, verbose: bool = False) -> Tally:
    """`rounds` kills."""
    daemon = KilledDaemon(directory, "--size", STORE, "--arena", ARENA, *serve_arguments)
    try:
        return run_rounds(daemon, rounds, seed, load_s=LOAD_S, verbose=verbose)
    finally:
        daemon.close()


def main() -> int:
    """0 when no rule was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", default="auto")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="halfstep-kills-") as directory:
        tally = run(options.rounds, options.seed, Path(directory), "--engine", options.engine, verbose=True)
    return report(tally, options.seed)


if __name__ == "__main__":
    sys.exit(main())
