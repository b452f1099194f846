"""Settings of a connector, as an engine's configuration has them: what nobody knows is refused with what there is."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

from halfstep.errors import ConfigError


def refuse_unknown(given: Iterable[str], known: Collection[str], where: str) -> None:
    """where: the engine's name of the dictionary. Errors: ConfigError (a setting that there is not, or no "url")."""
    names = list(given)
    unknown = sorted(name for name in names if name not in known)
    if unknown:
        near = difflib.get_close_matches(unknown[0], known, 1)
        meant = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(f"halfstep: {', '.join(unknown)}: unknown in {where}; {meant}there are {', '.join(sorted(known))}")
    if "url" not in names:
        raise ConfigError(f'halfstep: "url" is missing in {where}; as in halfstep://flash-node')
