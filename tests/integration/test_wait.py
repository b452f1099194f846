"""Matches and gets that wait for blocks which another process is still storing."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests.wire import gets, puts
from tests.wire.layouts import Layout
from tests.wire.requests import LAYER_MAJOR, WAIT, Batch, Section
from tests.wire.session import FEATURE_WAIT, Session

import halfstep
from halfstep.tier import Grid, Kind, KVLayout

pytestmark = pytest.mark.integration

Blocks = Callable[..., npt.NDArray[np.uint8]]
BLOCK_BYTES = 64 << 10
# Bounds a hang: what is waited for comes, or the test fails.
PATIENCE_MS = 120_000
DEFAULT = Layout({"name": "default"})

# Stores blocks one by one, each when a line comes; every byte of block i is i + 1.
PREFILL = """
import sys
import numpy as np
import halfstep

url, block_bytes = sys.argv[1], int(sys.argv[2])
with halfstep.connect(url, required=True, deadline_ms=60_000) as client:
    for number, line in enumerate(sys.stdin):
        # A connection that died in the middle of this block may not be gone yet: throttled (pending) until then.
        while not client.put([line.strip().encode()], np.full(block_bytes, number + 1, np.uint8)).ok.all():
            pass
        print("stored", flush=True)
"""


# A prefill host: stores the layers of all blocks, as many at once as a cell has, each cell when a line comes.
LAYER_PREFILL = """
import sys
import numpy as np
import halfstep
from tests.integration.test_wait import LAYERED, BLOCKS, cache_of, tokens_of

with halfstep.connect(sys.argv[1], required=True, deadline_ms=60_000) as client:
    tier = client.tier(LAYERED)
    with tier.memory([list(layer) for layer in cache_of(int(sys.argv[2]))]) as memory:
        prefix = tier.prefix(tokens_of(int(sys.argv[2])))
        for line in sys.stdin:
            first, last = map(int, line.split())
            assert prefix.put(memory, layers=range(first, last)).refused == 0
            print("stored", flush=True)
"""
LAYERS, CELLS, BLOCKS, BLOCK_TOKENS = 6, 3, 5, 16
LAYERED = KVLayout(
    "waits",
    "1",
    "bfloat16",
    BLOCK_TOKENS,
    (Kind("full", tuple(range(LAYERS)), 2, (64, 64)),),
    grid=Grid(layers=CELLS),
)


def cache_of(seed: int | None) -> Any:
    """Of each layer K and V."""
    shape = (LAYERS, 2, BLOCKS, 2, BLOCK_TOKENS, 32)
    return np.zeros(shape, np.uint16) if seed is None else np.random.default_rng(seed).integers(0, 1 << 16, shape, np.uint16)


def tokens_of(seed: int) -> Any:
    """A prompt of so many full blocks."""
    return np.arange(BLOCKS * BLOCK_TOKENS) + 100_000 * seed


class Prefill:
    """A process of its own that stores blocks."""

    def __init__(self, url: str) -> None:
        command = [sys.executable, "-c", PREFILL, url, str(BLOCK_BYTES)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def store(self, key: bytes) -> None:
        """Returns when it is stored."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(key.decode() + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "stored\n"

    def kill(self) -> None:
        """As the out-of-memory killer does."""
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def prefill(daemon: Any) -> Any:
    process = Prefill(daemon.url)
    yield process
    process.kill()


def names(request: pytest.FixtureRequest, count: int) -> list[bytes]:
    return [f"{request.node.name} {number}".encode() for number in range(count)]


def counter(client: halfstep.Client, name: str) -> int:
    return int(client.stat()[name])


def wait_until_awaited(client: halfstep.Client, count: int) -> None:
    """Until so many blocks are waited for."""
    end = time.monotonic() + PATIENCE_MS / 1000
    while counter(client, "halfstep_blocks_awaited") < count:
        assert time.monotonic() < end, "nobody waits"
        time.sleep(0.02)


@pytest.fixture(params=["tcp", "shm"])
def decode(request: pytest.FixtureRequest, daemon: Any) -> Any:
    url = daemon.url if request.param == "tcp" else daemon.unix_url
    with halfstep.connect(url, required=True, deadline_ms=PATIENCE_MS, match_deadline_ms=PATIENCE_MS) as client:
        yield client


@pytest.fixture
def waiting(daemon: Any) -> Any:
    """One of these, for what lasts a deadline, and is the daemon's to say."""
    with halfstep.connect(daemon.unix_url, required=True, deadline_ms=PATIENCE_MS, match_deadline_ms=PATIENCE_MS) as client:
        yield client


def test_a_get_that_asks_first_gets_every_block_with_one_request(
    request: pytest.FixtureRequest, decode: halfstep.Client, prefill: Prefill
) -> None:
    keys = names(request, 8)
    asked = counter(decode, 'halfstep_requests_total{command="get"}')
    target = np.zeros((len(keys), BLOCK_BYTES), np.uint8)
    with decode.queue() as queue:
        ticket = queue.get(keys, target, wait=True, progress=True)
        wait_until_awaited(decode, len(keys))
        for number, key in enumerate(keys):
            prefill.store(key)
            # What is stored comes now, and not when all is there.
            end = time.monotonic() + PATIENCE_MS / 1000
            while not (target[number] == number + 1).all():
                assert time.monotonic() < end, "stored, and not delivered"
                time.sleep(0.005)
        result = ticket.result()
    assert result.ok.all()
    assert (target == np.arange(1, len(keys) + 1, dtype=np.uint8)[:, None]).all()
    assert counter(decode, 'halfstep_requests_total{command="get"}') - asked == 1
    assert counter(decode, "halfstep_blocks_awaited") == 0
    assert decode.facts().not_waited == 0


def test_a_match_waits_for_the_whole_prefix(request: pytest.FixtureRequest, decode: halfstep.Client, prefill: Prefill) -> None:
    keys = names(request, 4)
    asked = counter(decode, 'halfstep_requests_total{command="match"}')
    with decode.queue() as queue:
        ticket = queue.match(keys, wait=True, lengths=True)
        for key in keys:
            wait_until_awaited(decode, 1)
            assert not ticket.done
            prefill.store(key)
        result = ticket.result()
    assert result.present.all()
    assert result.lengths is not None
    assert result.lengths.tolist() == [BLOCK_BYTES] * len(keys)
    assert counter(decode, 'halfstep_requests_total{command="match"}') - asked == 1


def test_explain_names_who_waits(
    request: pytest.FixtureRequest, daemon: Any, decode: halfstep.Client, prefill: Prefill
) -> None:
    key = names(request, 1)[0]
    target = np.zeros((10, BLOCK_BYTES), np.uint8)
    command = [sys.executable, "-m", "halfstep.tools.cli", "explain", key.decode(), "--url", daemon.url]
    with decode.queue() as queue:
        tickets: list[Any] = [queue.get([key], row, wait=True) for row in target[1:]]
        tickets.append(queue.match([key], wait=True))
        wait_until_awaited(decode, len(tickets))
        (block,) = decode.admin.explain(key)["awaited"]
        assert (block["waiting"], len(block["waiters"])) == (10, 8)
        assert {waiter["command"] for waiter in block["waiters"]} <= {"get", "match"}
        for waiter in block["waiters"]:
            assert waiter["waited_ms"] + waiter["ends_in_ms"] <= PATIENCE_MS
            assert waiter["ends_in_ms"] > 0
        assert decode.admin.explain(key, [range(1, 2)])["awaited"] == [], "nobody waits for another component"
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1, "nobody has stored it"
        text = " ".join(done.stdout.split())
        assert "never seen" in text
        assert "awaited by" in text
        assert "2 more" in text
        prefill.store(key)
        assert [ticket.result().prefix for ticket in tickets] == [1] * len(tickets)
    assert decode.admin.explain(key)["awaited"] == []


def test_blocks_of_a_prefill_that_was_killed_are_misses_at_the_deadline(
    request: pytest.FixtureRequest, waiting: halfstep.Client, prefill: Prefill
) -> None:
    first, *keys = names(request, 5)
    prefill.store(first)  # it runs: the deadline is for what comes now
    target = np.zeros((len(keys), BLOCK_BYTES), np.uint8)
    with waiting.queue() as queue:
        got = queue.get(keys, target, wait=True, deadline_ms=8_000)
        matched = queue.match(keys, wait=True, deadline_ms=8_000)
        prefill.store(keys[0])
        prefill.store(keys[1])
        prefill.kill()
        result = got.result()
        assert result.ok.tolist() == [True, True, False, False], result.answers
        assert (target[:2] == np.array([[2], [3]], np.uint8)).all()
        assert not matched.result().present[2:].any()


def test_a_put_that_dies_halfway_ends_no_wait(request: pytest.FixtureRequest, daemon: Any, prefill: Prefill) -> None:
    """Another one may store the block."""
    key = names(request, 1)[0]
    target = np.zeros(BLOCK_BYTES, np.uint8)
    section = Section(DEFAULT, [key])
    with halfstep.connect(daemon.url, deadline_ms=PATIENCE_MS) as client, client.queue() as queue:
        ticket = queue.get([key], target, wait=True)
        wait_until_awaited(client, 1)
        half = Session(daemon.stream("tcp"))
        put = puts.begin(half, [section], [[puts.plain(section, bytes(BLOCK_BYTES))]])
        assert put.take(half.frame_of(put.request_id)) == [(0, 0)], "its memory is granted"
        half.close()
        assert not ticket.done
        prefill.store(key)
        assert ticket.result().ok.all()
    assert (target == 1).all()


def test_a_client_written_from_the_page_waits(
    request: pytest.FixtureRequest, daemon: Any, wire: Callable[..., Session], prefill: Prefill
) -> None:
    keys = names(request, 3)
    session = wire()
    assert session.server.features & FEATURE_WAIT
    section = Section(DEFAULT, keys)
    get = gets.begin(session, [section], Batch(order=LAYER_MAJOR, flags=WAIT))
    with halfstep.connect(daemon.url, required=True, deadline_ms=PATIENCE_MS) as client:
        wait_until_awaited(client, len(keys))
    for key in keys:
        prefill.store(key)
    assert get.finish().blocks() == [bytes([number + 1]) * BLOCK_BYTES for number in range(len(keys))]
    assert gets.match(session, [section], Batch(flags=WAIT)).present == [[True] * len(keys)]
    more = Section(DEFAULT, [*keys, b"nobody stores this"])
    soon = Batch(deadline_us=50_000, flags=WAIT)
    assert gets.match(session, [more], soon).present == [[True] * len(keys) + [False]]
    # On a machine that stands still the bytes may be late; what is not there is absent all the same.
    assert str(gets.get(session, [more], soon).statuses[0][-1]) == "miss(absent)"


@pytest.fixture
def layer_prefill(daemon: Any) -> Iterator[Callable[[int], subprocess.Popen[str]]]:
    """layer_prefill(seed): a prefill process of that prompt."""
    started: list[subprocess.Popen[str]] = []

    def start(seed: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", LAYER_PREFILL, daemon.url, str(seed)]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def store_layers(process: subprocess.Popen[str], first: int, last: int) -> None:
    """Returns when they are stored."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{first} {last}\n")
    process.stdin.flush()
    assert process.stdout.readline() == "stored\n"


def test_a_decode_host_that_asks_first_gets_layer_after_layer_before_a_block_is_whole(
    decode: halfstep.Client, layer_prefill: Callable[[int], subprocess.Popen[str]], request: pytest.FixtureRequest
) -> None:
    seed = 1 if "tcp" in request.node.name else 2  # a prompt that nobody has stored
    sent, back = cache_of(seed), cache_of(None)
    prefill = layer_prefill(seed)
    asked = counter(decode, 'halfstep_requests_total{command="get"}')
    with decode.tier(LAYERED) as tier, tier.memory([list(layer) for layer in back]) as memory:
        loading = tier.prefix(tokens_of(seed)).begin_get(memory, wait=True, deadline_ms=PATIENCE_MS)
        wait_until_awaited(decode, CELLS * BLOCKS)
        each = LAYERS // CELLS
        for cell in range(CELLS):
            assert not loading.wait_layers(cell * each + 1, timeout_s=0.05), "a layer that nobody has stored"
            store_layers(prefill, cell * each, (cell + 1) * each)
            assert loading.wait_layers((cell + 1) * each, timeout_s=PATIENCE_MS / 1000)
            assert (back[: (cell + 1) * each] == sent[: (cell + 1) * each]).all(), (
                "the first layers, before the last are stored"
            )
            assert loading.done == (cell + 1 == CELLS)
        assert loading.result().blocks == BLOCKS
    assert counter(decode, 'halfstep_requests_total{command="get"}') - asked == CELLS, (
        "one request a cell, and none asked again"
    )


def test_layers_of_a_prefill_host_that_was_killed_midway_are_misses_at_the_deadline(
    waiting: halfstep.Client, layer_prefill: Callable[[int], subprocess.Popen[str]]
) -> None:
    seed = 3
    sent, back = cache_of(seed), cache_of(None)
    prefill = layer_prefill(seed)
    each = LAYERS // CELLS
    with waiting.tier(LAYERED) as tier, tier.memory([list(layer) for layer in back]) as memory:
        store_layers(prefill, 0, each)  # it runs: the deadline is for what comes now
        loading = tier.prefix(tokens_of(seed)).begin_get(memory, wait=True, deadline_ms=4_000)
        prefill.kill()
        loaded = loading.result()
        assert loaded.blocks == 0
        assert loaded.reason in ("miss (absent)", "late (deadline)"), "the answer may come late on a busy machine"
        assert (back[:each] == sent[:each]).all()
        assert not back[each:].any()
    assert counter(waiting, "halfstep_blocks_awaited") == 0
