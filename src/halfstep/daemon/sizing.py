"""Size of a store and of its daemon's memory, from the native store's own numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from halfstep import _shard
from halfstep.daemon.config import DEFAULT_ARENA_BYTES
from halfstep.daemon.refusals import error_of
from halfstep.daemon.units import MIB

# Of each shard: bodies, plans and unsent answers of requests (request_bytes_max of native/shard/config.h).
REQUEST_BYTES = 64 * MIB
# Events, Python and its libraries.
PROCESS_BYTES = 256 * MIB
# What memory remembers of blocks that left it, at most (native/store/memory/hot_policy.h).
REMEMBERED_SHARE = 0.012


@dataclass(frozen=True)
class Blocks:
    """So many blocks of one size. parts: of a block, of equal length."""

    blocks: int
    block_bytes: int
    parts: int = 1


@dataclass(frozen=True)
class Sizing:
    """What to tell `halfstep serve`, and what it then takes. Bytes.

    index_bytes: None where the default is enough. memory_bytes: without rings of local connections, two MiB each by default.
    """

    payload_bytes: int
    store_bytes: int
    segment_bytes: int
    arena_bytes: int
    index_bytes: int | None
    index_memory_bytes: int
    memory_bytes: int
    shards: int


def size_store(
    wanted: Sequence[Blocks],
    *,
    keys: int = 0,
    shards: int = 1,
    segment_bytes: int = 0,
    arena_bytes: int = DEFAULT_ARENA_BYTES,
    key_bytes: int = 32,
) -> Sizing:
    """The store that keeps all of `wanted`. keys: all blocks of an engine key are in one shard; 0: as many as blocks.

    Errors: ConfigError, which names what no store holds.
    """
    try:
        plan = _shard.size_store(
            blocks=[(one.blocks, one.block_bytes, one.parts) for one in wanted],
            keys=keys,
            key_bytes=key_bytes,
            shards=shards,
            segment_bytes=segment_bytes,
            arena_bytes=arena_bytes,
        )
    except _shard.StartError as refusal:
        raise error_of(refusal) from None
    index, default = plan["index_bytes"], plan["index_bytes_default"]
    beside = arena_bytes + round(REMEMBERED_SHARE * arena_bytes) + shards * REQUEST_BYTES + PROCESS_BYTES
    return Sizing(
        payload_bytes=sum(one.blocks * one.block_bytes for one in wanted),
        store_bytes=plan["store_bytes"],
        segment_bytes=plan["segment_bytes"],
        arena_bytes=arena_bytes,
        index_bytes=index if index > default else None,
        index_memory_bytes=max(index, default),
        memory_bytes=beside + max(index, default),
        shards=shards,
    )
