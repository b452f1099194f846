"""A namespace's default policy and its floor: who has no policy follows it, and nobody stores what is lossier."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.integration.commands import PATIENT

import halfstep
from halfstep.client.numbers import REASON_POLICY
from halfstep.errors import ConfigError
from halfstep.tier import Kind, KVLayout

pytestmark = pytest.mark.integration

LAYERS, BLOCKS, HEADS, TOKENS, VALUES = 4, 3, 2, 16, 64
KIND = Kind("full", tuple(range(LAYERS)), HEADS, (2 * VALUES, 2 * VALUES))
KEYS = [b"namespace block %d" % number for number in range(BLOCKS)]


def cache() -> np.ndarray[Any, np.dtype[np.uint16]]:
    drawn = np.random.default_rng(7).standard_normal((LAYERS, 2, BLOCKS, HEADS, TOKENS, VALUES), np.float32)
    return (drawn.view(np.uint32) >> 16).astype(np.uint16)


@pytest.fixture
def tenant(daemon: Any, request: pytest.FixtureRequest) -> Any:
    """A namespace of its own: its name, its URL and its operator."""
    name = f"coding-{os.getpid()}-{request.node.name.replace('/', '-')[:60]}"
    with halfstep.connect(daemon.url, **PATIENT) as operator:
        operator.admin.create_namespace(name)
        yield name, f"{daemon.url}/{name}", operator.admin
        operator.admin.delete_namespace(name)


def layout(policy: str = "") -> KVLayout:
    return KVLayout("model", "r", "bfloat16", TOKENS, (KIND,), policy=policy)


def test_a_tier_without_a_policy_follows_the_namespace(tenant: Any) -> None:
    name, url, admin = tenant
    with halfstep.connect(url, **PATIENT) as client, client.tier(layout()) as tier:
        assert tier.layout.layout.id == layout().layout.id
        assert client.codecs == ()
    admin.limit_namespace(name, policy="exact")
    saved = cache()
    with halfstep.connect(url, coding="always", **PATIENT) as client:
        client.put([b"before"], bytes(4096))
        with client.tier(layout()) as tier:
            assert tier.layout.layout.id == layout("exact").layout.id
            assert client.codecs == ("bfx",)
            prefix = tier.prefix_of(KEYS)
            with tier.memory([list(layer) for layer in saved]) as memory:
                assert prefix.put(memory).refused == 0
            back = np.zeros_like(saved)
            with tier.memory([list(layer) for layer in back]) as memory:
                assert prefix.get(memory).blocks == BLOCKS
            np.testing.assert_array_equal(back, saved)
            assert client.facts().coding.blocks["always"] == BLOCKS, "they were coded"
        assert client.get(b"before") == bytes(4096), "a layout of before is known to the core of now"
        with client.tier(layout("off")) as tier:
            assert tier.layout.layout.id == layout("off").layout.id, "who has a policy keeps it"


def test_no_put_is_lossier_than_the_floor(tenant: Any) -> None:
    name, url, admin = tenant
    admin.limit_namespace(name, floor="high")
    space = next(one for one in admin.namespaces() if one.name == name)
    assert (space.policy, space.floor) == ("none", "0.08")

    def put(policy: str) -> Any:
        with (
            halfstep.connect(url, codecs=("bfx", "ubq"), coding="always", **PATIENT) as client,
            client.tier(layout(policy)) as tier,
            tier.memory([list(layer) for layer in cache()]) as memory,
        ):
            return tier.prefix_of(KEYS).put(memory)

    assert put("high").refused == 0
    # The first block of a sequence is exact, whatever its policy.
    assert put("balanced").refused == BLOCKS - 1
    admin.limit_namespace(name, floor="none")
    assert put("balanced").refused == 0
    admin.limit_namespace(name, floor="exact")
    assert put("exact").refused == 0
    assert put("compact").refused == BLOCKS - 1


def test_the_reason_of_a_refused_put_is_policy(tenant: Any) -> None:
    name, url, admin = tenant
    admin.limit_namespace(name, floor="exact")
    values = (np.random.default_rng(3).standard_normal(32768).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    coarse = halfstep.Layout({"codec": "ubq", "codec.0": "bf16/64/0.5"}, [halfstep.Group(0, (65536,))])
    with halfstep.connect(url, codecs=("ubq",), coding="always", **PATIENT) as client:
        result = client.put([b"lossy"], values.tobytes(), layout=coarse)
        assert result.reasons.tolist() == [REASON_POLICY]


def test_a_default_below_its_own_floor_is_refused(tenant: Any) -> None:
    name, _, admin = tenant
    with pytest.raises(ConfigError, match=r"coarsest step is 0\.25, and the floor is 0\.08"):
        admin.limit_namespace(name, policy="balanced", floor="high")
    with pytest.raises(ConfigError, match="must be none, exact"):
        admin.limit_namespace(name, policy="mine.toml")
    with pytest.raises(ConfigError, match="or a step of"):
        admin.limit_namespace(name, floor="5")


@pytest.fixture
def nobody() -> Iterator[str]:
    """The URL of a port where nobody listens, and nobody will."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield f"halfstep://127.0.0.1:{reserved.getsockname()[1]}"


def test_a_tier_waits_for_nobody_longer_than_a_match_and_only_once(nobody: str, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    wait_ready = halfstep.Client.wait_ready

    def counted(client: halfstep.Client, timeout_ms: float) -> None:
        waits.append(timeout_ms)
        wait_ready(client, timeout_ms)

    monkeypatch.setattr(halfstep.Client, "wait_ready", counted)
    with halfstep.connect(nobody, deadline_ms=60_000, match_deadline_ms=25) as client:
        with client.tier(layout()) as tier:
            assert tier.layout == layout()
        assert waits == [25]
        until = time.monotonic() + 60
        while not client.facts().last_error:
            assert time.monotonic() < until
            client.match([b"a"])
        waits.clear()
        with client.tier(layout()) as tier:
            tier.prefix_of(KEYS)
            assert tier.layout == layout()
        with client.tier(layout("off")), client.tier(layout(), follow_default=False):
            pass
        assert waits == [], "known to be unconnected, or with a word of its own"


def reached(client: halfstep.Client) -> None:
    until = time.monotonic() + 60
    while not client.facts().handshakes:
        assert time.monotonic() < until
        client.match([b"a"])
        time.sleep(0.01)


def test_a_daemon_that_comes_later_is_followed_unless_memory_was_made(
    own_daemon: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with halfstep.connect(own_daemon.url, **PATIENT) as operator:
        operator.admin.limit_namespace("default", policy="exact")
    own_daemon.kill()
    saved = cache()
    with halfstep.connect(own_daemon.url, deadline_ms=2000, match_deadline_ms=20) as client:
        with client.tier(layout()) as early, client.tier(layout()) as late:
            assert early.layout == late.layout == layout()
            back = np.zeros_like(saved)
            with early.memory([list(layer) for layer in back]) as memory:
                assert early.prefix_of(KEYS).get(memory).blocks == 0
                own_daemon.restart()
                reached(client)
                with caplog.at_level(logging.WARNING, "halfstep"):
                    for _ in range(2):
                        assert early.prefix_of(KEYS).get(memory).blocks == 0
            assert early.layout == layout(), "its memory is of this layout"
            (notice,) = [one.getMessage() for one in caplog.records if "default policy" in one.getMessage()]
            assert "exact" in notice
            prefix = late.prefix_of(KEYS)
            assert late.layout.layout.id == layout("exact").layout.id
            assert client.codecs == ("bfx",)
            with late.memory([list(layer) for layer in saved]) as memory:
                until = time.monotonic() + 60
                while prefix.put(memory).refused and time.monotonic() < until:
                    pass  # its new core connects
        client.wait_ready(60_000)
        with client.tier(layout()) as tier, tier.memory([list(layer) for layer in back]) as memory:
            assert tier.prefix_of(KEYS).get(memory).blocks == BLOCKS
        np.testing.assert_array_equal(back, saved)
