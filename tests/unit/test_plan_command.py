"""`halfstep plan` from given figures: what it says is what the planner does."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from halfstep.client.facts import ShardLoad
from halfstep.client.planner import Terms, Work, plan
from halfstep.client.speeds import FetchSpeed, PrefillSpeed
from halfstep.tools.cli import main

PREFIX = ("--blocks", "500", "--block-bytes", "5MB", "--after", "200")
SPEEDS = ("--prefill", "8000", "--growth", "0.0001", "--link", "4GB", "--round-trip", "200us")


def printed(*options: str) -> str:
    done = CliRunner().invoke(main, ["plan", *options], standalone_mode=False)
    assert done.exception is None, done.exception
    return done.stdout


def told(*options: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(printed(*options, "--json"))
    return document


@pytest.mark.parametrize("queue", ["5ms", "900ms", "5s"])
def test_the_plan_is_the_planners(queue: str) -> None:
    work, engine, link = Work(500, 16, 5_000_000, 0, 200), PrefillSpeed(1 / 8000, 0.0001), FetchSpeed(0.0002, 4e9)
    loads = (
        ShardLoad(1, round(float(queue.removesuffix("ms").removesuffix("s")) * (1e3 if "m" in queue else 1e6)), 4 * 10**9),
    )
    made = plan(work, Terms(2.0, 1.5), engine, link, loads)
    one = told(*PREFIX, *SPEEDS, "--queue", queue, "--goal", "1.5s")["plan"]
    assert (one["blocks"], one["reason"]) == (made.blocks, made.reason)
    assert one["end_s"] == pytest.approx(made.end_s)
    assert one["in_goal"] == made.in_goal


def test_explain_shows_the_choices_and_marks_the_one_that_was_made() -> None:
    document = told(*PREFIX, *SPEEDS, "--deadline", "300ms", "--explain")
    chosen = document["plan"]["blocks"]
    assert 0 < chosen < 500
    rows = {row["blocks"]: row for row in document["choices"]}
    assert {0, chosen, 500} <= rows.keys()
    assert min(row["end_s"] for row in rows.values() if not row["late"]) == rows[chosen]["end_s"]
    assert rows[500]["late"]
    lines = printed(*PREFIX, *SPEEDS, "--deadline", "300ms", "--explain").splitlines()
    assert [line.split()[0] for line in lines if line.rstrip().endswith("chosen")] == [str(chosen)]
    assert any(line.rstrip().endswith("after the deadline") for line in lines)
    assert "choices" not in told(*PREFIX, *SPEEDS)


def test_what_is_not_given_is_not_known() -> None:
    document = told(*PREFIX, "--prefill", "8000", "--explain")
    assert document["plan"]["reason"] == "link_unknown"
    assert "choices" not in document
    assert "engine   not known" in printed(*PREFIX)
    assert told("--blocks", "0", "--block-bytes", "1MiB")["plan"]["reason"] == "nothing"


@pytest.mark.parametrize(
    ("arguments", "status", "why"),
    [
        (("--prefill", "nan"), 3, "prefill=nan: must be a number"),
        (("--growth", "nan"), 3, "growth=nan: must be a number"),
        (("--prefill", "inf"), 2, "inf is not in the range"),
        (("--before", "1" + "0" * 400), 2, "is not in the range"),
        (("--after", "1" + "0" * 160), 2, "is not in the range"),
        (("--queue", "9" * 400 + "s"), 3, "must be at most 86400s"),
        (("--round-trip", "9" * 400 + "s"), 3, "must be at most 86400s"),
        (("--deadline", "9" * 400 + "s"), 3, "must be at most 86400s"),
        (("--goal", "86401s"), 3, "goal='86401s': must be at most 86400s"),
    ],
)
def test_figures_that_no_engine_has_are_refused(arguments: tuple[str, ...], status: int, why: str) -> None:
    done = CliRunner().invoke(main, ["plan", *PREFIX, *SPEEDS, *arguments])
    assert (done.exit_code, done.stdout) == (status, ""), done.output
    assert why in done.stderr
