"""What is said of one span or of two: figures by namespace, of the daemon, over time, and where they came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from halfstep.tools.effect.figures import (
    Figures,
    Rate,
    client_figures,
    daemon_figures,
    rates_of,
    total_figures,
)
from halfstep.tools.effect.spans import Span, time_text

ALL = "all namespaces"
# What is shown of each step of time.
STEP_FIGURES = ("lookups", "hit_ratio_requests", "hit_ratio_tokens", "prefill_s_not_spent", "load_bytes", "wait_s")


@dataclass(frozen=True)
class Column:
    """Figures of one span."""

    name: str
    span: Span
    rates: dict[str, Rate]
    step_s: float

    def figures(self, namespace: str) -> Figures:
        """namespace: or ALL."""
        if namespace == ALL:
            return total_figures(self.span, self.rates)
        return client_figures(self.span, namespace, self.rates)

    def steps(self) -> list[tuple[float, Figures]]:
        """(start, figures of all namespaces) of each step of time."""
        return [(one.from_s, total_figures(one, self.rates)) for one in self.span.steps(self.step_s)]

    def about(self) -> str:
        """The span in words."""
        modes = " and ".join(self.span.modes) or "no clients"
        count = self.span.processes
        processes = f"{count} process" if count == 1 else f"{count} processes"
        return f"{time_text(self.span.from_s)} to {time_text(self.span.to_s)}, mode {modes}, {processes}"


@dataclass
class Report:
    """columns: the baseline first, where there is one. remarks: of the records."""

    columns: list[Column]
    remarks: list[str] = field(default_factory=list)

    @property
    def namespaces(self) -> list[str]:
        """Those of all columns, and ALL where there are several."""
        names = sorted({name for column in self.columns for name in column.span.namespaces})
        return names if len(names) == 1 else [*names, ALL]

    def sources(self) -> list[str]:
        """Where prefill times came from, one sentence a rate; and for whom there is none."""
        found = []
        for column in self.columns:
            for namespace in column.span.namespaces:
                rate = column.rates.get(namespace)
                where = f"{column.name}, {namespace}: "
                if rate is not None:
                    found.append(f"{where}prefill at {rate.tokens_per_s:,.1f} tokens/s, {rate.source}")
                else:
                    found.append(f"{where}no client has measured its prefill; say it with --prefill-rate")
        return found

    def as_json(self) -> dict[str, Any]:
        """For programs: a figure that is not known is null, and its reason is in `not_known`."""
        return {
            "spans": {column.name: _span_json(column) for column in self.columns},
            "remarks": [*self.sources(), *self.remarks],
        }


def _span_json(column: Column) -> dict[str, Any]:
    return {
        "from": time_text(column.span.from_s),
        "to": time_text(column.span.to_s),
        "modes": column.span.modes,
        "processes": column.span.processes,
        "namespaces": {name: _figures_json(column.figures(name)) for name in column.span.namespaces},
        "all": _figures_json(column.figures(ALL)),
        "daemon": _figures_json(daemon_figures(column.span)),
        "prefill_rate": {
            name: {"tokens_per_s": round(rate.tokens_per_s, 6), "source": rate.source} for name, rate in column.rates.items()
        },
        "step_s": column.step_s,
        "steps": [{"from": time_text(start), **_figures_json(figures)} for start, figures in column.steps()],
    }


def _figures_json(figures: Figures) -> dict[str, Any]:
    told: dict[str, Any] = {name: None if isinstance(value, str) else round(value, 6) for name, value in figures.items()}
    return told | {"not_known": {name: value for name, value in figures.items() if isinstance(value, str)}}


def column_of(
    name: str, span: Span, others: Sequence[tuple[str, Span]], given_tokens_per_s: float | None, step_s: float
) -> Column:
    """others: the span beside it, with its name; none, or one. Errors: ConfigError (too many steps)."""
    span.steps(step_s)  # before anything is printed
    other_name, other = others[0] if others else ("", None)
    return Column(name, span, rates_of(span, other, f"the {other_name}", given_tokens_per_s), step_s)
