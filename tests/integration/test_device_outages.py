"""A daemon whose device takes no writes for a while: it goes on by itself, and has lost nothing."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import halfstep

pytestmark = pytest.mark.integration

COUNT, BLOCK_BYTES, WRITABLE_BYTES = 60, 65536, 3_000_000
NO_LIMIT = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
Blocks = Callable[..., npt.NDArray[np.uint8]]


def segments(counted: dict[str, Any]) -> dict[str, float]:
    """What `stat` says of segments that are lost."""
    names = ("segments_bad_total", "segments_retired_total", "blocks_given_up_total")
    return {name: sum(v for k, v in counted.items() if k.startswith("halfstep_store_" + name)) for name in names}


def test_a_daemon_whose_writes_fail_says_so_at_once_and_goes_on_by_itself(
    own_daemon: Any, layout: halfstep.Layout, blocks: Blocks
) -> None:
    content = blocks(COUNT, BLOCK_BYTES)
    keys = [b"key-%d" % number for number in range(COUNT)]
    lost_nothing = {"segments_bad_total": 0, "segments_retired_total": 0, "blocks_given_up_total": 0}
    with halfstep.connect(own_daemon.url, layout=layout, required=True, deadline_ms=30_000) as client:
        assert client.put(keys, content, durability="persist").ok.all()
        # Writes beyond so many bytes of the file fail with EFBIG, as those to a full thin pool fail with ENOSPC.
        resource.prlimit(own_daemon.pid, resource.RLIMIT_FSIZE, (WRITABLE_BYTES, resource.RLIM_INFINITY))
        reasons = set()
        for number in range(200):
            reasons.add(client.put([b"meanwhile-%d" % number], content[:1], durability="persist").reason(0))
            if refused(reasons) and number >= 50:
                break
        assert refused(reasons), reasons
        assert not any("late" in str(reason) or "deadline" in str(reason) for reason in reasons), reasons
        resource.prlimit(own_daemon.pid, resource.RLIMIT_FSIZE, NO_LIMIT)
        wait_until(lambda: bool(client.put([b"after"], content[:1], durability="persist").ok.all()))
        assert segments(client.stat()) == lost_nothing
    assert own_daemon.stop() == 0
    own_daemon.start()
    with halfstep.connect(own_daemon.url, layout=layout, required=True, deadline_ms=30_000) as client:
        target = np.zeros_like(content)
        assert client.get(keys, target).ok.all()
        assert np.array_equal(target, content)
        assert segments(client.stat()) == lost_nothing


def refused(reasons: set[Any]) -> bool:
    """A put was told that the device takes nothing."""
    return any("media" in str(reason) for reason in reasons)


def wait_until(happens: Callable[[], bool], attempts: int = 600) -> None:
    """Asks again until it does; fails when it never does."""
    for _ in range(attempts):
        if happens():
            return
        time.sleep(0.05)
    pytest.fail("it never happened")
