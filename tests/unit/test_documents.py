"""What can be checked of the documents by a program: that their links lead somewhere, and that their lines can be read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(p.relative_to(ROOT) for pattern in ("*.md", "docs/**/*.md", "bench/*.md") for p in ROOT.glob(pattern))
COLUMNS_MAX = 110
LINK = re.compile(r"\]\(([^)\s]+)\)")


def prose(text: str) -> Iterator[tuple[int, str]]:
    """The lines outside fenced code, with their numbers."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, line


def anchors(text: str) -> set[str]:
    """The names that a reader's browser gives the titles: lower case, words joined by hyphens, the other signs gone."""
    found: set[str] = set()
    for _, line in prose(text):
        if title := re.match(r"#+ (.+)", line):
            words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title[1].lower())
            name = re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-")
            copies = sum(1 for other in found if re.fullmatch(re.escape(name) + r"(-\d+)?", other))
            found.add(f"{name}-{copies}" if copies else name)
    return found


def broken_links(root: Path, document: Path) -> list[str]:
    broken = []
    for number, line in prose((root / document).read_text()):
        for target in LINK.findall(re.sub(r"`[^`]*`", "", line)):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            file = (root / document).parent / path if path else root / document
            if not file.exists():
                broken.append(f"{document}:{number}: {target}: there is no such file")
            elif anchor and anchor not in anchors(file.read_text()):
                broken.append(f"{document}:{number}: {target}: no title there has that name")
    return broken


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_links_lead_to_files_and_titles(document: Path) -> None:
    assert broken_links(ROOT, document) == []


def test_a_link_to_nothing_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# A title, of *two* words\n[b](b.md) [c](#a-title-of-two-words) [d](#no) `[e](e.md)`\n")
    broken = broken_links(tmp_path, Path("a.md"))
    assert broken == [
        "a.md:2: b.md: there is no such file",
        "a.md:2: #no: no title there has that name",
    ]


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_lines_outside_tables_and_code_fit(document: Path) -> None:
    wide = [
        f"{document}:{number}: {len(line)} columns"
        for number, line in prose((ROOT / document).read_text())
        if len(line) > COLUMNS_MAX and not line.startswith("|") and not line.startswith("    ")
    ]
    assert wide == [], f"at most {COLUMNS_MAX}: fold them"


@pytest.mark.parametrize("document", DOCUMENTS, ids=str)
def test_nothing_is_cited_that_a_reader_does_not_have(document: Path) -> None:
    assert not re.search(r"\bV1 section|\bENGINE(\.md)? \d", (ROOT / document).read_text())
