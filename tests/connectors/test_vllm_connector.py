"""The real vLLM engine on the CPU and its KV connector without a host tier: tokens as without it, whatever dies."""

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

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1800)]

Prompts = Callable[..., list[list[int]]]
Start = Callable[..., Engine]
# Of prompts of 305, 340 and 441 tokens, in blocks of 128.
WHOLE_BLOCKS = [256, 256, 384]
# Of a block: 4 layers of 2 heads.
PARTS, PART_BYTES = 8, 128 * 64 * 2 * 2


@pytest.fixture
def start(tmp_path: Path, models: Path) -> Start:
    """start(url, **of the connector): an engine. engine: more arguments of vLLM's. env: variables."""

    def begin(
        url: str,
        model: str = "qwen3",
        engine: dict[str, Any] | None = None,
        env: dict[str, str] | None = None,
        **options: Any,
    ) -> Engine:
        folder = models / model
        if not folder.exists():
            pytest.skip(f"{folder} is not there; `make connectors` makes it")
        said = json.dumps({"url": url, **PATIENT, **options}), json.dumps(engine or {})
        return Engine(tmp_path / "engine.log", "vllm_direct", str(folder), *said, engine="vllm", env=env)

    return begin


class Reference:
    """An engine without a connector, which computes everything. It starts when it is needed."""

    def __init__(self, log: Path, model: Path) -> None:
        self._log, self._model = log, model
        self._known: dict[tuple[int, ...], list[int]] = {}
        self._engine: Engine | None = None

    @property
    def engine(self) -> Engine:
        if self._engine is None:
            self._engine = Engine(self._log, "vllm_direct", str(self._model), "{}", engine="vllm")
        self._engine.reset()
        return self._engine

    def __call__(self, prompt: list[int]) -> list[int]:
        """Its tokens."""
        asked = tuple(prompt)
        if asked not in self._known:
            self._known[asked] = self.engine.generate(prompt)["tokens"]
        return self._known[asked]

    def end(self) -> None:
        if self._engine is not None:
            self._engine.end()


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Iterator[Reference]:
    """reference(prompt): tokens of an engine without a connector that computes all of it."""
    made = Reference(tmp_path_factory.mktemp("reference") / "engine.log", models / "qwen3")
    yield made
    made.end()


def client_of(daemon: Any, engine: Engine) -> halfstep.Client:
    """One that sees the engine's blocks."""
    layout = halfstep.Layout(engine.layout_fields, [halfstep.Group(PARTS, (PART_BYTES,))])
    return halfstep.connect(daemon.unix_url, layout=layout, required=True, deadline_ms=30_000, match_deadline_ms=30_000)


def test_a_new_process_restores_what_another_stored(start: Start, daemon: Any, prompts: Prompts, reference: Reference) -> None:
    asked = prompts(7)
    with start(daemon.unix_url) as cold:
        first = [cold.generate(prompt) for prompt in asked]
        cold.reset()
    with start(daemon.unix_url) as warm:
        second = [warm.generate(prompt) for prompt in asked]
        warm.reset()
        at_once = warm.generate_all(asked[:2])
    expected = [reference(prompt) for prompt in asked]
    assert [one["tokens"] for one in first] == expected
    assert [one["tokens"] for one in second] == expected
    assert [one["cached"] for one in second] == WHOLE_BLOCKS
    assert first[-1]["worker"]["stores"] == second[-1]["worker"]["loads"] == 3, "two shared blocks, one of the longest prompt"
    assert second[-1]["worker"]["loads_failed"] == second[-1]["worker"]["stores"] == 0
    assert second[-1]["scheduler"]["matches"] == 2, "the second prompt's blocks are in the engine"
    assert [one["tokens"] for one in at_once["answers"]] == expected[:2], "two requests load the prefix that they share"
    assert [one["cached"] for one in at_once["answers"]] == [256, 256]


def test_with_one_word_blocks_are_stored_coded_and_come_back_exactly(start: Start, daemon: Any, prompts: Prompts) -> None:
    """Judged by the bytes of the engine's blocks and by its own tokens."""
    prompt = prompts(35, (5,))[0]
    with halfstep.connect(daemon.unix_url, required=True, deadline_ms=30_000) as looking:
        before = looking.stat()["halfstep_store_bytes_live"]
        with start(daemon.unix_url, codec="bfx", coding="always") as cold:
            assert cold.layout_fields["codec.0"] == "bf16/128"
            first = cold.generate(prompt)
            computed = cold.digests()
            cold.reset()  # waits for the stores
        stored = looking.stat()["halfstep_store_bytes_live"] - before
    assert 0 < stored < 0.95 * 2 * PARTS * PART_BYTES
    with start(daemon.unix_url, codec="bfx") as warm:
        second = warm.generate(prompt)
        restored = warm.digests()
    assert (first["cached"], second["cached"], second["tokens"]) == (0, 256, first["tokens"])
    assert (second["worker"]["loads"], second["worker"]["loads_failed"]) == (2, 0)
    assert len(restored) == 2
    assert restored == computed


def test_a_reset_of_the_connector_finds_nothing_of_before(
    start: Start, daemon: Any, prompts: Prompts, reference: Reference
) -> None:
    """As after new weights, of which the layout knows nothing."""
    prompt = prompts(19, (5,))[0]
    with start(daemon.unix_url) as engine:
        assert engine.generate(prompt)["tokens"] == reference(prompt)
        engine.reset()
        assert engine.generate(prompt)["cached"] == 256
        engine.reset(connector=True)
        told = engine.generate(prompt)
        assert (told["tokens"], told["cached"]) == (reference(prompt), 0)
        engine.reset()
        told = engine.generate(prompt)
        assert (told["tokens"], told["cached"]) == (reference(prompt), 256), "what it has stored since"


def test_bytes_on_flash_are_what_tokens_come_from(start: Start, daemon: Any, prompts: Prompts, reference: Reference) -> None:
    """Layers that change places change the tokens; a flipped bit is found, and the block is computed."""
    swapped, flipped = prompts(11, (5,))[0], prompts(15, (5,))[0]
    with start(daemon.unix_url) as engine:

        def stored(prompt: list[int]) -> tuple[list[bytes], Any]:
            before = {entry.key for entry in client.list()}
            assert engine.generate(prompt)["tokens"] == reference(prompt)
            engine.reset()  # waits for the stores
            keys = [entry.key for entry in client.list() if entry.key not in before]
            blocks = np.zeros((len(keys), PARTS * PART_BYTES), np.uint8)
            assert client.get(keys, blocks).ok.all()
            return keys, blocks

        with client_of(daemon, engine) as client:
            keys, blocks = stored(swapped)
            assert len(keys) == 2
            assert client.delete(keys).ok.all()
            layers = blocks.reshape(2, 4, -1)[:, ::-1]
            assert client.put(keys, layers.reshape(2, -1).copy()).ok.all()
            told = engine.generate(swapped)
            assert told["cached"] == 256
            assert told["tokens"] != reference(swapped)

            _, blocks = stored(flipped)
        assert daemon.end(signal.SIGTERM) == 0
        flip(daemon.store, blocks[0].tobytes()[:4096])
        daemon.start()
        told = engine.generate(flipped)
        assert told["tokens"] == reference(flipped)
        assert told["cached"] < 256


def test_a_daemon_that_is_absent_comes_dies_stops_and_comes_back_changes_no_token(
    start: Start, daemon: Any, prompts: Prompts, reference: Reference
) -> None:
    prompt, other = prompts(12, (5, 41))
    daemon.stop()
    with start(daemon.unix_url, **HURRIED) as engine:
        outages = Outages(engine, daemon, reference, lambda told: int(told["cached"]), 256)
        assert engine.generate(prompt)["tokens"] == reference(prompt)
        assert warnings_of(engine) == 1
        daemon.start()
        outages.restored(prompt)
        outages.killed([prompt, other])
        assert warnings_of(engine) <= 2
        outages.stopped(prompt)
        assert warnings_of(engine) <= 3
        told = engine.generate(prompt)
    nothing_held_nor_long(told["scheduler"])
    assert told["worker"]["overdue"] == 0, told["worker"]


# Of them no instance has a lock; who reaches the daemon goes through halfstep.tier.channel and halfstep.client.
HOOKS = {
    *("halfstep.connectors.vllm_connector", "halfstep.connectors.paged", "halfstep.connectors.mover"),
    *("halfstep.connectors.steps", "halfstep.tier.counts"),
}


def test_an_empty_tier_costs_one_match_a_request_and_decoding_nothing(start: Start, daemon: Any, prompts: Prompts) -> None:
    with start(daemon.unix_url) as engine, client_of(daemon, engine) as client:
        cost = Overhead.of(engine, client, prompts, "scheduler")
    assert cost.asked == {"match": 1, "put": 1}, "the put is of the two blocks that it has computed"
    assert cost.cold["keys_hit"] == 0
    assert cost.in_steps(HOOKS) < 50, "functions, of which two are each layer's"
    # The time in hooks is reported with how many there were.
    assert cost.decoding["calls"] - cost.warm["calls"] <= 3 * len(cost.steps) + 3
    assert 0 < cost.decoding["call_ns_max"] <= cost.decoding["call_ns"]


def test_what_waits_behind_another_request_is_brought_and_costs_one_match(
    start: Start, daemon: Any, prompts: Prompts, reference: Reference
) -> None:
    """One request runs at a time; the others wait, and their blocks come near meanwhile."""
    asked = [prompts(seed, (5,))[0] for seed in (61, 62, 63)]
    alone = {"max_num_seqs": 1}
    with start(daemon.unix_url, engine=alone) as cold:
        for prompt in asked:
            assert cold.generate(prompt)["tokens"] == reference(prompt)
        cold.reset()
    with start(daemon.unix_url, engine=alone) as warm:
        told = warm.generate(asked[0])
        assert (told["cached"], told["ahead"]) == (256, {}), "nothing goes before it"
        told = warm.generate_all([asked[0], *asked[1:]])
        assert [one["tokens"] for one in told["answers"]] == [reference(prompt) for prompt in asked]
        assert [one["cached"] for one in told["answers"]] == [256, 256, 256]
        assert told["scheduler"]["matches"] == 3, "the first prompt is in the engine"
        ended = {what: told["ahead"][what] for what in ("asked", "used", "late", "unused", "absent")}
    assert ended["asked"] == ended["used"] + ended["late"] == 4, ended
    nothing_held_nor_long(told["scheduler"])


def test_a_load_that_comes_too_late_is_computed(start: Start, daemon: Any, prompts: Prompts, reference: Reference) -> None:
    prompt = prompts(14, (5,))[0]
    with start(daemon.unix_url) as engine:
        assert engine.generate(prompt)["tokens"] == reference(prompt)
        engine.reset()
    # Two blocks are half a megabyte: half a second.
    with Relay(*daemon.address, 1_000_000) as relay, start(relay.url, deadline_ms=200) as engine:
        told = engine.generate(prompt)
        assert told["tokens"] == reference(prompt)
        assert told["worker"]["loads_failed"] > 0
        assert told["cached"] < 256
        assert warnings_of(engine) == 1
        nothing_held_nor_long(told["scheduler"])
        assert told["worker"]["overdue"] == 0, told["worker"]


def learned(engine: Engine, draw: Prompts, seeds: range) -> None:
    """It has computed prompts that nobody has stored, and so knows what a token costs it."""
    for seed in seeds:
        told = engine.generate(draw(seed, (5,))[0], 1)
        assert told["cached"] == 0


def test_with_a_plan_blocks_of_a_slow_tier_are_computed_and_those_of_a_quick_one_loaded(
    start: Start, daemon: Any, prompts: Prompts, reference: Reference
) -> None:
    """At 20 kB/s two blocks take 26 s. Next door they take no time, while computing them counts as a hundred times as long."""
    first, second = prompts(41, (5,))[0], prompts(42, (5,))[0]
    short = first[:140]
    with start(daemon.unix_url) as engine:
        for prompt in (first, second, short):
            assert engine.generate(prompt)["tokens"] == reference(prompt)
        engine.reset()
    slow = {"deadline_ms": 60_000, "plan": "auto"}
    with Relay(*daemon.address, 20_000, to_daemon=False) as relay, start(relay.url, **slow) as engine:
        told = engine.generate(short)
        assert (told["tokens"], told["cached"]) == (reference(short), 128)
        assert told["plans"] == {"prefill_unknown": 1}, "it was not seen to compute"
        learned(engine, prompts, range(51, 55))
        engine.reset()
        told = engine.generate(first)
        assert (told["tokens"], told["cached"]) == (reference(first), 0)
        assert told["worker"]["loads"] == 1, "that of the first prompt"
        assert (told["plans"]["prefill_unknown"], told["plans"]["recompute"]) == (1, 1)
        assert not told["plans"].keys() & {"fetch", "fetch_some", "link_unknown"}, told["plans"]
    with start(daemon.unix_url, plan="auto") as engine:
        engine.pace(100)
        assert engine.generate(short)["plans"] == {"prefill_unknown": 1}
        learned(engine, prompts, range(55, 59))
        told = engine.generate(first)
        assert (told["tokens"], told["cached"]) == (reference(first), 256)
        told = engine.generate(second)
        assert (told["tokens"], told["cached"]) == (reference(second), 256)
        assert (told["plans"]["fetch"], told["worker"]["loads_failed"]) == (2, 0)
        assert not told["plans"].keys() & {"recompute", "circuit_open", "opened"}, told["plans"]


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


def test_preempted_requests_and_stores_by_layer(start: Start, daemon: Any, prompts: Prompts, reference: Reference) -> None:
    """Batches of another size are rounded otherwise: judged token by token, each after the same ones."""
    asked = [prompts(seed, (5,))[0] for seed in (21, 22, 23)]
    # Without a cache of its own a preempted request has nothing but what is stored.
    small = {"num_gpu_blocks_override": 11, "max_model_len": 1024, "enable_prefix_caching": False}
    with start(daemon.unix_url, engine=small, layer_cells=4) as engine:
        assert engine.layout_fields["grid"] == "1x4"
        told = engine.generate_all(asked, 120)
        assert told["preemptions"] > 0, "three prompts of three blocks that grow to four have ten"
        assert told["worker"]["loads"] > 0, "preempted ones come back from the daemon"
        assert told["worker"]["loads_failed"] == told["worker"]["stores_failed"] == 0
        answers = [one["tokens"] for one in told["answers"]]
        engine.reset()
        again = engine.generate(asked[0])
    assert (again["tokens"], again["cached"]) == (reference(asked[0]), 256)
    agreed = [reference.engine.agreement(prompt, answer) for prompt, answer in zip(asked, answers, strict=True)]
    assert min(agreed) > 0.9, agreed
    assert reference.engine.agreement(asked[0], answers[1]) < 0.2, "another prompt's answer"


def test_latents_come_back_as_they_were(start: Start, daemon: Any, prompts: Prompts) -> None:
    """MLA. Tokens may differ in near ties: that backend rounds otherwise in prefills of other lengths."""
    prompt = prompts(18, (5,))[0]
    with start(daemon.unix_url, "dsv3") as cold:
        assert cold.layout_fields["kind0"].startswith("latent")
        cold.generate(prompt, 1)
        computed = cold.digests()
        cold.reset()
    with start(daemon.unix_url, "dsv3") as warm:
        told = warm.generate(prompt, 1)
        restored = warm.digests()
    assert (told["cached"], told["worker"]["loads"], told["worker"]["stores"]) == (304, 19, 0)
    assert len(restored) == 19
    assert restored == computed


def test_two_ranks_have_their_own_heads(start: Start, daemon: Any, prompts: Prompts) -> None:
    """Workers are processes of their own. Judged against itself: sums over ranks are rounded otherwise."""
    prompt = prompts(19, (5,))[0]
    two = {"tensor_parallel_size": 2}
    memory = Path("/dev/shm")
    before = set(memory.iterdir())
    with start(daemon.unix_url, engine=two) as cold:
        assert cold.layout_fields["grid"] == "2x1"
        computed = cold.generate(prompt)
        cold.reset()
    with start(daemon.unix_url, engine=two) as warm:
        told = warm.generate(prompt)
    for left in set(memory.glob("vllm_dist_*")) - before:
        left.unlink()  # vLLM's own, of ranks that it ended
    assert (computed["cached"], computed["scheduler"]["stores"]) == (0, 2)
    assert (told["cached"], told["scheduler"]["stores"], told["tokens"]) == (256, 0, computed["tokens"])


REFUSED = """
import json, sys, types
import torch
from halfstep.connectors import vllm_connector as ours
from halfstep.errors import ConfigError
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, MambaSpec, SlidingWindowSpec

full = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=64, dtype=torch.bfloat16)
window = SlidingWindowSpec(block_size=16, num_kv_heads=2, head_size=64, dtype=torch.bfloat16, sliding_window=64)

def told(*specs, device="cpu", speculative=None, **parallel):
    ours.current_platform = types.SimpleNamespace(device_type=device, device_name=device)
    sizes = {f"{name}_parallel_size": 1 for name in ("pipeline", "decode_context", "prefill_context", "tensor")} | parallel
    config = types.SimpleNamespace(
        parallel_config=types.SimpleNamespace(**sizes), speculative_config=speculative, cache_config=types.SimpleNamespace()
    )
    groups = [KVCacheGroupSpec([f"model.layers.{at}.attn"], spec) for at, spec in enumerate(specs)]
    try:
        ours.refuse_what_is_not_covered(config, KVCacheConfig(8, [], groups))
    except ConfigError as error:
        return str(error)
    return ""

print(json.dumps([
    told(full),
    told(full, window),
    told(window),
    told(full, device="cuda"),
    told(full, pipeline_parallel_size=2),
    told(full, decode_context_parallel_size=2),
    told(full, speculative=object()),
]))
def cells(layers, heads, shards=1, block_tokens=16, wanted=0):
    return ours._layer_cells(wanted, (ours.Kind("full", tuple(range(layers)), heads, (512,)),), shards, block_tokens)

print([cells(32, 8), cells(32, 8, 8), cells(4, 2), cells(80, 8, 8, 128), cells(61, 8), cells(120, 64), cells(4, 2, wanted=4)])
for options in ({"ttl": 1}, {"codec": "lz4"}):
    try:
        ours.options_of({"url": "halfstep://x"} | options)
    except ConfigError as error:
        print(error)
ours.KVConnectorBase_V1.teleport = None
import abc
ours.HalfstepConnector.teleport = abc.abstractmethod(lambda self: None)
abc.update_abstractmethods(ours.HalfstepConnector)
try:
    ours.HalfstepConnector(None, None, None)
except ConfigError as error:
    print(error)
"""


def test_what_is_not_covered_is_refused_with_what_to_do(models: Path) -> None:
    ran = subprocess.run([interpreter("vllm"), "-c", REFUSED], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr[-2000:]
    *_, refusals, cells, option, codec, version = ran.stdout.strip().splitlines()
    covered, groups, window, device, *others = json.loads(refusals)
    assert covered == ""
    assert "FullAttentionSpec, SlidingWindowSpec" in groups
    assert "--disable-hybrid-kv-cache-manager" in groups
    assert "is a SlidingWindowSpec" in window
    assert "is on cuda" in device
    assert all("the secondary tier does it" in one for one in (device, *others))
    assert json.loads(cells) == [8, 1, 1, 8, 1, 8, 4], "of 256 KiB at least, unless there are too many parts for one"
    assert option.startswith("halfstep: ttl: unknown in kv_connector_extra_config")
    assert codec.startswith("codec='lz4': must be 'bfx'")
    assert "has to have teleport" in version
