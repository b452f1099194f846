"""The numbers that Python passes to the native core and reads from it are those of the native headers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from halfstep import _peer
from halfstep.client import numbers, request
from halfstep.client.results import Answer


def enum_in(header: str, name: str, prefix: str) -> dict[str, int]:
    """Of the C header: names without their prefix."""
    body = re.search(rf"enum {name} \{{(.*?)\}};", header, re.DOTALL)
    assert body is not None, name
    found = re.findall(rf"\b{prefix}(\w+) = (\d+)", body[1])
    assert found, name
    return {word: int(number) for word, number in found}


def listed(prefix: str) -> dict[str, int]:
    return {name.removeprefix(prefix): number for name, number in vars(numbers).items() if name.startswith(prefix)}


@pytest.fixture
def header(repository: Path) -> str:
    return (repository / "native" / "peer" / "halfstep.h").read_text()


@pytest.fixture
def reasons(repository: Path) -> dict[str, int]:
    """Of native/wire/records.h, by their words in upper case."""
    records = (repository / "native" / "wire" / "records.h").read_text()
    body = re.search(r"enum class Reason : \w+ \{(.*?)\};", records, re.DOTALL)
    assert body is not None
    found = {name: int(number) for name, number in re.findall(r"^\s*(\w+) = (\d+)", body[1], re.MULTILINE)}
    return {re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper(): number for name, number in found.items() if number}


def test_operations_are_those_of_the_c_header(header: str) -> None:
    assert listed("OP_") == enum_in(header, "hs_operation", "HS_OP_")


def test_answers_are_those_of_the_c_header(header: str) -> None:
    assert {answer.name: answer.value for answer in Answer} == enum_in(header, "hs_answer_code", "HS_")


def test_orders_and_durabilities_are_those_of_the_c_header(header: str) -> None:
    orders = enum_in(header, "hs_order", "HS_")
    assert {name.removesuffix("_MAJOR").lower(): number for name, number in orders.items()} == request._ORDERS
    durabilities = enum_in(header, "hs_durability", "HS_")
    assert {name.lower(): number for name, number in durabilities.items()} == request._DURABILITIES


def test_reasons_are_those_of_the_wire(reasons: dict[str, int]) -> None:
    assert listed("REASON_") == reasons


def test_the_core_calls_each_reason_by_its_name(reasons: dict[str, int]) -> None:
    named = {name: _peer.reason_name(number).replace(" ", "_").upper() for name, number in reasons.items()}
    assert named == {name: name for name in reasons} | {"NO_DESCRIPTORS": "EMFILE"}
