"""The systemd unit of the daemon as its files say it: the unit, then its drop-ins in the order in which systemd reads them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from halfstep.doctor.host import Host

UNIT = "halfstepd.service"
# systemd.unit(5), the first that has it counts.
DIRECTORIES = (
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
)


@dataclass(frozen=True)
class Unit:
    """path: of the unit's file. settings: of its [Service] by name, values in order; an empty one cleared those before.

    arguments: what HALFSTEP_ARGS gives to `serve`.
    """

    path: str
    settings: Mapping[str, tuple[str, ...]]

    def last(self, name: str) -> str | None:
        """The value in force of a setting that has one; None where it is not set."""
        values = self.settings.get(name, ())
        return values[-1] if values else None

    @property
    def arguments(self) -> tuple[str, ...]:
        """Behind `serve`: of ExecStart=, with HALFSTEP_ARGS in its place."""
        environment: dict[str, str] = {}
        for line in self.settings.get("Environment", ()):
            for word in _words(line):
                name, _, value = word.partition("=")
                environment[name] = value
        arguments: list[str] = []
        for word in _words(self.last("ExecStart") or ""):
            # $NAME alone is split into words, ${NAME} is one.
            variable = word.startswith("$") and "{" not in word
            arguments += _words(environment.get(word.removeprefix("$"), "")) if variable else [word]
        return tuple(arguments[arguments.index("serve") + 1 :]) if "serve" in arguments else ()


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # a quote that is not closed: systemd would refuse the line
        return text.split()


def unit_of(host: Host) -> Unit | None:
    """None where it is not installed. Errors: OSError of a file that this user may not read."""
    for directory in DIRECTORIES:
        text = host.text(f"{directory}/{UNIT}")
        if text is None:
            continue
        settings: dict[str, tuple[str, ...]] = {}
        _read(text, settings)
        # By name, whichever directory they are in; a higher directory's hides that of the same name.
        drop_ins: dict[str, str] = {}
        for place in reversed(DIRECTORIES):
            for name in host.names(f"{place}/{UNIT}.d"):
                if name.endswith(".conf"):
                    drop_ins[name] = f"{place}/{UNIT}.d/{name}"
        for _, path in sorted(drop_ins.items()):
            _read(host.read(path), settings)
        return Unit(f"{directory}/{UNIT}", settings)
    return None


def _read(text: str, settings: dict[str, tuple[str, ...]]) -> None:
    """Adds what a file's [Service] says."""
    service = False
    for line in text.replace("\\\n", " ").splitlines():
        line = line.strip()
        if line.startswith("["):
            service = line == "[Service]"
        elif service and line and not line.startswith(("#", ";")):
            name, _, value = (part.strip() for part in line.partition("="))
            settings[name] = (*settings.get(name, ()), value) if value else ()
