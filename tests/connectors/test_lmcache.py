"""The real storage manager of LMCache, with the tier as its L2: what one process stored, another one loads."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
from tests.connectors.conftest import ENGINES, interpreter
from tests.connectors.relay import Relay

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

OBJECTS = 6


def run(mode: str, parameters: dict[str, Any], *more: int) -> dict[str, Any]:
    """One process of LMCache's."""
    command = [interpreter("lmcache"), str(ENGINES / "lmcache_store.py"), mode, json.dumps(parameters), *map(str, more)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert ran.returncode == 0, ran.stderr[-4000:]
    said: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return said


def test_a_new_process_loads_what_another_stored(daemon: Any) -> None:
    parameters = {"url": daemon.unix_url, "contents": "tiny", "match_deadline_ms": 30_000, "deadline_ms": 30_000}
    assert run("store", parameters, OBJECTS) == {"stored": OBJECTS}
    assert run("load", parameters, OBJECTS, 1) == {"hits": OBJECTS, "equal": OBJECTS}


def test_other_contents_and_a_dead_daemon_are_misses(daemon: Any) -> None:
    parameters = {"url": daemon.unix_url, "contents": "one", "match_deadline_ms": 30_000, "deadline_ms": 30_000}
    assert run("store", parameters, OBJECTS) == {"stored": OBJECTS}
    assert run("load", parameters | {"contents": "another"}, OBJECTS) == {"hits": 0, "equal": 0}
    daemon.kill()
    assert run("load", parameters, OBJECTS) == {"hits": 0, "equal": 0}


def test_a_stopped_daemon_a_slow_way_and_flipped_bits_are_misses(daemon: Any) -> None:
    patient = {"url": daemon.unix_url, "contents": "faults", "match_deadline_ms": 30_000, "deadline_ms": 30_000}
    assert run("store", patient, OBJECTS) == {"stored": OBJECTS}
    daemon.pause()
    assert run("load", patient | {"match_deadline_ms": 300, "deadline_ms": 300}, OBJECTS) == {"hits": 0, "equal": 0}
    daemon.resume()
    with Relay(*daemon.address, 200_000) as relay:
        hurried = patient | {"url": relay.url, "deadline_ms": 500}
        assert run("load", hurried, OBJECTS) == {"hits": 0, "equal": 0}
    with Relay(*daemon.address, flips=True) as relay:
        assert run("load", patient | {"url": relay.url}, OBJECTS) == {"hits": 0, "equal": 0}
        assert relay.flipped > 0
    assert run("load", patient, OBJECTS) == {"hits": OBJECTS, "equal": OBJECTS}
