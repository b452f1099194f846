"""A question about a key is refused before it is sent; an answer is believed when it is one, and told in order."""

from __future__ import annotations

import json
from typing import Any

import pytest

from halfstep.client.explain import explanation_of, question_of
from halfstep.errors import ConfigError, ProtocolError
from halfstep.tools.explain import departure_of, verdict_of


def test_a_question_is_packed_as_the_protocol_draws_it() -> None:
    packed = question_of(b"key", [range(1, 3)], every_group=True)
    assert packed == bytes.fromhex("01000000 0100 03 00 01000000 02000000") + b"key"


@pytest.mark.parametrize(
    ("key", "components", "every_group", "told"),
    [
        (b"", [range(1)], True, "0 bytes"),
        (b"x" * 256, [range(1)], True, "256 bytes"),
        (b"k", [range(1)] * 9, True, "9 ranges"),
        (b"k", [range(0)], True, "consecutive"),
        (b"k", [range(0, 9, 2)], True, "consecutive"),
        (b"k", [range(-1, 1)], False, "consecutive"),
        (b"k", [range(1 << 24, (1 << 24) + 1)], True, "group 0"),
        (b"k", [range((1 << 24) - 1, (1 << 24) + 1)], False, "one group"),
        (b"k", [range(4000), range(97)], True, "4097"),
    ],
)
def test_a_question_over_a_bound_is_refused(key: bytes, components: list[range], every_group: bool, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        question_of(key, components, every_group=every_group)


@pytest.mark.parametrize("records", [[], [(b"", b"{}"), (b"", b"{}")], [(b"", b"{")], [(b"", b"[]")], [(b"", b"\xff")]])
def test_what_is_no_answer_is_a_protocol_error(records: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(ProtocolError):
        explanation_of(records)


def block(*events: tuple[int, str, str], **more: Any) -> dict[str, Any]:
    named = [{"number": n, "time_s": 100 + n, "kind": kind, "reason": reason} for n, kind, reason in events]
    return {"layout": "ab", "component": 0, "there": False, "layout_cleared": False, "events": named, **more}


def told(*blocks: dict[str, Any]) -> dict[str, Any]:
    cleared = [{"number": 5, "time_s": 105, "layout": "ab", "reason": "layout_cleared"}]
    memory = {"unnamed": {"blocks": 3, "newest_event": 4}}
    answer = {"blocks": blocks, "cleared": cleared, "now_s": 1000, "memory": memory}
    return json.loads(json.dumps(answer))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("gone", "when_and_why"),
    [
        (block((1, "stored", "put"), (2, "removed", "evicted")), (102, "evicted")),
        (block((1, "stored", "put"), layout_cleared=True), (105, "layout_cleared")),
        (block((7, "stored", "put"), layout_cleared=True), (0, "")),
        (block((1, "stored", "put"), expiry_s=900), (900, "expired")),
        (block((1, "stored", "put")), (0, "unnamed")),
        (block((6, "stored", "put")), (0, "")),
    ],
)
def test_a_departure_is_the_last_thing_that_is_remembered(gone: dict[str, Any], when_and_why: tuple[int, str]) -> None:
    assert departure_of(gone, told(gone)) == when_and_why
    assert verdict_of(told(gone)) == "gone"


def test_one_block_that_is_there_is_enough() -> None:
    assert verdict_of(told(block(), block(there=True))) == "there"
    assert verdict_of(told()) == "never_seen"
