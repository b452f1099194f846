"""Options, from the command line or from a job file, to plans.

A job file is TOML: a table [global] for all jobs, and a table for each job, named after it. Keys are the command's options with
_ or -; lists stand for commas. What a job says goes before what [global] says, and that before the command line.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halfstep.daemon.units import parse_bytes, parse_micros
from halfstep.errors import ConfigError
from halfstep.tools.bench.plan import Plan

_GLOBAL = "global"
# fio's letters: k, m and g are powers of two there.
_FIO_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmg])\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Job:
    """name: of its table; "" for the command line itself. options: by their names with _."""

    name: str
    options: Mapping[str, Any]

    def plan(self) -> Plan:
        """Validated. Errors: ConfigError that names the value, and the job if it has a name."""
        try:
            return _plan(self.options)
        except ConfigError as error:
            raise ConfigError(f"job {self.name}: {error}" if self.name else str(error)) from None


def jobs_of(path: Path, options: Mapping[str, Any]) -> list[Job]:
    """The jobs of a file, in its order. `options`: the command line's. Errors: ConfigError with the place in the file."""
    try:
        tables = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"job={path}: {error}") from None
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise ConfigError(f"job={path}: {name} stands outside of a table; put it under [{_GLOBAL}] or under a job's name")
        for key, value in table.items():
            _check(path, name, key.replace("-", "_"), value, options)
    shared = _named(tables.pop(_GLOBAL, {}))
    if not tables:
        raise ConfigError(f"job={path}: has no job; write a table such as [restore] with its options")
    return [Job(name, {**options, **shared, **_named(table)}) for name, table in tables.items()]


def _named(table: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key.replace("-", "_"): ",".join(map(str, value)) if isinstance(value, list) else value for key, value in table.items()
    }


def _check(path: Path, job: str, key: str, value: object, options: Mapping[str, Any]) -> None:
    if key not in options:
        raise ConfigError(f"job={path}: [{job}] {key}: there is no such option; choose from {', '.join(sorted(options))}")
    if isinstance(value, dict):
        raise ConfigError(f"job={path}: [{job}] {key}: must be a value or a list, not a table")


def _plan(options: Mapping[str, Any]) -> Plan:
    return Plan(
        url=str(options["url"]),
        scenarios=tuple(listed(options["rw"])),
        block_bytes=tuple(size_of(size, "bs") for size in listed(options["bs"])),
        batch=whole(options["batch"], "batch"),
        numjobs=whole(options["numjobs"], "numjobs"),
        parts=whole(options["parts"], "parts"),
        connections=whole(options["connections"], "connections"),
        iodepth=tuple(whole(depth, "iodepth") for depth in listed(options["iodepth"])),
        read_share=_number(options["rwmixread"], "rwmixread") / 100,
        durability=str(options["durability"]),
        seconds=_number(options["runtime"], "runtime"),
        ramp_s=_number(options["ramp"], "ramp"),
        repeat=whole(options["repeat"], "repeat"),
        seed=whole(options["seed"], "seed"),
        hot_bytes=size_of(options["size"], "size"),
        cold_bytes=size_of(options["cold_size"], "cold_size") if options["cold_size"] else 0,
        rate=_number(options["rate"], "rate"),
        goal_us=parse_micros(options["latency_goal"], "latency_goal") if options["latency_goal"] else 0.0,
        directory=Path(options["directory"]) if options["directory"] is not None else None,
        arena_bytes=size_of(options["arena"], "arena"),
        engine=str(options["engine"]),
        transport=str(options["transport"]),
        pin=_switch(options["pin"], "pin"),
    ).validated()


def listed(value: object) -> list[str]:
    """Parts between commas, without empty ones."""
    return [part for text in str(value).split(",") if (part := text.strip())]


def size_of(value: object, name: str) -> int:
    """Bytes; k, m and g alone are binary, as fio has it."""
    text = str(value)
    if match := _FIO_SIZE.fullmatch(text):
        text = f"{match[1]}{match[2]}i"
    return parse_bytes(text, name)


def whole(value: object, name: str) -> int:
    """Errors: ConfigError that names the value."""
    try:
        return int(str(value))
    except ValueError:
        raise ConfigError(f"{name}={value!r}: must be a whole number") from None


def _number(value: object, name: str) -> float:
    try:
        return float(str(value))
    except ValueError:
        raise ConfigError(f"{name}={value!r}: must be a number") from None


def _switch(value: object, name: str) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{name}={value!r}: must be true or false, without quotation marks")
    return value
