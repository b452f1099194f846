"""Health of a serving daemon, from its own counters: outages, lost blocks, bad segments, each with a remedy.

Invariants: one line a minute at most, whatever happens; none when no counter moved. A counter that does not exist stands still.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LINE_EVERY_S = 60.0

_DEVICE = "look at the kernel's log (dmesg) and at the drive (smartctl -a)"
_WRITES = "is there room below the store (a thin pool, a sparse image, ulimit -f)? puts go on when it takes writes again"
_ROT = "what is dropped reads as a miss; if it goes on, replace the drive"
_DISCARD = "the drive takes none for now; --discard-rate 0 ends them"


@dataclass(frozen=True)
class Row:
    """A counter or gauge that should stand still. labels: those of the samples that are added up; says: behind their number."""

    name: str
    says: str
    remedy: str
    labels: Mapping[str, str] = field(default_factory=dict)


ROWS = (
    Row("halfstep_device_errors_total", "requests failed at the device", _DEVICE),
    Row("halfstep_store_writes_total", "puts could not be written", _WRITES, {"outcome": "failed"}),
    Row("halfstep_store_writes_total", "puts refused while the device takes no writes", _WRITES, {"outcome": "refused"}),
    Row("halfstep_store_misses_total", "gets missed as the device could not read", _DEVICE, {"reason": "io"}),
    Row("halfstep_store_misses_total", "blocks lost: their bytes failed the check of a get", _ROT, {"reason": "corrupt"}),
    Row("halfstep_store_scrub_blocks_total", "blocks lost: the scrub found them changed", _ROT, {"outcome": "dropped_corrupt"}),
    Row("halfstep_store_scrub_blocks_total", "blocks lost: the scrub could not read them", _DEVICE, {"outcome": "dropped_io"}),
    Row("halfstep_store_blocks_evicted_total", "blocks lost: unreadable when reclaimed", _ROT, {"reason": "unreadable"}),
    Row("halfstep_store_scrub_pages_bad_total", "bad pages found by the scrub", _ROT),
    Row("halfstep_store_scrub_unread_total", "blocks that the scrub could not read for now", _DEVICE),
    Row("halfstep_store_segments_bad_total", "segments went bad", _DEVICE),
    Row("halfstep_store_discards_total", "discards failed", _DISCARD, {"outcome": "failed"}),
)


class Health:
    """Lines about what moved since the last one. metrics: `_shard.Server.metrics()`; now_s: of a monotonic clock."""

    def __init__(self, metrics: Mapping[str, Any]) -> None:
        self._told = _counts(metrics)
        self._line_s: float | None = None

    def line(self, metrics: Mapping[str, Any], now_s: float) -> str | None:
        """The line that is due; None when nothing moved, or when a minute has not passed since the last one."""
        if self._line_s is not None and now_s - self._line_s < LINE_EVERY_S:
            return None
        counts = _counts(metrics)
        moved = [(row, now - before) for row, now, before in zip(ROWS, counts, self._told, strict=True) if now > before]
        # What falls, as a gauge may, counts from there.
        self._told = counts
        if not moved:
            return None
        self._line_s = now_s
        said = "; ".join(f"{count:,.0f} {row.says}" for row, count in moved)
        remedies = "; ".join(dict.fromkeys(row.remedy for row, _ in moved))
        return f"note       {time.strftime('%H:%M:%S')}  {said}: {remedies}"


def _counts(metrics: Mapping[str, Any]) -> list[float]:
    samples: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    for kind in ("counters", "gauges"):
        for name, labels, value in metrics[kind]:
            samples.setdefault(name, []).append((labels, value))
    return [sum(value for labels, value in samples.get(row.name, ()) if row.labels.items() <= labels.items()) for row in ROWS]
