"""Spans of time, and what was counted in them.

An increment lies in a span when its line was written after the span's start and not after its end: spans side by side share
none, and what was counted between two lines belongs to the later one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from halfstep.errors import ConfigError
from halfstep.tools.effect.records import Increment, Records

STEPS_MAX = 1000
LENGTH_S_MAX = 10_000 * 86_400
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True)
class Span:
    """Increments of (from_s, to_s], which are Unix times."""

    from_s: float
    to_s: float
    increments: Sequence[Increment]

    @property
    def modes(self) -> list[str]:
        """Of its clients."""
        return sorted({one.mode for one in self.increments if one.source == "client"})

    @property
    def processes(self) -> int:
        """Clients that counted in it."""
        return len({one.process for one in self.increments if one.source == "client"})

    @property
    def namespaces(self) -> list[str]:
        """Of its clients."""
        return sorted({one.namespace for one in self.increments if one.source == "client"})

    def steps(self, step_s: float) -> list[Span]:
        """Cut into steps; the last one may be shorter. Errors: ConfigError (too many)."""
        # A part of a millionth is one of rounding.
        count = max(1, math.ceil((self.to_s - self.from_s) / step_s - 1e-6))
        if count > STEPS_MAX:
            raise ConfigError(f"step={step_s:g}s: cuts the span into {count}; at most {STEPS_MAX} are shown: make it longer")
        cut: list[list[Increment]] = [[] for _ in range(count)]
        for one in self.increments:
            number = math.ceil((one.time_s - self.from_s) / step_s)
            cut[min(count, max(1, number)) - 1].append(one)
        edges = [self.from_s + step_s * number for number in range(count)] + [self.to_s]
        return [Span(start, end, some) for start, end, some in zip(edges[:-1], edges[1:], cut, strict=True)]


def time_of(text: str, now_s: float, option: str) -> float:
    """Unix time of "2026-11-27T02:00" (local time where it names no zone), "-2h" or "now". Errors: ConfigError."""
    if text == "now":
        return now_s
    match = re.fullmatch(r"-(\d+(?:\.\d+)?)([smhd])", text)
    try:
        time_s = now_s - float(match[1]) * _SECONDS[match[2]] if match else datetime.fromisoformat(text).timestamp()
        time_text(time_s)  # so many days ago there may have been no date
    except (ValueError, OverflowError, OSError):
        raise ConfigError(
            f"{option}={text[:40]!r}: not a time; write 2026-11-27T02:00 or 2026-11-27T02:00+00:00, -2h (s, m, h, d), or now"
        ) from None
    return time_s


def duration_of(text: str, option: str) -> float:
    """Seconds of "90s", "5m", "1h", "1d". Errors: ConfigError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text)
    if match is None or float(match[1]) == 0:
        raise ConfigError(f"{option}={text!r}: not a length of time; write for example 30s, 5m, 1h or 1d")
    length_s = float(match[1]) * _SECONDS[match[2]]
    if length_s > LENGTH_S_MAX:
        raise ConfigError(
            f"{option}={text[:40]!r}: must be at most {LENGTH_S_MAX // 86_400}d; write for example 30s, 5m, 1h or 1d"
        )
    return length_s


def time_text(time_s: float) -> str:
    """In local time, with its distance from UTC."""
    return datetime.fromtimestamp(time_s).astimezone().isoformat(timespec="seconds")


def span_of(
    records: Records,
    from_s: float | None,
    to_s: float | None,
    *,
    name: str = "",
    modes: Collection[str] | None = None,
    namespace: str | None = None,
) -> Span:
    """What was counted between two times. None: all that there is to that side.

    name: "baseline-" where the options are. modes, namespace: of clients, None = all. Errors: ConfigError (reversed; nothing).
    """
    # Before the first line, so that it lies within.
    start = records.first_s - 1 if from_s is None else from_s
    end = records.last_s if to_s is None else to_s
    if start >= end:
        raise ConfigError(
            f"{name}from={time_text(start)}: is not before {name}to={time_text(end)}; records reach from "
            f"{time_text(records.first_s)} to {time_text(records.last_s)}: choose a span within, its start first"
        )
    within = [one for one in records.increments if start < one.time_s <= end]
    if not within:
        raise ConfigError(
            f"{name}from={time_text(start)}, {name}to={time_text(end)}: no line of {records.folder} lies between them; they "
            f"reach from {time_text(records.first_s)} to {time_text(records.last_s)}"
        )
    if namespace is not None and all(one.namespace != namespace for one in within):
        known = sorted({one.namespace for one in within if one.source == "client"})
        raise ConfigError(f"namespace={namespace!r}: nothing was counted for it; {', '.join(known) or 'none'} are there")
    chosen = [
        one
        for one in within
        if one.source == "daemon" or ((modes is None or one.mode in modes) and namespace in (None, one.namespace))
    ]
    return Span(start, end, chosen)
