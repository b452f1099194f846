"""Engine keys from token ids: one for each full block, each covering all tokens before it.

    root parent = b"" without a salt, else H(salt)
    key[i]      = H(key[i - 1] || tokens of block i as little-endian u32)

Only full blocks have a key; the tokens after the last one are recomputed by the engine. Equal keys mean equal prefixes as far
as H is collision resistant: sha256 is; xxh3_128 is not against somebody who chooses the tokens, and is for trusted input only.
`block_tokens` and the algorithm are no part of a key: they belong into the layout, which keeps different ones apart.

Test vectors: tests/unit/vectors/prefix_keys.json.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from copy import deepcopy
from typing import Literal

import numpy as np
import numpy.typing as npt

from halfstep.arguments import whole_number
from halfstep.errors import ConfigError

Algorithm = Literal["sha256", "xxh3_128"]

_TOKEN_MAX = 2**32 - 1


def prefix_keys(
    token_ids: npt.ArrayLike, block_tokens: int, *, algorithm: Algorithm = "sha256", salt: bytes = b""
) -> list[bytes]:
    """Keys of the full blocks of `token_ids`, first block first.

    Shapes and units: token_ids is one-dimensional, integers of 0 to 2**32 - 1 (a numpy array, a torch tensor on the CPU or a
    list); a key has 32 bytes with sha256, 16 with xxh3_128 (big endian, xxHash's canonical form). With sha256 and no salt they
    are the bytes of SGLang's page hashes (which it writes in hexadecimal, and starts differently for a request of a cache
    namespace).
    salt: what else the keys depend on (LoRA, images, a tenant's cache salt); other salts never share a key.
    Errors: ConfigError.
    """
    return PrefixChain(block_tokens, algorithm=algorithm, salt=salt).extend(token_ids)


class PrefixChain:
    """The keys of a growing sequence; what was hashed once is not hashed again.

    Invariant: the keys are those of `prefix_keys` over all tokens that were appended, however they were cut into calls.
    Thread: one at a time.
    """

    def __init__(self, block_tokens: int, *, algorithm: Algorithm = "sha256", salt: bytes = b"") -> None:
        if whole_number("block_tokens", block_tokens) < 1:
            raise ConfigError(f"block_tokens={block_tokens}: must be at least 1")
        # bytes(3) would be three zero bytes, and 0 no salt at all.
        if not isinstance(salt, (bytes, bytearray, memoryview)):
            raise ConfigError(f"salt={salt!r}: must be bytes, not {type(salt).__name__}; encode it, as in str(salt).encode()")
        self._block_tokens = int(block_tokens)
        self._hash = _hash_of(algorithm)
        self._parent = self._hash(b"", bytes(salt)) if len(salt) else b""
        self._keys: list[bytes] = []
        self._pending = np.empty(0, dtype="<u4")

    @property
    def keys(self) -> list[bytes]:
        """The keys of all full blocks so far."""
        return list(self._keys)

    @property
    def token_count(self) -> int:
        """All tokens appended, those of the unfinished block included."""
        return len(self._keys) * self._block_tokens + len(self._pending)

    def extend(self, token_ids: npt.ArrayLike) -> list[bytes]:
        """Append tokens; return the keys of the blocks that this completed."""
        tokens = _tokens(token_ids)
        if len(self._pending):
            tokens = np.concatenate((self._pending, tokens))
        full = len(tokens) // self._block_tokens
        packed = tokens.view(np.uint8).data
        block_bytes = self._block_tokens * tokens.itemsize
        before = len(self._keys)
        for start in range(0, full * block_bytes, block_bytes):
            self._parent = self._hash(self._parent, packed[start : start + block_bytes])
            self._keys.append(self._parent)
        self._pending = tokens[full * self._block_tokens :].copy()
        return self._keys[before:]

    def copy(self) -> PrefixChain:
        """Make a chain that goes on from here by itself (another continuation of the same prompt)."""
        return deepcopy(self)


def _tokens(token_ids: npt.ArrayLike) -> npt.NDArray[np.uint32]:
    """One contiguous array of little-endian u32, without a loop over tokens."""
    try:
        array = np.asarray(token_ids)
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"token_ids: {error}; pass one flat sequence of integers") from error
    if array.ndim != 1:
        raise ConfigError(f"token_ids has shape {array.shape}: must be one-dimensional, one sequence at a time")
    if array.size == 0:
        return np.empty(0, dtype="<u4")
    if array.dtype.kind not in "iu":
        raise ConfigError(f"token_ids has dtype {array.dtype}: must be integers of 0 to {_TOKEN_MAX}")
    low, high = int(array.min()), int(array.max())
    if low < 0 or high > _TOKEN_MAX:
        raise ConfigError(f"token_ids has {low if low < 0 else high}: must be 0 to {_TOKEN_MAX}")
    return np.ascontiguousarray(array, dtype="<u4")


def _hash_of(algorithm: str) -> Callable[[bytes, bytes | memoryview], bytes]:
    if algorithm == "sha256":
        return _sha256
    if algorithm == "xxh3_128":
        return _xxh3_128()
    raise ConfigError(f"algorithm={algorithm!r}: must be 'sha256' or 'xxh3_128'")


def _sha256(parent: bytes, tokens: bytes | memoryview) -> bytes:
    state = hashlib.sha256(parent)
    state.update(tokens)
    return state.digest()


def _xxh3_128() -> Callable[[bytes, bytes | memoryview], bytes]:
    try:
        import xxhash
    except ImportError as error:
        raise ConfigError(
            "algorithm='xxh3_128' needs the xxhash package; in the checkout of Halfstep: pip install '.[keys]', or use "
            "'sha256', which needs nothing more"
        ) from error

    def hashed(parent: bytes, tokens: bytes | memoryview) -> bytes:
        state = xxhash.xxh3_128(parent)
        state.update(tokens)
        return state.digest()

    return hashed
