"""Engines change what they ask of a connector: said at the start, by name, and never found out by wrong tokens."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from halfstep.errors import ConfigError

log = logging.getLogger("halfstep.connectors")


def warn_of_version(engine: str, version: str, known: Sequence[str]) -> None:
    """One word about an engine that a connector was not made for. known: versions, or how those begin."""
    if not any(version == one or version.startswith(f"{one}.") for one in known):
        log.warning("halfstep: %s %s is not one that this was made for (%s)", engine, version, " and ".join(known))


def refuse_unknown_methods(kind: type, what: str, engine: str, version: str, known: Sequence[str], remedy: str) -> None:
    """For an engine that asks for more than `kind` has. what: the engine's name of it. Errors: ConfigError."""
    if unknown := getattr(kind, "__abstractmethods__", ()):
        raise ConfigError(
            f"{engine} {version}: a {what} has to have {', '.join(sorted(unknown))} there, which this release of Halfstep has "
            f"not; it was made for {engine} {' and '.join(known)}: upgrade Halfstep, or take {remedy}"
        )
