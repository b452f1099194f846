"""What `halfstep serve` is told in words of its own: rates and times."""

from __future__ import annotations

import pytest

from halfstep.daemon.config import setting_named
from halfstep.errors import ConfigError

SCRUB, LATENCY_GOAL = setting_named("scrub"), setting_named("latency-goal")


@pytest.mark.parametrize(
    ("text", "rate"), [("auto", None), ("off", 0), ("0", 0), ("8MiB/s", 8 << 20), ("8MiB", 8 << 20), ("Auto", None)]
)
def test_a_scrub_rate_is_bytes_a_second(text: str, rate: int | None) -> None:
    assert SCRUB.read(text) == rate


@pytest.mark.parametrize("text", ["1", "1TiB/s", "4095"])
def test_a_scrub_rate_out_of_bounds_is_refused_with_the_bounds(text: str) -> None:
    with pytest.raises(ConfigError, match=r"4 KiB/s to 16 GiB/s, auto or off"):
        SCRUB.read(text)


@pytest.mark.parametrize("text", ["", "fast", "-8MiB", "8MiB/min"])
def test_a_scrub_rate_that_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"scrub=.*not a size; write for example"):
        SCRUB.read(text)


@pytest.mark.parametrize(
    ("text", "goal_us"), [("2ms", 2_000), ("500us", 500), (" 0.1s ", 100_000), ("off", 0), ("OFF", 0), ("10s", 10_000_000)]
)
def test_a_latency_goal_is_a_time(text: str, goal_us: int) -> None:
    assert LATENCY_GOAL.read(text) == goal_us


@pytest.mark.parametrize("text", ["", "2", "soon", "-2ms"])
def test_a_latency_goal_that_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"latency_goal=.*not a time; write for example"):
        LATENCY_GOAL.read(text)


@pytest.mark.parametrize("text", ["0ms", "0.2us", "10.1s", "99999999999s"])
def test_a_latency_goal_out_of_bounds_is_refused_with_the_bounds(text: str) -> None:
    with pytest.raises(ConfigError, match=r"must be 1 us to 10 s, or off"):
        LATENCY_GOAL.read(text)
