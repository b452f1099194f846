"""docs/wire-protocol.md has every number that the native headers define."""

from __future__ import annotations

import re
from pathlib import Path

import pytest


def enumerators(header: Path, name: str) -> dict[str, int]:
    body = re.search(rf"enum class {name} : \w+ \{{(.*?)\}};", header.read_text(), re.DOTALL)
    assert body is not None
    return {word: int(number) for word, number in re.findall(r"^\s*(\w+) = (\d+)", body[1], re.MULTILINE)}


def words(camel: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", " ", camel).lower()


@pytest.fixture
def document(repository: Path) -> str:
    return (repository / "docs" / "wire-protocol.md").read_text()


def test_every_tlv_kind_has_its_row(repository: Path, document: str) -> None:
    kinds = enumerators(repository / "native" / "wire" / "message.h", "Tlv")
    assert len(kinds) >= 28
    assert [kind for kind, number in kinds.items() if f"\n| {number} | {kind} |" not in document] == []


def test_every_opcode_has_its_row(repository: Path, document: str) -> None:
    opcodes = enumerators(repository / "native" / "wire" / "message.h", "Opcode")
    table = re.findall(r"^\| (\d+) \| (\w+) \|", document.split("## 5.")[1], re.MULTILINE)
    rows = {name: int(number) for number, name in table}
    assert {name: rows.get(name) for name in opcodes} == opcodes


def test_every_answer_and_reason_that_travels_has_its_number(repository: Path, document: str) -> None:
    records = repository / "native" / "wire" / "records.h"
    section = document.split("## 9.")[1].split("## 10.")[0]
    answers = {name: number for name, number in enumerators(records, "Answer").items() if name != "Pending"}
    assert [name for name, number in answers.items() if f"\n| {number} {name.lower()} |" not in section] == []
    reasons = {name: number for name, number in enumerators(records, "Reason").items() if 0 < number < 80}
    assert [name for name, number in reasons.items() if not re.search(rf"\b{number} {words(name)}\b", section)] == []


@pytest.mark.parametrize(
    ("constant", "said"),
    [
        ("kBatchLengths", "bit {}: Lengths wanted (Match)"),
        ("kBatchFollow", "bit {}: follow (Prefetch)"),
        ("kBatchDecodable", "bit {}: decodable (Match, Get, Put)"),
        ("kBatchWait", "bit {}: wait (Match, Get)"),
        ("kFeatureWait", "Features of a server: bit {}, *wait*"),
        ("kFeaturePlace", "bit {}, *place*"),
        ("kFeaturePrefetchKind", "; bit {}, kinds of a Prefetch"),
        ("kFeaturePlaceKeys", "bit {}, *keys* of a request's own"),
    ],
)
def test_every_flag_of_a_batch_and_of_a_server_has_its_bit(repository: Path, document: str, constant: str, said: str) -> None:
    wire = repository / "native" / "wire"
    headers = (wire / "records.h").read_text() + (wire / "features.h").read_text()
    value = re.search(rf"{constant} = (\d+);", headers)
    assert value is not None
    assert said.format(int(value[1]).bit_length() - 1) in document


@pytest.mark.parametrize(
    ("constant", "said"),
    [
        ("kSectionsMax", "| sections of a request | {} |"),
        ("kRangesMax", "| ranges of a section; parts they select | {}; 2,560 |"),
        ("kKeysMax", "| keys of a request, all sections together | {} |"),
        ("kItemsMax", "| items (keys × components) of a request | {} |"),  # noqa: RUF001
        ("kRunsPerChunkMax", "| runs of a Chunk | {} |"),
        ("kRequestsInFlightMax", "| requests in flight on a connection | {} |"),
    ],
)
def test_every_limit_is_the_one_in_force(repository: Path, document: str, constant: str, said: str) -> None:
    header = (repository / "native" / "wire" / "message.h").read_text()
    value = re.search(rf"{constant} = (\d+);", header)
    assert value is not None
    assert said.format(f"{int(value[1]):,}") in document
