"""Two scripted days of records, in virtual time: counts of clients and of a daemon, written by the code that serves.

The first day is the baseline: one engine in shadow mode. On the second the tier is used, a second engine joins for eight hours,
the first one is started anew at noon, and so is the daemon. Every hour is like the others of its day, so that the figures can
be had by multiplication: tests/unit/test_effect_day.py does.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from halfstep.client.recorder import Recorder
from halfstep.client.tally import Tally
from halfstep.tools.effect.sampling import Sampler

# 2 March 2026, 00:00 UTC, and the day after.
SHADOW_DAY_S = 1_772_409_600
USED_DAY_S = SHADOW_DAY_S + 86_400
HOUR_S = 3600
BLOCK_TOKENS = 16


class Engine:
    """A process: its record, and clocks that only the script moves."""

    def __init__(self, folder: Path, namespace: str, mode: str) -> None:
        self.now_s = self.waited_s = 0.0
        self.recorder = Recorder(folder, clock=lambda: self.now_s, monotonic=lambda: self.waited_s, interval_s=0)
        self.tally: Tally = self.recorder.tally(namespace, mode)

    def look_up(self, blocks: int, found: int, wait_s: float, block_tokens: int = BLOCK_TOKENS) -> None:
        """A lookup that waits so long."""
        began_s, self.waited_s = self.waited_s, self.waited_s + wait_s
        self.tally.looked_up(began_s, blocks, found, answered=True, block_tokens=block_tokens)

    def load(self, blocks: int, whole: int, block_bytes: int, wait_s: float, block_tokens: int = BLOCK_TOKENS) -> None:
        """A load that waits so long."""
        began_s, self.waited_s = self.waited_s, self.waited_s + wait_s
        self.tally.loaded(began_s, blocks, whole, whole * block_bytes, block_tokens=block_tokens)

    def write(self, at_s: float) -> None:
        """A line of that time."""
        self.now_s = at_s
        self.recorder.write()


def write_days(folder: Path) -> Path:
    """Fills a folder, which must be there."""
    engine = Engine(folder, "chat", "shadow")
    for hour in range(24):
        for number in range(10):
            engine.look_up(20, 10 if number < 6 else 0, wait_s=0.01)
        engine.tally.add(prefill_tokens=3200, prefill_s=0.4)
        engine.write(SHADOW_DAY_S + (hour + 1) * HOUR_S)

    code = Engine(folder, "code", "on")
    for hour in range(24):
        if hour in (0, 12):
            engine = Engine(folder, "chat", "on")
        for number in range(10):
            engine.look_up(20, 15 if number < 8 else 0, wait_s=0.01)
        for number in range(8):
            engine.load(15, 15 if number < 7 else 5, block_bytes=65_536, wait_s=0.05)
        engine.tally.add(prefill_tokens=1440, prefill_s=0.18)
        engine.tally.prefetched(50, 48)
        engine.tally.add(
            ahead_turn_used_bytes=40 * 65_536, ahead_turn_late_bytes=3 * 65_536, ahead_turn_unused_bytes=5 * 65_536
        )
        engine.tally.add(ahead_window_used_bytes=0)  # it can, and had none
        engine.write(USED_DAY_S + (hour + 1) * HOUR_S)
        if 9 <= hour < 17:
            for _ in range(2):
                code.look_up(50, 40, wait_s=0.02, block_tokens=0)
                code.load(40, 40, block_bytes=1_000_000, wait_s=0.1, block_tokens=0)
            code.tally.add(plan_fetch=2, plan_compute=1, circuit_openings=1 if hour == 12 else 0)
            code.write(USED_DAY_S + (hour + 1) * HOUR_S)

    _sample_daemon(folder)
    return folder


def _sample_daemon(folder: Path) -> None:
    """Hourly on the second day. It had counted before; it is started anew at noon, and 40 blocks of that hour go uncounted."""
    now_s, boot, staged = float(USED_DAY_S), b"\1" * 16, 5000
    daemon = SimpleNamespace(
        admin=SimpleNamespace(
            stat=lambda: {
                "halfstep_store_staged_blocks_total": staged,
                'halfstep_store_staged_ended_total{as="used"}': staged * 8 // 10,
                'halfstep_store_staged_ended_total{as="late"}': staged // 10,
                'halfstep_store_staged_ended_total{as="unused"}': staged // 10,
                "halfstep_store_blocks": 123,  # a gauge, which no sample keeps
            }
        ),
        facts=lambda: SimpleNamespace(boot_id=boot),
    )
    sampler = Sampler(cast("Any", daemon), folder, clock=lambda: now_s)
    sampler.sample()
    for hour in range(24):
        now_s = USED_DAY_S + (hour + 1) * HOUR_S
        boot, staged = (b"\2" * 16, 60) if hour == 12 else (boot, staged + 100)
        sampler.sample()
