"""Hostile clients against a real daemon, with good ones beside them: nobody pays for what an attacker does but the attacker.

    python -m tests.torture.hostile --minutes 5          # all scenarios, one after the other, then some together
    python -m tests.torture.hostile --scenario slow-puts --seed 7 --json

Each scenario runs in processes of its own (scenarios.py), as a client in plain Python, written from the page of the protocol
alone. Beside it: the library's client (bystander.py), newcomers over TCP, the operator at the unix socket, and a look at the
daemon's memory (witnesses.py). Before each scenario the same attack hits another daemon, a decoy: the good client's share of
matches there is what it should have under attack. After it there is a calm without attackers. The rules are data (judging.py).

Exit status: 0; 1 where a rule was broken; 77 where none was, but the machine was too busy to judge by time.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import multiprocessing
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.torture import judging, scenarios
from tests.torture.attack import LATE_S, Target
from tests.torture.bystander import MATCH_DEADLINE_MS, Bystander
from tests.torture.judging import Breach, Phase, judge, whole_share
from tests.torture.process import WatchedDaemon
from tests.torture.witnesses import Meter, Visitor, wait_for
from tests.wire import catalog
from tests.wire.session import Session
from tests.wire.streams import Address

STORE, STORE_BYTES = "1GiB", 1 << 30
ARENA = "64MiB"
TOGETHER = 3
# Calm and attack on the decoy, each as a share of what a scenario gets; and at least.
CALM_SHARE, CALM_S_MIN = 0.2, 1.5
CONTROL_SHARE, CONTROL_S_MIN = 0.3, 2.0
# A machine that keeps fewer matches within their deadline with nobody attacking says nothing about attackers.
CALM_WHOLE_SHARE_MIN = 0.8
# An attacker that waits for an answer when its time is over is ended.
GRACE_S = 2.0
BUSY_STATUS = 77


def _own(grown_bytes: int) -> int:
    """Of the daemon's own; 0 under ThreadSanitizer, whose shadow of all that was ever used nobody could tell from it."""
    return 0 if "TSAN_OPTIONS" in os.environ else max(0, grown_bytes)


@dataclass
class Result:
    """A whole run. calm: of the good client, without attackers, all calms together. load: of the machine before it began."""

    seed: int
    load: float = 0.0
    match_ms: int = MATCH_DEADLINE_MS
    phases: list[Phase] = field(default_factory=list)
    calm: Counter[str] = field(default_factory=Counter)
    timed: bool = True
    breaches: list[Breach] = field(default_factory=list)

    @property
    def calm_share(self) -> float:
        """Of matches whole without attackers."""
        return whole_share(self.calm)

    @property
    def too_busy(self) -> bool:
        """Whether rules of time could not be judged: a daemon that works waits for its turn behind what else runs there."""
        return self.timed and (self.calm_share < CALM_WHOLE_SHARE_MIN or self.load > (os.cpu_count() or 1))

    def settle(self) -> None:
        """Judges."""
        self.breaches = judge(self.phases, timed=self.timed and not self.too_busy)


class Attackers:
    """The processes of one scenario; made, they are ready and wait. names: several at once are several scenarios together."""

    def __init__(self, names: Sequence[str], target: Target, seed: str, seconds: float) -> None:
        context = multiprocessing.get_context("spawn")
        self._seconds = seconds
        self._running: list[tuple[Any, Connection]] = []
        for name in names:
            here, there = context.Pipe()
            process = context.Process(target=_attack, args=(name, target, f"{seed} {name}", seconds, there), daemon=True)
            process.start()
            there.close()
            self._running.append((process, here))
        for _, here in self._running:
            here.recv()

    def begin(self) -> None:
        """Has them attack."""
        for _, here in self._running:
            here.send("begin")
        self._until = time.monotonic() + self._seconds

    def end(self) -> Counter[str]:
        """Waits for them; what they counted. One that does not end is killed, and counts nothing."""
        tally: Counter[str] = Counter()
        for process, here in self._running:
            if here.poll(max(0.0, self._until - time.monotonic()) + LATE_S + 5 * GRACE_S):
                tally += Counter(here.recv())
            process.kill()
            process.join()
            here.close()
        return tally


def _attack(name: str, target: Target, seed: str, seconds: float, there: Connection) -> None:
    os.nice(5)  # attackers are on other machines
    there.send("ready")
    there.recv()
    tally: Counter[str] = Counter()
    thread = threading.Thread(target=scenarios.run, args=(name, target, seed, seconds, tally), daemon=True)
    thread.start()
    thread.join(seconds + LATE_S + GRACE_S)
    there.send(dict(tally))
    there.close()
    os._exit(0)


class Arena:
    """A daemon, the good client beside it, and the scenarios. decoy: hit first, where time is judged."""

    def __init__(self, daemon: WatchedDaemon, unix: str, decoy: WatchedDaemon | None, result: Result, match_ms: int) -> None:
        self._daemon = daemon
        self._decoy = decoy
        self._result = result
        self._unix = unix
        self._good = Bystander(daemon.url, match_ms)
        self._resident_bytes = daemon.resident_bytes()

    def calm(self, seconds: float) -> Counter[str]:
        """Nobody attacks."""
        wait_for(seconds, lambda: self._daemon.running)
        counts, _ = self._good.take()
        self._result.calm += counts
        return counts

    def run(self, title: str, names: Sequence[str], seconds: float) -> Phase:
        """One scenario, and the calm after it."""
        calm_s = max(CALM_S_MIN, seconds * CALM_SHARE)
        control_s = max(CONTROL_S_MIN, seconds * CONTROL_SHARE) if self._decoy else 0.0
        phase = Phase(title, seconds=max(1.0, seconds - calm_s - control_s))
        seed = f"{self._result.seed} {title}"
        if self._decoy:
            phase.control = self._control(self._decoy, title, names, seed, control_s)
        self._change_namespace(self._unix, catalog.CREATE, title)
        target = Target(self._daemon.address, self._unix, title, STORE_BYTES)
        attackers = Attackers(names, target, seed, phase.seconds)
        self._result.calm += self._good.take()[0]
        resident_bytes = self._daemon.resident_bytes()
        meter = Meter(self._daemon)
        attackers.begin()
        newcomer, operator = Visitor(self._daemon.address, title), Visitor(self._unix, title)
        wait_for(phase.seconds, lambda: self._daemon.running)
        phase.good, phase.worst_ms = self._good.take()
        phase.newcomers, phase.operators = newcomer.end(), operator.end()
        phase.attack = attackers.end()
        phase.notes += [name.removeprefix("fault: ") for name in phase.attack if name.startswith("fault: ")]
        phase.good += self._good.take()[0]
        phase.memory_growth_bytes = _own(meter.end() - resident_bytes)
        phase.calm = self.calm(calm_s)
        phase.alive = self._daemon.running
        if phase.alive:
            left_bytes = self._daemon.resident_bytes()
            phase.memory_kept_bytes = _own(left_bytes - resident_bytes)
            phase.memory_run_bytes = _own(left_bytes - self._resident_bytes)
            self._change_namespace(self._unix, catalog.DELETE, title)
        else:
            phase.notes.append(f"{self._daemon.how_ended}; {self._daemon.log_end()[-500:]}")
        self._result.phases.append(phase)
        return phase

    def _control(self, decoy: WatchedDaemon, title: str, names: Sequence[str], seed: str, seconds: float) -> Counter[str]:
        """What the good client has while the decoy is attacked."""
        self._change_namespace(decoy.address, catalog.CREATE, title)
        target = Target(decoy.address, self._unix + ".decoy", title, STORE_BYTES)
        attackers = Attackers(names, target, seed, seconds)
        self._result.calm += self._good.take()[0]
        attackers.begin()
        wait_for(seconds, lambda: decoy.running)
        counts, _ = self._good.take()
        attackers.end()
        self._good.take()
        if not decoy.running:
            decoy.start()  # its end is seen where the scenario hits the daemon that is judged
            return counts
        self._change_namespace(decoy.address, catalog.DELETE, title)
        return counts

    def _change_namespace(self, address: Address, verb: int, name: str) -> None:
        """Each scenario has one of its own, so that none lives with what another left there."""
        with Session.connect(address) as admin:
            changed = catalog.namespace(admin, verb, name)
            assert changed.ok, f"namespace {name}: {changed}"

    def close(self) -> None:
        """Ends the good client."""
        self._good.close()


def run(
    minutes: float,
    seed: int,
    directory: Path,
    *,
    names: Sequence[str] = (),
    timed: bool = True,
    match_ms: int = MATCH_DEADLINE_MS,
    verbose: bool = False,
    serve_arguments: Sequence[str] = (),
) -> Result:
    """All scenarios within about so many minutes, in the order of the seed; names: only these, one after the other."""
    result = Result(seed, os.getloadavg()[0], match_ms, timed=timed)
    rng = random.Random(seed)
    chosen = [(name, [name]) for name in names or rng.sample(list(scenarios.SCENARIOS), len(scenarios.SCENARIOS))]
    if not names:
        mixed = rng.sample(list(scenarios.SCENARIOS), 2 * TOGETHER)
        chosen += [(" + ".join(some), some) for some in (mixed[:TOGETHER], mixed[TOGETHER:])]
    weight = sum(weight_of(some) for _, some in chosen) + 1
    seconds = minutes * 60 / weight
    # A socket's path is short; a test's directory may not be.
    with tempfile.TemporaryDirectory(prefix="halfstep-") as sockets, contextlib.ExitStack() as stack:
        unix = str(Path(sockets) / "h.sock")
        arguments = ["--size", STORE, "--arena", ARENA, *serve_arguments]
        decoy = None
        if timed:
            (directory / "decoy").mkdir()
            decoy = WatchedDaemon(directory / "decoy", *arguments, unix=unix + ".decoy", own_session=True)
            stack.enter_context(decoy)
        daemon = stack.enter_context(WatchedDaemon(directory, *arguments, unix=unix, own_session=True))
        arena = Arena(daemon, unix, decoy, result, match_ms)
        try:
            arena.calm(max(CALM_S_MIN, seconds))
            for title, some in chosen:
                phase = arena.run(title, some, seconds * weight_of(some))
                if verbose:
                    print(line_of(phase), flush=True)
                if not phase.alive:
                    break
        finally:
            arena.close()
        if daemon.running and daemon.end() != 0:
            result.phases[-1].alive = False
            result.phases[-1].notes.append("the daemon did not stop clean")
    result.settle()
    return result


def weight_of(names: Sequence[str]) -> float:
    """How much longer than others some scenarios together take."""
    return max(scenarios.WEIGHTS.get(name, 1.0) for name in names)


def line_of(phase: Phase) -> str:
    """A phase in one line."""
    good, attack = phase.good, phase.attack
    counts = " ".join(f"{name} {count}" for name, count in sorted(attack.items()) if not name.startswith("fault: "))
    worst = " ".join(f"{name} {ms:.0f}" for name, ms in sorted(phase.worst_ms.items()))
    others = [f"{name} {count}" for name, count in sorted((phase.newcomers + phase.operators).items()) if name != "ok"]
    return (
        f"{phase.scenario:<14} {phase.seconds:4.1f} s  matches whole {whole_share(good):6.1%} of {judging.matches_of(good):<5}"
        f" (decoy {whole_share(phase.control):.1%})"
        f" puts {good['puts_ok']} ok {good['puts_late']} late {good['puts_refused']} refused"
        f"  gets {good['gets_ok']} ok {good['gets_late']} late  wrong {good['bytes_wrong']}"
        f"  visits {phase.newcomers['ok']} + {phase.operators['ok']} {', '.join(others)}"
        f"  memory +{phase.memory_growth_bytes >> 20} MiB, kept {phase.memory_kept_bytes >> 20}, "
        f"run {phase.memory_run_bytes >> 20}"
        f"  worst ms: {worst}  | {counts}"
    )


def report_of(result: Result) -> dict[str, Any]:
    """For programs."""
    phases = [dataclasses.asdict(phase) for phase in result.phases]
    broken = [{"scenario": each.scenario, "rule": each.rule.name, "seen": each.seen} for each in result.breaches]
    return {
        "seed": result.seed,
        "load": result.load,
        "match_ms": result.match_ms,
        "calm_whole_share": result.calm_share,
        "timed": result.timed,
        "too_busy": result.too_busy,
        "phases": phases,
        "broken": broken,
    }


def tell(result: Result) -> None:
    """The verdict, for people."""
    total: Counter[str] = sum((phase.good for phase in result.phases), Counter())
    print(
        f"matches whole within their deadline {whole_share(total):.1%} of {judging.matches_of(total)}, without attackers "
        f"{result.calm_share:.1%}; puts {total['puts_ok']} ok, {total['puts_late']} late, {total['puts_refused']} refused; "
        f"wrong bytes {total['bytes_wrong']}"
    )
    for rule in judging.RULES:
        broken = [each for each in result.breaches if each.rule is rule]
        if broken:
            print(f"seed {result.seed} breaks the rule {rule.name}: {rule.promise}")
        for each in broken:
            print(f"  {each.scenario}: {each.seen}")
    for scenario in dict.fromkeys(each.scenario for each in result.breaches):
        names = " ".join(f"--scenario {name}" for name in scenario.split(" + "))
        within = "" if result.match_ms == MATCH_DEADLINE_MS else f"--match-ms {result.match_ms} "
        print(f"again: python -m tests.torture.hostile --minutes 0.5 --seed {result.seed} {within}{names}")
    if result.too_busy:
        print(
            f"rules of time were not judged: the machine is busy (load {result.load:.1f} on {os.cpu_count()} processors before "
            f"the run, {result.calm_share:.1%} of matches whole without attackers); run it on an idle one"
        )


def main() -> int:
    """See the head of this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0, help="of all scenarios together (5)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scenario", action="append", default=[], choices=list(scenarios.SCENARIOS), metavar="NAME")
    parser.add_argument(
        "--match-ms", type=int, default=MATCH_DEADLINE_MS, metavar="MS", help=f"of a good client's match ({MATCH_DEADLINE_MS})"
    )
    parser.add_argument("--json", action="store_true", help="one object, at the end")
    options = parser.parse_args()
    if not options.json:
        print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="halfstep-hostile-") as directory:
        result = run(
            options.minutes,
            options.seed,
            Path(directory),
            names=options.scenario,
            match_ms=options.match_ms,
            verbose=not options.json,
        )
    if options.json:
        print(json.dumps(report_of(result), default=str))
    else:
        tell(result)
    return 1 if result.breaches else BUSY_STATUS if result.too_busy else 0


if __name__ == "__main__":
    sys.exit(main())
