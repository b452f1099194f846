"""What `list` and `stat` bring: records of the protocol, as values."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from halfstep.client.coding import NONE, floor_text, policy_text
from halfstep.errors import ProtocolError

# EntryRecord of docs/wire-protocol.md: layout id, component, block bytes, parts, created, expiry, key bytes, flags, reserved.
_ENTRY = struct.Struct("<16sIIIIIBBH")
_COUNTER = struct.Struct("<Q")


class Entry(NamedTuple):
    """A block that is there. created_s, expiry_s: seconds of the store's clock (Unix time); expiry 0 = never."""

    layout_id: bytes
    component: int
    key: bytes
    block_bytes: int
    parts: int
    created_s: int
    expiry_s: int


class Namespace(NamedTuple):
    """A tenant's limits, and what it uses. quota_bytes 0: no limit but the store's; default_ttl_s 0: none.

    sliding_ttl: the default TTL counts from a block's last use, else from its put.
    policy: of clients that have none of their own; floor: the lossiest that may be put (docs/compression.md); "none" = none.
    used_bytes: what the quota counts, blocks that are being written too. pinned_bytes: of blocks with persistent holds.
    """

    name: str
    quota_bytes: int
    used_bytes: int
    pin_budget_bytes: int
    pinned_bytes: int
    default_ttl_s: int
    sliding_ttl: bool
    policy: str = NONE
    floor: str = NONE


def entry_of(record: bytes, key: bytes) -> Entry:
    """Errors: ProtocolError."""
    if len(record) != _ENTRY.size:
        raise ProtocolError(f"entry of {len(record)} bytes; version 1 has {_ENTRY.size}")
    layout_id, component, block_bytes, parts, created_s, expiry_s, _, _, _ = _ENTRY.unpack(record)
    return Entry(layout_id, component, key, block_bytes, parts, created_s, expiry_s)


# Each shard of several says first whose numbers follow.
_SHARD = "halfstep_shard"
# Shards do these at the same time: the total is that of the last one (native/shard/metrics.cc).
_OF_THE_WORST_SHARD = {
    "halfstep_recovery_us",
    "halfstep_recovery_first_answer_us",
    "halfstep_store_scrub_age_seconds",
    "halfstep_store_age_limit_capacities",
    "halfstep_store_clock_ahead_seconds",
    "halfstep_store_discards_on",
    "halfstep_store_writes_out",
    "halfstep_zero_copy_on",
    "halfstep_rdma_pinned_bytes",
    "halfstep_coding_known",
}


def counters_by_shard(records: list[tuple[bytes, bytes]]) -> dict[int, dict[str, float]]:
    """Counters by name, of each shard. Errors: ProtocolError."""
    shards: dict[int, dict[str, float]] = {}
    of_one: dict[str, float] | None = None
    for record, name_bytes in records:
        if len(record) != _COUNTER.size:
            raise ProtocolError(f"counter {name_bytes!r} of {len(record)} bytes; version 1 has {_COUNTER.size}")
        try:
            name = name_bytes.decode()
        except UnicodeDecodeError:
            raise ProtocolError(f"counter {name_bytes!r}: a name is UTF-8") from None
        value = _COUNTER.unpack(record)[0]
        if name == _SHARD:
            of_one = shards.setdefault(value, {})
            continue
        if of_one is None:  # a store of one shard
            of_one = shards.setdefault(0, {})
        of_one[name] = value
    return dict(sorted(shards.items()))


def totals_of(shards: Iterable[dict[str, float]]) -> dict[str, float]:
    """All shards' counters together."""
    totals: dict[str, float] = {}
    for counters in shards:
        for name, value in counters.items():
            before = totals.get(name, 0)
            largest = name.partition("{")[0] in _OF_THE_WORST_SHARD
            totals[name] = max(before, value) if largest else before + value
    return totals


class Stock(NamedTuple):
    """Live blocks of a namespace, of one group of its layouts and one set of codecs; "other" where more kinds are together.

    logical_bytes: as they were put. stored_bytes: of their parts, coded or raw. flash_bytes: whole pages, with trailers and
    padding.
    """

    namespace: str
    group: str
    codec: str
    blocks: int
    logical_bytes: int
    stored_bytes: int
    flash_bytes: int


_STOCK = re.compile(
    r'halfstep_(blocks|bytes)_by_codec\{namespace="((?:[^"\\]|\\.)*)",group="(\w+)",codec="([\w+]+)"(?:,of="(\w+)")?\}'
)


def stocks_of(counters: Mapping[str, float]) -> list[Stock]:
    """What `stat` told of the blocks of each namespace, by group and codec; nothing of a daemon of before."""
    rows: dict[tuple[str, str, str], dict[str, int]] = {}
    for name, value in counters.items():
        if match := _STOCK.fullmatch(name):
            kind = re.sub(r"\\(.)", r"\1", match[2]), match[3], match[4]
            rows.setdefault(kind, {})[match[5] or "blocks"] = int(value)
    return [
        Stock(*kind, *(row.get(what, 0) for what in ("blocks", "logical", "stored", "flash")))
        for kind, row in sorted(rows.items())
    ]


class Choices(NamedTuple):
    """Blocks of puts in a namespace that a codec was for: how many clients coded, how many they left raw, and why.

    reasons: blocks by reason (docs/compression.md, *Coded or raw*). The rest is what the newest put's client knew; 0 = that
    was not measured.
    """

    namespace: str
    coded: int
    raw: int
    reasons: Mapping[str, int]
    encode_bytes_per_s: int = 0
    decode_bytes_per_s: int = 0
    link_bytes_per_s: int = 0
    service_bytes_per_s: int = 0
    ratio: float = 0.0


# What else there is left a block raw, or nobody knows.
_CODED_BECAUSE = {"always", "unmeasured", "faster", "room", "probe"}
_CHOICE = re.compile(r'halfstep_coding_(?:choices_total|known)\{namespace="((?:[^"\\]|\\.)*)",(reason|of)="(\w+)"\}')


def choices_of(counters: Mapping[str, float]) -> list[Choices]:
    """What `stat` told of clients' choices in each namespace; nothing of a daemon of before, or where no codec is spoken."""
    reasons: dict[str, dict[str, int]] = {}
    known: dict[str, dict[str, int]] = {}
    for name, value in counters.items():
        if match := _CHOICE.fullmatch(name):
            of = reasons if match[2] == "reason" else known
            of.setdefault(re.sub(r"\\(.)", r"\1", match[1]), {})[match[3]] = int(value)
    rows = []
    for name, blocks in sorted(reasons.items()):
        coded = sum(count for reason, count in blocks.items() if reason in _CODED_BECAUSE)
        told = known.get(name, {})
        encode, decode, link, service = (told.get(f"{of}_bytes_per_s", 0) for of in ("encode", "decode", "link", "service"))
        ratio = told.get("ratio_milli", 0) / 1000
        rows.append(Choices(name, coded, sum(blocks.values()) - coded, blocks, encode, decode, link, service, ratio))
    return rows


_ACCOUNT = re.compile(r'halfstep_namespace_bytes\{namespace="((?:[^"\\]|\\.)*)",of="(\w+)"\}')


def namespaces_of(counters: dict[str, float]) -> list[Namespace]:
    """The namespaces that `stat` told of, by name. Errors: ProtocolError."""
    accounts: dict[str, dict[str, int]] = {}
    for name, value in counters.items():
        if match := _ACCOUNT.fullmatch(name):
            accounts.setdefault(match[1], {})[match[2]] = int(value)
    try:
        return [
            Namespace(
                re.sub(r"\\(.)", r"\1", name),
                account["quota"],
                account["used"],
                account["pin_budget"],
                account["pinned"],
                int(counters[f'halfstep_namespace_default_ttl_seconds{{namespace="{name}"}}']),
                bool(counters[f'halfstep_namespace_ttl_slides{{namespace="{name}"}}']),
                # A daemon of before has neither.
                policy_text(int(counters.get(f'halfstep_namespace_coding{{namespace="{name}",of="policy"}}', 0))),
                floor_text(int(counters.get(f'halfstep_namespace_coding{{namespace="{name}",of="step_limit"}}', 0))),
            )
            for name, account in sorted(accounts.items())
        ]
    except KeyError as error:
        raise ProtocolError(f"stat: a namespace without {error}") from None
