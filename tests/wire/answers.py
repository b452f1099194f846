"""What answers say: Statuses, MatchBits, Lengths. Section 9 of the page."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tests.wire.frames import Frame, Kind, need

WHOLE = 0xFFFF
OF_PARTS = 1
ANSWERS = {1: "ok", 2: "miss", 3: "late", 4: "cancelled", 5: "throttled", 6: "rejected", 7: "unavailable"}
REASONS = {
    1: "stored",
    2: "present",
    16: "absent",
    17: "corrupt",
    18: "collision",
    19: "length",
    20: "skipped",
    21: "expired",
    32: "pending",
    33: "load",
    34: "budget",
    35: "full",
    48: "checksum",
    49: "too_large",
    50: "policy",
    51: "unsupported",
    52: "wrong_shard",
    53: "malformed",
    54: "unknown_layout",
    55: "unknown_namespace",
    56: "version",
    57: "limit",
    58: "not_authenticated",
    59: "forbidden",
    64: "stopping",
    65: "media",
    66: "upstream",
}


class Status(NamedTuple):
    """One answer."""

    answer: int
    reason: int = 0

    @property
    def ok(self) -> bool:
        """Whether it is a hit."""
        return self.answer == 1

    def __str__(self) -> str:
        """As the page writes it: `miss(absent)`."""
        answer = ANSWERS.get(self.answer, f"answer {self.answer}")
        return f"{answer}({REASONS.get(self.reason, self.reason)})" if self.reason else answer


@dataclass(frozen=True)
class StatusRun:
    """Consecutive items, or selected parts, of one section with one answer."""

    section: int
    of_parts: bool
    first: int
    count: int
    status: Status


def status_runs(frame: Frame) -> list[StatusRun]:
    """All that a frame answers."""
    found = []
    for value in frame.all(Kind.STATUSES):
        section, flags, runs = struct.unpack_from("<HHI", value)
        need(flags & ~OF_PARTS == 0, f"Statuses with flags {flags}")
        need(len(value) == 8 + 12 * runs, f"Statuses of {len(value)} bytes with {runs} runs")
        for at in range(runs):
            first, count, answer, zero, reason = struct.unpack_from("<IIBBH", value, 8 + 12 * at)
            need(count > 0 and zero == 0, f"a StatusRun of {count}, zero {zero}")
            need(answer != 0, "answer 0 is never sent")
            if section == WHOLE:
                need((runs, first, count, flags) == (1, 0, 1, 0), "the request as a whole: one run, first 0, count 1")
            found.append(StatusRun(section, bool(flags), first, count, Status(answer, reason)))
    return found


def whole(frame: Frame) -> Status:
    """What a Final says of the request as a whole."""
    found = [run.status for run in status_runs(frame) if run.section == WHOLE]
    need(len(found) == 1, f"{len(found)} statuses of the request as a whole")
    return found[0]


class Tally:
    """Collects the answers of one request's items; each comes once."""

    def __init__(self, numbers: Sequence[int], of_parts: Sequence[bool]) -> None:
        self._of_parts = of_parts
        self._statuses: list[list[Status | None]] = [[None] * count for count in numbers]
        self._whole: Status | None = None

    def add(self, frame: Frame) -> None:
        """What a frame answers."""
        for run in status_runs(frame):
            if run.section == WHOLE:
                self._whole = run.status
                continue
            need(run.section < len(self._statuses), f"an answer of section {run.section}")
            need(run.of_parts == self._of_parts[run.section], f"section {run.section} is answered by part: {run.of_parts}")
            statuses = self._statuses[run.section]
            need(run.first + run.count <= len(statuses), f"items {run.first} + {run.count} of {len(statuses)}")
            for number in range(run.first, run.first + run.count):
                need(statuses[number] is None, f"item {number} of section {run.section} is answered twice")
                statuses[number] = run.status

    def answered(self, section: int, number: int) -> bool:
        """Whether it was."""
        return self._statuses[section][number] is not None

    def settled(self) -> list[list[Status]]:
        """After the Final: one of each item; what no other status names has that of the whole request."""
        settled = []
        for statuses in self._statuses:
            need(self._whole or None not in statuses, "an item without an answer, and none of the request as a whole")
            settled.append([status or self._whole or Status(0) for status in statuses])
        return settled


def match_bits(frame: Frame) -> dict[int, list[bool]]:
    """By section: of each key, whether all of its components are there."""
    found = {}
    for value in frame.all(Kind.MATCH_BITS):
        section, zero, keys = struct.unpack_from("<HHI", value)
        need(zero == 0 and len(value) == 8 + (keys + 7) // 8, f"MatchBits of {len(value)} bytes for {keys} keys")
        bits = [bool(value[8 + at // 8] >> at % 8 & 1) for at in range((keys + 7) // 8 * 8)]
        need(not any(bits[keys:]), "a spare bit of MatchBits is set")
        found[section] = bits[:keys]
    return found


def lengths(frame: Frame) -> dict[int, dict[int, int]]:
    """By section and item: the block's length, 0 when it is not there."""
    found: dict[int, dict[int, int]] = {}
    for value in frame.all(Kind.LENGTHS):
        section, zero, first, count, reserved = struct.unpack_from("<HHIII", value)
        need(zero == 0 and reserved == 0 and len(value) == 16 + 4 * count, f"Lengths of {len(value)} bytes for {count} items")
        for at, length in enumerate(struct.unpack_from(f"<{count}I", value, 16)):
            need(first + at not in found.setdefault(section, {}), f"two lengths of item {first + at}")
            found[section][first + at] = length
    return found
