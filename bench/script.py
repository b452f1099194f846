"""What the scripts of this folder share: how often they run, the programs of bench/native beside them, and how they end."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeVar

import halfstep
from halfstep.errors import HalfstepError
from halfstep.tools.imports import signals_wait

with signals_wait():
    from halfstep.tools.bench.fio import fio_version
    from halfstep.tools.bench.machine import machine_facts
    from halfstep.tools.bench.measure import Stream, refuse_unless_release
    from halfstep.tools.bench.report import CpuWait, Limit
    from halfstep.tools.bench.terminal import terminable

PROGRAMS = Path(__file__).parents[1] / "build" / "release" / "bench"

# Of what a client makes in a closed loop, so much is due when more is to be due than it can make.
OVERLOAD = 1.5

T = TypeVar("T")


def positive(text: str) -> int:
    """A number of something, as an argument's type."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be a whole number from 1 on")
    return int(text)


def run_seconds(text: str) -> float:
    """Of a run, as an argument's type."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 3600:
        raise argparse.ArgumentTypeError(f"{text}: must be a number of seconds above 0, up to 3600")
    return value


def add_programs(parser: argparse.ArgumentParser, *names: str) -> None:
    """The argument --programs, a folder."""
    parser.add_argument("--programs", type=Path, default=PROGRAMS, help=f"folder of {' and '.join(names)}")


def built(folder: Path, name: str) -> Path:
    """The program; without one the script ends."""
    if not (folder / name).exists():
        raise SystemExit(f"{folder / name}: not built; run `make native`, or name another folder with --programs")
    return folder / name


def with_programs(parser: argparse.ArgumentParser, *names: str) -> argparse.Namespace:
    """The arguments, among them --programs, a folder where all of these are."""
    add_programs(parser, *names)
    options = parser.parse_args()
    for name in names:
        built(options.programs, name)
    return options


def said_by(program: Path, options: Mapping[str, object]) -> dict[str, Any]:
    """The document that a program prints; one that is no release build ends the script."""
    command = [str(program)]
    command += [text for name, value in options.items() for text in (f"--{name}", str(value))]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{shlex.join(command)}: exit status {done.returncode}")
    said: dict[str, Any] = json.loads(done.stdout)
    refuse_unless_release(said)
    return said


def alone(doc: str | None, name: str, parser: argparse.ArgumentParser | None = None) -> tuple[argparse.Namespace, list[str]]:
    """Arguments of a script that only runs a program: --program, --json, those of `parser`; and what is the program's own."""
    parser = parser or argparse.ArgumentParser()
    parser.description = (doc or "").split("\n", 1)[0]
    parser.add_argument("--program", type=Path, default=PROGRAMS / name)
    parser.add_argument("--json", action="store_true", help="one document on stdout")
    options, own = parser.parse_known_args()
    if not options.program.exists():
        raise SystemExit(f"{options.program}: not built; run `make native`, or name another with --program")
    return options, own


def document_of(program: Path, options: Sequence[str]) -> dict[str, Any]:
    """What the program prints, with the machine in its header; one that is no release build ends the script."""
    command = [str(program), *options]
    machine = machine_facts(shlex.join(command))
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)
    said: dict[str, Any] = json.loads(done.stdout)
    if said:  # what only makes something says {}
        refuse_unless_release(said)
    machine["load_average"] = [machine["load_average"], os.getloadavg()[0]]
    return {"header": machine, **said}


def about(document: Mapping[str, Any]) -> str:
    """The two lines that a report of document_of() begins with."""
    head, seed = document["header"], f", seed {document['seed']}" if "seed" in document else ""
    return (
        f"halfstep {document['version']} ({document['build']}), commit {document['commit']}{seed}\n"
        f"kernel {head['kernel']}, {head['cpu']}, {head['cores']} cores; load {head['load_average'][0]:.1f} at the start"
    )


def of_rounds(samples: Mapping[str, float]) -> str:
    """What a program says of its rounds: median, and between what they were."""
    return f"{samples['median']:.2f} ({samples['min']:.2f}-{samples['max']:.2f})"


def judged(missed: Sequence[str]) -> int:
    """Says what was missed; the exit status."""
    for goal in missed:
        say(f"MISSED: {goal}")
    return 1 if missed else 0


def header(**more: object) -> dict[str, Any]:
    """What a document says first. Errors: ConfigError where this is no release build."""
    refuse_unless_release(halfstep.build_info())
    return {**machine_facts(shlex.join(sys.argv)), **more}


def spread(values: Sequence[float]) -> dict[str, float]:
    """Of several rounds: the median, which counts, and between what they were."""
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}


def spread_text(values: Sequence[float], style: str = ".2f") -> str:
    """The same for people."""
    return f"{statistics.median(values):{style}} ({min(values):{style}} to {max(values):{style}})"


def waits_text(waits: Sequence[CpuWait]) -> str:
    """How much of all runs together something else had the core of client or daemon, on this machine or on its host."""
    sides = {"client": [wait.client for wait in waits], "daemon": [wait.daemon for wait in waits]}
    seconds = {who: sum(one for one in some if one is not None) for who, some in sides.items() if None not in some}
    known = [f"the {who} {one:.2f} s" for who, one in seconds.items()]
    waited = f"waited for a core: {', '.join(known)}" if known else "the kernel does not say who waited for a core"
    return f"{waited}; the host kept {sum(wait.host for wait in waits):.2f} s of the cores for others"


def with_fio() -> str:
    """Its version; without one the script ends."""
    if version := fio_version():
        return version
    raise SystemExit("fio: there is none here, and it is what this compares with; install the package fio")


def say(text: str, _steps: int = 1) -> None:
    """What is being done, on stderr."""
    print(text, file=sys.stderr, flush=True)


def quiet(_text: str, _steps: int = 1) -> None:
    """For whoever wants to be told what is being done, and need not be."""


def no_limit(_stream: Stream) -> Limit | None:
    """For `measure`, where a run is set against something else."""
    return None


def most_per_s(made_per_s: Callable[[float], float]) -> float:
    """Calls a second when more are due. made_per_s: calls that a client makes at a rate; of rate 0, in a closed loop."""
    return made_per_s(OVERLOAD * made_per_s(0.0))


def call_times_us(calls: Sequence[Callable[[], T]], after: Callable[[int, T], None], seconds: float) -> list[float]:
    """Of calls that are made one after the other, over and over, for so long and each of them once at least.

    after: is given the number of each call and what it returned, outside of its time.
    """
    took_us: list[float] = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(took_us) < len(calls):
        number = len(took_us) % len(calls)
        call = calls[number]
        began = time.perf_counter_ns()
        returned = call()
        took_us.append((time.perf_counter_ns() - began) / 1e3)
        after(number, returned)
    return took_us


class CoresNear(Protocol):
    """What cores.Cores says of the cores that the runs had."""

    def as_json(self) -> dict[str, Any] | None:
        """For programs."""
        ...

    def text(self) -> str:
        """For people."""
        ...


def conclude(head: Mapping[str, Any], near: CoresNear, results: Mapping[str, object], *, as_json: bool) -> None:
    """Says what may have disturbed all of it; and prints the document: header(), and results by name."""
    load = os.getloadavg()[0]
    say(f"load {head['load_average']:.1f} at the start, {load:.1f} at the end; {near.text()}")
    if as_json:
        print(json.dumps({"header": {**head, "load_average_end": load, "cores_near": near.as_json()}, **results}))


def run(main: Callable[[], int]) -> NoReturn:
    """Ends with the status of `main`. Ctrl-C and SIGTERM clean up; an error of ours is one line."""
    try:
        with terminable():
            status = main()
    except HalfstepError as error:
        raise SystemExit(str(error)) from None
    except KeyboardInterrupt:
        status = 130
    sys.exit(status)
