"""All checks of a host, in order: findings, what is well, and what was not looked at.

Invariant: a check is a skip with its reason where the kernel or a file refused, or said what nobody can read; nothing else is
caught.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from halfstep.doctor.areas import daemon, drive, endurance, gpu, machine, memory, network, process, rdma, service, spdk, store
from halfstep.doctor.case import Case
from halfstep.doctor.finding import Area, Check, Finding, Rule, Severity, SkipCheck
from halfstep.doctor.host import Host

AREAS: tuple[Area, ...] = (
    memory.AREA,
    process.AREA,
    machine.AREA,
    store.AREA,
    drive.AREA,
    endurance.AREA,
    spdk.AREA,
    network.AREA,
    rdma.AREA,
    daemon.AREA,
    service.AREA,
    gpu.AREA,
)


@dataclass(frozen=True)
class Outcome:
    """Of one check. seen: sentences about what is well. why_skipped: "" where it looked."""

    area: str
    check: str
    findings: tuple[Finding, ...] = ()
    seen: tuple[str, ...] = ()
    why_skipped: str = ""


@dataclass(frozen=True)
class Report:
    """Outcomes in the order of the checks. ignored: ids of rules whose findings do not count."""

    outcomes: tuple[Outcome, ...] = ()
    ignored: frozenset[str] = field(default_factory=frozenset)

    @property
    def findings(self) -> list[tuple[Outcome, Finding]]:
        """Those that count, errors first."""
        found = [(one, finding) for one in self.outcomes for finding in one.findings if finding.id not in self.ignored]
        return sorted(found, key=lambda pair: pair[1].severity != Severity.ERROR)

    @property
    def passed(self) -> list[tuple[Outcome, str]]:
        """What was looked at and is well."""
        return [(one, seen) for one in self.outcomes for seen in one.seen]

    @property
    def looked(self) -> list[Outcome]:
        """Checks that found nothing and skipped nothing."""
        return [one for one in self.outcomes if not one.findings and not one.why_skipped]

    @property
    def skipped(self) -> list[Outcome]:
        """What was not looked at."""
        return [one for one in self.outcomes if one.why_skipped]

    def as_json(self) -> dict[str, Any]:
        """For programs; ids and names of fields are for good."""
        return {
            "ok": not self.findings,
            "findings": [
                {
                    "id": finding.id,
                    "severity": str(finding.severity),
                    "area": one.area,
                    "check": one.check,
                    "found": finding.value,
                    "bound": finding.bound,
                    "reason": finding.reason,
                    "remedy": finding.remedy,
                }
                for one, finding in self.findings
            ],
            "passed": [{"area": one.area, "check": one.check, "seen": seen} for one, seen in self.passed],
            "skipped": [{"area": one.area, "check": one.check, "why": one.why_skipped} for one in self.skipped],
            "ignored": sorted(finding.id for one in self.outcomes for finding in one.findings if finding.id in self.ignored),
        }


def all_rules(areas: Sequence[Area] = AREAS) -> Iterator[tuple[Area, Rule]]:
    """Every rule with its area, in the order of the checks."""
    return ((area, rule) for area in areas for rule in area.rules)


def examine(host: Host, case: Case, ignored: frozenset[str] = frozenset()) -> Report:
    """Makes all checks; those of GPUs where the case asks for them."""
    areas = [area for area in AREAS if case.gpu or not area.for_gpu]
    outcomes = []
    for area in areas:
        for check in area.checks:
            if area.of_daemon and not case.serves:
                outcomes.append(Outcome(area.name, check.name, why_skipped=case.why_no_daemon))
            else:
                outcomes.append(outcome_of(area.name, check, host, case))
    return Report(tuple(outcomes), ignored)


def outcome_of(area: str, check: Check, host: Host, case: Case) -> Outcome:
    """Of one check. What it found before it could not go on stands beside the reason."""
    findings: list[Finding] = []
    seen: list[str] = []
    why = ""
    try:
        for one in check.look(host, case):
            if isinstance(one, Finding):
                findings.append(one)
            else:
                seen.append(one)
    except SkipCheck as skip:
        why = str(skip)
    except OSError as error:
        why = _refusal(host, error)
    except (ValueError, IndexError) as error:  # a file of another kernel, or of a driver with a form of its own
        why = f"content that is not understood: {error}"
    if not (findings or seen or why):
        why = "there was nothing to look at"
    return Outcome(area, check.name, tuple(findings), tuple(seen), why)


def _refusal(host: Host, error: OSError) -> str:
    """The file, the error and, where that helps, the remedy."""
    name = errno.errorcode.get(error.errno or 0, "")
    text = " ".join(filter(None, (name, f"({error.strerror})" if error.strerror else str(error))))
    if error.filename is not None:
        path = os.fsdecode(error.filename)
        root = str(host.root).rstrip("/")
        text = f"{path.removeprefix(root)}: {text}"
    root_only = error.errno in (errno.EACCES, errno.EPERM) and host.kernel.user() != 0
    return text + ("; run it as root" if root_only else "")
