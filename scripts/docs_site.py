"""Hooks of mkdocs: the documents outside docs/ become pages, and links between all of them lead from page to page.

In the repository a document links to files beside it. On the site README.md is the first page, the other documents of the root
lie beside it, and sources are no pages: a link to one becomes its path.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
# Path in the repository, and of its page.
OUTSIDE = {
    "README.md": "index.md",
    "SECURITY.md": "SECURITY.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "bench/README.md": "bench.md",
}
_OF_PAGE = {page: path for path, page in OUTSIDE.items()}
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def on_files(files: Any, config: Any) -> Any:
    """Adds the documents outside docs/."""
    for path, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / path).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:  # noqa: ARG001 -- mkdocs names them
    """Rewrites a page's links, code aside."""
    here = page.file.src_uri
    source = _OF_PAGE.get(here, f"docs/{here}")
    parts = re.split(r"(^```.*?^```$|`[^`\n]+`)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(
        part if number % 2 else _LINK.sub(lambda m: _led(m, source, here), part) for number, part in enumerate(parts)
    )


def _led(link: re.Match[str], source: str, here: str) -> str:
    image, text, target = link.groups()
    if re.match(r"[a-z]+:", target) or target.startswith("#"):
        return link[0]
    path, hash_sign, anchor = target.partition("#")
    in_repository = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    if in_repository in OUTSIDE:
        led = OUTSIDE[in_repository]
    elif in_repository.startswith("docs/"):
        led = in_repository.removeprefix("docs/")
    elif (ROOT / in_repository).exists():
        return f"{text} (`{in_repository}`)"
    else:
        return link[0]  # and mkdocs says so
    return f"{image}[{text}]({posixpath.relpath(led, posixpath.dirname(here) or '.')}{hash_sign}{anchor})"
