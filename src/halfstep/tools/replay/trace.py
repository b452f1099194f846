"""Traces of requests: blocks, their order and their times. docs/replay.md has the formats.

Blocks are numbered in the order of their first appearance, so that a block's parent has a lower number than the block.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from halfstep.errors import ConfigError

# More is a mistake or a bomb.
TRACE_BYTES_MAX = 8 << 30
_READ_BYTES = 1 << 20
KEY_BYTES = 16
ROOT = -1
_TTL_S_MAX = 2**32 - 1


@dataclass(frozen=True)
class Trace:
    """Requests in the order of their time.

    blocks: of all requests, back to back, each from the root of its prefix chain to the leaf; request i has
    blocks[starts[i]:starts[i + 1]]. times_us: from the first request on. ttl_s: of what a request writes, 0 for good. chained:
    whether a request's blocks are a prefix chain. parents: of each block, where it was first seen; ROOT for none. keys: the
    engine keys, one row a block.
    """

    name: str
    blocks: NDArray[np.int32]
    starts: NDArray[np.int64]
    times_us: NDArray[np.int64]
    ttl_s: NDArray[np.int64]
    chained: NDArray[np.bool_]
    parents: NDArray[np.int32]
    keys: NDArray[np.uint8]

    @property
    def requests(self) -> int:
        """How many."""
        return len(self.times_us)

    @property
    def unique_blocks(self) -> int:
        """Different blocks: what a cache that never evicts would hold at the end."""
        return len(self.parents)

    @property
    def hit_ratio_max(self) -> float:
        """Of a cache that never evicts."""
        return 1 - self.unique_blocks / len(self.blocks)

    def request(self, index: int) -> NDArray[np.int32]:
        """The blocks of one request, root first."""
        return self.blocks[self.starts[index] : self.starts[index + 1]]


@dataclass(frozen=True)
class _Request:
    time_us: int
    keys: list[bytes]
    ttl_s: int
    chained: bool


def load(path: Path, limit: int = 0) -> Trace:
    """The trace in a file; of more than `limit` requests, the first ones. 0: all.

    Errors: ConfigError that names the line and the field.
    """
    try:
        requests = list(_requests(_lines(path), path.name))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    # Stable: what came at the same moment stays in the order of the file.
    requests.sort(key=lambda request: request.time_us)
    if limit:
        requests = requests[:limit]
    if not requests:
        raise ConfigError(f"{path}: no request asks for a block; is it a trace? docs/replay.md has the formats")
    return _number(path.name, requests)


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from _decompressed(file, path) if path.suffix == ".zst" else file


def _decompressed(file: IO[bytes], path: Path) -> IO[bytes]:
    try:
        import zstandard
    except ModuleNotFoundError:
        raise ConfigError(
            f"{path}: the package zstandard is not installed; in the checkout of Halfstep: pip install '.[traces]', "
            f"or decompress it: zstd -d {path}"
        ) from None
    # What `zstd --long=27` makes.
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 27)
    plain = io.BytesIO()
    frame = None
    try:
        while chunk := file.read(_READ_BYTES):
            while chunk:
                frame = frame or decompressor.decompressobj()
                plain.write(frame.decompress(chunk))
                chunk = frame.unused_data if frame.eof else b""
                frame = None if frame.eof else frame
            if plain.tell() > TRACE_BYTES_MAX:
                raise ConfigError(f"{path}: more than {TRACE_BYTES_MAX} bytes when decompressed; cut the trace")
    except zstandard.ZstdError as error:
        raise ConfigError(f"{path}: not to be decompressed: {error}") from None
    if frame is not None:
        raise ConfigError(f"{path}: not to be decompressed: ends in the middle of a frame")
    plain.seek(0)
    return plain


def _requests(lines: Iterable[bytes], name: str) -> Iterator[_Request]:
    read_bytes = 0
    for number, line in enumerate(lines, 1):
        read_bytes += len(line)
        if read_bytes > TRACE_BYTES_MAX:
            raise ConfigError(f"{name}:{number}: more than {TRACE_BYTES_MAX} bytes; cut the trace")
        if not line.strip():
            continue
        request = _parsed(_Line(f"{name}:{number}", line))
        if request.keys:
            yield request


class _Line:
    """One line's fields, each checked where it is taken."""

    def __init__(self, place: str, line: bytes) -> None:
        self.place = place
        try:
            self.fields = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{place}: not JSON: {error}") from None
        if not isinstance(self.fields, dict):
            raise self.wrong("line", "an object", self.fields)

    def wrong(self, field: str, wanted: str, value: object) -> ConfigError:
        """To be raised."""
        return ConfigError(f"{self.place}: {field}: must be {wanted}, not {json.dumps(value)[:60]}")

    def take(self, field: str) -> Any:
        """A field that has to be there."""
        if field not in self.fields:
            raise ConfigError(f"{self.place}: {field}: missing; docs/replay.md has the formats")
        return self.fields[field]

    def time_us(self, field: str) -> int:
        """Of a field in milliseconds."""
        value = self.take(field)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**53:
            raise self.wrong(field, "milliseconds, 0 or more", value)
        return round(value * 1000)

    def blocks(self, field: str) -> list[int | str]:
        """Names of blocks: whole numbers below 2^64, or texts."""
        value = self.take(field)
        if not isinstance(value, list):
            raise self.wrong(field, "a list", value)
        for entry in value:
            number = isinstance(entry, int) and not isinstance(entry, bool) and 0 <= entry < 2**64
            if not number and not (isinstance(entry, str) and entry):
                raise self.wrong(field, "a list of whole numbers from 0 to 2^64 - 1, or of texts", entry)
        return value


def _parsed(line: _Line) -> _Request:
    if "hash_ids" in line.fields:
        return _Request(line.time_us("timestamp"), [_key(block) for block in line.blocks("hash_ids")], 0, True)
    if "blocks" not in line.fields:
        raise ConfigError(
            f"{line.place}: neither hash_ids (Mooncake) nor blocks (Halfstep) is among its fields "
            f"{', '.join(sorted(line.fields)) or '(none)'}; docs/replay.md has the formats"
        )
    ttl_s = line.fields.get("ttl_s", 0)
    if isinstance(ttl_s, bool) or not isinstance(ttl_s, int) or not 0 <= ttl_s <= _TTL_S_MAX:
        raise line.wrong("ttl_s", f"a whole number from 0 to {_TTL_S_MAX}", ttl_s)
    chained = line.fields.get("chained", True)
    if not isinstance(chained, bool):
        raise line.wrong("chained", "true or false", chained)
    return _Request(line.time_us("timestamp_ms"), [_key(block) for block in line.blocks("blocks")], ttl_s, chained)


def _key(block: int | str) -> bytes:
    if isinstance(block, int):
        return hashlib.blake2b(block.to_bytes(8, "little"), digest_size=KEY_BYTES).digest()
    # Another hash, so that no text is taken for a number.
    return hashlib.blake2b(block.encode(errors="surrogatepass"), digest_size=KEY_BYTES, person=b"text").digest()


def _number(name: str, requests: list[_Request]) -> Trace:
    numbers: dict[bytes, int] = {}
    parents: list[int] = []
    blocks: list[int] = []
    starts = [0]
    for request in requests:
        before = ROOT
        for key in request.keys:
            block = numbers.setdefault(key, len(parents))
            if block == len(parents):
                parents.append(before if request.chained else ROOT)
            blocks.append(block)
            before = block
        starts.append(len(blocks))
    first_us = requests[0].time_us
    return Trace(
        name=name,
        blocks=np.array(blocks, np.int32),
        starts=np.array(starts, np.int64),
        times_us=np.array([request.time_us - first_us for request in requests], np.int64),
        ttl_s=np.array([request.ttl_s for request in requests], np.int64),
        chained=np.array([request.chained for request in requests], np.bool_),
        parents=np.array(parents, np.int32),
        keys=np.frombuffer(b"".join(numbers), np.uint8).reshape(-1, KEY_BYTES),
    )
