"""The line about what goes wrong while a daemon serves: from counters, one a minute at most, none when nothing moved."""

from __future__ import annotations

from typing import Any

import pytest

from halfstep.daemon.health import LINE_EVERY_S, ROWS, Health, Row


def numbers(*moved: tuple[Row, float]) -> dict[str, Any]:
    """Metrics in which all rows stand at 1,000, but for those that are named: these at so much more."""
    more = {id(row): count for row, count in moved}
    return {"counters": [(row.name, dict(row.labels), 1000 + more.get(id(row), 0)) for row in ROWS], "gauges": []}


def test_nothing_is_said_while_nothing_moves() -> None:
    health = Health(numbers())
    assert [health.line(numbers(), now_s) for now_s in range(0, 1000, 10)] == [None] * 100


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.name}{dict(row.labels)}")
def test_each_counter_that_moves_is_said_with_its_number_and_what_to_do(row: Row) -> None:
    line = Health(numbers()).line(numbers((row, 1234)), 0)
    assert line is not None
    assert line.startswith("note       ")
    assert f"1,234 {row.says}" in line
    assert line.endswith(row.remedy)
    assert "\n" not in line


def test_there_is_one_line_a_minute_and_it_has_all_that_moved_since() -> None:
    errors, lost = ROWS[0], ROWS[4]
    health = Health(numbers())
    assert "10 requests failed" in (health.line(numbers((errors, 10)), 100) or "")
    assert health.line(numbers((errors, 20)), 100 + LINE_EVERY_S - 0.1) is None
    line = health.line(numbers((errors, 5010), (lost, 3)), 100 + LINE_EVERY_S)
    assert line is not None
    assert f"5,000 {errors.says}; 3 {lost.says}: {errors.remedy}; {lost.remedy}" in line
    assert health.line(numbers((errors, 5010), (lost, 3)), 100 + 2 * LINE_EVERY_S) is None


def test_the_same_remedy_is_said_once() -> None:
    alike = [row for row in ROWS if row.remedy == ROWS[0].remedy]
    assert len(alike) > 1
    line = Health(numbers()).line(numbers(*((row, 1) for row in alike)), 0)
    assert line is not None
    assert line.count(ROWS[0].remedy) == 1


def test_a_gauge_that_falls_counts_from_there() -> None:
    health = Health(numbers((ROWS[0], 10)))
    assert health.line(numbers((ROWS[0], 5)), 0) is None
    assert f"2 {ROWS[0].says}" in (health.line(numbers((ROWS[0], 7)), 1) or "")


def test_samples_of_a_row_are_added_and_others_left_out() -> None:
    def devices(*values: float) -> dict[str, Any]:
        samples = [("halfstep_device_errors_total", {"device": str(at)}, value) for at, value in enumerate(values)]
        return {"counters": [*samples, ("halfstep_store_misses_total", {"reason": "absent"}, sum(values))], "gauges": []}

    line = Health(devices(0, 0)).line(devices(1, 2), 0)
    assert line is not None
    assert "3 requests failed" in line
    assert line.count(";") == 0, "that keys are absent is nobody's fault"
