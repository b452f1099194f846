"""`halfstep effect`: options to spans, a report; and `halfstep effect record`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from halfstep.record import INTERVAL_S, VARIABLE, checked_folder
from halfstep.tools.options import connected, json_option, print_json, url_argument
from halfstep.tools.streams import say

if TYPE_CHECKING:
    from halfstep.tools.effect.report import Report
    from halfstep.tools.effect.spans import Span

F = TypeVar("F", bound=Callable[..., Any])

# Of a picture and of JSON, where no step is named.
STEPS = 24


def _folder_option(text: str) -> Callable[[F], F]:
    return click.option("--records", metavar="DIR", help=f"{text}  [default: ${VARIABLE}]")


@click.group(invoke_without_command=True)
@_folder_option("The folder of records.")
@click.option("--from", "from_", metavar="TIME", help="Start of the span.  [default: the first record]")
@click.option("--to", metavar="TIME", help="End of the span.  [default: the last record]")
@click.option("--baseline", metavar="DIR", help="Records of the baseline.  [default: those of --records]")
@click.option("--baseline-from", metavar="TIME", help="Start of the baseline.")
@click.option("--baseline-to", metavar="TIME", help="End of the baseline.")
@click.option("--namespace", metavar="NAME", help="This namespace alone.  [default: each, and all together]")
@click.option("--step", metavar="TIME", help="Also by steps of time, such as 1h.")
@click.option(
    "--prefill-rate", type=float, metavar="TOKENS/S", help="What the engine computes.  [default: as clients measured it]"
)
@click.option("--picture", type=click.Path(path_type=Path), help="Draw the spans over time into a .png or .svg file.")
@json_option
@click.pass_context
def effect(
    context: click.Context,
    records: str | None,
    from_: str | None,
    to: str | None,
    baseline: str | None,
    baseline_from: str | None,
    baseline_to: str | None,
    namespace: str | None,
    step: str | None,
    prefill_rate: float | None,
    picture: Path | None,
    as_json: bool,
) -> None:
    """Show what the tier did: hits, prefill time not spent, waits.

    It reads records of counters. Clients write them where $HALFSTEP_RECORD names a folder; `halfstep effect record` adds a
    daemon's. TIME is 2026-11-27T02:00 (local, or with its zone), -2h, -30m, -7d, or now.

    With a baseline, two spans stand side by side. Clients with HALFSTEP_MODE=shadow are the baseline where none is named: they
    look up and use nothing.

    \b
    Let an engine record, then look
      HALFSTEP_RECORD=/var/lib/records vllm serve ...
      halfstep effect --records /var/lib/records
    The last day, beside the day before
      halfstep effect --from -1d --baseline-from -2d --baseline-to -1d
    As a picture, and for a program
      halfstep effect --picture effect.svg
      halfstep effect --json | jq '.spans.span.all.prefill_s_not_spent'
    """  # noqa: D301
    if context.invoked_subcommand is not None:
        if named := next((name for name, value in context.params.items() if value not in (None, False)), None):
            option = named.rstrip("_").replace("_", "-")
            raise click.UsageError(f"--{option}: is not of `{context.invoked_subcommand}`; say it after the command's name")
        return
    from halfstep.errors import ConfigError
    from halfstep.tools.effect.picture import plot
    from halfstep.tools.effect.table import print_report
    from halfstep.tools.picture import check_picture

    if prefill_rate is not None and not 0 < prefill_rate < float("inf"):
        raise ConfigError(f"prefill-rate={prefill_rate:g}: must be over 0, in tokens a second")
    if picture is not None:
        check_picture(picture, "picture")
    report = _report(
        _folder_of(records),
        (from_, to),
        (baseline, baseline_from, baseline_to),
        namespace,
        step,
        prefill_rate,
    )
    if picture is not None:
        plot(report, picture)
    if as_json:
        print_json(report.as_json())
    else:
        print_report(report, steps=step is not None)


def _folder_of(named: str | None) -> Path:
    from halfstep.errors import ConfigError

    path = named or os.environ.get(VARIABLE)
    if not path:
        raise ConfigError(f"records: no folder was named; name one with --records, or in ${VARIABLE}")
    return checked_folder(path, "records" if named else VARIABLE)


def _report(
    folder: Path,
    times: tuple[str | None, str | None],
    baseline: tuple[str | None, str | None, str | None],
    namespace: str | None,
    step: str | None,
    prefill_rate: float | None,
) -> Report:
    from halfstep.tools.effect.records import read
    from halfstep.tools.effect.report import Report, column_of
    from halfstep.tools.effect.spans import duration_of, span_of, time_of

    now_s = time.time()

    def moment(text: str | None, option: str) -> float | None:
        return None if text is None else time_of(text, now_s, option)

    from_s, to_s = moment(times[0], "from"), moment(times[1], "to")
    records = read(folder)
    remarks = list(records.remarks)
    spans: list[tuple[str, Span]] = []
    where, base_from, base_to = baseline
    if baseline == (None, None, None):
        whole = span_of(records, from_s, to_s, namespace=namespace)
        if len(whole.modes) > 1 and "shadow" in whole.modes:
            edges = whole.from_s, whole.to_s
            shadow = span_of(records, *edges, modes={"shadow"}, namespace=namespace)
            spans = [("baseline", shadow), ("span", span_of(records, *edges, modes={"on"}, namespace=namespace))]
        else:
            spans = [("span", whole)]
    else:
        others = records
        if where is not None:
            others = read(checked_folder(where, "baseline"))
            remarks += others.remarks
        edges_s = moment(base_from, "baseline-from"), moment(base_to, "baseline-to")
        spans = [
            ("baseline", span_of(others, *edges_s, name="baseline-", namespace=namespace)),
            ("span", span_of(records, from_s, to_s, namespace=namespace)),
        ]
    step_s = duration_of(step, "step") if step is not None else 0.0
    columns = [
        column_of(
            name,
            span,
            [one for one in spans if one[0] != name],
            prefill_rate,
            step_s or (span.to_s - span.from_s) / STEPS,
        )
        for name, span in spans
    ]
    return Report(columns, remarks)


@effect.command("record")
@url_argument
@_folder_option("The folder to write to.")
@click.option("--interval", default=f"{INTERVAL_S:g}s", show_default=True, metavar="TIME", help="Time between two samples.")
@click.option("--count", type=click.IntRange(min=0), default=0, help="So many samples, then end.  [default: until Ctrl-C]")
def record(url: str, records: str | None, interval: str, count: int) -> None:
    """Record a daemon's counters, for `halfstep effect`.

    \b
    Once a minute, beside the clients' records
      halfstep effect record halfstep://flash-node --interval 1m
    """  # noqa: D301
    from halfstep.tools.effect.sampling import Sampler, sample_all
    from halfstep.tools.effect.spans import duration_of

    interval_s = duration_of(interval, "interval")
    folder = _folder_of(records)
    with connected(url) as client:
        sampler = Sampler(client, folder)
        written = sample_all(sampler, interval_s, count, lambda text: click.echo(f"halfstep: {text}", err=True))
    say(f"{written} samples in {sampler.path}")
