"""`halfstep doctor` as an operator runs it: against a daemon of this machine, and against one that is not there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import termios
from typing import Any

import pytest
from tests.integration.commands import COMMAND, PATIENCE_S, Run

from halfstep.doctor.examine import AREAS, all_rules

pytestmark = pytest.mark.integration

FIELDS = {"id", "severity", "area", "check", "found", "bound", "reason", "remedy"}


def report_of(run: Run, *words: str, url: str | None = None) -> dict[str, Any]:
    """As JSON; its status is that of its findings."""
    done = run("doctor", "--json", *words, url=url)
    assert done.stderr == b""
    told: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if told["ok"] else 1)
    return told


def test_a_daemon_of_this_machine_is_found_by_its_url(run: Run, daemon: Any) -> None:
    """What the machine itself lacks is none of this test's business."""
    for url in (daemon.url, daemon.unix_url):
        told = report_of(run, url=url)
        assert told["daemon_pid"] == daemon.pid
        assert told["store"] == str(daemon.store)
        found = {one["id"] for one in told["findings"]}
        assert not any(name.startswith("daemon-") for name in found)
        assert ("path-not-shared-memory" in found) == (url == daemon.url)
        passed = {one["check"]: one["seen"] for one in told["passed"]}
        assert passed["daemon"] == f"{url}, 1 shard"
        assert passed["daemon's counters"] == "none of the numbers that tell of trouble does"


def test_every_check_is_accounted_for(run: Run) -> None:
    told = report_of(run, "--gpu")
    checks = [check.name for area in AREAS for check in area.checks]
    told_of = {one["check"] for part in ("findings", "passed", "skipped") for one in told[part]}
    assert told_of == set(checks)
    rules = {rule.id for _, rule in all_rules()}
    assert all(set(one) == FIELDS and one["id"] in rules for one in told["findings"])


def test_a_daemon_that_is_not_there_is_a_finding(run: Run, nobody: str) -> None:
    told = report_of(run, url=nobody)
    assert "ECONNREFUSED" in next(one["found"] for one in told["findings"] if one["id"] == "daemon-unreached")
    ignored = report_of(run, *(word for one in told["findings"] for word in ("--ignore", one["id"])), url=nobody)
    assert ignored["ok"]
    assert ignored["ignored"] == sorted(one["id"] for one in told["findings"])


def test_a_report_fits_a_terminal_but_for_what_is_to_be_copied(daemon: Any) -> None:
    ours, theirs = os.openpty()
    termios.tcsetwinsize(theirs, (50, 80))
    try:
        with subprocess.Popen([*COMMAND, "doctor", daemon.url], stdout=theirs, stdin=theirs, stderr=subprocess.PIPE) as command:
            os.close(theirs)
            text = b"".join(iter(lambda: _read(ours), b"")).decode()
            assert command.wait(PATIENCE_S) in (0, 1)
    finally:
        os.close(ours)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()
    assert [line for line in lines if len(line) > 80 and not line.startswith(("  remedy", "host ", "store ", "daemon "))] == []
    assert lines[0].startswith("host ")
    assert "found nothing" in lines[-1]


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65_536)
    except OSError:  # EIO: the other end of the terminal is closed
        return b""
