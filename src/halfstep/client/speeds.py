"""What fetching and computing cost, learned from what they have cost lately.

Invariants: memory is bounded, whatever is told. One measurement that is far off moves nothing: medians count. A change of the
engine or the link is followed within two measurements. Nothing here reads a clock.
Thread: one at a time; a FetchPlanner holds its lock.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import NamedTuple

# Of so many measurements the median counts: one is an outlier, two are a change.
MEASURED_LAST = 3
# Of the growth with the context, which is the model's and not the moment's.
GROWTHS_LAST = 32
# Two prefills tell how the cost grows where the context of one is so many times that of the other.
CONTEXT_RATIO_MIN = 2.0
# At a context of a million tokens a token costs a thousand times as much as the first: no model grows faster.
GROWTH_MAX = 1e-3
# A transfer that took less than so many round trips is mostly a round trip: it bounds the rate from below.
ROUND_TRIPS_MIN = 2.0


class PrefillSpeed(NamedTuple):
    """Seconds to compute a sequence: the token at position x costs `token_s * (1 + growth * x)`.

    A layer's matrices cost the same at each position, and its attention costs in proportion to the position; so the seconds of
    a prefix are monotone and convex in its tokens. token_s = 0: the engine was not seen to compute.
    """

    token_s: float = 0.0
    growth: float = 0.0

    def seconds(self, first: float, last: float) -> float:
        """Of the tokens from position `first` to `last`, with what lies before them at hand."""
        return self.token_s * ((last - first) + self.growth * (last * last - first * first) / 2)


class FetchSpeed(NamedTuple):
    """round_trip_s: of a question. bytes_per_s: of a transfer once it has begun; 0: none was seen."""

    round_trip_s: float = 0.0
    bytes_per_s: float = 0.0


class PrefillModel:
    """Learns a PrefillSpeed of an engine's prefills."""

    def __init__(self) -> None:
        self._last: deque[tuple[float, float]] = deque(maxlen=MEASURED_LAST)  # middle position, seconds a token
        self._growths: deque[float] = deque(maxlen=GROWTHS_LAST)
        self._speed = PrefillSpeed()

    def add(self, tokens: int, seconds: float, position: int = 0) -> None:
        """So many tokens took so long. position: tokens of the sequence that lay before them."""
        middle, token_s = position + tokens / 2, seconds / tokens
        # Only neighbours in time are compared: between them the engine has rarely changed its speed.
        for other, other_s in self._last:
            low, high = ((middle, token_s), (other, other_s)) if middle < other else ((other, other_s), (middle, token_s))
            if high[0] >= CONTEXT_RATIO_MIN * low[0]:
                self._growths.append(_growth(*low, *high))
        self._last.append((middle, token_s))
        growth = median(self._growths) if self._growths else 0.0
        self._speed = PrefillSpeed(median(each_s / (1 + growth * where) for where, each_s in self._last), growth)

    @property
    def speed(self) -> PrefillSpeed:
        """As of the last measurement."""
        return self._speed


class LinkModel:
    """Learns a FetchSpeed of matches and gets."""

    def __init__(self) -> None:
        self._round_trips_s: deque[float] = deque(maxlen=MEASURED_LAST)
        self._rates: deque[float] = deque(maxlen=MEASURED_LAST)
        self._speed = FetchSpeed()

    def asked(self, seconds: float) -> None:
        """A question was answered after so long."""
        self._round_trips_s.append(max(seconds, 1e-6))
        self._speed = FetchSpeed(median(self._round_trips_s), self._speed.bytes_per_s)

    def moved(self, count_bytes: int, seconds: float, queue_s: float) -> None:
        """A get brought so many bytes. queue_s: how long it waited for its turn, by the load that was told before."""
        if count_bytes <= 0:
            return
        round_trip_s, known_rate = self._speed
        # A load that was told may be over by then: most of the time is never put down to it.
        moving_s = max(seconds - round_trip_s - queue_s, seconds / 4, 1e-6)
        rate = count_bytes / moving_s
        if seconds >= ROUND_TRIPS_MIN * round_trip_s or rate > known_rate:
            self._rates.append(rate)
            self._speed = FetchSpeed(round_trip_s, median(self._rates))

    def forget(self) -> None:
        """The link was interrupted: what it moved before tells nothing of now."""
        self._rates.clear()
        self._speed = FetchSpeed(self._speed.round_trip_s)

    @property
    def speed(self) -> FetchSpeed:
        """As of the last measurement."""
        return self._speed


def _growth(low: float, low_s: float, high: float, high_s: float) -> float:
    """That of a cost of low_s a token at position low, and high_s at high."""
    if high_s <= low_s:
        return 0.0
    scale = low_s * high - high_s * low
    return min(GROWTH_MAX, (high_s - low_s) / scale) if scale > 0 else GROWTH_MAX
