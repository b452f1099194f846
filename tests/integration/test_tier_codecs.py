"""One word in a connector's settings: blocks are stored coded, come back exactly, and are nobody else's."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from tests.integration.commands import PATIENT, wait_until
from tests.integration.test_paged import Asking, Engine, keys

import halfstep
from halfstep.client.entries import stocks_of
from halfstep.connectors.lmcache import HalfstepClient
from halfstep.layout import OPAQUE_PART_BYTES, Group, Layout
from halfstep.tier import Grid, Kind, KVLayout, codecs_of, coding_of, connect, values_of

pytestmark = pytest.mark.integration

ROWS, ROW_BYTES = 12, 300_000


def floats(shape: tuple[int, ...], dtype: str, seed: int) -> Any:
    """Bits of values as a cache has them. dtype: bfloat16, float16, fp8_e4m3 or fp8_e5m2."""
    drawn = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    if dtype == "bfloat16":
        return (drawn.view(np.uint32) >> 16).astype(np.uint16)
    half = drawn.astype(np.float16).view(np.uint16)
    if dtype == "float16":
        return half
    if dtype == "fp8_e5m2":
        return (half >> 8).astype(np.uint8)
    # Of the half's exponent the bias is 15, of e4m3's 7; what is below its smallest exponent is zero here.
    exponent = (half >> 10 & 31).astype(np.int32) - 8
    bits = (half >> 8 & 128).astype(np.int32) | np.clip(exponent, 0, 15) << 3 | (half >> 7 & 7)
    return np.where(exponent > 0, bits, half >> 8 & 128).astype(np.uint8)


def _placed(client: halfstep.Client) -> bool:
    used = sum(space.used_bytes for space in client.admin.namespaces())
    return used == sum(stock.flash_bytes for stock in stocks_of(client.stat()))


class Held(NamedTuple):
    """What the store holds, as it is stored."""

    blocks: float
    bytes: float

    @classmethod
    def now(cls, client: halfstep.Client) -> Held:
        """As the daemon says."""
        said = client.stat()
        return cls(said["halfstep_store_blocks"], said["halfstep_store_bytes_live"])

    @classmethod
    def at_rest(cls, client: halfstep.Client) -> Held:
        """Once no block of an earlier test waits for its place."""
        wait_until(lambda: _placed(client), "blocks have their places in the store")
        return cls.now(client)

    def bytes_of_more(self, client: halfstep.Client, blocks: int) -> float:
        """Bytes of that many blocks that came since; a put is answered before its blocks have their place in the store."""
        wait_until(lambda: Held.now(client).blocks >= self.blocks + blocks, f"{blocks} blocks in the store")
        return Held.now(client).bytes - self.bytes


@pytest.fixture(scope="module")
def another() -> Iterator[Callable[..., None]]:
    """another(function, *arguments): calls it in a process that shares nothing with this one."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        yield lambda function, *arguments: pool.submit(function, *arguments).result(120)


def row_layout(name: str, dtype: str, codec: str) -> Layout:
    """As vLLM's secondary tier makes one."""
    return Layout(coding_of(codec, [values_of(dtype)]) | {"name": name, "dtype": dtype}, [Group(0, (OPAQUE_PART_BYTES,))])


def rows_of(dtype: str) -> npt.NDArray[np.uint8]:
    itemsize = 1 if dtype.startswith("fp8") else 2
    made: npt.NDArray[np.uint8] = floats((ROWS, ROW_BYTES // itemsize), dtype, 5).view(np.uint8)
    return made


ROW_KEYS = [b"row %d" % number for number in range(ROWS)]


def put_rows(url: str, dtype: str, name: str) -> None:
    with (
        connect(url, codecs=codecs_of("bfx"), coding="always", **PATIENT) as client,
        client.values(row_layout(name, dtype, "bfx")) as values,
        values.rows(rows_of(dtype), ROW_BYTES) as rows,
    ):
        assert values.put(ROW_KEYS, rows).ok.all()


def cell_layout(name: str, dtype: str, codec: str) -> KVLayout:
    """As vLLM's KV connector makes one: the cache's dtype is that of its values, torch's own is uint8 for fp8."""
    itemsize = 1 if dtype.startswith("fp8") else 2
    kind = Kind("full-64", (0, 1, 2, 3), 2, (64 * itemsize,), dtype=dtype)
    torch_dtype = "uint8" if dtype.startswith("fp8") else dtype
    return KVLayout(name, "1", torch_dtype, 256, (kind,), Grid(layers=2), codec=codec)


def cells_of(dtype: str) -> Any:
    """[layer, block, head, token, value]: a cell's block of fp8 is 16 pages, of which the codec saves two."""
    return floats((4, 8, 2, 256, 64), dtype, 6)


PREFIX = [b"block %d" % number for number in range(8)]


def put_cells(url: str, dtype: str, name: str) -> None:
    layout = cell_layout(name, dtype, "bfx")
    with (
        connect(url, codecs=codecs_of("bfx"), coding="always", **PATIENT) as client,
        client.tier(layout) as tier,
        tier.memory([[layer] for layer in cells_of(dtype)]) as memory,
    ):
        assert tier.prefix_of(PREFIX).put(memory).stored == 2 * 8


DTYPES = ["bfloat16", "float16", "fp8_e4m3", "fp8_e5m2"]


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """Of a model that no other test has."""
    return f"{request.node.name} {os.getpid()}"


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_an_engine_come_back_to_another_process_from_fewer_bytes(
    daemon: Any, name: str, another: Callable[..., None], dtype: str
) -> None:
    logical = rows_of(dtype)
    with halfstep.connect(daemon.url, codecs=("bfx",), coding="always", required=True, **PATIENT) as client:
        before = Held.at_rest(client)
        another(put_rows, daemon.unix_url, dtype, name)
        stored = before.bytes_of_more(client, ROWS)
        assert 0 < stored < 0.97 * logical.nbytes, (dtype, stored / logical.nbytes)
        into = np.zeros_like(logical)
        received = client.facts().bytes_received
        with client.values(row_layout(name, dtype, "bfx")) as values, values.rows(into, ROW_BYTES) as rows:
            assert values.match(ROW_KEYS).prefix == ROWS
            moved = values.get(ROW_KEYS, rows)
        assert moved.ok.all()
        assert moved.bytes == logical.nbytes, "what was moved is counted as it is in memory"
        assert client.facts().bytes_received - received < 0.97 * logical.nbytes
        assert client.facts().decode_failures == 0
    np.testing.assert_array_equal(into, logical)
    with connect(daemon.unix_url, **PATIENT) as plain, plain.values(row_layout(name, dtype, "")) as values:
        assert not values.match(ROW_KEYS).there.any(), "without the word there are other blocks"
    with halfstep.connect(daemon.unix_url, layout=row_layout(name, dtype, "bfx"), required=True, **PATIENT) as plain:
        assert not plain.match(ROW_KEYS).present.any(), "nor does who cannot decode them see them under their own name"
        assert not plain.get(ROW_KEYS, np.zeros_like(logical)).ok.any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_cells_of_layers_and_heads_come_back_to_another_process_from_fewer_bytes(
    daemon: Any, name: str, another: Callable[..., None], dtype: str
) -> None:
    logical = cells_of(dtype)
    layout = cell_layout(name, dtype, "bfx")
    assert layout.layout.fields["codec.0"].endswith("/64")
    with halfstep.connect(daemon.url, codecs=("bfx",), coding="always", required=True, **PATIENT) as client:
        before = Held.at_rest(client)
        another(put_cells, daemon.unix_url, dtype, name)
        stored = before.bytes_of_more(client, 2 * 8)
        assert 0 < stored < 0.97 * logical.nbytes, (dtype, stored / logical.nbytes)
        tier = client.tier(layout)
        prefix = tier.prefix_of(PREFIX)
        assert prefix.match().blocks == 8
        into = np.zeros_like(logical)
        with tier.memory([[layer] for layer in into]) as memory:
            loaded = prefix.get(memory, order="layer")
        assert (loaded.blocks, loaded.bytes) == (8, logical.nbytes)
        np.testing.assert_array_equal(into, logical)
        # A rank of two reads its head of blocks that one rank has written.
        half = np.zeros_like(logical[:, :, :1])
        with tier.memory([[layer] for layer in half], heads=range(1, 2)) as memory:
            assert prefix.get(memory).blocks == 8
        np.testing.assert_array_equal(half, logical[:, :, 1:])
    with connect(daemon.unix_url, **PATIENT) as plain, plain.tier(cell_layout(name, dtype, "")) as tier:
        assert tier.prefix_of(PREFIX).match().blocks == 0, "without the word there are other blocks"


def test_an_engine_with_paged_memory_loads_coded_blocks_as_they_were(daemon: Any, name: str) -> None:
    kind = Kind("full", (0, 1, 2, 3), 2, (16,))
    plain, coded = (KVLayout(name, "1", "bfloat16", 16, (kind,), Grid(layers=4), codec=codec) for codec in ("", "bfx"))
    with halfstep.connect(daemon.unix_url, codecs=("bfx",), coding="always", required=True, **PATIENT) as client:
        cold, warm, other = Engine(client, coded), Engine(client, coded), Engine(client, plain)
        prompt = Asking(keys(5))
        cold.compute("a", prompt, [3, 1, 4, 20, 5], seed=1)
        cold.until_idle()
        again = Asking(keys(5) + keys(1, "other"))
        assert other.ask("b", again) == 0
        assert warm.ask("b", again) == 5
        warm.admit("b", again, [9, 2, 6, 7, 11, 12], 5)
        warm.step({})
        assert warm.until_idle() == (set(), {"b"}, set())
        assert (warm.memory[:, [9, 2, 6, 7, 11]] == cold.memory[:, [3, 1, 4, 20, 5]]).all()
        for engine in (cold, warm, other):
            engine.close()


@pytest.mark.parametrize("dtype", ["bfloat16", "fp8_e4m3"])
def test_objects_of_lmcache_whose_values_nobody_names_are_coded_by_looking(daemon: Any, name: str, dtype: str) -> None:
    objects = [bytearray(row.tobytes()) for row in rows_of(dtype)]
    names = [f"model@1@0@{number:064x}" for number in range(len(objects))]

    def run(client: HalfstepClient, submit: Callable[..., int], *arguments: Any) -> list[bool]:
        number = submit(*arguments)
        while True:
            assert select.select([client.event_fd()], [], [], 60)[0], "nothing became readable"
            for told, _, _, each in client.drain_completions():
                assert told == number
                return each

    def opened(codec: str) -> HalfstepClient:
        return HalfstepClient(daemon.unix_url, name, codec=codec, **PATIENT)

    with halfstep.connect(daemon.url, required=True, **PATIENT) as looking:
        before = Held.at_rest(looking)
        writer = opened("bfx")
        assert all(run(writer, writer.submit_batch_set, names, [memoryview(one) for one in objects]))
        writer.close()
        stored = before.bytes_of_more(looking, len(objects))
    assert 0 < stored < 0.97 * sum(map(len, objects)), stored / sum(map(len, objects))
    reader, other = opened("bfx"), opened("")
    into = [bytearray(len(one)) for one in objects]
    assert all(run(reader, reader.submit_batch_get, names, [memoryview(one) for one in into]))
    assert into == objects
    assert not any(run(other, other.submit_batch_exists, names))
    reader.close()
    other.close()
    with pytest.raises(halfstep.ConfigError, match="codec='lz4': must be 'bfx'"):
        opened("lz4")


def test_values_that_gain_nothing_are_stored_as_they_are(daemon: Any, name: str) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (4, ROW_BYTES), np.uint8)
    with halfstep.connect(daemon.url, codecs=("bfx",), coding="always", required=True, **PATIENT) as client:
        values = client.values(row_layout(name, "bfloat16", "bfx"))
        into = np.zeros_like(noise)
        with values.rows(noise, ROW_BYTES) as rows:
            assert values.put(ROW_KEYS[:4], rows).ok.all()
        with values.rows(into, ROW_BYTES) as rows:
            assert values.get(ROW_KEYS[:4], rows).ok.all()
    np.testing.assert_array_equal(into, noise)
