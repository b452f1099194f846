"""A planner for one engine and one tier: knows the speeds of both, and whether the tier is worth asking. See planner.py.

    planner = FetchPlanner()
    if planner.may_ask():
        planner.asked(seconds, answered=True)                  # a match, and how many blocks it found
        plan = planner.plan(work, terms, client.facts().shards)
        planner.fetched(plan, work, landed, seconds, failed)   # where plan.blocks were got

Invariants: a tier that fails is asked once more after a pause, by a probe, and each probe that does what it should closes the
circuit. Until the engine's prefill speed is known, all is asked for and fetched, as without a planner. Memory is bounded.
Thread: any may call anything.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence

from halfstep.client.circuit import PAUSE_S_MAX, PAUSE_S_MIN, Circuit
from halfstep.client.facts import ShardLoad
from halfstep.client.planner import Plan, Reason, Terms, Work, plan, probe
from halfstep.client.speeds import FetchSpeed, LinkModel, PrefillModel, PrefillSpeed


class FetchPlanner:
    """clock: seconds, monotonic. on_count: called with the name of each count that rises, within the lock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, on_count: Callable[[str], object] = lambda _: None) -> None:
        self._clock, self._on_count = clock, on_count
        self._lock = threading.Lock()
        self._prefill, self._link = PrefillModel(), LinkModel()
        # As it was before the tier failed: what a probe is measured by.
        self._usual = FetchSpeed()
        self._circuit = Circuit()
        # Where computing is quicker nothing is learned of the link, so that it is looked at again after such a pause.
        self._look_pause_s, self._look_at_s = PAUSE_S_MIN, 0.0
        self._counts = dict.fromkeys(Reason, 0)

    # ---- What is asked of it ----

    def may_ask(self) -> bool:
        """Whether to ask the tier what it has. False: count all as absent."""
        with self._lock:
            if not self._circuit.is_open or self._prefill.speed.token_s <= 0 or self._circuit.is_due(self._clock()):
                return True
            self._count(Reason.OPEN)
            return False

    def plan(self, work: Work, terms: Terms, loads: Sequence[ShardLoad] = ()) -> Plan:
        """How much of what a match has found to fetch. loads: as that match told them."""
        with self._lock:
            made = self._planned(work, terms, loads)
            self._count(made.reason)
            return made

    def _planned(self, work: Work, terms: Terms, loads: Sequence[ShardLoad]) -> Plan:
        now_s, prefill, circuit = self._clock(), self._prefill.speed, self._circuit
        if circuit.is_open and work.blocks > 0 and prefill.token_s > 0:
            if circuit.is_due(now_s):
                made = probe(work, terms, prefill, self._usual, loads, failed=circuit.failed_probes)
                if made.blocks:
                    circuit.probe(now_s)
                return made
            recompute_s = prefill.seconds(work.before_tokens, _last(work))
            in_goal = terms.goal_s is None or recompute_s <= terms.goal_s
            return Plan(0, 0.0, Reason.OPEN, end_s=recompute_s, recompute_s=recompute_s, in_goal=in_goal)
        made = plan(work, terms, prefill, self._link.speed, loads)
        if made.reason is Reason.RECOMPUTE:
            if now_s >= self._look_at_s > 0:
                self._look_pause_s = min(PAUSE_S_MAX, 2 * self._look_pause_s)
                self._look_at_s = now_s + self._look_pause_s
                looking = probe(work, terms, prefill, self._link.speed, loads)
                return looking if looking.blocks else made
            if self._look_at_s == 0:
                self._look_at_s = now_s + self._look_pause_s
        elif made.blocks > 0:
            self._look_pause_s, self._look_at_s = PAUSE_S_MIN, 0.0
        return made

    # ---- What it is told ----

    def computed(self, tokens: int, seconds: float, position: int = 0) -> None:
        """The engine has computed so many tokens of a prefill in so long. position: tokens that lay before them."""
        # Of what no engine can have done nothing is learned: the speed that came out could be none, or negative.
        if tokens > 0 and 0 < seconds < math.inf and position >= 0:
            with self._lock:
                self._prefill.add(tokens, seconds, position)

    def asked(self, seconds: float, *, answered: bool) -> None:
        """A match has ended. answered: by the tier, whatever it found."""
        with self._lock:
            if answered:
                self._link.asked(seconds)
            else:
                # Asked while it was open: in the place of a probe, which had something to ask for first.
                self._fail(is_probe=self._circuit.is_due(self._clock()))

    def fetched(self, made: Plan, work: Work, landed: float, seconds: float, *, failed: bool) -> None:
        """The fetch of a plan has ended: so many blocks are whole. failed: the tier was late, or not there; a miss is neither.

        landed: with a share of one where a block is of several rows.

        A fetch that took longer than computing its blocks counts as failed.
        """
        with self._lock:
            prefill = self._prefill.speed
            first = work.before_tokens
            cost_s = prefill.seconds(first, first + landed * work.block_tokens)
            is_probe = made.reason is Reason.PROBE
            if failed or (prefill.token_s > 0 and not is_probe and landed and seconds > cost_s):
                self._fail(is_probe=is_probe)
                return
            if self._circuit.is_open:
                if landed:  # what it moves now says what it can do now
                    self._link.forget()
                self._circuit.succeed()
            self._link.moved(int(landed * work.block_bytes), seconds, made.queue_s)

    def _fail(self, *, is_probe: bool) -> None:
        if not self._circuit.is_open and self._link.speed.bytes_per_s > 0:
            self._usual = self._link.speed
        before = self._circuit.opened
        self._circuit.fail(self._clock(), is_probe=is_probe)
        if self._circuit.opened != before:
            self._on_count("opened")

    def _count(self, reason: Reason) -> None:
        self._counts[reason] += 1
        self._on_count(reason)

    # ---- What it knows ----

    @property
    def prefill(self) -> PrefillSpeed:
        """Of the engine."""
        with self._lock:
            return self._prefill.speed

    @property
    def link(self) -> FetchSpeed:
        """Of the tier."""
        with self._lock:
            return self._link.speed

    @property
    def is_open(self) -> bool:
        """Whether the circuit is: the tier failed, and has not been seen to do its work since."""
        with self._lock:
            return self._circuit.is_open

    def counts(self) -> dict[str, int]:
        """Decisions by reason, and how often the circuit has opened ("opened")."""
        with self._lock:
            return {str(reason): count for reason, count in self._counts.items()} | {"opened": self._circuit.opened}


def _last(work: Work) -> int:
    return work.before_tokens + work.blocks * work.block_tokens + work.after_tokens
