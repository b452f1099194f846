"""What an operator hears of failures: each once, none for ever, and none for each request."""

from __future__ import annotations

import logging

import pytest

from halfstep.tier import Notices, notices


class Log:
    """What a Notices says, at a time that the test sets."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.now_s = 1000.0
        self._caplog = caplog
        self.notices = Notices("tier")

    def at(self, now_s: float, what: str, why: str) -> list[str]:
        """What is said when this happens then."""
        self.now_s = 1000.0 + now_s
        self._caplog.clear()
        self.notices.note(what, why)
        return [f"{record.levelname} {record.getMessage().split(chr(59))[0]}" for record in self._caplog.records]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Log:
    caplog.set_level(logging.INFO, "halfstep.connectors")
    made = Log(caplog)
    monkeypatch.setattr(notices.time, "monotonic", lambda: made.now_s)
    return made


def test_one_failure_is_one_warning_whatever_it_hits(log: Log) -> None:
    assert log.at(0, "store", "unavailable") == ["WARNING tier: store: unavailable"]
    for second in range(1, 3600):
        for what in ("store", "load", "lookup"):
            assert log.at(second, what, "unavailable") == []
    assert log.at(3600, "load", "") == ["INFO tier: load works again, after 3599 failures"]
    assert log.at(3600, "lookup", "") == ["INFO tier: lookup works again, after 3599 failures"]
    assert log.at(3600, "store", "") == ["INFO tier: store works again, after 3600 failures"]
    assert log.at(3601, "store", "") == []


def test_what_fails_again_and_goes_on_is_said_when_its_time_has_come(log: Log) -> None:
    assert log.at(0, "load", "late") == ["WARNING tier: load: late"]
    assert log.at(4, "load", "") == ["INFO tier: load works again, after 1 failures"]
    assert log.at(8, "load", "late") == []
    assert log.at(9.9, "load", "late") == []
    assert log.at(10, "load", "late") == ["WARNING tier: load: late"]
    assert log.at(11, "load", "late") == []


def test_what_fails_behind_a_failure_that_is_over_is_said_as_well(log: Log) -> None:
    assert log.at(0, "load", "late") == ["WARNING tier: load: late"]
    assert log.at(1, "load", "") == ["INFO tier: load works again, after 1 failures"]
    assert log.at(2, "store", "throttled") == []
    assert log.at(30, "store", "throttled") == ["WARNING tier: store: throttled"]


def test_another_kind_of_work_that_fails_hours_later_is_said(log: Log) -> None:
    assert log.at(0, "store", "throttled (quota)") == ["WARNING tier: store: throttled (quota)"]
    assert log.at(7200, "load", "unavailable") == ["WARNING tier: load: unavailable"]
    assert log.at(7201, "lookup", "unavailable") == [], "by the same"
    assert log.at(7300, "lookup", "unavailable") == []


def test_what_fails_every_other_time_floods_no_log(log: Log) -> None:
    said = [line for second in range(600) for why in ("late", "") for line in log.at(second, "load", why)]
    assert len([line for line in said if line.startswith("WARNING")]) == 60
    assert len(said) == 120
