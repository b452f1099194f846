"""The real vLLM engine on the CPU, its tiered offloading, and the tier under it: tokens as without it, whatever dies."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.connectors.conftest import Engine, interpreter
from tests.connectors.flash import flip
from tests.connectors.outages import HURRIED, Outages, nothing_held_nor_long, requests_of, warnings_of
from tests.connectors.overhead import PATIENT, Overhead
from tests.connectors.relay import Relay
from tests.connectors.salts import LORA, SEEING, seen_apart, told_apart

import halfstep
from halfstep.connectors.shared_memory import SUFFIX

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1800)]

Prompts = Callable[..., list[list[int]]]
Start = Callable[..., Engine]
Reference = Callable[[list[int]], list[int]]
# Of prompts of 305, 340 and 441 tokens, in blocks of 128.
WHOLE_BLOCKS = [256, 256, 384]


@pytest.fixture
def start(tmp_path: Path, models: Path) -> Start:
    """start(url, **of the tier): an engine; url None = without a tier. engine: more arguments of vLLM's. env: variables."""

    def begin(
        url: str | None,
        model: str = "qwen3",
        engine: dict[str, Any] | None = None,
        env: dict[str, str] | None = None,
        **options: Any,
    ) -> Engine:
        if not (models / model).exists():
            pytest.skip(f"{models / model} is not there; `make connectors` makes it")
        tier = {"type": "HalfstepTier", "module_path": "halfstep.connectors.vllm", "url": url, **PATIENT, **options}
        said = json.dumps([] if url is None else [tier]), json.dumps(engine or {})
        return Engine(tmp_path / "engine.log", "vllm_engine", str(models / model), *said, engine="vllm", env=env)

    return begin


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Iterator[Reference]:
    """reference(prompt): tokens of an engine without a tier that computes all of it."""
    log = tmp_path_factory.mktemp("reference") / "engine.log"
    known: dict[tuple[int, ...], list[int]] = {}
    engine: list[Engine] = []

    def tokens(prompt: list[int]) -> list[int]:
        if tuple(prompt) not in known:
            if not engine:
                engine.append(Engine(log, "vllm_engine", str(models / "qwen3"), "[]", engine="vllm"))
            engine[0].reset()
            known[tuple(prompt)] = engine[0].generate(prompt)["tokens"]
        return known[tuple(prompt)]

    yield tokens
    for one in engine:
        one.end()


@pytest.mark.short
def test_a_new_process_restores_what_another_stored_and_a_killed_daemon_changes_no_token(
    start: Start, daemon: Any, prompts: Prompts, reference: Reference
) -> None:
    asked = prompts(7)
    with start(daemon.unix_url) as cold:
        first = [cold.generate(prompt) for prompt in asked]
        cold.reset()  # waits for the stores
    with start(daemon.unix_url) as warm:
        second = [warm.generate(prompt) for prompt in asked]
        assert warnings_of(warm) == 0
        outages_of(warm, daemon, reference).killed(asked[:2])
        assert warnings_of(warm) == 1
    expected = [reference(prompt) for prompt in asked]
    assert [one["tokens"] for one in first] == expected
    assert [one["tokens"] for one in second] == expected
    assert [one["cached"] for one in second] == WHOLE_BLOCKS
    assert second[-1]["counts"]["loads"] == 3, "two shared blocks, one of the longest prompt"
    assert second[-1]["counts"]["loads_failed"] == 0


def test_with_one_word_blocks_are_stored_coded_and_come_back_exactly(
    start: Start, daemon: Any, prompts: Prompts, reference: Reference
) -> None:
    prompt = prompts(34, (5,))[0]
    with halfstep.connect(daemon.unix_url, required=True, deadline_ms=30_000) as looking:
        before = looking.stat()["halfstep_store_bytes_live"]
        with start(daemon.unix_url, codec="bfx", coding="always") as cold:
            assert cold.generate(prompt)["tokens"] == reference(prompt)
            cold.reset()  # waits for the stores
            fields = cold.layout_fields
            assert (fields["codec"], fields["codec.0"]) == ("bfx", "bf16")
            with client_of(daemon, cold) as plain:
                keys = [entry.key for entry in plain.list() if entry.layout_id == plain.layout.id]
                assert len(keys) == 2
                assert not plain.match(keys).present.any(), "who does not know the codec misses them"
        stored = looking.stat()["halfstep_store_bytes_live"] - before
    assert 0 < stored < 0.9 * 2 * int(fields["row_bytes"])
    with start(daemon.unix_url, codec="bfx") as warm:
        told = warm.generate(prompt)
    assert (told["tokens"], told["cached"]) == (reference(prompt), 256)
    assert (told["counts"]["loads"], told["counts"]["loads_failed"]) == (2, 0)


def test_latents_come_back_in_a_new_process(start: Start, daemon: Any, prompts: Prompts, tmp_path: Path, models: Path) -> None:
    """MLA. Judged token by token, each after the same ones: that backend rounds otherwise in prefills of other lengths."""
    prompt, other = prompts(18, (5,))[0], prompts(19, (5,))[0]
    with start(daemon.unix_url, "dsv3") as cold:
        first = cold.generate(prompt)
        cold.reset()  # waits for the stores
    with start(daemon.unix_url, "dsv3") as warm:
        second = warm.generate(prompt)
    assert (first["cached"], second["cached"], second["counts"]["loads"], second["counts"]["loads_failed"]) == (0, 304, 19, 0)
    with Engine(tmp_path / "plain.log", "vllm_direct", str(models / "dsv3"), "{}", engine="vllm") as plain:
        agreed = [plain.agreement(prompt, told["tokens"]) for told in (first, second)]
        assert min(agreed) > 0.8, agreed
        assert plain.agreement(other, second["tokens"]) < 0.2, "another prompt's answer"


def client_of(daemon: Any, engine: Engine) -> halfstep.Client:
    """One that sees the engine's blocks."""
    layout = halfstep.Layout(engine.layout_fields, [halfstep.Group(0, (256 * 1024,))])
    return halfstep.connect(daemon.unix_url, layout=layout, required=True, deadline_ms=30_000, match_deadline_ms=30_000)


def test_layers_that_are_swapped_change_the_tokens(start: Start, daemon: Any, prompts: Prompts, reference: Reference) -> None:
    """That the checks here can fail: the bytes of a prefix are what its tokens come from.

    Whole blocks that change places would not show: keys are turned to their positions, and attention sums over all of them.
    """
    prompt = prompts(11, (5,))[0]
    with start(daemon.unix_url) as engine:
        with client_of(daemon, engine) as client:
            before = {entry.key for entry in client.list()}
            assert engine.generate(prompt)["tokens"] == reference(prompt)
            engine.reset()  # waits for the stores
            keys = [entry.key for entry in client.list() if entry.key not in before]
            assert len(keys) == 2
            blocks = np.zeros((2, int(engine.layout_fields["row_bytes"])), np.uint8)
            assert client.get(keys, blocks).ok.all()
            assert client.delete(keys).ok.all()
            layers = blocks.reshape(2, 4, -1)[:, ::-1]
            assert client.put(keys, layers.reshape(2, -1).copy()).ok.all()
        told = engine.generate(prompt)
    assert told["cached"] == 256
    assert told["tokens"] != reference(prompt)


def outages_of(engine: Engine, daemon: Any, reference: Reference) -> Outages:
    """Of prompts of two whole blocks."""
    return Outages(engine, daemon, reference, lambda told: int(told["cached"]), 256)


def test_a_daemon_that_stops_and_goes_on_changes_no_token(
    start: Start, daemon: Any, prompts: Prompts, reference: Reference
) -> None:
    prompt = prompts(12, (5,))[0]
    with start(daemon.unix_url, **HURRIED) as engine:
        outages = outages_of(engine, daemon, reference)
        assert engine.generate(prompt)["tokens"] == reference(prompt)
        outages.restored(prompt)
        outages.stopped(prompt)
        assert warnings_of(engine) == 1
        nothing_held_nor_long(engine.generate(prompt)["counts"])


# Of them no instance has a lock; who reaches the daemon goes through halfstep.tier.channel and halfstep.client.
HOOKS = {"halfstep.connectors.vllm", "halfstep.connectors.jobs", "halfstep.tier.lookups", "halfstep.tier.counts"}


def test_an_empty_tier_costs_one_match_a_request_and_decoding_nothing(start: Start, daemon: Any, prompts: Prompts) -> None:
    with start(daemon.unix_url) as engine, client_of(daemon, engine) as client:
        cost = Overhead.of(engine, client, prompts, "counts")
    assert (cost.asked.pop("match"), cost.asked.keys()) == (1, {"put"}), "the puts are of the two rows that it has filled"
    assert cost.cold["keys_hit"] == 0
    assert cost.in_steps(HOOKS) < 20
    assert 0 < cost.decoding["call_ns_max"] <= cost.decoding["call_ns"]


def test_an_engine_starts_without_a_daemon_and_finds_it_later(
    start: Start, daemon: Any, prompts: Prompts, reference: Reference
) -> None:
    prompt = prompts(13, (5,))[0]
    daemon.stop()
    with start(daemon.unix_url) as engine:
        assert engine.generate(prompt)["tokens"] == reference(prompt)
        daemon.start()
        outages_of(engine, daemon, reference).restored(prompt)


def test_a_slow_way_to_the_daemon_costs_misses_by_the_deadline(
    start: Start, daemon: Any, prompts: Prompts, reference: Reference
) -> None:
    prompt = prompts(14, (5,))[0]
    with start(daemon.unix_url) as engine:
        assert engine.generate(prompt)["tokens"] == reference(prompt)
        engine.reset()  # waits for the stores
    # Two rows are half a megabyte: half a second.
    with Relay(*daemon.address, 1_000_000) as relay, start(relay.url, deadline_ms=200) as engine:
        told = engine.generate(prompt)
        assert told["tokens"] == reference(prompt)
        assert told["counts"]["loads_failed"] > 0
        assert warnings_of(engine) == 1
        nothing_held_nor_long(told["counts"])
    with Relay(*daemon.address, 1_000_000) as relay, start(relay.url) as engine:
        told = engine.generate(prompt)
        assert (told["tokens"], told["cached"]) == (reference(prompt), 256)


def test_a_flipped_byte_on_flash_is_computed(start: Start, daemon: Any, prompts: Prompts, reference: Reference) -> None:
    prompt = prompts(15, (5,))[0]
    with start(daemon.unix_url) as engine:
        with client_of(daemon, engine) as client:
            before = {entry.key for entry in client.list()}
            assert engine.generate(prompt)["tokens"] == reference(prompt)
            engine.reset()
            key = next(entry.key for entry in client.list() if entry.key not in before)
            block = np.zeros((1, int(engine.layout_fields["row_bytes"])), np.uint8)
            assert client.get([key], block).ok.all()
        assert daemon.end(signal.SIGTERM) == 0
        flip(daemon.store, block.tobytes()[:4096])
        daemon.start()
        engine.reset()
        told = engine.generate(prompt)
        assert told["tokens"] == reference(prompt)
        assert told["cached"] < 256


def test_other_weights_have_other_blocks(start: Start, daemon: Any, prompts: Prompts) -> None:
    prompt = prompts(16, (5,))[0]
    with start(daemon.unix_url, weights_revision="one") as engine:
        engine.generate(prompt)
    with start(daemon.unix_url, weights_revision="two") as engine:
        assert engine.generate(prompt)["cached"] == 0


def test_adapters_and_tenants_have_blocks_of_their_own(start: Start, daemon: Any, prompts: Prompts, models: Path) -> None:
    told_apart(lambda: start(daemon.unix_url, engine=LORA), models, prompts(44, (5,))[0])


def test_images_have_blocks_of_their_own(start: Start, daemon: Any, prompts: Prompts) -> None:
    seen_apart(lambda: start(daemon.unix_url, "llava", engine=SEEING), prompts(47, (5,))[0])


def test_in_the_shadow_it_looks_up_and_stores_and_answers_that_nothing_is_there(
    start: Start, daemon: Any, prompts: Prompts, reference: Reference
) -> None:
    stored, new = prompts(45, (5,))[0], prompts(46, (5,))[0]
    with start(daemon.unix_url) as engine:
        assert engine.generate(stored)["tokens"] == reference(stored)
        engine.reset()
    with start(daemon.unix_url, env={"HALFSTEP_MODE": "shadow"}) as engine, client_of(daemon, engine) as client:
        before, blocks = requests_of(client), len(list(client.list()))
        for prompt in (stored, new):
            told = engine.generate(prompt)
            assert (told["tokens"], told["cached"]) == (reference(prompt), 0)
        engine.reset()
        asked = requests_of(client) - before
        assert (asked["match"], asked["get"], len(list(client.list())) - blocks) == (2, 0, 2)
        assert warnings_of(engine) == 0
    with start(daemon.unix_url) as engine:
        assert engine.generate(new)["cached"] == 256


def test_the_next_engine_sweeps_what_killed_ones_leave_in_shared_memory(
    start: Start, daemon: Any, prompts: Prompts, reference: Reference
) -> None:
    """Twenty are killed, two at a time; each pair sweeps what the one before it has left."""
    prompt = prompts(17, (5,))[0]
    memory = Path("/dev/shm")
    rows: set[str] = set()
    for _ in range(10):
        pair = [start(daemon.unix_url) for _ in range(2)]
        for engine in pair:
            assert (memory / engine.rows).stat().st_size >= 1 << 20, "it has rows"
            rows.add(engine.rows)
            engine.kill()
    with start(daemon.unix_url) as engine:
        assert engine.generate(prompt)["tokens"] == reference(prompt)
        rows.add(engine.rows)
    assert len(rows) == 21
    assert not [path.name for path in memory.iterdir() if path.name.removesuffix(SUFFIX) in rows]


NEWER = """
import abc
import vllm
from vllm.v1.kv_offload.tiering.base import SecondaryTierManager

if {more}:
    SecondaryTierManager.teleport = abc.abstractmethod(lambda self: None)
    abc.update_abstractmethods(SecondaryTierManager)
vllm.__version__ = "0.99.1"
from halfstep.connectors import vllm as ours
from halfstep.errors import ConfigError

try:
    ours.HalfstepTier(None, memoryview(bytes(4096)), "HalfstepTier", url="halfstep://127.0.0.1")
except ConfigError as error:
    print("refused:", error)
except AttributeError:
    print("tried")  # there is no specification here
for wrong in ({{}}, {{"url": "halfstep://127.0.0.1", "hold": 1}}):
    try:
        ours.HalfstepTier(None, memoryview(bytes(4096)), "HalfstepTier", **wrong)
    except ConfigError as error:
        print(error)
"""


@pytest.mark.parametrize(
    ("more", "told"), [(True, "refused: vLLM 0.99.1: a secondary tier has to have teleport"), (False, "tried")]
)
def test_another_vllm_is_refused_for_what_is_missing_and_else_tried(models: Path, more: bool, told: str) -> None:
    ran = subprocess.run([interpreter("vllm"), "-c", NEWER.format(more=more)], capture_output=True, text=True, timeout=300)
    assert told in ran.stdout, ran.stderr[-2000:]
    if not more:
        assert '"url" is missing in its entry in secondary_tiers' in ran.stdout
        assert "hold: unknown in its entry in secondary_tiers; did you mean hold_ms? there are codec, " in ran.stdout
    assert ("vLLM 0.99.1 is not one that this was made for" in ran.stderr) == (not more)
