"""The scenarios of a hostile run, by name: one function each, in a process of its own, against a real daemon.

A scenario gets a Target and a random generator of its own, works until a moment, and counts into a tally: `acts` is what shows
that it did something; `server_faults` what the daemon sent against the page. It may be refused, cut off and throttled as the
daemon likes: that is counted and never a failure here. What others see of it is judged elsewhere (judging.py).
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable

from tests.torture import breaches, floods, stalls
from tests.torture.attack import GONE, Attack, Target
from tests.wire.frames import WireFault
from tests.wire.rings import ShmRefused

SCENARIOS: dict[str, Callable[[Attack], None]] = {
    scenario.__name__.replace("_", "-"): scenario
    for scenario in (
        floods.explains,
        floods.stats,
        floods.matches,
        floods.changes,
        floods.lists,
        floods.layers,
        stalls.slow_puts,
        floods.leases,
        floods.layouts,
        floods.namespaces,
        stalls.idle,
        stalls.long_hellos,
        stalls.half_bodies,
        stalls.trickles,
        stalls.deaf,
        breaches.mutations,
        breaches.cancels,
        breaches.storms,
        breaches.rings,
    )
}

# What takes its time to do harm gets more of it than the others.
WEIGHTS = {"slow-puts": 3.0, "leases": 2.0, "idle": 1.5, "trickles": 1.5, "deaf": 1.5}


def run(name: str, target: Target, seed: str, seconds: float, tally: Counter[str]) -> None:
    """One scenario, to its end. A fault of the server's frames is counted and named, and the scenario begins again."""
    attack = Attack(target, random.Random(seed), time.monotonic() + seconds, tally)
    while attack.going():
        try:
            SCENARIOS[name](attack)
        except (*GONE, ShmRefused):
            tally["cut_off"] += 1
            attack.rest()
        except WireFault as fault:
            tally["server_faults"] += 1
            tally[f"fault: {fault}"] += 1
