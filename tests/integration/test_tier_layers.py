"""Layers of a get that land one after the other: what is said to be there is there, and nothing is said too early."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from tests.connectors.relay import CHUNK, Relay
from tests.integration.commands import PATIENT
from tests.integration.conftest import Daemon

import halfstep
from halfstep import ConfigError
from halfstep.tier import Grid, Kind, KVLayout, Layered, Loaded, Tier

pytestmark = pytest.mark.integration

LAYERS, HEADS, TOKENS, VALUES, BLOCKS = 6, 4, 16, 256, 4
FULL = Kind("full", tuple(range(LAYERS)), HEADS, (2 * VALUES, 2 * VALUES))
KEYS = [b"block %d" % number for number in range(BLOCKS)]
LAYER_BYTES = 2 * BLOCKS * HEADS * TOKENS * VALUES * 2


class Gate(Relay):
    """A relay through which the daemon's bytes come when they are let through."""

    def __init__(self, host: str, port: int) -> None:
        self._turn = threading.Condition()
        self._allowed: int | None = None  # all of them
        self.passed = 0
        super().__init__(host, port, flips=True)  # which marks the direction from the daemon here

    def shut(self) -> None:
        """Nothing more comes through."""
        with self._turn:
            self._allowed = 0

    def let(self, count: int) -> None:
        """So many bytes more."""
        with self._turn:
            self._allowed = (self._allowed or 0) + count
            self._turn.notify_all()

    def _copy(self, source: socket.socket, sink: socket.socket, bytes_per_s: int | None, flips: bool) -> None:
        if not flips:
            super()._copy(source, sink, bytes_per_s, flips)
            return
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK):
                while data:
                    with self._turn:
                        self._turn.wait_for(lambda: self._allowed != 0)
                        count = len(data) if self._allowed is None else min(len(data), self._allowed)
                        if self._allowed is not None:
                            self._allowed -= count
                    sink.sendall(data[:count])
                    self.passed += count
                    data = data[count:]


def cache_of(seed: int | None, layers: int = LAYERS, heads: int = HEADS) -> Any:
    """[layer, plane, block, head, token, value]; zeros without a seed."""
    shape = (layers, 2, BLOCKS, heads, TOKENS, VALUES)
    return np.zeros(shape, np.uint16) if seed is None else np.random.default_rng(seed).integers(1, 1 << 16, shape, np.uint16)


@pytest.fixture
def client(daemon: Daemon) -> Iterator[halfstep.Client]:
    """Who stores, past the gate."""
    with halfstep.connect(daemon.unix_url, required=True, **PATIENT) as made:
        yield made


@pytest.fixture
def gate(daemon: Daemon) -> Iterator[Gate]:
    with Gate(*daemon.address) as made:
        yield made
        made.let(1 << 40)


Stored = Callable[..., tuple[Tier, Any]]


@pytest.fixture
def stored(client: halfstep.Client, gate: Gate, request: pytest.FixtureRequest) -> Iterator[Stored]:
    """stored(*kinds, grid=): a tier behind the gate, and the cache whose blocks the daemon has."""
    opened: list[halfstep.Client] = []

    def make(*kinds: Kind, grid: Grid = Grid()) -> tuple[Tier, Any]:  # noqa: B008 -- frozen
        layout = KVLayout(request.node.name, "1", "bfloat16", TOKENS, kinds or (FULL,), grid)
        logical = cache_of(1)
        planes = {kind.name: [list(logical[layer]) for layer in kind.layers] for kind in layout.kinds}
        tier = client.tier(layout)
        with tier.memory(planes) as memory:
            assert tier.prefix_of(KEYS).put(memory).refused == 0
        opened.append(halfstep.connect(gate.url, required=True, **PATIENT))
        behind = opened[-1].tier(layout)
        assert behind.prefix_of(KEYS).match().blocks == BLOCKS  # it is connected, and knows the layout
        return behind, logical

    yield make
    gate.let(1 << 40)
    for one in opened:
        one.close()


def check_landed(getting: Layered[Loaded], into: Any, logical: Any) -> None:
    """What is said to be there is there."""
    count = getting.layers_done
    np.testing.assert_array_equal(into[:count], logical[:count])


def test_layers_land_in_order_and_none_is_said_before_its_bytes(stored: Stored, gate: Gate) -> None:
    tier, logical = stored()
    into = cache_of(None)
    with tier.memory([list(layer) for layer in into]) as memory:
        gate.shut()
        getting = tier.prefix_of(KEYS).begin_get(memory)
        assert getting.layers == tuple(range(LAYERS))
        assert not getting.wait_layers(1, 0.05)
        assert getting.layers_done == 0
        seen = []
        for number in range(1, LAYERS + 1):
            # The layer's bytes, and what frames them take; the next layer's last part has not left the daemon's side.
            gate.let(LAYER_BYTES + LAYER_BYTES // 16)
            assert getting.wait_layers(number, 60)
            seen.append(getting.layers_done)
            check_landed(getting, into, logical)
            if number < LAYERS // 2:
                assert not getting.done
                assert not into[LAYERS - 1].any(), "the last layer is the last to come"
        assert seen == sorted(seen)
        assert seen[0] == 1
        gate.let(1 << 40)
        assert getting.result().blocks == BLOCKS
        assert getting.layers_done == LAYERS
    np.testing.assert_array_equal(into, logical)


@pytest.mark.parametrize(
    ("heads", "layers", "grid"),
    [
        (range(1, 2), None, Grid()),  # a rank's head of a cell of four: ranges of parts
        (range(1, 3), range(2, 5), Grid()),
        (range(4), None, Grid(heads=2)),  # two sections of one batch
        (range(4), None, Grid(layers=3)),  # cells that come side by side
        (range(4), None, Grid(heads=4, layers=6)),  # more sections than one batch has
    ],
)
def test_parts_of_cells_and_many_cells_are_counted_by_layer(
    stored: Stored, gate: Gate, heads: range, layers: range | None, grid: Grid
) -> None:
    tier, logical = stored(grid=grid)
    own = layers or range(LAYERS)
    wanted = logical[own.start : own.stop, :, :, heads.start : heads.stop]
    into = cache_of(None, len(own), len(heads))
    with tier.memory([list(layer) for layer in into], heads=heads, layers=layers) as memory:
        gate.shut()
        getting = tier.prefix_of(KEYS).begin_get(memory)
        assert getting.layers == tuple(own)
        seen = [0]
        while not getting.done:
            gate.let(LAYER_BYTES // 4)
            getting.wait_layers(len(own), 0.01)
            seen.append(getting.layers_done)
            check_landed(getting, into, wanted)
        assert getting.result().blocks == BLOCKS
    assert seen == sorted(seen)
    assert seen[-1] == len(own)
    np.testing.assert_array_equal(into, wanted)


def test_kinds_are_counted_together_by_the_models_numbers(stored: Stored, gate: Gate) -> None:
    """Windows bring fewer blocks, and layers of both kinds alternate."""
    even = Kind("full", (0, 2, 4), HEADS, FULL.planes)
    odd = Kind("sliding", (1, 3, 5), HEADS, FULL.planes, window=2 * TOKENS)
    tier, logical = stored(even, odd)
    into = cache_of(None)
    with tier.memory({kind.name: [list(into[layer]) for layer in kind.layers] for kind in (even, odd)}) as memory:
        gate.shut()
        getting = tier.prefix_of(KEYS).begin_get(memory)
        assert getting.layers == tuple(range(LAYERS))
        while not getting.done:
            gate.let(LAYER_BYTES // 4)
            getting.wait_layers(LAYERS, 0.01)
            for layer in range(getting.layers_done):
                first = BLOCKS - 2 if layer % 2 else 0
                np.testing.assert_array_equal(into[layer, :, first:], logical[layer, :, first:])
        assert getting.result().blocks == BLOCKS
    assert not into[1::2, :, : BLOCKS - 2].any()


def test_a_block_that_is_lost_holds_up_no_layer_and_ends_the_prefix(stored: Stored, client: halfstep.Client) -> None:
    tier, logical = stored()
    assert client.delete(KEYS[2:3], layout=tier.layout.layout).ok.all()
    into = cache_of(None)
    with tier.memory([list(layer) for layer in into]) as memory:
        getting = tier.prefix_of(KEYS).begin_get(memory)
        assert getting.wait_layers(LAYERS, 60)
        assert getting.result().blocks == 2
    np.testing.assert_array_equal(into[:, :, :2], logical[:, :, :2])


def test_one_waits_for_layers_while_another_thread_takes_all_events(stored: Stored) -> None:
    tier, logical = stored()
    into = cache_of(None)
    over = threading.Event()

    def take() -> None:
        while not over.is_set():
            tier.poll()

    taker = threading.Thread(target=take)
    taker.start()
    try:
        with tier.memory([list(layer) for layer in into]) as memory:
            for _ in range(20):
                getting = tier.prefix_of(KEYS).begin_get(memory)
                for count in range(1, LAYERS + 1):
                    assert getting.wait_layers(count, 60)
                assert getting.result().blocks == BLOCKS
    finally:
        over.set()
        taker.join()
    np.testing.assert_array_equal(into, logical)


def test_key_by_key_a_layer_is_there_with_the_last_key(stored: Stored, gate: Gate) -> None:
    tier, logical = stored()
    into = cache_of(None)
    with tier.memory([list(layer) for layer in into]) as memory:
        gate.shut()
        getting = tier.prefix_of(KEYS).begin_get(memory, order="key")
        gate.let(LAYER_BYTES * (LAYERS - 1))
        assert not getting.wait_layers(1, 0.2)
        gate.let(1 << 40)
        assert getting.wait_layers(LAYERS, 60)
        assert getting.done
    np.testing.assert_array_equal(into, logical)


def test_a_get_of_nothing_and_one_without_a_daemon_are_over(stored: Stored, nobody: str) -> None:
    tier, _ = stored()
    with tier.memory([list(layer) for layer in cache_of(None)]) as memory:
        nothing = tier.prefix_of(KEYS).begin_get(memory, blocks=0)
        assert nothing.wait_layers(LAYERS, 60)
        for wrong in (-1, LAYERS + 1, 1.5):
            with pytest.raises(ConfigError, match="count="):
                nothing.wait_layers(wrong)  # type: ignore[arg-type]
    for mode in ("on", "off"):
        with halfstep.connect(nobody, mode=mode, deadline_ms=100) as client:
            alone = client.tier(tier.layout)
            with alone.memory([list(layer) for layer in cache_of(None)]) as memory:
                getting = alone.prefix_of(KEYS).begin_get(memory)
                assert getting.wait_layers(LAYERS, 60), "it ends by its deadline"
                assert getting.result().blocks == 0


def test_who_waits_for_layers_alone_learns_that_the_get_is_over(stored: Stored) -> None:
    """The end is told after the last layer's bytes: a wait for layers that have landed has to hear of it, too."""
    tier, logical = stored()
    into = cache_of(None)
    with tier.memory([list(layer) for layer in into]) as memory:
        for _ in range(200):
            getting = tier.prefix_of(KEYS).begin_get(memory)
            until = time.monotonic() + PATIENT["deadline_ms"] / 1000
            while not getting.done:
                getting.wait_layers(0)
                assert time.monotonic() < until
    np.testing.assert_array_equal(into, logical)
