"""Records of counters: JSON Lines that processes append to files of a folder, one file a process.

A line says what a process has counted since it began, never what is new: a line that is lost costs precision, and no count.
Invariants: a file is its process's alone. A line is whole, but for the last one of a process that died in the midst of it. A
file and the one that it was before its last turn are at most 2 * FILE_BYTES_MAX.
Thread: one at a time.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from halfstep.errors import ConfigError

# The folder that clients write to; unset, they write nothing.
VARIABLE = "HALFSTEP_RECORD"
VERSION = 1
SUFFIX = ".jsonl"
# A line has some 600 bytes: at one every INTERVAL_S a file is five days of one namespace, and the one before it five more.
FILE_BYTES_MAX = 8 << 20
# A count beyond is none: sums of smaller ones stay finite. A time beyond has no date: it is the year 9999.
COUNT_MAX = 1e18
TIME_S_MAX = 253_370_764_800
INTERVAL_S = 30.0
# A process that does nothing says so every so often: a span without a line is told from one without work.
IDLE_INTERVAL_S = 600.0
SOURCES = ("client", "daemon")

_VERSION_FIELD = "halfstep_record"


class Line(NamedTuple):
    """Counters of one process in one namespace, as of a moment.

    source: of SOURCES. process: its number, of no other; a daemon's is its boot's. time_s: Unix time; it never falls within a
    process. first: nothing was counted before it that no line has. namespace, mode: the client's; "" of a daemon.
    """

    source: str
    process: str
    time_s: float
    first: bool
    namespace: str
    mode: str
    counters: Mapping[str, float]

    @property
    def series(self) -> tuple[str, str, str, str]:
        """Of what its counters go on: lines of one series are ordered by their time."""
        return self.source, self.process, self.namespace, self.mode


def encoded(line: Line) -> bytes:
    """With its end."""
    counters = {name: round(value, 6) for name, value in line.counters.items()}
    fields = line._asdict() | {"time_s": round(line.time_s, 3), "counters": counters}
    return json.dumps({_VERSION_FIELD: VERSION, **fields}, separators=(",", ":")).encode() + b"\n"


def decoded(text: bytes, place: str) -> Line:
    """place: file and line, for the error. Errors: ConfigError (what, value, bound, remedy)."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigError(f"{place}: {_start(text)} is no JSON; only a file's last line may be torn: remove this one") from None
    if not isinstance(fields, dict) or _VERSION_FIELD not in fields:
        raise ConfigError(
            f'{place}: {_start(text)} has no "{_VERSION_FIELD}"; move files that are no records out of the folder'
        )
    version = fields.pop(_VERSION_FIELD)
    if version != VERSION:
        raise ConfigError(
            f"{place}: {_VERSION_FIELD}={version!r}: this build reads {VERSION}; read it with the build that wrote it"
        )
    if unknown := fields.keys() - set(Line._fields):
        raise ConfigError(
            f"{place}: field {min(unknown)!r} is unknown; version {VERSION} has {', '.join(Line._fields)}: a newer build wrote "
            "it, read it with that one"
        )
    if missing := set(Line._fields) - fields.keys():
        raise ConfigError(f"{place}: field {min(missing)!r} is missing; remove the line")
    line = Line(**fields)
    if wrong := next((name for name, good in _checks(line).items() if not good), None):
        raise ConfigError(f"{place}: {wrong}={str(fields[wrong])[:40]!r}: must be {_BOUNDS[wrong]}; remove the line")
    return line


_BOUNDS = {
    "source": " or ".join(SOURCES),
    "process": "a text",
    "time_s": "seconds since 1970, before the year 9999",
    "first": "true or false",
    "namespace": "a text",
    "mode": "a text",
    "counters": "numbers of 0 or more, by name, up to 1e18",
}


def _checks(line: Line) -> dict[str, bool]:
    counters: Any = line.counters
    return {
        "source": line.source in SOURCES,
        "process": isinstance(line.process, str) and line.process != "",
        "time_s": _is_count(line.time_s) and line.time_s <= TIME_S_MAX,
        "first": isinstance(line.first, bool),
        "namespace": isinstance(line.namespace, str),
        "mode": isinstance(line.mode, str),
        "counters": isinstance(counters, dict) and all(map(_is_count, counters.values())),
    }


def _is_count(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= COUNT_MAX


def _start(text: bytes) -> str:
    return repr(text[:30].decode(errors="replace"))


def checked_folder(path: str, name: str = VARIABLE) -> Path:
    """Where records are. name: of what named it. Errors: ConfigError."""
    try:
        # As of now: a process that changes its directory afterwards goes on with the same folder.
        folder = Path(path).absolute()
        is_there = folder.is_dir()
    except OSError as error:
        raise ConfigError(f"{name}={path[:80]}: {error.strerror}; let this user read it, or name another one") from None
    if not is_there:
        raise ConfigError(f"{name}={path}: there is no such folder; make it, or name another one")
    return folder


class RecordFile:
    """The file of one process: made by its first line. It holds no descriptor between two lines."""

    def __init__(self, folder: Path, name: str, bytes_max: int = FILE_BYTES_MAX) -> None:
        self.path = folder / (name + SUFFIX)
        self._before = folder / (name + ".1" + SUFFIX)
        self._bytes_max = bytes_max

    def append(self, lines: bytes) -> None:
        """All of them, or nothing. Errors: OSError."""
        descriptor = self._open()
        try:
            size = os.fstat(descriptor).st_size
            if size and size + len(lines) > self._bytes_max:
                self.path.replace(self._before)
                os.close(descriptor)
                descriptor = -1  # nobody's, should the next line fail
                descriptor, size = self._open(), 0
            written = 0
            try:
                while written < len(lines):
                    written += os.write(descriptor, lines[written:])
            except OSError:
                # A disk that is full takes half a line, and the next one would follow it.
                os.ftruncate(descriptor, size)
                raise
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def _open(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
