"""Print what pyproject.toml asks for, one requirement a line: `requirements.py build`, `requirements.py dev transformers`.

`build` is the build backend's own list; any other name is an extra, with references to further extras of the project
followed. So a requirement stands once, in pyproject.toml, and set-up can install it without installing the project.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path


def expand(extra: str, extras: dict[str, list[str]], project: str) -> list[str]:
    """The requirements of one extra, with `project[other,…]` replaced by what the others ask for."""
    if extra not in extras:
        raise SystemExit(f"pyproject.toml has no extra {extra!r}; it has {', '.join(sorted(extras))}")
    found: list[str] = []
    for requirement in extras[extra]:
        own = re.fullmatch(rf"{re.escape(project)}\[([\w, -]+)\]", requirement)
        if own:
            for other in own[1].split(","):
                found += expand(other.strip(), extras, project)
        else:
            found.append(requirement)
    return found


def main(names: list[str]) -> None:
    """Print the union of the named lists, the project's own dependencies first."""
    document = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
    project = document["project"]
    wanted = list(project["dependencies"])
    for name in names:
        if name == "build":
            wanted += document["build-system"]["requires"]
        else:
            wanted += expand(name, project["optional-dependencies"], project["name"])
    print("\n".join(dict.fromkeys(wanted)))


if __name__ == "__main__":
    main(sys.argv[1:])
