"""A tier, a link and an engine in virtual time, with what goes wrong with them; and requests that a policy serves from them.

Nothing here is the planner's arithmetic. Bytes and tokens are moved through rates that change at known moments, step by step;
the engine's cost and the shards' backlogs are the world's own, and a policy sees of them what a connector sees: loads that the
match tells (up to a third off), and how long its own calls have taken.

Fault model, each drawn from the scenario's seed:
  silent   the tier answers nothing: neither match nor get
  stalled  matches are answered, and no byte of a block moves
  slow     the link moves a fiftieth
  loaded   a backlog of up to two seconds waits at each shard
  quick    the engine computes 2 to 4 times as fast, or as slowly, from then on
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol

from halfstep.client.facts import ShardLoad

DEADLINE_S, MATCH_DEADLINE_S = 2.0, 0.020
BLOCK_TOKENS = 64
REQUESTS = 24
SHARDS = 4
# The oracle tries so many parts of a prefix, beside none of it.
ORACLE_STEPS = 4


@dataclass
class Steps:
    """A value that changes at moments: values[i] from times[i] on."""

    times: list[float]
    values: list[float]

    def at(self, now: float) -> float:
        return self.values[bisect_right(self.times, now) - 1]

    def passed(self, now: float, amount: float) -> float:
        """When so much has gone through, at `value` a second from `now` on."""
        at = bisect_right(self.times, now) - 1
        while True:
            end = self.times[at + 1] if at + 1 < len(self.times) else float("inf")
            rate = self.values[at]
            if rate > 0 and now + amount / rate <= end:
                return now + amount / rate
            if end == float("inf"):
                return end
            amount -= (end - now) * rate
            now, at = end, at + 1


def steps(usual: float, changes: list[tuple[float, float, float]]) -> Steps:
    """changes: (from, to, value), which do not overlap."""
    made = Steps([0.0], [usual])
    for begin, end, value in sorted(changes):
        made.times += [begin, end]
        made.values += [value, usual]
    return made


@dataclass(frozen=True)
class Prompt:
    """blocks: that the tier has. rest: tokens behind them."""

    gap_s: float
    blocks: int
    rest: int


@dataclass
class World:
    """outages: (from, to, kind) of all but the engine's changes; they do not overlap. errors: of the loads that are told."""

    prompts: list[Prompt]
    round_trip_s: float
    block_bytes: float
    token_s: float
    attention: float
    link: Steps
    answers: Steps
    backlog_s: Steps
    engine: Steps
    outages: list[tuple[float, float, str]]
    service: float
    errors: random.Random

    def work_s(self, first: int, last: int) -> float:
        """What the tokens from position first to last are to an engine at its first speed."""
        # A layer's matrices, then each token against all before it: seconds of an engine at its first speed.
        begin, end = first // BLOCK_TOKENS, last // BLOCK_TOKENS
        scores = (end * (end - 1) - begin * (begin - 1)) // 2 * BLOCK_TOKENS * BLOCK_TOKENS
        return (last - first) * self.token_s + self.attention * self.token_s * scores

    def computed(self, began: float, now: float, first: int, last: int) -> float:
        """When the engine has computed the tokens from position first to last, at the speed that it had at `began`."""
        return now + self.work_s(first, last) / self.engine.at(began)

    def begun(self, now: float) -> float:
        """When the tier begins to send; inf: never."""
        return self.answers.passed(now + self.round_trip_s + self.backlog_s.at(now), 1e-9)

    def moved(self, now: float, blocks: int) -> float:
        """When the blocks are there; inf: never."""
        return self.link.passed(self.begun(now), blocks * self.block_bytes) if blocks else now

    def loads(self, now: float) -> tuple[ShardLoad, ...]:
        wait_us, draw = self.backlog_s.at(now) * 1e6, self.errors.uniform
        told = []
        for _ in range(SHARDS):
            rate = self.service * draw(0.7, 1.3)
            told.append(ShardLoad(1, int(wait_us * draw(0.7, 1.3)), int(rate)))
        return tuple(told)


def world(seed: int) -> World:
    draw = random.Random(seed)
    token_s = 10 ** draw.uniform(-4.3, -3)
    prompts = [
        Prompt(draw.uniform(0.05, 2), draw.choice((4, 8, 16, 32, 64)), draw.choice((64, 128, 320))) for _ in range(REQUESTS)
    ]
    horizon = sum(prompt.gap_s + 1.0 for prompt in prompts)
    # From a tier that is forty times as fast as the engine to one that is half as fast.
    block_bytes = draw.choice((256e3, 1e6, 4e6))
    rate = block_bytes / (BLOCK_TOKENS * token_s) * 10 ** draw.uniform(-0.3, 1.6)
    free = [(horizon * at / 8, horizon * (at + 1) / 8) for at in range(1, 8)]
    draw.shuffle(free)
    outages: list[tuple[float, float, str]] = []
    loaded: list[tuple[float, float, float]] = []
    for kind in draw.choices(("silent", "stalled", "slow", "loaded"), k=draw.choice((0, 1, 2, 3, 4))):
        low, high = free.pop()
        begin = draw.uniform(low, (low + high) / 2)
        end = min(high - 0.2, begin + draw.uniform(0.5, 6))
        if kind == "loaded":
            loaded.append((begin, end, draw.uniform(0.05, 2)))
        outages.append((begin, end, kind))
    link = steps(
        rate, [(a, b, 0.0 if kind == "stalled" else rate / 50) for a, b, kind in outages if kind in ("stalled", "slow")]
    )
    engine = Steps([0.0], [1.0])
    if draw.random() < 0.4:
        engine.times.append(draw.uniform(0, horizon))
        engine.values.append(2 ** draw.choice((-2, -1, 1, 2)))
    return World(
        prompts=prompts,
        round_trip_s=draw.uniform(0.0001, 0.002),
        block_bytes=block_bytes,
        token_s=token_s,
        attention=draw.choice((0.0, 1e-5, 1e-4)),
        link=link,
        answers=steps(1.0, [(a, b, 0.0) for a, b, kind in outages if kind == "silent"]),
        backlog_s=steps(0.0, loaded),
        engine=engine,
        outages=outages,
        service=rate / SHARDS,
        errors=random.Random(seed + 1),
    )


class Policy(Protocol):
    """How requests are served, as a connector would: see planner_policies in test_planner_scenarios."""

    def asks(self, now: float) -> bool: ...
    def asked(self, now: float, seconds: float, answered: bool) -> None: ...
    def choose(self, now: float, prompt: Prompt, place: World, left_s: float) -> tuple[int, float, str]: ...
    def fetched(self, now: float, landed: int, seconds: float, failed: bool) -> None: ...
    def computed(self, now: float, tokens: int, seconds: float, position: int) -> None: ...
    @property
    def is_open(self) -> bool: ...


@dataclass
class Run:
    """took_s, alone_s, best_s: of all requests: by the policy, by computing alone, by one who knows the future.

    late_s: the latest that a request was, beyond computing. lost_s: the most that one outage cost beyond computing, probes and
    the round trips of matches aside. probe_s: the most that a probe cost.
    probes: the most that came between a recovery and a closed circuit.
    """

    took_s: float = 0.0
    alone_s: float = 0.0
    best_s: float = 0.0
    late_s: float = 0.0
    lost_s: float = 0.0
    probe_s: float = 0.0
    probes: int = 0
    reasons: dict[str, int] = field(default_factory=dict)


def oracle(place: World, now: float, prompt: Prompt, alone: float) -> float:
    """When it is there at the earliest, by the best part of the prefix, however long its fetch takes. alone: by none of it."""
    total = prompt.blocks * BLOCK_TOKENS + prompt.rest
    begun, speed, best = place.begun(now), place.engine.at(now), alone
    for part in range(1, ORACLE_STEPS + 1):
        blocks = prompt.blocks * part // ORACLE_STEPS
        there = place.link.passed(begun, blocks * place.block_bytes)
        if there >= alone:
            break  # more of it comes later still
        best = min(best, there + place.work_s(blocks * BLOCK_TOKENS, total) / speed)
    return best


def serve(place: World, make: Callable[[Callable[[], float]], Policy]) -> Run:
    """All requests of a world, one after the other: each begins its gap after the one before has ended."""
    clock = [0.0]
    policy = make(lambda: clock[0])
    run = Run()
    lost: dict[int, float] = {}
    probes = 0
    for prompt in place.prompts:
        began = clock[0] = clock[0] + prompt.gap_s
        total = prompt.blocks * BLOCK_TOKENS + prompt.rest
        alone = place.computed(began, began, 0, total)
        alone_s, best_s = alone - began, oracle(place, began, prompt, alone) - began
        now, blocks, reason = began, 0, "open"
        was_open = policy.is_open
        if policy.asks(now):
            answered = place.answers.passed(now, 1e-9) - now
            spent = min(MATCH_DEADLINE_S, answered + place.round_trip_s)
            now = clock[0] = now + spent
            policy.asked(now, spent, spent < MATCH_DEADLINE_S)
            reason = "silent"
            if spent < MATCH_DEADLINE_S:
                blocks, within_s, reason = policy.choose(now, prompt, place, DEADLINE_S - spent)
                if blocks:
                    there = place.moved(now, blocks)
                    spent = min(within_s, there - now)
                    failed = there - now > within_s
                    now = clock[0] = now + spent
                    blocks = 0 if failed else blocks
                    policy.fetched(now, blocks, spent, failed)
        done = place.computed(began, now, blocks * BLOCK_TOKENS, total)
        clock[0] = done
        policy.computed(done, total - blocks * BLOCK_TOKENS, done - now, blocks * BLOCK_TOKENS)
        took_s = done - began
        late_s = took_s - alone_s
        run.took_s, run.alone_s, run.best_s = run.took_s + took_s, run.alone_s + alone_s, run.best_s + best_s
        run.late_s = max(run.late_s, late_s)
        run.reasons[reason] = run.reasons.get(reason, 0) + 1
        at = next((i for i, (begin, end, _) in enumerate(place.outages) if began < end and done > begin), None)
        is_probe = was_open or reason == "probe"
        if is_probe:
            run.probe_s = max(run.probe_s, late_s - MATCH_DEADLINE_S)
        elif at is not None:
            lost[at] = lost.get(at, 0.0) + max(0.0, late_s - place.round_trip_s)
        # After a recovery: probes that began in a tier that is well until the circuit is closed.
        if not was_open:
            probes = 0
        elif reason != "open" and at is None:
            probes += 1
            run.probes = max(run.probes, probes)
        elif at is not None:
            probes = 0
    run.lost_s = max(lost.values(), default=0.0)
    return run


def middle_ratio(runs: list[Run]) -> float:
    """Of totals: by the policy against one who knows the future."""
    return median(run.took_s / run.best_s for run in runs)
