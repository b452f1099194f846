"""Reads a folder of records (halfstep.record): what was new with each line.

A line has all that its process had counted; what is new is how far each counter has risen since the line before. A counter of a
client that fell was begun anew: all that it has is new. So no restart makes a figure negative, and what an overwritten line has
said is in the next one. A daemon that begins anew is another process (its boot). Its lines may be of several recorders, whose
clocks differ, so that one with less than the line before tells nothing new.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from halfstep.errors import ConfigError
from halfstep.record import SUFFIX, VARIABLE, Line, decoded


class Increment(NamedTuple):
    """What was new with a line: of the time since the line before, counted at `time_s`. See halfstep.record.Line."""

    time_s: float
    source: str
    process: str
    namespace: str
    mode: str
    more: Mapping[str, float]


@dataclass(frozen=True)
class Records:
    """Of a folder, in the order of their times; at least one. remarks: what was left out, one sentence each."""

    folder: Path
    increments: Sequence[Increment]
    remarks: Sequence[str]

    @property
    def first_s(self) -> float:
        """When the first line was written."""
        return self.increments[0].time_s

    @property
    def last_s(self) -> float:
        """When the last line was written."""
        return self.increments[-1].time_s


def read(folder: Path) -> Records:
    """All records of a folder. Errors: ConfigError (nothing there, a line that is none)."""
    lines: dict[tuple[str, str, str, str], list[Line]] = {}
    remarks: list[str] = []
    for path in sorted(folder.glob("*" + SUFFIX)):
        for line in _lines(path, remarks):
            lines.setdefault(line.series, []).append(line)
    increments = [one for series in lines.values() for one in _increments(series, remarks)]
    if not increments:
        raise ConfigError(
            f"{folder}: no *{SUFFIX} in it has a whole line; set {VARIABLE}={folder} in the environment of engines and let "
            "them work, or record a daemon with `halfstep effect record`"
        )
    return Records(folder, sorted(increments, key=lambda one: one.time_s), remarks)


def _lines(path: Path, remarks: list[str]) -> list[Line]:
    try:
        *whole, torn = path.read_bytes().split(b"\n")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; let this user read it, or move it out of the folder") from None
    if torn:
        remarks.append(f"{path.name}: its last line is torn, and was left out: its process died, or writes it just now")
    return [decoded(line, f"{path}:{number}") for number, line in enumerate(whole, 1)]


def _increments(lines: list[Line], remarks: list[str]) -> list[Increment]:
    """Of one series."""
    found: list[Increment] = []
    # Of a daemon each of its recorders may have such a line, after another's.
    before: Mapping[str, float] | None = {} if any(line.first for line in lines) else None
    fell = 0
    for line in sorted(lines, key=lambda one: one.time_s):
        if before is None:
            # What it had counted by then was counted at times that nobody knows.
            before = line.counters
            if line.source == "client":
                remarks.append(f"process {line.process}: its first lines are gone; it counts from the oldest that is there")
            found.append(Increment(line.time_s, *line[:2], line.namespace, line.mode, {}))
            continue
        more: dict[str, float] = {}
        now: dict[str, float] = {}
        for name, value in line.counters.items():
            was = before.get(name, 0)
            if value >= was:
                more[name] = value - was
            elif line.source == "client":
                fell += 1
                more[name] = value
            else:
                more[name], value = 0, was
            now[name] = value
        found.append(Increment(line.time_s, *line[:2], line.namespace, line.mode, more))
        before = {**before, **now}
    if fell:
        remarks.append(f"process {lines[0].process}: {fell} times a counter fell; what it has then was counted as new")
    return found
