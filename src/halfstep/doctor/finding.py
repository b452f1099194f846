"""What a check may say: a finding of one of its rules, a sentence about what is well, or why it did not look.

Invariants: a rule's id is for good, since scripts go by it. Its texts have `{names}` where a finding has values; docs/doctor.md
shows the names in capitals.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from halfstep.doctor.case import Case
    from halfstep.doctor.host import Host


class Severity(StrEnum):
    """error: something does not work, or will not. warning: it works slower than it could, or is at risk."""

    ERROR = "error"
    WARNING = "warning"


class SkipCheck(Exception):
    """The check cannot look, or there is nothing to look at; the text says why."""


@dataclass(frozen=True)
class Rule:
    """A condition that an operator can mend. bound: what should be. reason: what it costs. remedy: a command or a setting.

    Code in the texts is between backticks. remedies: for the table, where the remedy hangs on what is found.
    """

    id: str
    severity: Severity
    bound: str
    reason: str
    remedy: str
    remedies: str = ""

    def found(self, value: object, **names: object) -> Finding:
        """The condition is met: the value found, and what stands for the names in the texts."""
        bound, reason, remedy = (text.format_map(names) for text in (self.bound, self.reason, self.remedy))
        return Finding(self.id, self.severity, str(value), bound, reason, remedy)

    @property
    def row(self) -> str:
        """Of the table in docs/doctor.md."""
        texts = [_with_capitals(text).replace("|", "\\|") for text in (self.bound, self.reason, self.remedies or self.remedy)]
        return f"| `{self.id}` | {self.severity} | {' | '.join(texts)} |"


def _with_capitals(text: str) -> str:
    names = {name for _, name, _, _ in string.Formatter().parse(text) if name}
    return text.format_map({name: name.upper() for name in names})


@dataclass(frozen=True)
class Finding:
    """A rule that is broken here. Texts as of Rule, with the values of this machine."""

    id: str
    severity: Severity
    value: str
    bound: str
    reason: str
    remedy: str


@dataclass(frozen=True)
class Check:
    """What is looked at, by its short name, and the rules that it goes by."""

    name: str
    look: Callable[[Host, Case], Iterator[Finding | str]]
    rules: tuple[Rule, ...]


@dataclass(frozen=True)
class Area:
    """Checks that belong together. title: of the section in docs/doctor.md.

    for_gpu: they are made with --gpu alone. of_daemon: on hosts alone that have a daemon, or are to have one.
    """

    name: str
    title: str
    checks: tuple[Check, ...]
    for_gpu: bool = False
    of_daemon: bool = False

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Those of its checks, each once."""
        return tuple(dict.fromkeys(rule for check in self.checks for rule in check.rules))
