"""What the checks make together: a healthy machine, the rules, the document, the runner."""

from __future__ import annotations

import errno
import importlib.util
import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.unit.doctor.machine import Machine

from halfstep.doctor.case import Case
from halfstep.doctor.examine import AREAS, Report, all_rules, examine, outcome_of
from halfstep.doctor.finding import Check, Finding, Rule, Severity, SkipCheck
from halfstep.doctor.host import Host
from halfstep.tools.cli import main

ROOT = Path(__file__).parents[3]
RULE = Rule("made-up", Severity.ERROR, "at least {wanted}", "Because of {reason}.", "raise {what}")


def tables() -> Any:
    """scripts/doctor_tables.py, which writes the page."""
    spec = importlib.util.spec_from_file_location("doctor_tables", ROOT / "scripts" / "doctor_tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_healthy_machine_has_no_findings(machine: Machine) -> None:
    assert machine.findings() == {}
    for one in machine.outcomes():
        assert one.seen or one.why_skipped, one.check


def test_ids_are_names_and_each_is_of_one_rule() -> None:
    ids = Counter(rule.id for _, rule in all_rules())
    assert len(ids) >= 60
    assert [name for name, count in ids.items() if count > 1 or not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", name)] == []


def test_every_rule_is_met_by_a_test() -> None:
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py") if path.name != Path(__file__).name)
    assert [rule.id for _, rule in all_rules() if f'"{rule.id}"' not in tests] == []


def test_names_of_checks_are_unique() -> None:
    names = Counter(check.name for area in AREAS for check in area.checks)
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("rule", [rule for _, rule in all_rules()], ids=lambda rule: rule.id)
def test_every_rule_says_bound_reason_and_remedy(rule: Rule) -> None:
    assert rule.bound
    assert rule.reason.endswith(".")
    assert rule.remedy
    assert not rule.remedy.endswith(".")
    assert "\n" not in rule.row
    assert not rule.row.endswith(" | REMEDY |")


def test_the_page_has_the_tables_as_they_are_now() -> None:
    script = tables()
    page = script.PAGE.read_text()
    assert page == script.with_tables(page), "run python scripts/doctor_tables.py"
    assert all(f"| `{rule.id}` |" in page for _, rule in all_rules())


def test_a_table_that_is_old_is_found() -> None:
    script = tables()
    page = script.PAGE.read_text()
    old = page.replace("| `memlock-low` | warning |", "| `memlock-low` | error |")
    assert old != page
    assert script.with_tables(old) == page


def test_a_row_names_what_a_finding_fills_in() -> None:
    assert RULE.row == "| `made-up` | error | at least WANTED | Because of REASON. | raise WHAT |"
    found = RULE.found(3, wanted=4, reason="it", what="that")
    assert (found.value, found.bound, found.reason, found.remedy) == ("3", "at least 4", "Because of it.", "raise that")


def outcome(machine: Machine, *said: object) -> Any:
    """Of a check that says this, or raises it."""

    def look(_host: Host, _case: Case) -> Iterator[Finding | str]:
        for one in said:
            if isinstance(one, Exception):
                raise one
            assert isinstance(one, Finding | str)
            yield one

    return outcome_of("area", Check("check", look, (RULE,)), machine.host, machine.case)


def test_a_refusal_is_a_skip_with_file_error_and_remedy(machine: Machine) -> None:
    machine.kernel.uid = 1000
    refused = PermissionError(errno.EACCES, "Permission denied", str(machine.host.path("/proc/1/limits")))
    assert outcome(machine, refused).why_skipped == "/proc/1/limits: EACCES (Permission denied); run it as root"
    machine.kernel.uid = 0
    assert outcome(machine, refused).why_skipped == "/proc/1/limits: EACCES (Permission denied)"
    assert outcome(machine, SkipCheck("no such thing here")).why_skipped == "no such thing here"


def test_what_was_found_before_a_refusal_stands(machine: Machine) -> None:
    found = RULE.found(3, wanted=4, reason="it", what="that")
    one = outcome(machine, found, "this is well", OSError(errno.EIO, "Input/output error"))
    assert (one.findings, one.seen, one.why_skipped) == ((found,), ("this is well",), "EIO (Input/output error)")


def test_a_check_with_nothing_to_look_at_is_a_skip(machine: Machine) -> None:
    assert outcome(machine).why_skipped == "there was nothing to look at"
    shutil.rmtree(machine.host.path("/sys/class/infiniband/mlx5_0/ports"))
    assert machine.outcome("RDMA ports").why_skipped == "there was nothing to look at"


def test_what_nobody_can_read_is_a_skip(machine: Machine) -> None:
    machine.write("/proc/sys/net/ipv4/tcp_rmem", "a b c\n")
    assert machine.outcome("socket buffers").why_skipped.startswith("content that is not understood: invalid literal")
    assert outcome(machine, "well", IndexError("list index out of range")).why_skipped == (
        "content that is not understood: list index out of range"
    )


def test_a_mistake_of_ours_is_no_skip(machine: Machine) -> None:
    with pytest.raises(ZeroDivisionError):
        outcome(machine, ZeroDivisionError())


def test_errors_come_first_and_what_is_ignored_does_not_count(machine: Machine) -> None:
    machine.write("/proc/sys/vm/zone_reclaim_mode", "1\n")
    machine.kernel.core = "not there"
    report = examine(machine.host, machine.case)
    assert [finding.id for _, finding in report.findings] == ["core-missing", "numa-zone-reclaim"]
    ignored = Report(report.outcomes, frozenset({"core-missing", "numa-zone-reclaim"}))
    assert ignored.findings == []
    told = ignored.as_json()
    assert (told["ok"], told["ignored"]) == (True, ["core-missing", "numa-zone-reclaim"])


def test_json_has_all_that_the_tables_have(machine: Machine) -> None:
    machine.kernel.core = "not there"
    told = json.loads(json.dumps(examine(machine.host, machine.case).as_json()))
    (found,) = told["findings"]
    assert found | {"reason": "", "remedy": ""} == {
        "id": "core-missing",
        "severity": "error",
        "area": "process",
        "check": "native core",
        "found": "not there",
        "bound": "the module `halfstep._shard` can be loaded",
        "reason": "",
        "remedy": "",
    }
    assert not told["ok"]
    assert all(one["seen"] for one in told["passed"])
    assert all(one["why"] for one in told["skipped"])


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--ignore", "no-such-id"], 2, "no-such-id: there is no such finding"),
        (["halfstep://a", "--url", "halfstep://b"], 2, "the URL is given twice"),
        (["--arena", "much"], 3, "arena='much': not a size"),
        (["--rdma", "perhaps"], 3, "rdma=perhaps: must be auto or off"),
        (["--store", ""], 3, "store='': is empty"),
        (["http://a"], 3, "scheme 'http' is unknown"),
        (["--nonsense"], 2, "No such option"),
    ],
)
def test_wrong_arguments_are_refused_on_one_line(words: list[str], status: int, said: str) -> None:
    done = CliRunner().invoke(main, ["doctor", *words], prog_name="halfstep")
    assert (done.exit_code, done.stdout) == (status, "")
    assert said in done.stderr
