"""What a hostile run may not break: rules as data, each with the promise it stands for, judged over one scenario's counts.

A rule that counts holds on any machine. A rule that is `timed` compares with what the good client had while the same attack hit
another daemon of the same machine: an attacker costs processors, too, and that is not the daemon's fault. It is judged by the
long run alone: `make hostile`. Invariants: a rule reads counts and nothing else, so that a test
can show each of them a fault (tests/unit/test_hostile_rules.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

MIB = 1 << 20
# Memory of the daemon's own, beyond what it had before a scenario: requests that are still coming, answers that wait for
# clients that do not read, connections by the thousand, and an attacker's share of the table of holds find room in it.
MEMORY_GROWTH_BYTES_MAX = 128 * MIB
# What an allocator may keep of it afterwards, and of a whole run.
MEMORY_KEPT_BYTES_MAX = 96 * MIB
MEMORY_RUN_BYTES_MAX = 160 * MIB
MATCHES_WHOLE_SHARE_MIN = 0.95
# Fewer say nothing about a share.
MATCHES_MIN = 30


@dataclass
class Phase:
    """What was counted while one scenario ran, and in the calm that follows it.

    good: of the good client: matches_whole, matches_late, matches_partial, puts_ok, puts_late, puts_refused, gets_ok,
    gets_late, gets_missed, bytes_wrong. control: the same, while the scenario ran against another daemon; empty where time
    is not judged. calm: the same, without attackers, after the scenario. attack: what the attackers did and were answered.
    newcomers, operators: connections that others opened meanwhile, over TCP and over the unix socket, by how that ended.
    memory_growth_bytes, memory_kept_bytes: against the moment before the scenario, while it ran and after the calm;
    memory_run_bytes: after the calm, against the moment before the first attack of the run.
    """

    scenario: str
    seconds: float = 0.0
    good: Counter[str] = field(default_factory=Counter)
    control: Counter[str] = field(default_factory=Counter)
    calm: Counter[str] = field(default_factory=Counter)
    attack: Counter[str] = field(default_factory=Counter)
    newcomers: Counter[str] = field(default_factory=Counter)
    operators: Counter[str] = field(default_factory=Counter)
    alive: bool = True
    memory_growth_bytes: int = 0
    memory_kept_bytes: int = 0
    memory_run_bytes: int = 0
    worst_ms: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Rule:
    """breach: what is wrong with a phase, or None."""

    name: str
    promise: str
    breach: Callable[[Phase], str | None]
    timed: bool = False


@dataclass(frozen=True)
class Breach:
    """A rule that a scenario broke."""

    scenario: str
    rule: Rule
    seen: str


def matches_of(counts: Counter[str]) -> int:
    """All of them."""
    return counts["matches_whole"] + counts["matches_late"] + counts["matches_partial"]


def whole_share(counts: Counter[str]) -> float:
    """Of all matches, those that said within their deadline that all keys are there."""
    return counts["matches_whole"] / max(1, matches_of(counts))


def _died(phase: Phase) -> str | None:
    return None if phase.alive else "the daemon ended: " + "; ".join(phase.notes)


def _wrong(phase: Phase) -> str | None:
    wrong = phase.good["bytes_wrong"] + phase.calm["bytes_wrong"]
    return f"{wrong} blocks with other bytes than were put" if wrong else None


def _lost(phase: Phase) -> str | None:
    lost = sum(counts[name] for counts in (phase.good, phase.calm) for name in ("matches_partial", "gets_missed"))
    return f"{lost} answers without blocks that are pinned" if lost else None


def _put_refused(phase: Phase) -> str | None:
    refused = phase.good["puts_refused"] + phase.calm["puts_refused"]
    late = phase.good["puts_late"] + phase.calm["puts_late"]
    done = phase.good["puts_ok"] + phase.calm["puts_ok"]
    why = sorted(name for name in phase.good + phase.calm if name.startswith("put "))
    return f"{refused} puts refused and {late} late, {done} ok: {', '.join(why)}" if refused or late else None


def _get_late(phase: Phase) -> str | None:
    late = phase.good["gets_late"] + phase.calm["gets_late"]
    return f"{late} gets without their answer, {phase.good['gets_ok']} ok" if late else None


def _over(seen_bytes: int, bytes_max: int, when: str) -> str | None:
    if seen_bytes <= bytes_max:
        return None
    return f"{seen_bytes / MIB:.0f} MiB more than before {when}, {bytes_max // MIB} are allowed"


def _grew(phase: Phase) -> str | None:
    return _over(phase.memory_growth_bytes, MEMORY_GROWTH_BYTES_MAX, "it, while it ran")


def _kept(phase: Phase) -> str | None:
    return _over(phase.memory_kept_bytes, MEMORY_KEPT_BYTES_MAX, "it, after the calm")


def _piled_up(phase: Phase) -> str | None:
    return _over(phase.memory_run_bytes, MEMORY_RUN_BYTES_MAX, "the run")


def _failed(counts: Counter[str]) -> str | None:
    failed = {how: count for how, count in counts.items() if how != "ok"}
    return None if not failed and counts["ok"] else f"{counts['ok']} connected, not so: {failed or 'nobody tried'}"


def _newcomer(phase: Phase) -> str | None:
    return _failed(phase.newcomers)


def _operator(phase: Phase) -> str | None:
    return _failed(phase.operators)


def _page(phase: Phase) -> str | None:
    faults = phase.attack["server_faults"]
    return f"{faults} frames that break docs/wire-protocol.md: {'; '.join(phase.notes)}" if faults else None


def _idle(phase: Phase) -> str | None:
    """A run that shows nothing is no run that found nothing."""
    if not phase.attack["acts"]:
        return "the attackers did nothing"
    if not matches_of(phase.good) or not phase.good["gets_ok"] or not phase.good["puts_ok"] + phase.good["puts_late"]:
        return f"the good client had no turn: {dict(phase.good)}"
    return None


def _slow(phase: Phase) -> str | None:
    for counts, where in ((phase.good, "under attack"), (phase.control, "beside it")):
        if matches_of(counts) < MATCHES_MIN:
            return f"{matches_of(counts)} matches {where} in {phase.seconds:.0f} s, {MATCHES_MIN} are the least"
    share, control = whole_share(phase.good), whole_share(phase.control)
    if share >= MATCHES_WHOLE_SHARE_MIN * control:
        return None
    return f"{share:.1%} of matches whole within their deadline, {control:.1%} while the attack hit another daemon"


RULES = (
    Rule("alive", "the daemon lives", _died),
    Rule("wrong-bytes", "a get has the bytes of its put", _wrong),
    Rule("pinned-lost", "pinned blocks are there, whoever else does what", _lost),
    Rule("put-refused", "a put among attackers is stored in its 10 s, as without them", _put_refused),
    Rule("get-late", "a get among attackers is answered in its 10 s", _get_late),
    Rule("memory", "memory stays within its budget", _grew),
    Rule("memory-kept", "memory is given back after an attack", _kept),
    Rule("memory-run", "attacks one after the other do not pile memory up", _piled_up),
    Rule("newcomer", "who comes new over TCP is answered, and may register a layout", _newcomer),
    Rule("operator", "who comes through the unix socket is answered", _operator),
    Rule("page", "what the daemon sends is what the page says", _page),
    Rule("shown", "attackers and good client had their turns", _idle),
    Rule(
        "match-deadline",
        "95 % as many matches are whole within their deadline as while a decoy is attacked",
        _slow,
        timed=True,
    ),
)


def judge(phases: Iterable[Phase], *, timed: bool, rules: Iterable[Rule] = RULES) -> list[Breach]:
    """All that was broken. timed: whether rules of time count, too."""
    wanted = [rule for rule in rules if timed or not rule.timed]
    return [Breach(phase.scenario, rule, seen) for phase in phases for rule in wanted if (seen := rule.breach(phase))]
