"""Live error of lossy blocks against their exact siblings: `halfstep compress canary`.

Invariants: blocks are read and nothing else. A pair of which one half went meanwhile, or whose layout does not say what its
values are, is counted and left out. What is compared with a policy's predictions was stored under that very policy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from halfstep.client.canary import SIBLING
from halfstep.client.layout_question import ask_layout
from halfstep.compress import LOSSY, LOSSY_ELEMENTS
from halfstep.compress.analysis import Block
from halfstep.compress.errors import Place, place_of
from halfstep.compress.policy import Policy, Predicted, policy_of
from halfstep.compress.trial import floats_of
from halfstep.errors import ConfigError
from halfstep.tools.compress.stored import block_of, shapes_of
from halfstep.tools.options import connected, json_option, print_json, print_table
from halfstep.tools.streams import say

if TYPE_CHECKING:
    from halfstep import Client, Layout
    from halfstep.client.entries import Entry
    from halfstep.tools.compress.stored import Shape

ALARM_TIMES = 1.5
BLOCKS_MAX = 100_000
# How many entries of a listing are looked at for each sibling that is wanted: as many as one in so many blocks has one.
_LOOKED_AT = 4096
_GET_BYTES = 32 << 20


@dataclass
class PlaneError:
    """A layer's K or V over all pairs. calibrated: root mean square that a calibration told; 0: nobody has."""

    layer: int
    plane: str
    values: int = 0
    squares: float = 0.0
    squared_errors: float = 0.0
    error_max: float = 0.0
    calibrated: float = 0.0

    @property
    def error_rms(self) -> float:
        """In the values' own unit."""
        return float((self.squared_errors / self.values) ** 0.5) if self.values else 0.0

    @property
    def error_share(self) -> float:
        """As a share of the values' own root mean square."""
        return float((self.squared_errors / self.squares) ** 0.5) if self.squares else 0.0

    @property
    def times(self) -> float:
        """The calibrated one; 0 where nobody has told one and nothing is off."""
        if self.calibrated:
            return self.error_rms / self.calibrated
        return 0.0

    @property
    def alarm(self) -> bool:
        """Live error is too large."""
        return self.times > ALARM_TIMES


@dataclass
class Watch:
    """pairs: compared. lost: siblings whose block is there no more. unknown: of layouts that do not say what their values are.

    others: of another policy than the one that was named.
    """

    pairs: int = 0
    lost: int = 0
    unknown: int = 0
    others: int = 0
    planes: dict[Place, PlaneError] = field(default_factory=dict)

    def add(self, exact: Block, live: Block) -> None:
        """A pair of the same block."""
        self.pairs += 1
        for sibling, unit in zip(exact.units, live.units, strict=True):
            place = place_of(unit.plane)
            if place is None or unit.element not in LOSSY_ELEMENTS:
                continue
            one = self.planes.setdefault(place, PlaneError(*place))
            was, now = floats_of(sibling.bits, unit.element), floats_of(unit.bits, unit.element)
            finite = np.isfinite(was)
            off = np.abs(now[finite].astype(np.float64) - was[finite])
            one.values += int(finite.sum())
            one.squares += float(np.square(was[finite], dtype=np.float64).sum())
            one.squared_errors += float(np.square(off).sum())
            one.error_max = max(one.error_max, float(off.max(initial=0.0)))

    def against(self, predicted: Predicted | None) -> list[PlaneError]:
        """By layer and plane, with what was calibrated."""
        for (layer, plane), one in self.planes.items():
            one.calibrated = predicted.error_of(layer, plane) if predicted else 0.0
        return [self.planes[place] for place in sorted(self.planes)]


def watch(client: Client, blocks: int, policy: Policy | None) -> Watch:
    """Up to so many pairs of the namespace. policy: pairs of it alone; None: of all. Errors: Unavailable, ProtocolError."""
    seen = Watch()
    for layout, shape, entries in _siblings(client, blocks, policy, seen):
        component, block_bytes = entries[0].component, entries[0].block_bytes
        step = max(1, _GET_BYTES // block_bytes)
        for first in range(0, len(entries), step):
            keys = [entry.key for entry in entries[first : first + step]]
            exact, live = (np.empty((len(keys), block_bytes), np.uint8) for _ in range(2))
            of_exact = client.get(keys, exact, layout=layout, first_component=component).ok.reshape(-1)
            of_live = client.get(keys, live, layout=layout, first_component=component - SIBLING).ok.reshape(-1)
            for at, whole in enumerate((of_exact & of_live).tolist()):
                if not whole:
                    seen.lost += 1
                    continue
                of_block = component - SIBLING
                seen.add(block_of(exact[at], layout, of_block, shape), block_of(live[at], layout, of_block, shape))
    return seen


def _siblings(
    client: Client, blocks: int, policy: Policy | None, seen: Watch
) -> Iterator[tuple[Layout, Shape, Sequence[Entry]]]:
    known: dict[bytes, tuple[Layout, dict[int, Shape]] | None] = {}
    wanted: list[Entry] = []
    for entry in islice(client.admin.list(limit=blocks * _LOOKED_AT), blocks * _LOOKED_AT):
        if entry.component & SIBLING == 0:
            continue
        if entry.layout_id not in known:
            layout = ask_layout(client.url, entry.layout_id)
            lossy = layout is not None and layout.fields.get("codec") in LOSSY
            known[entry.layout_id] = (layout, shapes_of(layout)) if layout is not None and lossy else None
        told = known[entry.layout_id]
        if told is None or entry.component >> 24 not in told[1]:
            seen.unknown += 1
        elif policy is not None and told[0].fields.get("policy.hash") != policy.hash:
            seen.others += 1
        else:
            wanted.append(entry)
            if len(wanted) == blocks:
                break
    wanted.sort(key=_alike)
    for (layout_id, component, _), entries in groupby(wanted, _alike):
        of = known[layout_id]
        assert of is not None, "of those that were kept"
        yield of[0], of[1][component >> 24], list(entries)


def _alike(entry: Entry) -> tuple[bytes, int, int]:
    return entry.layout_id, entry.component, entry.block_bytes


@click.command()
@click.argument("namespace", metavar="URL")
@click.option("--policy", metavar="FILE", help="Of a calibration: its pairs alone, against what it predicted.")
@click.option(
    "--blocks", type=click.IntRange(1, BLOCKS_MAX), default=256, show_default=True, metavar="N", help="Pairs, at most."
)
@json_option
def canary(namespace: str, policy: str | None, blocks: int, as_json: bool) -> None:
    """Measure the error of lossy blocks that have an exact sibling.

    Clients that are opened with connect(url, canary=N) keep a sibling of one in N lossy blocks. With --policy a plane whose
    error is above 1.5 times the calibrated one is an alarm, and the exit status is 1.
    """
    named = None if policy is None else policy_of(policy)
    if named is not None and named.predicted is None:
        raise ConfigError(f"policy={policy!r}: predicts no error; name the file that halfstep calibrate wrote, or leave it out")
    with connected(namespace, codecs=("ubq",)) as client:
        seen = watch(client, blocks, named)
    planes = seen.against(named.predicted if named else None)
    alarms = [one for one in planes if one.alarm]
    if as_json:
        print_json(_document(seen, planes, alarms))
    elif not seen.pairs:
        say("no lossy block has an exact sibling here; clients keep some with connect(url, canary=N)")
    else:
        _print(planes)
    if not as_json:
        for remark in _remarks(seen):
            say(remark)
        if alarms:
            names = ", ".join(f"layer {one.layer} {one.plane.upper()}" for one in alarms)
            say(f"alarm: above {ALARM_TIMES} times the calibrated error: {names}; calibrate on text of this kind")
    if alarms:
        raise SystemExit(1)


def _print(planes: Sequence[PlaneError]) -> None:
    right = "right"
    print_table(
        [
            "plane",
            ("error, rms", right),
            ("of the values", right),
            ("largest", right),
            ("calibrated", right),
            ("times", right),
            "",
        ],
        [
            (
                f"layer {one.layer} {one.plane.upper()}",
                f"{one.error_rms:.4g}",
                f"{one.error_share:.4f}",
                f"{one.error_max:.3g}",
                f"{one.calibrated:.4g}" if one.calibrated else "",
                f"{one.times:.2f}" if one.calibrated else "",
                "alarm" if one.alarm else "",
            )
            for one in planes
        ],
    )


def _remarks(seen: Watch) -> Iterator[str]:
    if seen.pairs:
        yield f"{seen.pairs:,} lossy blocks beside their exact siblings"
    for count, why in (
        (seen.lost, "without their block, or gone meanwhile"),
        (seen.unknown, "of layouts that do not say what their values are"),
        (seen.others, "of another policy"),
    ):
        if count:
            yield f"left out: {count:,} siblings {why}"


def _document(seen: Watch, planes: Sequence[PlaneError], alarms: Sequence[PlaneError]) -> dict[str, Any]:
    return {
        "pairs": seen.pairs,
        "lost": seen.lost,
        "unknown": seen.unknown,
        "others": seen.others,
        "alarm_times": ALARM_TIMES,
        "alarms": len(alarms),
        "planes": [
            {
                "layer": one.layer,
                "plane": one.plane,
                "values": one.values,
                "error_rms": one.error_rms,
                "error_share": one.error_share,
                "error_max": one.error_max,
                "calibrated": one.calibrated,
                "times": one.times,
                "alarm": one.alarm,
            }
            for one in planes
        ],
    }
