"""The semantic face: prefixes of tokens into the memory of ranks, whatever wrote them."""

from __future__ import annotations

import logging
import re
import select
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import halfstep
from halfstep import ConfigError
from halfstep.client import PARENT_UNKNOWN
from halfstep.tier import Answer, Grid, Kind, KVLayout, Memory, Notices, Tier, connect
from halfstep.tier.face import MEASURED_LAST, MEASURED_TOKENS_MIN

pytestmark = pytest.mark.integration

BLOCK_TOKENS, VALUES, LAYERS, HEADS = 16, 8, 4, 8
FULL = Kind("full", tuple(range(LAYERS)), HEADS, (2 * VALUES, 2 * VALUES))
LATENT = Kind("latent", tuple(range(LAYERS)), 1, (2 * VALUES,))
TOKENS = np.arange(6 * BLOCK_TOKENS + 5) * 7 % 1000


def layout_of(request: pytest.FixtureRequest, *kinds: Kind, **fields: Any) -> KVLayout:
    named = {"model": request.node.name, "weights_revision": "1", "dtype": "bfloat16", "block_tokens": BLOCK_TOKENS}
    return KVLayout(kinds=kinds, **named | fields)


def cache_of(blocks: int, heads: int = HEADS, *, layers: int = LAYERS, planes: int = 2, seed: int | None = None) -> Any:
    """[layer, plane, block, head, token, value] of an engine that keeps heads before tokens; zeros without a seed."""
    shape = (layers, planes, blocks, heads, BLOCK_TOKENS, VALUES)
    return np.zeros(shape, np.uint16) if seed is None else np.random.default_rng(seed).integers(0, 1 << 16, shape, np.uint16)


def planes_of(cache: Any) -> list[list[Any]]:
    return [list(layer) for layer in cache]


@pytest.fixture
def tiers(client: halfstep.Client) -> Iterator[list[Tier]]:
    made: list[Tier] = []
    yield made
    for tier in made:
        tier.close()


def test_a_prompt_comes_back_as_it_was_stored(client: halfstep.Client, request: pytest.FixtureRequest) -> None:
    tier = client.tier(layout_of(request, FULL))
    prefix = tier.prefix(TOKENS)
    assert (prefix.blocks, prefix.tokens) == (6, 96), "the five tokens of a partial block have no key"
    saved, into = cache_of(6, seed=1), cache_of(9)
    with tier.memory(planes_of(saved)) as memory:
        stored = prefix.put(memory)
        assert (stored.stored, stored.present, stored.refused, stored.reason) == (6, 0, 0, "")
        assert stored.bytes == saved.nbytes
        again = prefix.put(memory)
        assert (again.stored, again.present) == (0, 6)
    longer = tier.prefix(np.append(TOKENS[:80], np.arange(64)))
    found = longer.match()
    assert (found.blocks, found.tokens, found.reason) == (5, 80, "")
    with tier.memory(planes_of(into)) as memory:
        rows = np.array([8, 0, 3, 1, 5])
        loaded = longer.get(memory, blocks=found.blocks, rows=rows)
        assert (loaded.blocks, loaded.tokens, loaded.reason) == (5, 80, "")
        assert loaded.bytes == 5 * saved.nbytes // 6
        assert (into[:, :, rows] == saved[:, :, :5]).all()
        assert not into[:, :, [2, 4, 6, 7]].any()
        further = longer.get(memory)
        assert (further.blocks, further.reason) == (5, "miss (absent)")
    assert client.tier(tier.layout, salt=b"another tenant").prefix(TOKENS).match().blocks == 0


def test_tokens_before_heads_and_tensors_of_all_layers_are_the_same_blocks(
    client: halfstep.Client, request: pytest.FixtureRequest
) -> None:
    tier = client.tier(layout_of(request, FULL))
    prefix = tier.prefix(TOKENS)
    saved = cache_of(6, seed=2)
    # As a pool of pages that keeps [block, plane, token, head, value] of each layer.
    pool = np.ascontiguousarray(saved.transpose(0, 2, 1, 4, 3, 5))
    with tier.memory(planes_of(pool.transpose(0, 2, 1, 4, 3, 5))) as memory:
        assert prefix.put(memory).stored == 6
    into = cache_of(6)
    with tier.memory(planes_of(into)) as memory:
        assert prefix.get(memory, order="key").blocks == 6
    assert (into == saved).all()


def test_what_two_ranks_wrote_one_and_four_read(client: halfstep.Client, request: pytest.FixtureRequest) -> None:
    layout = layout_of(request, FULL, LATENT, grid=Grid(heads=4))
    tier = client.tier(layout)
    prefix = tier.prefix(TOKENS)
    saved, latent = cache_of(6, seed=3), cache_of(6, 1, planes=1, seed=4)

    def rank(cache: Any, of_latent: Any, heads: range) -> Memory:
        mine = cache[:, :, :, heads.start : heads.stop]
        return tier.memory({"full": planes_of(mine), "latent": planes_of(of_latent)}, heads=heads)

    for number in range(2):
        with rank(saved, latent, range(4 * number, 4 * number + 4)) as memory:
            told = prefix.put(memory)
            assert told.stored + told.present == 6 * 3
            assert told.stored == 6 * (3 if number == 0 else 2), "the second rank's latent is there already"
        assert prefix.match().blocks == (0, 6)[number], "half of the heads are no prefix"
    entries = [entry for entry in client.list() if entry.layout_id == layout.layout.id]
    assert len(entries) == 6 * (4 + 1), "a latent is stored once"
    for ranks in (1, 2, 4, 8):
        each = HEADS // ranks
        for number in range(ranks):
            heads = range(number * each, (number + 1) * each)
            into, into_latent = cache_of(6, each), cache_of(6, 1, planes=1)
            with tier.memory({"full": planes_of(into), "latent": planes_of(into_latent)}, heads=heads) as memory:
                loaded = prefix.get(memory)
                assert loaded.blocks == 6, (ranks, loaded)
                assert loaded.bytes == into.nbytes + into_latent.nbytes
                assert (into == saved[:, :, :, heads.start : heads.stop]).all()
                assert (into_latent == latent).all()


def test_a_rank_with_half_a_cell_reads_and_writes_nothing(client: halfstep.Client, request: pytest.FixtureRequest) -> None:
    tier = client.tier(layout_of(request, FULL, grid=Grid(heads=2)))
    prefix = tier.prefix(TOKENS)
    with tier.memory(planes_of(cache_of(6, 2, seed=5)), heads=range(2, 4)) as memory:
        told = prefix.put(memory)
        assert (told.stored, told.present, told.refused, told.unowned) == (0, 0, 0, 6)
    assert prefix.match().blocks == 0


def test_stages_of_a_pipeline_write_their_layers(client: halfstep.Client, request: pytest.FixtureRequest) -> None:
    tier = client.tier(layout_of(request, FULL, grid=Grid(layers=2)))
    prefix = tier.prefix(TOKENS)
    saved = cache_of(6, seed=6)
    for layers in (range(2), range(2, 4)):
        with tier.memory(planes_of(saved[layers.start : layers.stop]), layers=layers) as memory:
            assert prefix.put(memory).stored == 6
    for layers in (range(4), range(1, 3), range(3, 4)):
        into = cache_of(6, layers=len(layers))
        with tier.memory(planes_of(into), layers=layers) as memory:
            assert prefix.get(memory).blocks == 6
        assert (into == saved[layers.start : layers.stop]).all()


def test_planes_of_different_sizes_and_one_head_of_several(client: halfstep.Client, request: pytest.FixtureRequest) -> None:
    kind = Kind("uneven", (0, 1, 2), 3, (2 * 12, 2 * 8))
    tier = client.tier(layout_of(request, kind))
    prefix = tier.prefix(TOKENS)
    rng = np.random.default_rng(7)
    k, v = (rng.integers(0, 1 << 16, (3, 6, 3, BLOCK_TOKENS, size), np.uint16) for size in (12, 8))
    with tier.memory([[k[layer], v[layer]] for layer in range(3)]) as memory:
        assert prefix.put(memory).stored == 6
    for heads in (range(3), range(1, 2), range(1, 3)):
        some = slice(heads.start, heads.stop)
        into = [np.zeros_like(k[:, :, some]), np.zeros_like(v[:, :, some])]
        with tier.memory([[into[0][layer], into[1][layer]] for layer in range(3)], heads=heads) as memory:
            loaded = prefix.get(memory)
            assert loaded.blocks == 6
            assert loaded.bytes == into[0].nbytes + into[1].nbytes
        assert (into[0] == k[:, :, some]).all()
        assert (into[1] == v[:, :, some]).all()


def test_a_window_needs_its_last_blocks_alone(client: halfstep.Client, request: pytest.FixtureRequest) -> None:
    window = Kind("window", (1, 3), HEADS, (2 * VALUES, 2 * VALUES), window=20)
    full = Kind("full", (0, 2), HEADS, (2 * VALUES, 2 * VALUES))
    layout = layout_of(request, full, window)
    tier = client.tier(layout)
    prefix = tier.prefix(TOKENS)
    saved = {"full": cache_of(6, layers=2, seed=8), "window": cache_of(6, layers=2, seed=9)}
    with tier.memory({name: planes_of(cache) for name, cache in saved.items()}) as memory:
        assert prefix.put(memory).stored == 12
    # 20 tokens lie in the last two blocks.
    client.delete(prefix.keys[:3], layout=layout.layout, first_component=layout.cells("window")[0].component)
    assert prefix.match().blocks == 6
    client.delete(prefix.keys[4:5], layout=layout.layout, first_component=layout.cells("window")[0].component)
    assert prefix.match().blocks == 0, "blocks 5 and 4 each want the one before, and that of 3 wants 2"
    into = {name: cache_of(6, layers=2) for name in saved}
    client.put(
        prefix.keys[4:5],
        np.zeros(layout.cells("window")[0].block_bytes, np.uint8),
        layout=layout.layout,
        first_component=layout.cells("window")[0].component,
    )
    with tier.memory({name: planes_of(cache) for name, cache in into.items()}) as memory:
        assert prefix.get(memory).blocks == 6
    assert (into["full"] == saved["full"]).all()
    assert not into["window"][:, :, :4].any()
    assert (into["window"][:, :, 5] == saved["window"][:, :, 5]).all()


def test_a_block_lost_after_the_match_leaves_no_window_that_was_not_read(
    client: halfstep.Client, request: pytest.FixtureRequest
) -> None:
    window = Kind("window", (1, 3), HEADS, (2 * VALUES, 2 * VALUES), window=20)
    layout = layout_of(request, Kind("full", (0, 2), HEADS, (2 * VALUES, 2 * VALUES)), window)
    tier = client.tier(layout)
    prefix = tier.prefix(TOKENS)
    planes = {name: planes_of(cache_of(6, layers=2, seed=11)) for name in ("full", "window")}
    with tier.memory(planes) as memory:
        assert prefix.put(memory).stored == 12
    assert prefix.match().blocks == 6
    client.delete(prefix.keys[4:5], layout=layout.layout)
    with tier.memory({name: planes_of(cache_of(6, layers=2)) for name in planes}) as memory:
        assert prefix.get(memory, blocks=6).blocks == 0, "of the window only the last two blocks were read"
        assert prefix.get(memory, blocks=prefix.match().blocks).blocks == 4


def test_the_page_runs_as_printed(daemon: Any, repository: Path, run_script: Callable[..., Any]) -> None:
    page = (repository / "docs" / "tier.md").read_text()
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    assert "client.tier(" in code
    assert "client.values(" in code
    assert code.count('connect("halfstep://127.0.0.1:7350/default"') == 2
    patient = f'connect("{daemon.url}", deadline_ms=60_000, match_deadline_ms=60_000'
    done = run_script(code.replace('connect("halfstep://127.0.0.1:7350/default"', patient))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_blocks_of_memory_that_are_not_there_are_refused_where_heads_come_first(
    client: halfstep.Client, request: pytest.FixtureRequest
) -> None:
    """Beyond the last block of a head lies the next head: within the memory, and somebody else's bytes."""
    layout = layout_of(request, FULL, grid=Grid(heads=8))
    tier = client.tier(layout)
    prefix = tier.prefix(TOKENS)
    heads_first = np.random.default_rng(13).integers(0, 1 << 16, (LAYERS, 2, HEADS, 6, BLOCK_TOKENS, VALUES), np.uint16)
    with tier.memory(planes_of(heads_first.transpose(0, 1, 3, 2, 4, 5))) as memory:
        for rows in ([-1], [6]):
            for move in (prefix.put, prefix.get):
                with pytest.raises(ConfigError, match="this memory has the blocks 0 to 5"):
                    move(memory, blocks=1, rows=rows)
        with pytest.raises(ConfigError, match="named twice"):
            prefix.get(memory, rows=[0, 1, 2, 3, 4, 4])
        with pytest.raises(ConfigError, match="this memory has the blocks 0 to 5"):
            tier.prefix(np.arange(7 * BLOCK_TOKENS)).put(memory)
    assert prefix.match().blocks == 0, "nothing was stored, of no cell"
    other = client.tier(layout_of(request, FULL))
    with other.memory(planes_of(cache_of(6))) as memory:
        for move in (prefix.put, prefix.get):
            with pytest.raises(ConfigError, match="is of layout"):
                move(memory)


def test_what_is_dropped_while_it_is_put_is_deleted(client: halfstep.Client, request: pytest.FixtureRequest) -> None:
    tier = client.tier(layout_of(request, FULL))
    prefix = tier.prefix(TOKENS)
    with tier.memory(planes_of(cache_of(6, seed=14))) as memory:
        session = tier.session()
        putting = prefix.begin_put(memory, session=session)
        session.end("dropped")
        assert putting.result().stored == 6
    assert prefix.match().blocks == 0


def test_a_hold_reaches_as_far_as_a_match(client: halfstep.Client, request: pytest.FixtureRequest) -> None:
    tier = client.tier(layout_of(request, Kind("window", (0,), HEADS, (2 * VALUES, 2 * VALUES), window=20)))
    with tier.session() as session:
        assert tier.prefix(TOKENS).hold(session) == 0


@pytest.mark.parametrize("how", ["reusable", "final", "dropped"])
def test_a_session_holds_and_says_what_its_blocks_become(
    client: halfstep.Client, request: pytest.FixtureRequest, how: Any
) -> None:
    tier = client.tier(layout_of(request, FULL))
    shared, all_of_it = tier.prefix(TOKENS[:48]), tier.prefix(TOKENS)
    saved = cache_of(6, seed=10)
    with tier.memory(planes_of(saved)) as memory:
        assert shared.put(memory).stored == 3
        session = tier.session(urgency=2)
        assert all_of_it.put(memory, session=session).stored == 3
        assert all_of_it.hold(session) == 6
        assert client.stat()['halfstep_store_holds{kind="lease"}'] >= 6
        held = client.stat()['halfstep_store_holds{kind="lease"}']
        session.end(how)
        session.end("dropped")  # the first word counts
        assert client.stat()['halfstep_store_holds{kind="lease"}'] <= held - 6
    assert all_of_it.match().blocks == (3 if how == "dropped" else 6), "what was there before is not this session's to drop"


def test_what_is_begun_is_only_handed_over(daemon: Any, request: pytest.FixtureRequest) -> None:
    with halfstep.connect(daemon.url, required=True, deadline_ms=600_000, match_deadline_ms=600_000) as client:
        tier = client.tier(layout_of(request, FULL, grid=Grid(heads=8)))
        prefix = tier.prefix(TOKENS)
        with tier.memory(planes_of(cache_of(6))) as memory:
            daemon.pause()
            begun = prefix.begin_match(), prefix.begin_get(memory), prefix.begin_put(memory)
            assert not any(pending.done for pending in begun), "the daemon stands still, and nobody waited for it"
            daemon.resume()
            assert begun[2].result().stored == 6 * 8


def test_a_dead_daemon_is_an_answer(request: pytest.FixtureRequest) -> None:
    with halfstep.connect("halfstep://127.0.0.1:1", deadline_ms=200, match_deadline_ms=50) as client:
        tier = client.tier(layout_of(request, FULL, grid=Grid(heads=8)))
        prefix = tier.prefix(TOKENS)
        into = cache_of(6)
        with tier.memory(planes_of(into)) as memory:
            asked, read, written = prefix.begin_match(), prefix.begin_get(memory), prefix.begin_put(memory)
            assert asked.result().blocks == 0
            assert asked.result().reason.startswith(("late", "unavailable"))
            assert read.result().blocks == 0
            assert written.result().refused == 6 * 8
            assert written.done
        assert not into.any()


def test_empty_prefixes_and_wrong_arguments(client: halfstep.Client, request: pytest.FixtureRequest) -> None:
    layout = layout_of(request, FULL)
    tier = client.tier(layout)
    empty = tier.prefix(TOKENS[:15])
    cache = cache_of(6)
    with tier.memory(planes_of(cache)) as memory:
        assert empty.match().blocks == empty.get(memory).blocks == empty.put(memory).stored == 0
        prefix = tier.prefix(TOKENS)
        for wrong, said in (({"blocks": 7}, "blocks=7: must be 0 to 6"), ({"rows": [0]}, r"rows: shape \(1,\)")):
            with pytest.raises(ConfigError, match=said):
                prefix.get(memory, **wrong)
        with pytest.raises(ConfigError, match="row"):
            prefix.get(memory, rows=np.arange(6) + 1)
    with pytest.raises(ConfigError, match="closed"):
        prefix.get(memory)
    for of in ({"durability": "x"}, {"priority": 256}, {"salt": "text"}):
        with pytest.raises(ConfigError):
            client.tier(layout, **of)  # type: ignore[arg-type]
    for call in (
        lambda: prefix.get(None),  # type: ignore[arg-type]
        lambda: prefix.get(memory, session=3),
        lambda: prefix.hold(tier.session(), blocks=1.5),  # type: ignore[arg-type]
        lambda: tier.session().hold(None),  # type: ignore[arg-type]
        lambda: tier.prefix_of(None),  # type: ignore[arg-type]
        lambda: tier.memory(None),  # type: ignore[arg-type]
        lambda: tier.memory([1, 2, 3, 4]),  # type: ignore[list-item]
        lambda: tier.memory(planes_of(cache), layers=2),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigError):
            call()
    for planes, options, said in (
        (planes_of(cache)[:3], {}, "planes of 3 layers; this process has 4"),
        ([layer[:1] for layer in planes_of(cache)], {}, "layer 0 has 1 planes; must be 2"),
        (planes_of(cache), {"heads": range(4)}, r"shape \(6, 8, 16, 8\) of 2-byte values; must be \[blocks, heads=4"),
        (planes_of(cache), {"heads": range(4, 12)}, r"heads=range\(4, 12\)"),
        (planes_of(cache[..., ::-1]), {}, "may run backwards"),
        ([[b"no array"] * 2] * 4, {}, "must be a numpy array or a tensor"),
        (planes_of(np.broadcast_to(cache[:, :, :1], cache.shape)), {}, "overlap"),
        ([[layer[0], layer[0]] for layer in cache], {}, "two of its planes are the same memory"),
        (planes_of(cache.astype(object)), {}, "has values of object"),
        (planes_of(cache.astype(np.float32)), {}, "values of float32; the layout's are of bfloat16"),
        ({"other": []}, {}, "planes of 0 layers"),
        ([], {"layers": range(9, 10)}, "this layout has none of them"),
    ):
        with pytest.raises(ConfigError, match=said):
            tier.memory(planes, **options)
    with pytest.raises(ConfigError, match="KVLayout"):
        client.tier(client.layout)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="how='kept'"):
        tier.session().end("kept")  # type: ignore[arg-type]
    read_only = cache_of(6)
    read_only.flags.writeable = False
    with tier.memory(planes_of(read_only)) as memory, pytest.raises(ConfigError, match="read-only"):
        prefix.get(memory)


def test_a_latent_that_another_rank_is_writing_counts_as_there(client: halfstep.Client, request: pytest.FixtureRequest) -> None:
    kind = Kind("latent", (0,), 1, (1 << 15,))
    tier = client.tier(layout_of(request, kind))
    prefix = tier.prefix(TOKENS)
    planes = [[np.random.default_rng(12).integers(0, 256, (6, BLOCK_TOKENS, 1 << 15), np.uint8)]]
    with tier.memory(planes) as memory:
        told = [put.result() for put in [prefix.begin_put(memory) for _ in range(8)]]
    assert sum(one.stored for one in told) == 6
    assert [one.stored + one.present for one in told] == [6] * 8
    assert {(one.refused, one.reason) for one in told} == {(0, "")}


def test_a_prefix_may_begin_in_the_midst_of_a_sequence(
    client: halfstep.Client, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine has the first blocks itself, and names those that follow."""
    tier = client.tier(layout_of(request, FULL))
    keys = tier.prefix(TOKENS).keys
    saved = cache_of(6, seed=20)
    said: list[Any] = []
    put = tier.queue.put_sections
    monkeypatch.setattr(tier.queue, "put_sections", lambda some, **options: said.extend(some) or put(some, **options))
    with tier.memory(planes_of(saved)) as memory:
        stored = tier.prefix_of(keys[2:], first=2).put(memory, rows=[2, 3, 4, 5])
        assert (stored.stored, stored.refused, stored.why) == (4, 0, Answer.OK)
        (section,) = said
        assert section.depths.tolist() == [2, 3, 4, 5]
        assert section.parents.tolist() == [PARENT_UNKNOWN, 0, 1, 2], "who is before the first is not said"
        assert tier.prefix(TOKENS).match().blocks == 0
        later = tier.prefix_of(keys[3:], first=3)
        assert later.match().blocks == 3
        assert later.get(memory, rows=[0, 1, 2], priority=3).blocks == 3
    assert (saved[:, :, :3] == saved[:, :, 3:]).all()


def test_a_block_is_put_layer_cell_by_layer_cell(client: halfstep.Client, request: pytest.FixtureRequest) -> None:
    tier = client.tier(layout_of(request, FULL, grid=Grid(layers=2)))
    prefix = tier.prefix(TOKENS)
    saved = cache_of(6, seed=21)
    with tier.memory(planes_of(saved)) as memory:
        assert prefix.put(memory, layers=range(2)).stored == 6
        assert prefix.match().blocks == 0, "half of the layers are no block"
        with pytest.raises(ConfigError, match="cuts a cell of kind 'full', which has the layers 2 to 3"):
            prefix.put(memory, layers=range(3))
        with pytest.raises(ConfigError, match="range of the model's layers"):
            prefix.put(memory, layers=2)
        assert prefix.put(memory, layers=range(4, 9)).stored == 0
        assert prefix.put(memory, layers=range(2, 4), priority=1).stored == 6
    into = cache_of(6)
    with tier.memory(planes_of(into)) as memory:
        assert prefix.get(memory).blocks == 6
    assert (into == saved).all()


def test_why_is_said_to_programs_and_failures_once_to_people(
    client: halfstep.Client, request: pytest.FixtureRequest, nobody: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "halfstep.connectors")
    layout = layout_of(request, FULL)
    cache = cache_of(6)
    tier = client.tier(layout, notices=Notices("alive"))
    with tier.memory(planes_of(cache)) as memory:
        found, loaded = tier.prefix(TOKENS).match(), tier.prefix(TOKENS).get(memory)
        assert (found.why, found.reason) == (Answer.OK, "")
        assert (loaded.why, loaded.blocks, loaded.reason) == (Answer.MISS, 0, "miss (absent)")
    assert not caplog.records, "what is absent is no failure"
    connection = connect(nobody, deadline_ms=200, match_deadline_ms=50)
    tier = connection.tier(layout, notices=Notices("dead"))
    with tier.memory(planes_of(cache)) as memory:
        prefix = tier.prefix(TOKENS)
        told = prefix.match(), prefix.get(memory), prefix.put(memory)
    assert {one.why for one in told} <= {Answer.LATE, Answer.UNAVAILABLE}
    tier.close()
    connection.close()
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["dead"]


def test_a_get_may_take_as_long_as_computing_would(
    client: halfstep.Client, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = client.tier(layout_of(request, FULL))
    said: list[float | None] = []
    get = tier.queue.get_sections

    def noting(sections: Any, *, deadline_ms: float | None, **options: Any) -> Any:
        said.append(deadline_ms)
        return get(sections, deadline_ms=deadline_ms, **options)

    monkeypatch.setattr(tier.queue, "get_sections", noting)
    prefix = tier.prefix(TOKENS)  # of 96 tokens
    with tier.memory(planes_of(cache_of(6))) as memory:
        prefix.get(memory)
        tier.computed(100, 1000)
        prefix.get(memory)
        assert said == [None, None], "the first one compiles"
        tier.computed(100, 50)  # half a second a token
        prefix.get(memory)
        prefix.get(memory, blocks=1)
        prefix.get(memory, deadline_ms=10_000)
        client_ms = client.deadline_ms
        assert client_ms == 30_000
        assert said[2:] == [48_000, client_ms, 10_000], "never less than the client's"
        tier.computed(MEASURED_TOKENS_MIN - 1, 0.001)
        tier.computed(MEASURED_TOKENS_MIN, 64_000)
        prefix.get(memory)
        assert said[5:] == [48_000], "neither a few tokens nor a step that took long"
        for _ in range(MEASURED_LAST - 2):
            tier.computed(100, 100)
        prefix.get(memory)
        tier.computed(100, 100)
        prefix.get(memory)
        assert said[6:] == [48_000, 60_000], "of the last ones, and never for ever"
        tier.computed(1000, 100)
        prefix.get(memory)
        assert said[8:] == [client_ms], "an engine that is quick again is so at once"


@pytest.mark.parametrize("what", ["get", "put"])
def test_an_interruption_leaves_once_no_byte_can_land(
    what: str, client: halfstep.Client, daemon: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = client.tier(layout_of(request, FULL))
    waited: list[Any] = []
    wait_for = tier.queue.wait_for

    def interrupted(ticket: Any, timeout_s: float | None = None) -> bool:
        waited.append(ticket)
        if len(waited) == 1:
            raise KeyboardInterrupt
        return wait_for(ticket, timeout_s)

    monkeypatch.setattr(tier.queue, "wait_for", interrupted)
    daemon.pause()
    with tier.memory(planes_of(cache_of(6))) as memory:
        with pytest.raises(KeyboardInterrupt):
            getattr(tier.prefix(TOKENS), what)(memory)
        assert waited[0].done


def test_what_has_ended_is_learnt_by_polling(client: halfstep.Client, request: pytest.FixtureRequest) -> None:
    tier = client.tier(layout_of(request, FULL))
    asked = [tier.prefix(TOKENS).begin_match() for _ in range(3)]
    descriptor = tier.fileno()
    while not all(one.done for one in asked):
        assert select.select([descriptor], [], [], 30)[0], "nothing became readable"
        tier.poll()
    assert [one.result() for one in asked] == [one.result() for one in asked], "a result is made once"
