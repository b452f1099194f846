"""How large a store and its memory have to be: the native store's own numbers, and what a daemon takes beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from halfstep import _shard
from halfstep.daemon.config import DEFAULT_ARENA_BYTES, MIB, TIB, format_bytes
from halfstep.daemon.refusals import error_of
from halfstep.errors import ConfigError

STORE_BYTES_MAX = 64 * TIB

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
    shards: int = 1,
    segment_bytes: int = 0,
    arena_bytes: int = DEFAULT_ARENA_BYTES,
    key_bytes: int = 32,
) -> Sizing:
    """The store that keeps all of `wanted`. Blocks of several sizes are counted as stores of their own: a few per cent much.

    Errors: ConfigError, which names what no store holds.
    """
    try:
        plans = [
            _shard.size_store(
                blocks=one.blocks,
                block_bytes=one.block_bytes,
                parts=one.parts,
                key_bytes=key_bytes,
                shards=shards,
                segment_bytes=segment_bytes,
                arena_bytes=arena_bytes,
            )
            for one in wanted
        ]
    except _shard.StartError as refusal:
        raise error_of(refusal) from None
    store_bytes = sum(plan["store_bytes"] for plan in plans)
    if store_bytes > STORE_BYTES_MAX:
        raise ConfigError(f"size={format_bytes(store_bytes)}: a store reaches 64 TiB; divide the blocks among several daemons")
    index, default = (sum(plan[name] for plan in plans) for name in ("index_bytes", "index_bytes_default"))
    beside = arena_bytes + round(REMEMBERED_SHARE * arena_bytes) + shards * REQUEST_BYTES + PROCESS_BYTES
    return Sizing(
        payload_bytes=sum(one.blocks * one.block_bytes for one in wanted),
        store_bytes=store_bytes,
        segment_bytes=max(plan["segment_bytes"] for plan in plans),
        arena_bytes=arena_bytes,
        index_bytes=index if index > default else None,
        index_memory_bytes=max(index, default),
        memory_bytes=beside + max(index, default),
        shards=shards,
    )
