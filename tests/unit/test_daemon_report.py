"""The first lines of a daemon: what they say of memory, and of who gives way."""

from __future__ import annotations

from typing import Any

import pytest

from halfstep.daemon.config import setting_named
from halfstep.daemon.report import _engine, _placed_alike, latency_of, pages_of, placed_on
from halfstep.errors import ConfigError

MIB = 1 << 20


@pytest.mark.parametrize(
    ("large_mib", "reserved", "said"),
    [
        (256, True, "on 2 MiB pages (reserved)"),
        (256, False, "on 2 MiB pages (transparent)"),
        (100, False, "on 2 MiB pages (transparent, 100 MiB of it)"),
        (0, False, "on ordinary pages (no huge pages)"),
    ],
)
def test_memory_says_how_much_of_it_lies_in_large_pages(large_mib: int, reserved: bool, said: str) -> None:
    arena = {"bytes": 256 * MIB, "large_bytes": large_mib * MIB, "reserved": reserved, "regions": 1}
    assert pages_of(arena) == said


def memory(node: int | None, why: str = "", unknown: str = "", there: int = 64) -> dict[str, Any]:
    pages = {"by_node": {0: there, 1: 64 - there}, "absent": 0}
    return {"node": node, "why_no_node": why, "arena": pages, "index": pages, "why_no_pages": unknown}


def test_memory_says_on_which_node_it_is() -> None:
    assert placed_on(memory(0)) == "node 0 (arena 64 of 64 pages, index 64 of 64 pages looked at)"
    assert placed_on(memory(1, there=60)) == "node 1 (arena 4 of 64 pages, index 4 of 64 pages looked at)"
    assert placed_on(memory(2)) == "node 2 (arena 0 of 64 pages, index 0 of 64 pages looked at)"
    assert placed_on(memory(None, "off")) == "no node preferred: off"
    refused = "move_pages: EPERM (Operation not permitted)"
    assert placed_on(memory(0, unknown=refused)) == f"node 0, where pages really are is not known: {refused}"


def test_shards_without_a_node_are_told_of_at_once_and_others_each() -> None:
    def told(*memories: dict[str, Any]) -> str | None:
        return _placed_alike([{"memory": one} for one in memories])

    assert told(memory(0)) == placed_on(memory(0)), "of one shard there is nothing else to say"
    assert told(memory(None, "off"), memory(None, "off")) == "no node preferred: off"
    assert told(memory(None, "core 1 belongs to no memory node"), memory(None, "core 2 belongs to no memory node")) is None
    assert told(memory(0), memory(0)) is None
    assert told(memory(0), memory(None, "off")) is None


def test_memory_nodes_are_read_as_people_write_them() -> None:
    assert setting_named("numa").read("auto") is None
    assert setting_named("numa").read(" OFF ") == ()
    assert setting_named("numa").read("0,2-3,0") == (0, 2, 3, 0)
    assert setting_named("numa").read("1023") == (1023,)


@pytest.mark.parametrize("text", ["", "on", "1024", "0-1024", "0,", "-1", "node0"])
def test_memory_nodes_that_cannot_be_are_refused_with_what_can(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        setting_named("numa").read(text)
    assert str(refused.value).startswith(f"numa={text!r}: must be numbers and ranges from 0 to 1023, auto or off")


@pytest.mark.parametrize(
    ("goal_us", "said"), [(2_000, "goal 2 ms:"), (2_500, "goal 2.5 ms:"), (500, "goal 500 us:"), (0, "no goal:")]
)
def test_latency_says_what_gives_way(goal_us: int, said: str) -> None:
    assert said in latency_of(goal_us)


def engine(*, fallback: str = "", unregistered: str = "") -> dict[str, Any]:
    return {
        "name": "pread" if fallback else "uring",
        "registered_buffers": not unregistered,
        "why_unregistered": unregistered,
        "ring_features": "",
        "queue_depth": 128,
        "why_fallback": fallback,
        "command_bytes_max": 0,
        "placements": 0,
        "why_no_placements": "",
    }


def test_the_engine_of_nvme_commands_says_what_the_drive_takes() -> None:
    drive = engine() | {"name": "uring_cmd", "ring_features": "coop_taskrun", "command_bytes_max": 131072, "placements": 4}
    said = _engine(drive)
    assert said == (
        "engine     uring_cmd, registered buffers, queue depth 128, coop_taskrun, commands of up to 128 KiB, "
        "4 placement identifiers"
    )
    refused = _engine(drive | {"placements": 0, "why_no_placements": "asking for placement identifiers: status 0x4001"})
    assert refused.endswith("commands of up to 128 KiB; asking for placement identifiers: status 0x4001")


def test_the_engine_says_why_it_is_not_the_other_one_and_why_buffers_are_not_registered() -> None:
    assert _engine(engine()) == "engine     uring, registered buffers, queue depth 128"
    locked = "registering the arena's 67108864 bytes: ENOMEM; raise ulimit -l"
    assert _engine(engine(unregistered=locked)) == f"engine     uring, unregistered buffers, queue depth 128; {locked}"
    refused = "io_uring_setup: EPERM"
    assert _engine(engine(fallback=refused, unregistered=locked)).endswith(f"; {refused}; {locked}")
