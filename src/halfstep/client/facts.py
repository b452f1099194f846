"""What a client knows of its connection and of the daemon behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class ShardLoad(NamedTuple):
    """How busy a shard is: requests admitted and not finished, microseconds that the next one would wait, bytes a second."""

    queue_depth: int
    queue_us: int
    bytes_per_s: int


@dataclass(frozen=True)
class ClientFacts:
    """As of the last answer.

    connected: connections that are up, of so many that there should be (connections). transport: "tcp", "shm" (shared memory)
    or "" while there is none. congestion: the congestion control of its sockets. queue_depth, bytes_per_s: of all shards,
    queue_us: of the one with the longest wait. shards: the load of each. checksum_failures: parts that came and did not
    verify, each a miss. last_error: why it is not connected, or not by all connections.
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
    last_error: str = ""
