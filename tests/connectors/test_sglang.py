"""SGLang's host pools over the tier, in every memory layout, and the whole engine."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.connectors.conftest import ENGINES, Engine, interpreter
from tests.connectors.exchanged import exchange, stored_by
from tests.connectors.outages import HURRIED, Outages, requests_of, warnings_of
from tests.connectors.overhead import PATIENT, Overhead
from tests.connectors.relay import Relay

import halfstep

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1800)]

# Pointers of a page of four layers.
PIECES = {
    ("mha", "layer_first"): 8,
    ("mha", "page_first"): 2,
    ("mha", "page_first_direct"): 2,
    ("mha", "page_head"): 2,
    ("mla", "layer_first"): 4,
    ("mla", "page_first"): 1,
    ("mla", "page_first_direct"): 1,
}


def run(program: str, *arguments: str) -> list[dict[str, Any]]:
    """A process in SGLang's environment; the lines of JSON that it prints."""
    environment = os.environ | {"PYTHONPATH": f"{ENGINES / 'sglang_cpu'}:{ENGINES}", "HF_HUB_OFFLINE": "1"}
    command = [interpreter("sglang"), str(ENGINES / program), *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=500, env=environment)
    assert ran.returncode == 0, ran.stderr[-4000:]
    return [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]


# What a codec is told of them: pages of 2 heads of 64 values, or of latents of 576, in 4 layers.
CODINGS = {
    ("mha", "layer_first"): "bf16/128",
    ("mha", "page_first"): "bf16/512",
    ("mha", "page_first_direct"): "bf16/128",
    ("mha", "page_head"): "bf16/256",
    ("mla", "layer_first"): "bf16/576",
    ("mla", "page_first"): "bf16/2304",
    ("mla", "page_first_direct"): "bf16/576",
}


@pytest.mark.parametrize(("transport", "codec"), [("tcp", ""), ("shm", ""), ("tcp", "bfx")])
def test_pages_of_every_pool_come_back(daemon: Any, models: Path, transport: str, codec: str) -> None:
    told = run("sglang_pools.py", daemon.url if transport == "tcp" else daemon.unix_url, str(models / "qwen3"), codec)
    if codec:
        assert {(one["kind"], one["layout"]): one["coding"] for one in told} == CODINGS
        assert max(one["sent"] for one in told) < 0.8
    assert {(one["kind"], one["layout"]): one["pieces"] for one in told} == PIECES
    for one in told:
        assert (one["before"], one["set"], one["get"], one["equal"]) == (0, [True] * 3, [True] * 3, 3), one
        assert one["exists"] == 2, "a leading run"
        assert one["absent"] == [True, False], one
        assert one["flat"] == [0, True, 3], "flat pages are other blocks"
        assert one["cleared"] == 0


@pytest.fixture
def start(tmp_path: Path, models: Path) -> Callable[..., Engine]:
    """start(url, **of the backend): an engine; url None = without HiCache. engine: more arguments. env: variables."""

    def begin(
        url: str | None, engine: dict[str, Any] | None = None, env: dict[str, str] | None = None, **options: Any
    ) -> Engine:
        extra = {} if url is None else {"url": url, **PATIENT, **options}
        counts = tmp_path / f"counts-{time.monotonic_ns()}"
        environment = {"PYTHONPATH": f"{ENGINES / 'sglang_cpu'}:{ENGINES}", "SGLANG_PLUGINS": "hicache_cpu"}
        log = tmp_path / f"engine-{time.monotonic_ns()}.log"
        said = str(models / "llama"), json.dumps(extra), json.dumps(engine or {})
        variables = {"HALFSTEP_COUNTS": str(counts), **(env or {})}
        return Engine(log, "sglang_engine", *said, engine="sglang", imports=environment, env=variables)

    return begin


def test_the_engine_restores_what_another_process_stored(
    start: Callable[..., Engine], daemon: Any, prompts: Callable[..., list[list[int]]]
) -> None:
    asked = prompts(7)
    with start(None) as plain:
        expected = [plain.generate(prompt, 16)["tokens"] for prompt in asked]
    with start(daemon.unix_url) as cold:
        first = [cold.generate(prompt, 16) for prompt in asked]
        cold.reset()
    with start(daemon.unix_url) as warm:
        second = [warm.generate(prompt, 16) for prompt in asked]
    assert [one["tokens"] for one in first] == expected
    assert [one["tokens"] for one in second] == expected
    assert second[0]["storage"] >= 288, second


def test_pages_that_another_prompt_has_stored_change_the_tokens(
    start: Callable[..., Engine], daemon: Any, prompts: Callable[..., list[list[int]]]
) -> None:
    """That the checks here can fail: the bytes of a prefix are what its tokens come from."""
    asked = [prompts(seed, (5,))[0] for seed in (51, 52, 53)]
    with start(None) as plain:
        expected = [plain.generate(prompt, 16)["tokens"] for prompt in asked]
    with start(daemon.unix_url) as cold:
        # Of 305 tokens 19 pages, and one of the last of them with 15 of the answer's.
        told = cold.generate(asked[0], 16)
        layout = halfstep.Layout.of_canonical(bytes.fromhex(told["counts"]["layout"]))
        with halfstep.connect(daemon.unix_url, layout=layout, required=True, deadline_ms=30_000) as client:
            ones, others = (stored_by(client, partial(cold.generate, prompt, 16), 20) for prompt in asked[1:])
            exchange(client, ones, others)
    with start(daemon.unix_url) as warm:
        answers = [warm.generate(prompt, 16) for prompt in asked]
    assert [one["storage"] for one in answers] == [304, 304, 304]
    assert [one["tokens"] == tokens for one, tokens in zip(answers, expected, strict=True)] == [True, False, False]


def test_an_empty_tier_costs_one_match_a_request_and_decoding_nothing(
    start: Callable[..., Engine], daemon: Any, prompts: Callable[..., list[list[int]]], tmp_path: Path
) -> None:
    """HiCache calls us on threads of its own, and the scheduler's thread never does.

    Four requests run at a time. Of those that wait SGLang asks again for all but the first, while they wait.
    """
    seldom = {"hicache_storage_prefetch_retry_max_attempts": 2}
    with (
        start(daemon.unix_url, engine=seldom, env={"HALFSTEP_STEPS": str(tmp_path / "steps")}) as engine,
        halfstep.connect(daemon.unix_url, required=True, deadline_ms=30_000) as client,
    ):
        cost = Overhead.of(engine, client, prompts, "counts", tail=6, tokens=12)
        before = requests_of(client)
        engine.generate_all([prompts(seed, (6,))[0] for seed in range(34, 40)], 64)
        at_once = requests_of(client) - before
    assert at_once["match"] == 6 + 2, "the sixth waits while 63 steps decode, and is asked about twice more"
    assert cost.asked == {"match": 1, "put": 1}, "the put is of the pages that it has computed"
    assert cost.cold["keys_hit"] == 0
    assert cost.in_steps(set()) == 0
    # The time in hooks is reported with how many there were.
    assert cost.decoding["calls"] == cost.warm["calls"]
    assert 0 < cost.decoding["call_ns_max"] <= cost.decoding["call_ns"]


def outages_of(engine: Engine, daemon: Any, *known: tuple[list[int], list[int]]) -> Outages:
    """known: prompts of 18 whole pages or more, and their tokens."""
    expected = {tuple(prompt): tokens for prompt, tokens in known}
    return Outages(engine, daemon, lambda prompt: expected[tuple(prompt)], lambda told: int(told["storage"]), 288, tokens=16)


def test_a_daemon_that_dies_stops_and_comes_back_changes_no_token(
    start: Callable[..., Engine], daemon: Any, prompts: Callable[..., list[list[int]]]
) -> None:
    prompt, other = prompts(21, (5, 40))
    with start(None) as plain:
        expected = plain.generate(prompt, 16)["tokens"]
        plain.reset()  # what is computed in other pieces is rounded otherwise
        of_other = plain.generate(other, 16)["tokens"]
    with start(daemon.unix_url, **HURRIED) as engine:
        outages = outages_of(engine, daemon, (prompt, expected), (other, of_other))
        assert engine.generate(prompt, 16)["tokens"] == expected
        outages.restored(prompt)
        outages.killed([prompt, other])
        assert warnings_of(engine) == 1
        outages.stopped(prompt)
        assert warnings_of(engine) <= 2
        counts = engine.generate(prompt, 16)["counts"]
    assert (counts["overdue"], counts["loads"] > 0) == (0, True), counts


def test_a_slow_way_and_flipped_bits_cost_pages_and_no_token(
    start: Callable[..., Engine], daemon: Any, prompts: Callable[..., list[list[int]]]
) -> None:
    prompt = prompts(22, (5,))[0]
    with start(daemon.unix_url) as engine:
        expected = engine.generate(prompt, 16)["tokens"]
        outages_of(engine, daemon, (prompt, expected)).restored(prompt)
    with Relay(*daemon.address, 100_000) as relay, start(relay.url, deadline_ms=200) as engine:
        told = engine.generate(prompt, 16)
        assert (told["tokens"], told["storage"], told["counts"]["overdue"]) == (expected, 0, 0)
        assert warnings_of(engine) == 1
    with Relay(*daemon.address, flips=True) as relay, start(relay.url) as engine:
        told = engine.generate(prompt, 16)
        assert (told["tokens"], told["storage"]) == (expected, 0)
        assert relay.flipped > 0


def test_pages_that_wait_behind_others_are_expected(
    start: Callable[..., Engine], daemon: Any, prompts: Callable[..., list[list[int]]]
) -> None:
    """Of prompts that come at once SGLang asks what is there, and then reads it request by request."""
    asked = [prompts(seed, (5,))[0] for seed in (31, 32, 33, 34)]
    with start(daemon.unix_url) as cold:
        expected = [cold.generate(prompt, 16)["tokens"] for prompt in asked]
        for prompt, tokens in zip(asked, expected, strict=True):
            outages_of(cold, daemon, (prompt, tokens)).restored(prompt)
    with start(daemon.unix_url) as warm:
        alone = warm.generate(asked[0], 16)
        assert (alone["tokens"], alone["counts"]["expected"]) == (expected[0], 0), "it is the next in the line"
        told = warm.generate_all(asked[1:], 16)
    # Their tokens are those of a batch, whose sums are rounded otherwise.
    assert [one["storage"] >= 288 for one in told["answers"]] == [True] * 3
    assert (told["counts"]["overdue"], told["counts"]["expected"] > 0) == (0, True)


def test_in_the_shadow_it_looks_up_and_stores_and_answers_that_nothing_is_there(
    start: Callable[..., Engine], daemon: Any, prompts: Callable[..., list[list[int]]]
) -> None:
    stored, new = prompts(41, (5,))[0], prompts(42, (5,))[0]
    with start(daemon.unix_url) as engine:
        expected = [engine.generate(prompt, 16)["tokens"] for prompt in (stored,)]
        outages_of(engine, daemon, (stored, expected[0])).restored(stored)
    with start(daemon.unix_url, env={"HALFSTEP_MODE": "shadow"}) as engine:
        told = engine.generate(stored, 16)
        assert (told["tokens"], told["storage"], told["counts"]["keys_hit"]) == (expected[0], 0, 0)
        assert told["counts"]["matches"] > 0
        told = engine.generate(new, 16)
        assert told["storage"] == 0
        engine.reset()
    with start(daemon.unix_url) as engine:
        again = engine.generate(new, 16)
        assert (again["tokens"], again["storage"] >= 288) == (told["tokens"], True)


REFUSED = """
import json, sys
import sglang_hicache_cpu
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
from halfstep.connectors.sglang import HalfstepHiCache

for model, extra in json.loads(sys.argv[1]):
    config = HiCacheStorageConfig(0, 1, 0, 1, 0, 1, False, False, False, model, extra_config=extra)
    try:
        HalfstepHiCache(config)
    except ValueError as error:
        print(json.dumps({"said": str(error)}))
"""


def test_wrong_options_are_refused_by_name(models: Path, tmp_path: Path) -> None:
    program = tmp_path / "refused.py"
    program.write_text(REFUSED)
    model, url = str(models / "qwen3"), "halfstep://127.0.0.1"
    asked = [
        (model, {"backend_name": "halfstep"}),
        (model, {"url": url, "weight_revision": "1", "prefetch_threshold": 16}),
        ("somebody/a-model", {"url": url}),
        (model, {"url": "redis://127.0.0.1"}),
        (model, {"url": url, "codec": "lz4"}),
    ]
    missing, unknown, weights, scheme, codec = (one["said"] for one in run(str(program), json.dumps(asked)))
    assert '"url" is missing' in missing
    assert "weight_revision: unknown" in unknown
    assert "weights_revision" in unknown
    assert 'add "weights_revision"' in weights
    assert "scheme 'redis'" in scheme
    assert codec.startswith("codec='lz4': must be 'bfx'")
