"""The real LMCache with the tier as its L2: its storage manager alone, and its server under a vLLM engine."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest
from tests.connectors.conftest import ENGINES, Engine, interpreter
from tests.connectors.exchanged import exchange, stored_by
from tests.connectors.outages import requests_of
from tests.connectors.overhead import PATIENT
from tests.connectors.relay import Relay

import halfstep
from halfstep.connectors.lmcache import HalfstepClient

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

OBJECTS = 6
# Of prompts of 305, 340 and 441 tokens, which share their first 300.
CHUNK_TOKENS, OBJECTS_OF_PROMPTS = 128, 3


def run(mode: str, parameters: dict[str, Any], *more: int) -> dict[str, Any]:
    """One process of LMCache's."""
    command = [interpreter("lmcache"), str(ENGINES / "lmcache_store.py"), mode, json.dumps(parameters), *map(str, more)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert ran.returncode == 0, ran.stderr[-4000:]
    said: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return said


def loaded(hits: int, equal: int) -> dict[str, int]:
    """What a load says; no request of LMCache's was held longer than its deadline."""
    return {"hits": hits, "equal": equal, "overdue": 0}


@pytest.mark.parametrize("codec", [pytest.param("", marks=pytest.mark.short), "bfx"])
def test_a_new_process_loads_what_another_stored(daemon: Any, codec: str) -> None:
    patient = {"url": daemon.unix_url, "contents": "tiny", "match_deadline_ms": 30_000, "deadline_ms": 30_000}
    parameters = patient | {"codec": codec, "coding": "always"}
    assert run("store", parameters, OBJECTS) == {"stored": OBJECTS}
    assert run("load", parameters, OBJECTS, 1) == loaded(OBJECTS, OBJECTS)


@pytest.mark.short
def test_other_contents_and_a_dead_daemon_are_misses(daemon: Any) -> None:
    parameters = {"url": daemon.unix_url, "contents": "one", "match_deadline_ms": 30_000, "deadline_ms": 30_000}
    assert run("store", parameters, OBJECTS) == {"stored": OBJECTS}
    assert run("load", parameters | {"contents": "another"}, OBJECTS) == loaded(0, 0)
    daemon.kill()
    assert run("load", parameters, OBJECTS) == loaded(0, 0)


def test_a_stopped_daemon_a_slow_way_and_flipped_bits_are_misses(daemon: Any) -> None:
    patient = {"url": daemon.unix_url, "contents": "faults", "match_deadline_ms": 30_000, "deadline_ms": 30_000}
    assert run("store", patient, OBJECTS) == {"stored": OBJECTS}
    daemon.pause()
    assert run("load", patient | {"match_deadline_ms": 300, "deadline_ms": 300}, OBJECTS) == loaded(0, 0)
    daemon.resume()
    with Relay(*daemon.address, 200_000) as relay:
        hurried = patient | {"url": relay.url, "deadline_ms": 500}
        assert run("load", hurried, OBJECTS) == loaded(0, 0)
    with Relay(*daemon.address, flips=True) as relay:
        assert run("load", patient | {"url": relay.url}, OBJECTS) == loaded(0, 0)
        assert relay.flipped > 0
    assert run("load", patient, OBJECTS) == loaded(OBJECTS, OBJECTS)


def test_in_the_shadow_it_looks_up_and_stores_and_answers_that_nothing_is_there(
    daemon: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = {"url": daemon.unix_url, "contents": "shadow", "match_deadline_ms": 30_000, "deadline_ms": 30_000}
    monkeypatch.setenv("HALFSTEP_MODE", "shadow")
    assert run("store", patient, OBJECTS) == {"stored": OBJECTS}
    assert run("load", patient, OBJECTS) == loaded(0, 0)
    monkeypatch.delenv("HALFSTEP_MODE")
    assert run("load", patient, OBJECTS) == loaded(OBJECTS, OBJECTS)


class Server:
    """LMCache's server with this tier as its L2, and nothing in its own memory. It ends with its context.

    told: a file for what our client in it has counted.
    """

    def __init__(self, parameters: dict[str, Any], log: Path, told: Path | None = None) -> None:
        self.port, http = free_ports(2)
        adapter = {
            "type": "native_plugin",
            "module_path": "halfstep.connectors.lmcache" if told is None else "lmcache_told",
            "class_name": "HalfstepClient",
            "adapter_params": parameters,
        }
        program = "import sys; from lmcache.cli.main import main; sys.exit(main())"
        options = {
            "--host": "127.0.0.1",
            "--port": self.port,
            "--http-host": "127.0.0.1",
            "--http-port": http,
            "--chunk-size": CHUNK_TOKENS,
            "--l1-size-gb": 0.25,
            "--eviction-policy": "LRU",
            "--supported-transfer-mode": "engine_driven",  # the one for engines on a CPU
            "--l2-adapter": json.dumps(adapter),
        }
        flags = [str(word) for option in options.items() for word in option]
        command = [interpreter("lmcache"), "-c", program, "server", "--no-l1-use-lazy", "--disable-observability", *flags]
        environment = os.environ | {"LMCACHE_DISABLE_BANNER": "1", "LMCACHE_TRACK_USAGE": "false"}
        if told is not None:
            environment |= {"PYTHONPATH": str(ENGINES), "HALFSTEP_COUNTS": str(told)}
        with log.open("ab") as file:
            self._process = subprocess.Popen(command, stdout=file, stderr=file, env=environment)
        end = time.monotonic() + 120
        while True:
            with socket.socket() as asking:
                if asking.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            assert self._process.poll() is None, log.read_text()[-4000:]
            assert time.monotonic() < end, "the server does not listen"
            time.sleep(0.1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def free_ports(count: int) -> list[int]:
    """Of loopback, as far as one can know."""
    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


def parameters_of(daemon: Any, contents: str) -> dict[str, Any]:
    """Of our client in the server."""
    return {"url": daemon.unix_url, "contents": contents, **PATIENT}


@contextmanager
def looking(parameters: dict[str, Any]) -> Iterator[halfstep.Client]:
    """A client that sees the objects."""
    ours = HalfstepClient(**parameters)
    try:
        with halfstep.connect(parameters["url"], layout=ours.layout, required=True, deadline_ms=30_000) as client:
            yield client
    finally:
        ours.close()


@pytest.fixture(scope="module")
def packages() -> str:
    """Of LMCache's environment: vLLM's own has none."""
    command = [interpreter("lmcache"), "-c", "import lmcache; print(next(iter(lmcache.__path__)))"]
    return str(Path(subprocess.check_output(command, text=True).strip()).parent)


@pytest.fixture
def start(tmp_path: Path, models: Path, packages: str) -> Callable[[Server | None], Engine]:
    """start(server): a vLLM engine over it; None: one that computes everything."""
    model = str(models / "qwen3")

    def begin(server: Server | None) -> Engine:
        log = tmp_path / "engine.log"
        if server is None:
            return Engine(log, "vllm_direct", model, "{}", engine="vllm")
        said = model, str(server.port)
        return Engine(log, "vllm_lmcache", *said, engine="vllm", env={"LMCACHE_PACKAGES": packages})

    return begin


def computed(start: Callable[[Server | None], Engine], asked: list[list[int]]) -> list[list[int]]:
    """Tokens of these prompts, without a cache."""
    expected = []
    with start(None) as plain:
        for prompt in asked:
            plain.reset()
            expected.append(plain.generate(prompt)["tokens"])
    return expected


@pytest.mark.timeout(900)
def test_vllm_over_the_server_restores_what_another_one_stored(
    start: Callable[[Server | None], Engine], daemon: Any, prompts: Callable[..., list[list[int]]], tmp_path: Path
) -> None:
    """Server and engine are new processes for the second time: what is restored is what the daemon has."""
    asked = prompts(7)
    parameters = parameters_of(daemon, "qwen3")

    def answers() -> list[dict[str, Any]]:
        return [engine.generate(prompt) for prompt in asked]

    told: list[list[dict[str, Any]]] = []
    with Server(parameters, tmp_path / "server.log") as server, start(server) as engine, looking(parameters) as client:
        stored_by(client, lambda: told.append(answers()), OBJECTS_OF_PROMPTS)
    with Server(parameters, tmp_path / "server.log") as server, start(server) as engine:
        told.append(answers())
    cold, warm = told
    expected = computed(start, asked)
    assert [one["tokens"] for one in cold] == expected
    assert [one["tokens"] for one in warm] == expected
    assert [one["cached"] for one in warm] == [256, 256, 384]


@pytest.mark.timeout(900)
def test_objects_that_another_prompt_has_stored_change_the_tokens(
    start: Callable[[Server | None], Engine], daemon: Any, prompts: Callable[..., list[list[int]]], tmp_path: Path
) -> None:
    """That the check before can fail: the bytes of a prefix are what its tokens come from."""
    asked = [prompts(seed, (5,))[0] for seed in (51, 52, 53)]
    parameters = parameters_of(daemon, "qwen3, exchanged")
    with Server(parameters, tmp_path / "server.log") as server, start(server) as engine, looking(parameters) as client:
        _, ones, others = (stored_by(client, partial(engine.generate, prompt), 2) for prompt in asked)
        exchange(client, ones, others)
    with Server(parameters, tmp_path / "server.log") as server, start(server) as engine:
        answers = [engine.generate(prompt) for prompt in asked]
    expected = computed(start, asked)
    assert [one["cached"] for one in answers] == [256, 256, 256]
    assert [one["tokens"] == tokens for one, tokens in zip(answers, expected, strict=True)] == [True, False, False]


@pytest.mark.timeout(900)
def test_an_empty_tier_costs_one_match_a_request_and_decoding_nothing(
    start: Callable[[Server | None], Engine], daemon: Any, prompts: Callable[..., list[list[int]]], tmp_path: Path
) -> None:
    """LMCache asks its L2 once for each request, also for what it has in its own memory, or the engine in its cache."""
    warming, prompt = prompts(32, (5,))[0], prompts(33, (5,))[0]
    parameters, told = parameters_of(daemon, "qwen3, counted"), tmp_path / "counts"
    with Server(parameters, tmp_path / "server.log", told) as server, start(server) as engine, looking(parameters) as client:

        def asked_for(tokens: int, puts: int) -> tuple[Counter[str], dict[str, Any]]:
            """Of the daemon, and what our client has counted."""
            before = requests_of(client)
            engine.generate(prompt, tokens)
            end_s = time.monotonic() + 60
            while (asked := requests_of(client) - before)["put"] < puts and time.monotonic() < end_s:
                time.sleep(0.1)
            counts: dict[str, Any] = json.loads(told.read_text())
            return asked, counts

        stored_by(client, partial(engine.generate, warming, 1), 2)
        cold, counted = asked_for(24, 1)
        assert cold == {"match": 1, "put": 1}, "the put is of the two objects that it has computed"
        assert counted["keys_hit"] == 0
        before, one_token = asked_for(1, 0)
        assert before == {"match": 1}
        asked, decoding = asked_for(24, 0)
    assert asked == {"match": 1}, "23 tokens more cost nothing more"
    assert decoding["calls"] - one_token["calls"] == 2, "a question, and its answer"
    assert (decoding["matches"], decoding["stores"], decoding["loads"]) == (4, 4, 0)
    assert 0 < decoding["call_ns_max"] <= decoding["call_ns"]
    assert decoding["overdue"] == 0
