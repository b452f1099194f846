"""The first lines of a daemon: what they say of memory, and of who gives way."""

from __future__ import annotations

import pytest

from halfstep.daemon.report import latency_of, pages_of

MIB = 1 << 20


@pytest.mark.parametrize(
    ("large_mib", "reserved", "said"),
    [
        (256, True, "on 2 MiB pages (reserved)"),
        (256, False, "on 2 MiB pages (transparent)"),
        (100, False, "on 2 MiB pages (transparent, 100 MiB of it)"),
        (0, False, "on ordinary pages (no huge pages)"),
    ],
)
def test_memory_says_how_much_of_it_lies_in_large_pages(large_mib: int, reserved: bool, said: str) -> None:
    arena = {"bytes": 256 * MIB, "large_bytes": large_mib * MIB, "reserved": reserved, "regions": 1}
    assert pages_of(arena) == said


@pytest.mark.parametrize(
    ("goal_us", "said"), [(2_000, "goal 2 ms:"), (2_500, "goal 2.5 ms:"), (500, "goal 500 us:"), (0, "no goal:")]
)
def test_latency_says_what_gives_way(goal_us: int, said: str) -> None:
    assert said in latency_of(goal_us)
