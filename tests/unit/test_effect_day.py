"""`halfstep effect` over two scripted days (tests/effect_day.py), against figures that were worked out by hand."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from tests.effect_day import SHADOW_DAY_S, USED_DAY_S, write_days

from halfstep.tools.cli import main

SHADOW_DAY = ("--baseline-from", "2026-03-02T00:00+00:00", "--baseline-to", "2026-03-03T00:00+00:00")
USED_DAY = ("--from", "2026-03-03T00:00+00:00", "--to", "2026-03-04T00:00+00:00")


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_days(tmp_path_factory.mktemp("days"))


def told(days: Path, *arguments: str) -> Any:
    """What --json prints."""
    done = CliRunner().invoke(main, ["effect", "--records", str(days), *arguments, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def of(figures: Any, expected: dict[str, Any]) -> dict[str, Any]:
    """Those of the figures that are expected; a reason where there is no figure."""
    return {name: figures["not_known"].get(name, figures[name]) for name in expected}


def test_the_used_day_is_what_its_script_says(days: Path) -> None:
    chat = {
        "lookups": 240,  # 24 h x 10
        "hit_ratio_requests": 0.8,  # 8 of 10
        "hit_ratio_blocks": 0.6,  # 8 x 15 of 10 x 20
        "hit_ratio_tokens": 0.6,  # each block has 16
        "lookups_unanswered": 0,
        "tokens_found": 46_080,  # 24 x 8 x 15 x 16
        "tokens_restored": 42_240,  # 24 x (7 x 15 + 5) x 16: one load an hour broke off after 5 blocks
        "prefill_s_found": 5.76,  # 46,080 at 1,440 tokens in 0.18 s = 8,000 tokens/s
        "prefill_s_not_spent": 5.28,  # 42,240 at 8,000 tokens/s
        "load_bytes": 173_015_040,  # 24 x 110 x 65,536
        "load_ratio_blocks": 0.916667,  # 110 of 120
        "wait_lookup_s": 2.4,  # 240 x 0.01
        "wait_load_s": 9.6,  # 24 x 8 x 0.05
        "wait_s": 12.0,
        "prefetch_blocks": 1200,  # 24 x 50
        "circuit_openings": "not counted",  # this engine has no circuit
        "ahead_turn_used_bytes": 62_914_560,  # 24 x 40 x 65,536
        "ahead_turn_late_bytes": 4_718_592,  # 24 x 3 x 65,536
        "ahead_turn_unused_bytes": 7_864_320,  # 24 x 5 x 65,536
    }
    code = {
        "lookups": 16,  # 8 h x 2
        "hit_ratio_requests": 1.0,
        "hit_ratio_blocks": 0.8,  # 40 of 50
        "hit_ratio_tokens": "no tokens known",
        "tokens_restored": "no tokens known",
        "prefill_s_not_spent": "no tokens known",
        "load_bytes": 640_000_000,  # 16 x 40 x 1,000,000
        "wait_lookup_s": 0.32,  # 16 x 0.02
        "wait_load_s": 1.6,  # 16 x 0.1
        "prefetch_blocks": 0,  # it can, and did not
        "circuit_openings": 1,
        "plan_fetch": 16,  # 8 x 2
        "plan_compute": 8,
    }
    both = {
        "lookups": 256,
        "hit_ratio_requests": 0.8125,  # (192 + 16) / 256
        "hit_ratio_blocks": 0.628571,  # (2,880 + 640) / (4,800 + 800)
        "hit_ratio_tokens": 0.6,  # of those that know tokens
        "prefill_s_not_spent": 5.28,
        "load_bytes": 813_015_040,
        "wait_s": 13.92,
    }
    daemon = {
        "prefetch_staged": 2360,  # 12 x 100, then 60 of the new boot, then 11 x 100; the 5,000 of before are nobody's
        "prefetch_used": 1888,  # 12 x 80 + 48 + 11 x 80
        "prefetch_late": 236,  # 12 x 10 + 6 + 11 x 10
        "prefetch_unused": 236,
        "get_bytes": "not counted",
    }
    span = told(days, *USED_DAY)["spans"]["span"]
    assert span["processes"] == 3, "the first engine, before and after its restart, and the second"
    assert of(span["namespaces"]["chat"], chat) == chat
    assert of(span["namespaces"]["code"], code) == code
    assert of(span["all"], both) == both
    assert of(span["daemon"], daemon) == daemon
    assert not [name for name in span["all"] if "window" in name], "kinds of which nothing was brought"
    assert span["prefill_rate"] == {
        "chat": {"tokens_per_s": 8000.0, "source": "measured by clients in this span: 34,560 tokens in 4.3 s"}
    }


def test_the_shadow_day_is_the_baseline(days: Path) -> None:
    shadow = {
        "lookups": 240,
        "hit_ratio_requests": 0.6,  # 6 of 10
        "hit_ratio_tokens": 0.3,  # 6 x 10 of 10 x 20 blocks
        "tokens_found": 23_040,  # 24 x 6 x 10 x 16
        "tokens_restored": 0,  # nothing is used in shadow mode
        "prefill_s_found": 2.88,  # 23,040 at 3,200 tokens in 0.4 s
        "prefill_s_not_spent": 0,
        "load_bytes": 0,
        "wait_s": 2.4,  # 240 x 0.01: shadow lookups are waited for
        "prefetch_staged": "not counted",  # the daemon was not recorded on that day
    }
    spans = told(days, *SHADOW_DAY, *USED_DAY)["spans"]
    assert list(spans) == ["baseline", "span"]
    baseline = spans["baseline"]
    joined = baseline["all"] | baseline["daemon"]
    joined["not_known"] = baseline["all"]["not_known"] | baseline["daemon"]["not_known"]
    assert of(joined, shadow) == shadow
    assert spans["span"]["all"]["lookups"] == 256


def test_what_nobody_named_is_compared_by_mode(days: Path) -> None:
    """Records of shadow clients and of others, and no baseline: the shadow ones are it."""
    spans = told(days)["spans"]
    assert {name: (span["modes"], span["all"]["lookups"]) for name, span in spans.items()} == {
        "baseline": (["shadow"], 240),
        "span": (["on"], 256),
    }


def test_spans_side_by_side_share_nothing_and_lose_nothing(days: Path) -> None:
    halves = (("2026-03-03T00:00+00:00", "2026-03-03T12:00+00:00"), ("2026-03-03T12:00+00:00", "2026-03-04T00:00+00:00"))
    counted = [told(days, "--from", start, "--to", end)["spans"]["span"]["all"]["lookups"] for start, end in halves]
    # Of the second engine's hours 9 to 16, three end by noon and five after it.
    assert counted == [120 + 6, 120 + 10]


def test_steps_of_time_add_up_to_the_span(days: Path) -> None:
    span = told(days, *USED_DAY, "--step", "6h")["spans"]["span"]
    assert [step["lookups"] for step in span["steps"]] == [60, 66, 70, 60]  # hours 9 to 11 are 3 x 2, 12 to 16 are 5 x 2
    # 4 x 6 h x 110 blocks x 65,536, and 3 and 5 h x 80 blocks x 1,000,000
    assert [step["load_bytes"] for step in span["steps"]] == [43_253_760, 283_253_760, 443_253_760, 43_253_760]


def test_a_rate_that_is_given_goes_before_what_was_measured(days: Path) -> None:
    span = told(days, *USED_DAY, "--prefill-rate", "4000")["spans"]["span"]
    assert span["namespaces"]["chat"]["prefill_s_not_spent"] == 10.56  # 42,240 / 4,000
    assert span["prefill_rate"]["chat"]["source"] == "given with --prefill-rate"


def test_one_namespace_alone(days: Path) -> None:
    span = told(days, *USED_DAY, "--namespace", "code")["spans"]["span"]
    assert (list(span["namespaces"]), span["all"]["lookups"]) == (["code"], 16)


def test_the_table_has_the_figures_and_their_sources(days: Path) -> None:
    done = CliRunner().invoke(main, ["effect", "--records", str(days), *SHADOW_DAY, *USED_DAY, "--step", "12h"])
    assert done.exit_code == 0, done.output
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    for line in (
        "hit ratio by tokens 30.0 % 60.0 %",
        "prefill time not spent 0.0 s 5.3 s",
        "circuit openings not counted not counted",
        "circuit openings not counted 1",
        "decisions: plan_fetch not counted 16",
        "unused not counted 236",
        "span, chat: prefill at 8,000.0 tokens/s, measured by clients in this span: 34,560 tokens in 4.3 s",
        "span, code: no client has measured its prefill; say it with --prefill-rate",
    ):
        assert line in lines, done.stdout


def test_the_picture_is_drawn(days: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "effect.svg"
    done = CliRunner().invoke(main, ["effect", "--records", str(days), *SHADOW_DAY, *USED_DAY, "--picture", str(path)])
    assert done.exit_code == 0, done.output
    assert path.read_text().count('id="axes_') == 6, "three panels for each of two spans"


def test_both_spans_fit_one_scale(days: Path) -> None:
    pytest.importorskip("matplotlib")
    from halfstep.tools.effect.picture import drawn
    from halfstep.tools.effect.records import read
    from halfstep.tools.effect.report import Report, column_of
    from halfstep.tools.effect.spans import span_of

    records = read(days)
    named = [("baseline", span_of(records, SHADOW_DAY_S, USED_DAY_S)), ("span", span_of(records, USED_DAY_S, None))]
    figure = drawn(Report([column_of(name, span, [], None, 3600) for name, span in named]))
    assert len(figure.axes) == 6
    for left, right in zip(figure.axes[::2], figure.axes[1::2], strict=True):
        assert left.get_ylim() == right.get_ylim()
        bottom, top = right.get_ylim()
        for axes in (left, right):
            assert axes.lines
            drawn_values = np.concatenate([np.asarray(line.get_ydata(), float) for line in axes.lines])
            assert ((bottom <= drawn_values) & (drawn_values <= top)).all()


def test_the_documents_example_is_what_the_command_prints(days: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[2] / "docs" / "effect.md").read_text()
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    try:
        done = CliRunner().invoke(
            main, ["effect", "--records", str(days), "--namespace", "chat", *SHADOW_DAY, *USED_DAY], catch_exceptions=False
        )
    finally:
        monkeypatch.undo()
        time.tzset()
    printed = "".join(line.rstrip() + "\n" for line in done.stdout.splitlines())
    assert f"```text\n{printed}```" in text, printed
