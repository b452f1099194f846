"""The real LMCache with the tier as its L2: its storage manager alone, and its server under a vLLM engine."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest
from tests.connectors.conftest import ENGINES, Engine, interpreter
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
    """LMCache's server with this tier as its L2, and nothing in its own memory. It ends with its context."""

    def __init__(self, parameters: dict[str, Any], log: Path) -> None:
        self.port, http = free_ports(2)
        adapter = {
            "type": "native_plugin",
            "module_path": "halfstep.connectors.lmcache",
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


@pytest.mark.timeout(900)
def test_vllm_over_the_server_restores_what_another_one_stored(
    daemon: Any, models: Path, prompts: Callable[..., list[list[int]]], tmp_path: Path
) -> None:
    """Server and engine are new processes for the second time: what is restored is what the daemon has."""
    asked = prompts(7)
    model = str(models / "qwen3")
    parameters = {"url": daemon.unix_url, "contents": "qwen3", "match_deadline_ms": 30_000, "deadline_ms": 30_000}
    packages = subprocess.check_output(
        [interpreter("lmcache"), "-c", "import lmcache; print(next(iter(lmcache.__path__)))"], text=True
    )
    environment = {"LMCACHE_PACKAGES": str(Path(packages.strip()).parent)}

    def answers(server: Server, then: Callable[[], None] = lambda: None) -> list[dict[str, Any]]:
        program = Engine(tmp_path / "engine.log", "vllm_lmcache", model, str(server.port), engine="vllm", env=environment)
        with program as engine:
            told = [engine.generate(prompt) for prompt in asked]
            then()
        return told

    looking = HalfstepClient(**parameters)
    client = halfstep.connect(daemon.unix_url, layout=looking.layout, required=True, deadline_ms=30_000)

    def stored() -> None:
        end = time.monotonic() + 60
        while (there := len(list(client.list()))) < OBJECTS_OF_PROMPTS:
            assert time.monotonic() < end, f"{there} objects were stored"
            time.sleep(0.1)

    with Server(parameters, tmp_path / "server.log") as server:
        cold = answers(server, stored)
    with Server(parameters, tmp_path / "server.log") as server:
        warm = answers(server)
    looking.close()
    client.close()
    with Engine(tmp_path / "plain.log", "vllm_direct", model, "{}", engine="vllm") as plain:
        expected = []
        for prompt in asked:
            plain.reset()
            expected.append(plain.generate(prompt)["tokens"])
    assert [one["tokens"] for one in cold] == expected
    assert [one["tokens"] for one in warm] == expected
    assert [one["cached"] for one in warm] == [256, 256, 384]
