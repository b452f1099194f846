"""Sizes, rates and times as people write and read them. Sizes are bytes; times are microseconds."""

from __future__ import annotations

import re

from halfstep.errors import ConfigError

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40

# The native core counts bytes in 64 bits; a size near their end is a slip of the finger.
BYTES_MAX = 1 << 60
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": KIB, "mi": MIB, "gi": GIB, "ti": TIB}
_MICROS = {"us": 1.0, "ms": 1e3, "s": 1e6}


def parse_bytes(text: str, name: str = "size") -> int:
    """Bytes of "4096", "64k", "64KiB", "1.5GiB"; decimal units without the i, binary ones with it.

    Errors: ConfigError that names `name` and an example; also for more than BYTES_MAX.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?\s*", text, re.IGNORECASE)
    if match is None:
        raise ConfigError(f"{name}={text!r}: not a size; write for example 512MiB, 64GiB or 1.5TiB")
    unit = _UNITS[(match[2] or "").lower()]
    if float(match[1]) * unit > BYTES_MAX:
        raise ConfigError(f"{name}={text[:40]!r}: must be at most {BYTES_MAX // TIB}TiB; write for example 512MiB or 64GiB")
    return int(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit


def parse_size(text: str, name: str) -> int:
    """As parse_bytes, of a size that may be left out: 0 would mean the default, and nobody who writes it means that."""
    size = parse_bytes(text, name)
    if size == 0:
        raise ConfigError(f"{name}={text.strip()[:40]!r}: must be above 0; leave it out for the default")
    return size


def parse_micros(given: object, name: str) -> float:
    """Microseconds of "500us", "2ms", "0.1s". Errors: ConfigError, which calls the value by `name`."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(us|ms|s)\s*", str(given))
    if match is None:
        raise ConfigError(f"{name}={given!r}: not a time; write for example 500us, 2ms or 0.1s")
    return float(match[1]) * _MICROS[match[2]]


def format_bytes(count: float) -> str:
    """Three digits with a binary unit, such as 1.5 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} TiB"


def exact_bytes(count: int) -> str:
    """All digits, in the largest unit that divides it: 96 MiB, but 100663297 bytes."""
    for unit, name in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if count and count % unit == 0:
            return f"{count // unit} {name}"
    return f"{count} bytes"


def format_micros(count: int) -> str:
    """In the largest unit that divides it: 2 ms, but 2500 us."""
    for unit, name in ((1_000_000, "s"), (1000, "ms")):
        if count % unit == 0:
            return f"{count // unit} {name}"
    return f"{count} us"
