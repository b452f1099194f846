"""Client processes under load meet close, cancel, fork, signals, Ctrl-C, exit, exhausted descriptors, changed arguments and a
stopped daemon, at random moments from a seed: `python -m tests.torture.client --minutes 10`.

Every process ends within its deadline and with the right status; no wrong byte, none in memory that was handed back. Choices
follow from the seed, moments are the machine's: a seed that failed is worth running many times (`--seed N --rounds 50 --same`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from tests.integration.mounting import Mount
from tests.torture.client.sides import STATUS
from tests.torture.client.workers import BLOCK_BYTES, KEYS
from tests.torture.content import noise_of

import halfstep
from halfstep.tools.daemon_process import DaemonProcess

# A life takes a second or two; this is for a machine that is busy with other things.
DEADLINE_S = 90.0


@dataclass
class Tally:
    """What was done, and every process that broke a rule."""

    rounds: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    passing: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    checked: int = 0
    broken: list[str] = field(default_factory=list)


def life(url: str, seed: int, daemon_pid: int, tally: Tally, *arguments: str, patience: float = 1.0) -> None:
    """One process from its start to its end. daemon_pid: of the process that it may stop."""
    command = [sys.executable, "-m", "tests.torture.client.victim", url, str(seed), str(daemon_pid)]
    command += ["--patience", str(patience), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    hung = False
    try:
        out, err = process.communicate(timeout=DEADLINE_S * patience)
    except subprocess.TimeoutExpired:
        hung = True
        process.send_signal(signal.SIGABRT)  # faulthandler says where each thread was
        try:
            out, err = process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
    finally:
        # It may have stopped the daemon and died before it went on.
        os.kill(daemon_pid, signal.SIGCONT)
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    drawn = lines[0] if lines else {"end": "none", "faces": [], "passing": []}
    told = lines[1] if len(lines) > 1 else None
    tally.rounds += 1
    tally.ends[drawn["end"]] += 1
    tally.passing.update(drawn["passing"])
    wanted = STATUS.get(drawn["end"], 0)
    why = ""
    if hung:
        why = f"did not end within {DEADLINE_S * patience:g} s"
    elif told is not None and told["faults"]:
        why = "; ".join(told["faults"])
    elif process.returncode != wanted:
        why = f"ended with {process.returncode} instead of {wanted}"
    elif told is None:
        why = "said nothing"
    if told is not None:
        tally.calls.update(told["calls"])
        tally.answers.update(told["answers"])
        tally.checked += told["checked"]
    if why:
        tally.broken.append(f"seed {seed}: {why}\n  {json.dumps(drawn)}\n{_end_of(err)}")


def run(
    directory: Path,
    *,
    seed: int,
    rounds: int | None = None,
    minutes: float | None = None,
    same: bool = False,
    jobs: int = 2,
    patience: float = 1.0,
    end: str | None = None,
    mount: bool = False,
    verbose: bool = False,
) -> Tally:
    """So many lives, or for so long; every other one over shared memory.

    mount: they come in through a mount of the daemon, and stop one or the other.
    """
    tally = Tally()
    until = None if minutes is None else time.monotonic() + minutes * 60
    socket = str(directory / "s")
    with (
        DaemonProcess(directory, "--size", "256MiB", "--arena", "64MiB", unix=socket) as daemon,
        _mount_of(daemon, directory) if mount else contextlib.nullcontext() as between,
    ):
        with halfstep.connect(daemon.url, required=True, deadline_ms=60_000) as client:
            stored = client.put(KEYS, np.stack([noise_of(key, BLOCK_BYTES) for key in KEYS]), durability="persist")
            assert stored.ok.all(), stored
        arguments = () if end is None else ("--end", end)

        def one(number: int) -> None:
            drawn = seed if same else seed + number
            url = daemon.shared_url if number % 2 else daemon.url
            stopped = daemon.pid
            if between is not None:
                url = between.url if number % 2 else between.tcp_url
                stopped = between.pid if number % 4 < 2 else daemon.pid
            life(url, drawn, stopped, tally, *arguments, patience=patience)

        with ThreadPoolExecutor(jobs) as pool:
            number = 0
            while (rounds is None or number < rounds) and (until is None or time.monotonic() < until):
                batch = range(number, min(number + jobs * 2, rounds or number + jobs * 2))
                before = len(tally.broken)
                list(pool.map(one, batch))
                number = batch.stop
                if verbose:
                    print(f"{tally.rounds} rounds, {len(tally.broken)} broken", *tally.broken[before:], sep="\n", flush=True)
        assert daemon.running, "the daemon ended"
        assert between is None or between.running, "the mount ended"
    return tally


@contextlib.contextmanager
def _mount_of(daemon: DaemonProcess, directory: Path) -> Iterator[Mount]:
    # Every block is asked for anew after a moment, so that the daemon behind is met as often as the mount.
    mount = Mount(directory, daemon.url, "--listen", "127.0.0.1:0", "--max-age", "100ms")
    mount.start()
    try:
        yield mount
    finally:
        if mount.running:
            mount.end()


def _end_of(err: str) -> str:
    return "\n".join("  | " + line for line in err.splitlines()[-120:])


def main() -> int:
    """0 when no rule was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--same", action="store_true", help="the same seed in every round")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--end", help="this end in every round")
    parser.add_argument("--mount", action="store_true", help="through a mount; it or the daemon behind it is stopped")
    parser.add_argument("--patience", type=float, default=1.0, help="times the time limits; a sanitizer needs some 5")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.minutes is None and options.rounds is None:
        options.minutes = 10.0
    print(f"seed {options.seed}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="halfstep-client-") as directory:
        tally = run(
            Path(directory),
            seed=options.seed,
            rounds=options.rounds,
            minutes=options.minutes,
            same=options.same,
            jobs=options.jobs,
            patience=options.patience,
            end=options.end,
            mount=options.mount,
            verbose=not options.json,
        )
    said = {**tally.__dict__, "ends": dict(tally.ends), "passing": dict(tally.passing)}
    said |= {"calls": dict(tally.calls), "answers": dict(tally.answers)}
    print(json.dumps(said, indent=None if options.json else 1))
    return 1 if tally.broken else 0


if __name__ == "__main__":
    sys.exit(main())
