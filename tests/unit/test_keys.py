"""Prefix-chained engine keys: the published vectors, and what a chain promises."""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfstep.errors import ConfigError
from halfstep.keys import PrefixChain, prefix_keys

VECTORS = json.loads((Path(__file__).with_name("vectors") / "prefix_keys.json").read_text())["vectors"]

TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=60)
BLOCK_TOKENS = st.integers(1, 9)
ALGORITHMS = st.sampled_from(["sha256", "xxh3_128"])
SALTS = st.binary(max_size=8)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda v: v["name"])
def test_keys_are_the_published_ones(vector: dict[str, Any]) -> None:
    keys = prefix_keys(
        vector["token_ids"],
        vector["block_tokens"],
        algorithm=vector["algorithm"],
        salt=bytes.fromhex(vector["salt"]),
    )
    assert [key.hex() for key in keys] == vector["keys"]


def test_the_published_vectors_cover_both_algorithms_salts_and_partial_blocks() -> None:
    assert {vector["algorithm"] for vector in VECTORS} == {"sha256", "xxh3_128"}
    assert {bool(vector["salt"]) for vector in VECTORS} == {True, False}
    assert any(len(vector["token_ids"]) % vector["block_tokens"] for vector in VECTORS)


@given(tokens=TOKENS, block_tokens=BLOCK_TOKENS, salt=SALTS)
def test_sha256_keys_are_what_the_module_says(tokens: list[int], block_tokens: int, salt: bytes) -> None:
    parent, expected = hashlib.sha256(salt).digest() if salt else b"", []
    for start in range(0, len(tokens) - block_tokens + 1, block_tokens):
        block = b"".join(struct.pack("<I", token) for token in tokens[start : start + block_tokens])
        parent = hashlib.sha256(parent + block).digest()
        expected.append(parent)
    assert prefix_keys(tokens, block_tokens, salt=salt) == expected


@given(tokens=TOKENS, cut=st.integers(0, 60), block_tokens=BLOCK_TOKENS, algorithm=ALGORITHMS, salt=SALTS)
def test_a_prefix_of_the_tokens_has_a_prefix_of_the_keys(
    tokens: list[int], cut: int, block_tokens: int, algorithm: Any, salt: bytes
) -> None:
    whole = prefix_keys(tokens, block_tokens, algorithm=algorithm, salt=salt)
    prefix = prefix_keys(tokens[:cut], block_tokens, algorithm=algorithm, salt=salt)
    assert len(whole) == len(tokens) // block_tokens
    assert prefix == whole[: min(cut, len(tokens)) // block_tokens]


@given(
    tokens=TOKENS.filter(bool),
    at=st.integers(0, 59),
    change=st.integers(1, 2**32 - 1),
    block_tokens=BLOCK_TOKENS,
    algorithm=ALGORITHMS,
)
def test_one_changed_token_changes_every_key_from_its_block_on(
    tokens: list[int], at: int, change: int, block_tokens: int, algorithm: Any
) -> None:
    at %= len(tokens)
    other = list(tokens)
    other[at] ^= change
    before = prefix_keys(tokens, block_tokens, algorithm=algorithm)
    after = prefix_keys(other, block_tokens, algorithm=algorithm)
    block = at // block_tokens
    assert before[:block] == after[:block]
    assert not set(before[block:]) & set(after[block:])


@given(pieces=st.lists(TOKENS, max_size=6), block_tokens=BLOCK_TOKENS, algorithm=ALGORITHMS, salt=SALTS)
def test_a_chain_does_not_depend_on_how_its_tokens_were_cut(
    pieces: list[list[int]], block_tokens: int, algorithm: Any, salt: bytes
) -> None:
    chain = PrefixChain(block_tokens, algorithm=algorithm, salt=salt)
    new = [key for piece in pieces for key in chain.extend(piece)]
    tokens = [token for piece in pieces for token in piece]
    assert new == chain.keys == prefix_keys(tokens, block_tokens, algorithm=algorithm, salt=salt)
    assert chain.token_count == len(tokens)


@given(shared=TOKENS, left=TOKENS, right=TOKENS, block_tokens=BLOCK_TOKENS)
def test_copies_of_a_chain_go_on_alone(shared: list[int], left: list[int], right: list[int], block_tokens: int) -> None:
    chain = PrefixChain(block_tokens)
    chain.extend(shared)
    branch = chain.copy()
    chain.extend(left)
    branch.extend(right)
    assert chain.keys == prefix_keys(shared + left, block_tokens)
    assert branch.keys == prefix_keys(shared + right, block_tokens)


@pytest.mark.parametrize("algorithm", ["sha256", "xxh3_128"])
def test_other_salts_share_no_key(algorithm: Any) -> None:
    keys = [prefix_keys(range(32), 4, algorithm=algorithm, salt=salt) for salt in (b"", b"a", b"b", b"\0")]
    assert len({key for chain in keys for key in chain}) == 4 * 8


@pytest.mark.parametrize("algorithm", ["sha256", "xxh3_128"])
def test_keys_have_the_length_of_their_digest(algorithm: Any) -> None:
    expected = {"sha256": 32, "xxh3_128": 16}[algorithm]
    assert {len(key) for key in prefix_keys(range(64), 16, algorithm=algorithm)} == {expected}


@pytest.mark.parametrize("dtype", ["u1", "i2", "<u4", ">u4", "<i8", ">i8", "u8"])
def test_every_integer_array_gives_the_keys_of_its_values(dtype: str) -> None:
    tokens = np.arange(100, dtype=dtype)
    assert prefix_keys(tokens, 16) == prefix_keys(list(range(100)), 16)
    assert prefix_keys(tokens[::3], 16) == prefix_keys(list(range(0, 100, 3)), 16)


def test_the_callers_array_may_change_afterwards() -> None:
    tokens = np.arange(20, dtype="<u4")
    chain = PrefixChain(16)
    chain.extend(tokens)
    tokens[:] = 0
    chain.extend(range(20, 32))
    assert chain.keys == prefix_keys(range(32), 16)


@pytest.mark.parametrize(
    ("token_ids", "said"),
    [
        ([-1], "token_ids has -1"),
        ([2**32], "token_ids has 4294967296"),
        ([2**70], "dtype"),
        ([1.0], "dtype float64"),
        (np.array([True]), "dtype bool"),
        ([[1, 2], [3, 4]], "one-dimensional"),
        (np.uint32(7), "one-dimensional"),
        ([[1], [2, 3]], "flat sequence"),
    ],
)
def test_what_is_no_token_sequence_is_named(token_ids: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        prefix_keys(token_ids, 1)


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ConfigError, match="block_tokens=0"):
        prefix_keys([1], 0)
    with pytest.raises(ConfigError, match="algorithm='md5'"):
        prefix_keys([1], 1, algorithm="md5")  # type: ignore[arg-type]


def test_without_xxhash_the_extra_is_named_and_sha256_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xxhash", None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[keys\]'"):
        prefix_keys([1], 1, algorithm="xxh3_128")
    assert len(prefix_keys([1], 1)) == 1


def test_no_tokens_and_a_partial_block_have_no_keys() -> None:
    assert prefix_keys([], 16) == []
    assert prefix_keys(np.empty(0, dtype=np.int64), 16) == []
    assert prefix_keys(range(15), 16) == []


@pytest.mark.parametrize("salt", [0, 3, None, False, "tenant", 1.5, [1, 2], np.arange(3)])
def test_a_salt_that_is_no_bytes_is_refused(salt: Any) -> None:
    with pytest.raises(ConfigError, match=r"salt=.*: must be bytes, not "):
        prefix_keys(range(8), 4, salt=salt)
    with pytest.raises(ConfigError, match="must be bytes"):
        PrefixChain(4, salt=salt)


def test_a_salt_may_be_any_bytes() -> None:
    expected = prefix_keys(range(8), 4, salt=b"tenant")
    assert prefix_keys(range(8), 4, salt=bytearray(b"tenant")) == expected
    assert prefix_keys(range(8), 4, salt=memoryview(b"tenant")) == expected
    assert prefix_keys(range(8), 4, salt=b"\0\0\0") != prefix_keys(range(8), 4)


@pytest.mark.parametrize("block_tokens", [2.9, 2.0, "4", None, np.float32(4)])
def test_block_tokens_is_a_whole_number(block_tokens: Any) -> None:
    with pytest.raises(ConfigError, match=r"block_tokens=.*: must be a whole number"):
        prefix_keys(range(8), block_tokens)


def test_block_tokens_may_be_numpys() -> None:
    assert prefix_keys(range(8), np.int64(4)) == prefix_keys(range(8), 4)  # type: ignore[arg-type]
