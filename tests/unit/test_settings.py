"""The settings of a daemon, told in three places that have to agree: the options, the configuration, docs/configure.md."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import click
import pytest

from halfstep.daemon import config
from halfstep.tools.serve import serve

PAGE = (Path(__file__).parents[2] / "docs" / "configure.md").read_text()
OPTIONS = {parameter.opts[0]: parameter for parameter in serve.params if isinstance(parameter, click.Option)}
DEFAULTS = serve.make_context("serve", [], resilient_parsing=True).params
# What an option's value becomes in ServeConfig, where that has another name.
FIELDS = {
    "size": "size_bytes",
    "segment": "segment_bytes",
    "arena": "arena_bytes",
    "index": "index_bytes",
    "shm_ring": "shm_ring_bytes",
    "connections": "connections_max",
    "latency_goal": "latency_goal_us",
    "daily_writes": "daily_writes_bytes",
    "discard_rate": "discard_rate_bytes",
    "scrub": "scrub_bytes_per_s",
}


def rows() -> dict[str, list[str]]:
    """The page's table rows by their option: cells without their markup."""
    found = {}
    for line in PAGE.splitlines():
        if option := re.match(r"\| `(--[a-z-]+)", line):
            found[option[1]] = [cell.strip().replace("`", "") for cell in line.strip("|").split("|")]
    return found


def plain(text: object) -> str:
    return str(text).replace(" ", "").replace(",", "").lower()


def test_the_page_has_every_option_and_no_other() -> None:
    assert set(rows()) == set(OPTIONS)


@pytest.mark.parametrize("name", OPTIONS)
def test_the_page_tells_the_default(name: str) -> None:
    field = OPTIONS[name].name
    assert field is not None
    default, told = DEFAULTS[field], plain(rows()[name][1])
    if isinstance(default, bool):
        assert told in ({"on"} if default else {"off", ""}), name
    elif default in (None, ""):
        assert told, f"{name}: what happens without it"
    elif isinstance(default, float):
        assert float(told) == default
    else:
        assert told in [plain(one) for one in (default if isinstance(default, tuple) else (default,))], name


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_reaches_the_configuration(name: str) -> None:
    fields = {field.name: field for field in dataclasses.fields(config.ServeConfig)}
    field = name.removeprefix("--").replace("-", "_")
    if field == "json":
        return
    assert FIELDS.get(field, field) in fields


@pytest.mark.parametrize(
    ("name", "bounds"),
    [
        ("--size", [config.STORE_BYTES_MIN]),
        ("--arena", [config.ARENA_BYTES_MIN, config.ARENA_BYTES_MAX]),
        ("--index", [config.INDEX_BYTES_MIN]),
        ("--shm-ring", [config.SHM_RING_BYTES_MIN, config.SHM_RING_BYTES_MAX]),
        ("--scrub", [config.SCRUB_RATE_MIN, config.SCRUB_RATE_MAX]),
    ],
)
def test_the_page_tells_the_bounds_of_sizes(name: str, bounds: list[int]) -> None:
    told = rows()[name][2]
    for bound in bounds:
        assert config.format_bytes(bound) in told, name


@pytest.mark.parametrize(
    ("name", "bounds"),
    [("--shards", [1, config.SHARDS_MAX]), ("--connections", [config.CONNECTIONS_MIN, config.CONNECTIONS_MAX])],
)
def test_the_page_tells_the_bounds_of_numbers(name: str, bounds: list[int]) -> None:
    assert plain(rows()[name][2]).startswith(f"{bounds[0]}to{bounds[1]}"), name
