"""What a client knows of its connection and of the daemon behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class ShardLoad(NamedTuple):
    """How busy a shard is: requests admitted and not finished, microseconds that the next one would wait, bytes a second."""

    queue_depth: int
    queue_us: int
    bytes_per_s: int


@dataclass(frozen=True)
class CodingFacts:
    """Whether blocks of puts were coded, and why. The rest is what the newest choice knew; 0 = that was not measured yet.

    blocks: of each reason (docs/compression.md, *Coded or raw*). encode_bytes_per_s: of all threads that code.
    decode_bytes_per_s: of one. link_bytes_per_s: the fastest of late. service_bytes_per_s: of all shards. ratio: of late.
    """

    encode_bytes_per_s: int = 0
    decode_bytes_per_s: int = 0
    link_bytes_per_s: int = 0
    service_bytes_per_s: int = 0
    ratio: float = 0.0
    blocks: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class CanaryFacts:
    """Exact siblings of lossy blocks that tiers have put (docs/compression.md, *Canary*). one_in: 0 = none are wanted.

    stored: written now; present: there already; refused: not stored, whatever became of their blocks.
    """

    one_in: int = 0
    stored: int = 0
    present: int = 0
    refused: int = 0


@dataclass(frozen=True)
class GpuFacts:
    """Copies to and from GPUs. devices: in use, "" while there are none. error: the newest failure, in the driver's words.

    slots: of 256 KiB of pinned memory each; slots_used: now. slot_waits: times that bytes, or a put, had to wait for one.
    failures: of copies; their items are `unavailable (copy)`. placed_bytes: written by daemons straight into direct regions on
    GPUs, and verified by nobody after them.
    """

    devices: str = ""
    error: str = ""
    slots: int = 0
    slots_used: int = 0
    slot_waits: int = 0
    copies: int = 0
    bytes_to_device: int = 0
    bytes_to_host: int = 0
    failures: int = 0
    placed_bytes: int = 0


@dataclass(frozen=True)
class ClientFacts:
    """As of the last answer.

    connected: connections that are up, of so many that there should be (connections). transport: "tcp", "rdma" (all of
    them), "shm" (shared memory), "unix" (a local socket without it) or "" while there is none. congestion: the congestion
    control of its sockets. queue_depth, bytes_per_s: of all shards, queue_us: of the one with the longest wait. shards: the
    load of each. checksum_failures: parts that came and did not verify. decode_failures: coded parts that verified and did
    not decode. Each of both is a miss. last_error: why it is not connected, not by all connections, or through a "unix"
    socket without shared memory. rdma: why a connection has no rings; "" where all have, or none was wanted. rdma_failures:
    paths over RDMA that could not be made, or died. coding: see CodingFacts. not_waited: requests with wait=True to daemons
    that do not know how; they were answered at once. placed_bytes: written by daemons straight into direct regions, and
    verified there. placing_keys: keys of such regions that were good for one request each, where the device has memory
    windows. placement: the newest reason why one was not written into. namespace_policy, namespace_step_limit: the
    namespace's default and floor, as NamespaceCoding of docs/wire-protocol.md has them. gpu, canary: see GpuFacts,
    CanaryFacts.
    """

    connected: int = 0
    connections: int = 0
    handshakes: int = 0
    transport: str = ""
    congestion: str = ""
    store_uuid: bytes = bytes(16)
    boot_id: bytes = bytes(16)
    block_bytes_max: int = 0
    keys_max: int = 0
    queue_depth: int = 0
    queue_us: int = 0
    bytes_per_s: int = 0
    shards: tuple[ShardLoad, ...] = ()
    bytes_received: int = 0
    bytes_sent: int = 0
    checksum_failures: int = 0
    decode_failures: int = 0
    last_error: str = ""
    rdma: str = ""
    rdma_failures: int = 0
    coding: CodingFacts = CodingFacts()
    not_waited: int = 0
    placed_bytes: int = 0
    placing_keys: int = 0
    placement: str = ""
    namespace_policy: int = 0
    namespace_step_limit: int = 0
    gpu: GpuFacts = GpuFacts()
    canary: CanaryFacts = CanaryFacts()
