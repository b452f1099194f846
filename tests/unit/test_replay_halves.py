"""Two halves of a trace share no session, lose no request, and are traces themselves."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from halfstep.errors import ConfigError
from halfstep.tools.replay.halves import halves, part
from halfstep.tools.replay.hints import system_blocks
from halfstep.tools.replay.trace import ROOT, Trace, load

SESSIONS, TURNS = 40, 3


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    """Sessions of three turns each, all of which begin with one system prompt."""
    lines = [
        json.dumps(
            {
                "timestamp": 1000 * (turn * SESSIONS + session),
                "hash_ids": [1, 2, *range(100 * session + 10, 100 * session + 12 + 5 * turn)],
            }
        )
        for turn in range(TURNS)
        for session in range(SESSIONS)
    ]
    path = tmp_path / "sessions.jsonl"
    path.write_text("\n".join(lines))
    return load(path)


def sessions_of(trace: Trace, of: Trace) -> set[bytes]:
    """By the names of first blocks behind the system prompt of the whole trace."""
    system = {of.keys[block].tobytes() for block in np.flatnonzero(system_blocks(of))}
    names = set()
    for index in range(trace.requests):
        keys = [trace.keys[block].tobytes() for block in trace.request(index)]
        names.add(next(key for key in keys if key not in system))
    return names


def test_each_session_is_of_one_half_with_all_its_turns(trace: Trace) -> None:
    first, second = halves(trace)
    assert first.requests + second.requests == trace.requests
    assert sessions_of(first, trace).isdisjoint(sessions_of(second, trace))
    assert len(sessions_of(first, trace)) + len(sessions_of(second, trace)) == SESSIONS
    for half in (first, second):
        assert half.requests == TURNS * len(sessions_of(half, trace))
        assert SESSIONS / 5 < len(sessions_of(half, trace)) < SESSIONS * 4 / 5, "halves, more or less"


def test_another_seed_makes_other_halves(trace: Trace) -> None:
    assert sessions_of(halves(trace, 1)[0], trace) == sessions_of(halves(trace, 1)[0], trace)
    assert sessions_of(halves(trace, 1)[0], trace) != sessions_of(halves(trace, 2)[0], trace)


def test_a_part_is_a_trace_of_its_own(trace: Trace) -> None:
    chosen = np.zeros(trace.requests, np.bool_)
    chosen[3::7] = True
    some = part(trace, chosen, "some")
    assert some.times_us[0] == 0
    assert (np.diff(some.times_us) == np.diff(trace.times_us[chosen])).all()
    for index, original in enumerate(np.flatnonzero(chosen).tolist()):
        assert (some.keys[some.request(index)] == trace.keys[trace.request(original)]).all()
    order = list(dict.fromkeys(some.blocks.tolist()))
    assert order == list(range(some.unique_blocks)), "numbered in the order of their first appearance"
    for block in range(some.unique_blocks):
        parent = int(some.parents[block])
        assert parent == ROOT or parent < block
        whole = int(np.flatnonzero((trace.keys == some.keys[block]).all(axis=1))[0])
        expected = int(trace.parents[whole])
        assert (parent == ROOT) == (expected == ROOT)
        assert parent == ROOT or (some.keys[parent] == trace.keys[expected]).all()


def test_one_session_has_no_halves(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    path.write_text('{"timestamp": 0, "hash_ids": [1, 2]}\n{"timestamp": 5, "hash_ids": [1, 2, 3]}\n')
    with pytest.raises(ConfigError, match="several sessions is needed"):
        halves(load(path))
