"""Open loop: calls that come when they come, however the ones before them fare (--rate).

The moments are drawn beforehand, with exponential gaps, and a latency counts from the moment when its call was due: one that
had to wait, because all lanes were taken or this process was busy, has waited. In a closed loop a slow daemon is simply asked
less often (coordinated omission).

Invariants: every call that was due within the time is made, in order, unless those that are late need as long again; its keys
are made before it is due wherever a lane is free for that.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.random import Generator

from halfstep import Queue, Ticket
from halfstep.tools.bench.workload import Lane, Tally, Timing

# Where fewer calls were begun in the time than this share of those due, the daemon or the client cannot keep the rate.
KEPT_SHARE_MIN = 0.98
# A timer wakes a process by so much too late; the rest of the way is looked, not slept.
_LOOK_NS = 200_000


@dataclass(frozen=True)
class Rate:
    """Calls of one timed run, of all clients together. due: within its `seconds`; begun: of them; made: late ones included."""

    seconds: float
    due: int
    begun: int
    made: int

    @property
    def offered_per_s(self) -> float:
        """Calls that were due."""
        return self.due / self.seconds

    @property
    def achieved_per_s(self) -> float:
        """Calls that were begun before the time was over."""
        return self.begun / self.seconds

    @property
    def kept(self) -> bool:
        """Whether the percentiles are those of calls, and not those of a queue that grows as long as the run lasts."""
        return self.begun >= KEPT_SHARE_MIN * self.due


def due_ns(rate: float, seconds: float, rng: Generator) -> npt.NDArray[np.int64]:
    """When calls are due, from the start on: `rate` a second with exponential gaps. There is one at least."""
    drawn: list[npt.NDArray[np.float64]] = []
    at = 0.0
    while at < seconds:
        times = at + np.cumsum(rng.exponential(1 / rate, max(16, int(rate * seconds * 1.1))))
        drawn.append(times)
        at = float(times[-1])
    times = np.concatenate(drawn)
    within = times[times < seconds]
    return np.asarray((within if len(within) else np.zeros(1)) * 1e9, np.int64)


def drive_arrivals(
    queue: Queue,
    lanes: Sequence[Lane],
    due: npt.NDArray[np.int64],
    seconds: float,
    clock: Callable[[], int] = time.perf_counter_ns,
) -> tuple[Timing, Rate]:
    """Makes the calls when they are due, in as many lanes at once as there are; returns when the last one has ended."""
    tally = Tally()
    started = ended = clock()
    until, give_up = started + int(seconds * 1e9), started + int(2 * seconds * 1e9)
    waiting = deque((due + started).tolist())
    begun: dict[Ticket[Any], tuple[Lane, int]] = {}
    ready: deque[Lane] = deque()
    spent: deque[tuple[Lane, Any]] = deque()
    in_time = made = 0
    for lane in lanes:
        lane.prepare()
        ready.append(lane)
    while waiting or begun:
        now = clock()
        if now >= give_up:
            waiting.clear()
        while waiting and ready and waiting[0] <= now:
            lane = ready.popleft()
            begun[lane.submit(queue)] = lane, waiting.popleft()
            in_time += now < until
            made += 1
            now = clock()
        if spent:
            # With calls late already, what comes meanwhile is taken together, as it is by whoever has much to do.
            events = [] if waiting and waiting[0] <= now else queue.poll()
        elif waiting and ready:
            left_ns = waiting[0] - now - _LOOK_NS
            if left_ns > 0:
                events = queue.wait(left_ns / 1e9)
            else:
                os.sched_yield()  # another client may share this core
                events = queue.poll()
        elif begun:
            events = queue.wait()
        else:
            events = []
        if events:
            ended = clock()
        for event in events:
            if event.done:
                lane, at = begun.pop(event.ticket)
                tally.ended(lane, ended - at)
                spent.append((lane, event.ticket.result()))
        # One at a time: whoever is due in between does not wait for all of them.
        if spent:
            lane, result = spent.popleft()
            tally.checked(lane, lane.check(result))
            if waiting:
                lane.prepare()
                ready.append(lane)
    for lane, result in spent:
        tally.checked(lane, lane.check(result))
    return tally.timing((ended - started) / 1e9), Rate(seconds, len(due), in_time, made)
