"""Two engines on one mount: vLLM's tier and transformers. What either has once had moves nothing at the upstream; whoever dies,
tokens are the same; what was deleted is served nowhere.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.connectors.conftest import Engine, interpreter
from tests.connectors.overhead import PATIENT
from tests.connectors.test_vllm import Prompts, Reference, Start, outages_of, reference, start  # noqa: F401  fixtures
from tests.integration.commands import PATIENCE_S, wait_until
from tests.integration.mounting import Mount

import halfstep

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1800)]

UNHURRIED: dict[str, Any] = {"required": True, "deadline_ms": 30_000, "match_deadline_ms": 30_000}


@pytest.fixture
def mounted(own_daemon: Any, tmp_path: Path) -> Iterator[Callable[[str], Mount]]:
    """mounted(max_age): one of `own_daemon`, always on the same socket."""
    started: list[Mount] = []

    def mount(max_age: str) -> Mount:
        started.append(Mount(tmp_path, own_daemon.url, "--max-age", max_age))
        started[-1].start()
        return started[-1]

    yield mount
    for one in started:
        if one.running:
            one.kill()


def transformers_engine(role: str, url: str) -> dict[str, Any]:
    """A process with a model of transformers and its prompt cache; what it did, its tokens among it."""
    command = [interpreter("vllm"), "-m", "halfstep.tools.demo.worker", role, "mla", url, "192", "8"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=5 * PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def layout_of(engine: Engine) -> halfstep.Layout:
    """Of the blocks of vLLM's tier."""
    return halfstep.Layout(engine.layout_fields, [halfstep.Group(0, (256 * 1024,))])


def delete_all(upstream: halfstep.Client, layout: halfstep.Layout) -> list[bytes]:
    """All that is there, of whatever layout: the keys of that one."""
    entries = list(upstream.list())
    keys = [entry.key for entry in entries if entry.layout_id == layout.id]
    assert keys
    assert upstream.delete(keys, layout=layout).ok.all()
    for other in {entry.layout_id for entry in entries} - {layout.id}:
        upstream.clear(other)
    assert not list(upstream.list())
    return keys


def moved(upstream: halfstep.Client) -> dict[str, float]:
    """Payload, by command."""
    told = upstream.stat()
    return {
        command: told.get(f'halfstep_payload_bytes_total{{command="{command}"}}', 0.0) for command in ("get", "put", "prefetch")
    }


def test_hits_of_two_engines_move_nothing_upstream_and_whoever_dies_tokens_are_the_same(
    own_daemon: Any,
    mounted: Callable[[str], Mount],
    start: Start,  # noqa: F811
    prompts: Prompts,
    reference: Reference,  # noqa: F811
) -> None:
    mount = mounted("3600s")
    prompt, other = prompts(61, (5,))[0], prompts(62, (5,))[0]
    with halfstep.connect(own_daemon.url, **UNHURRIED) as upstream:
        saved = transformers_engine("save", mount.url)
        assert saved["refused_blocks"] == 0
        with start(mount.url, **PATIENT) as cold:
            assert cold.generate(prompt)["tokens"] == reference(prompt)
            cold.reset()  # waits for the stores
        stored = moved(upstream)
        assert stored["put"] > 0

        restored = transformers_engine("restore", mount.url)
        assert (restored["tokens"], restored["hit_blocks"] > 0) == (saved["tokens"], True)
        with start(mount.url, **PATIENT) as warm:
            told = warm.generate(prompt)
            assert (told["tokens"], told["cached"]) == (reference(prompt), 256)
            assert moved(upstream) == stored, "hits moved bytes at the upstream"

            # The mount dies, and a new one has to fetch what it serves.
            outages_of(warm, mount, reference).killed([prompt, other])
            fetched = moved(upstream)
            assert fetched["get"] > stored["get"]
            assert transformers_engine("restore", mount.url)["tokens"] == saved["tokens"]

            # The upstream dies: what the mount has goes on, and the rest is computed.
            own_daemon.kill()
            outages = outages_of(warm, mount, reference)
            outages.restored(prompt)
            alone = transformers_engine("restore", mount.url)
            assert (alone["tokens"], alone["hit_blocks"]) == (saved["tokens"], restored["hit_blocks"])
            mount.kill()
            outages.computed([prompt])

            # Both are back.
            own_daemon.start()
            mount.start()
            outages.restored(prompt)
            again = transformers_engine("restore", mount.url)
            assert (again["tokens"], again["hit_blocks"]) == (saved["tokens"], restored["hit_blocks"])

            # What is deleted behind a mount is served by nobody once its --max-age is over.
            assert mount.end() == 0
            forgetful = mounted("1s")
            outages.restored(prompt)
            keys = delete_all(upstream, layout_of(warm))
            with halfstep.connect(forgetful.url, layout=layout_of(warm), **UNHURRIED) as looking:
                wait_until(lambda: not looking.match(keys).present.any(), "they are served long after their delete")
            outages.computed([prompt])
            gone = transformers_engine("restore", forgetful.url)
            assert (gone["tokens"], gone["hit_blocks"]) == (saved["tokens"], 0)
            assert forgetful.end() == 0
