"""Each metric of the native core and of the SPDK target has a help line, and no line is of a metric that is gone."""

from __future__ import annotations

import re
from pathlib import Path

from halfstep.daemon.metric_help import HELP

SOURCES = Path(__file__).parents[2] / "native"
FOLDERS = ("shard", "mount")
# Told apart by the client, and no metric: which shard's numbers follow.
NO_METRIC = {"halfstep_shard"}


def named_in_sources() -> set[str]:
    paths = [path for folder in FOLDERS for path in (SOURCES / folder).glob("*.cc")]
    paths.append(SOURCES.parent / "src" / "halfstep" / "daemon" / "spdk.py")
    text = "".join(path.read_text() for path in paths if not path.name.endswith("_test.cc"))
    names = re.findall(r'"(halfstep_[a-z_]+)"', text)
    return {name.removesuffix("_total") for name in names} - NO_METRIC


def test_every_metric_has_a_help_line() -> None:
    missing = named_in_sources() | {"halfstep_request_latency_seconds"}
    assert len(missing) > 80, "the sources were not read"
    assert missing - set(HELP) == set()


def test_no_help_line_is_left_behind() -> None:
    assert set(HELP) - named_in_sources() == {"halfstep_request_latency_seconds"}


def test_help_lines_are_sentences() -> None:
    assert [text for text in HELP.values() if not text.endswith(".") or "\n" in text] == []
