"""The core of halfstepd. Use halfstep.daemon."""

from collections.abc import Sequence
from typing import Any


class StartError(RuntimeError):
    """A server that could not start: (name of the code, sentence)."""

def look_at_place(path: bytes) -> None:
    """
    Whether a store is at this path, as bytes, or may be made there. Raises StartError: a broken link, a mount that is
    missing, a device that is not there. Makes nothing.
    """

class Config:
    """
    What a server is told. What is not set keeps its default; Server checks it.
    """

    def __init__(self) -> None: ...

    @property
    def store_path(self) -> str: ...

    @store_path.setter
    def store_path(self, arg: str | bytes, /) -> None: ...

    @property
    def store_bytes(self) -> int:
        """Of a store that has to be made; 0: it must be there."""

    @store_bytes.setter
    def store_bytes(self, arg: int, /) -> None: ...

    @property
    def segment_bytes(self) -> int:
        """0: chosen by size."""

    @segment_bytes.setter
    def segment_bytes(self, arg: int, /) -> None: ...

    @property
    def shards(self) -> int:
        """Of a store that has to be made; 0: as many as it has, 1 for a new one."""

    @shards.setter
    def shards(self, arg: int, /) -> None: ...

    @property
    def cores(self) -> list[int]:
        """
        Shard n runs on core n of the list, which is gone round; empty: where the kernel likes.
        """

    @cores.setter
    def cores(self, arg: Sequence[int], /) -> None: ...

    @property
    def arena_bytes(self) -> int:
        """Of all shards together."""

    @arena_bytes.setter
    def arena_bytes(self, arg: int, /) -> None: ...

    @property
    def huge_pages(self) -> bool: ...

    @huge_pages.setter
    def huge_pages(self, arg: bool, /) -> None: ...

    @property
    def allow_buffered(self) -> bool: ...

    @allow_buffered.setter
    def allow_buffered(self, arg: bool, /) -> None: ...

    @property
    def engine(self) -> str:
        """auto, uring, uring_cmd or pread."""

    @engine.setter
    def engine(self, arg: str, /) -> None: ...

    @property
    def listen(self) -> list[str]: ...

    @listen.setter
    def listen(self, arg: Sequence[str | bytes], /) -> None: ...

    @property
    def insecure_listen(self) -> bool: ...

    @insecure_listen.setter
    def insecure_listen(self, arg: bool, /) -> None: ...

    @property
    def shm_ring_bytes(self) -> int:
        """Each way, of a client over shared memory."""

    @shm_ring_bytes.setter
    def shm_ring_bytes(self, arg: int, /) -> None: ...

    @property
    def shm_memory_bytes(self) -> int:
        """Of all clients over shared memory; beyond it one gets a stream."""

    @shm_memory_bytes.setter
    def shm_memory_bytes(self, arg: int, /) -> None: ...

    @property
    def decode_bytes(self) -> int:
        """For blocks decoded for clients without their codec; 0: none are."""

    @decode_bytes.setter
    def decode_bytes(self, arg: int, /) -> None: ...

    @property
    def latency_goal_us(self) -> int:
        """Of a get's read from the device; 0: nothing gives way to them."""

    @latency_goal_us.setter
    def latency_goal_us(self, arg: int, /) -> None: ...

    @property
    def zero_copy(self) -> str:
        """Sending without a copy: auto, off, or always, for tests."""

    @zero_copy.setter
    def zero_copy(self, arg: str, /) -> None: ...

    @property
    def rdma(self) -> str:
        """Rings over RDMA, for clients that offer them: auto or off."""

    @rdma.setter
    def rdma(self, arg: str, /) -> None: ...

    @property
    def rdma_memory_bytes(self) -> int:
        """For those rings, of all connections."""

    @rdma_memory_bytes.setter
    def rdma_memory_bytes(self, arg: int, /) -> None: ...

    @property
    def connections_max(self) -> int: ...

    @connections_max.setter
    def connections_max(self, arg: int, /) -> None: ...

    @property
    def connection_credit_bytes(self) -> int: ...

    @connection_credit_bytes.setter
    def connection_credit_bytes(self, arg: int, /) -> None: ...

    @property
    def get_credit_bytes_max(self) -> int: ...

    @get_credit_bytes_max.setter
    def get_credit_bytes_max(self, arg: int, /) -> None: ...

    @property
    def numa_auto(self) -> bool: ...

    @numa_auto.setter
    def numa_auto(self, arg: bool, /) -> None: ...

    @property
    def numa_nodes(self) -> list[int]: ...

    @numa_nodes.setter
    def numa_nodes(self, arg: Sequence[int], /) -> None: ...

    @property
    def queue_depth(self) -> int: ...

    @queue_depth.setter
    def queue_depth(self, arg: int, /) -> None: ...

    @property
    def pread_threads(self) -> int: ...

    @pread_threads.setter
    def pread_threads(self, arg: int, /) -> None: ...

    @property
    def polled(self) -> bool: ...

    @polled.setter
    def polled(self, arg: bool, /) -> None: ...

    @property
    def lease_ms_max(self) -> int: ...

    @lease_ms_max.setter
    def lease_ms_max(self, arg: int, /) -> None: ...

    @property
    def index_bytes(self) -> int: ...

    @index_bytes.setter
    def index_bytes(self, arg: int, /) -> None: ...

    @property
    def policy(self) -> str: ...

    @policy.setter
    def policy(self, arg: str, /) -> None: ...

    @property
    def rewrite_share(self) -> float: ...

    @rewrite_share.setter
    def rewrite_share(self, arg: float, /) -> None: ...

    @property
    def rewrite_bytes_per_day(self) -> int: ...

    @rewrite_bytes_per_day.setter
    def rewrite_bytes_per_day(self, arg: int, /) -> None: ...

    @property
    def discard_bytes_per_s(self) -> int: ...

    @discard_bytes_per_s.setter
    def discard_bytes_per_s(self, arg: int, /) -> None: ...

    @property
    def scrub_bytes_per_s(self) -> int: ...

    @scrub_bytes_per_s.setter
    def scrub_bytes_per_s(self, arg: int, /) -> None: ...

def look_at_backing(path: str | bytes) -> dict[str, Any]:
    """
    How a store at a path would be reached; opens it for reading, with a lock, and closes it. Raises StartError:
    nothing is there, somebody has it, it cannot be opened.
    """

def make_store(config: Config, *, wipe: bool = False, progress: object | None = None) -> dict[str, Any]:
    """
    Makes a store ahead of its first daemon; wipe: in place of what is there. Raises StartError.

    progress(step, done, total) is called now and then; a false answer stops.
    """

class MountOptions:
    """
    The daemon behind a mount, and how what it has is served. Server checks it.
    """

    def __init__(self) -> None: ...

    @property
    def upstream(self) -> str:
        """host:port, or unix:/path."""

    @upstream.setter
    def upstream(self, arg: str | bytes, /) -> None: ...

    @property
    def namespaces(self) -> list[str]:
        """For whose clients it speaks."""

    @namespaces.setter
    def namespaces(self, arg: Sequence[str], /) -> None: ...

    @property
    def max_age_us(self) -> int:
        """How long a block is served without asking the upstream again."""

    @max_age_us.setter
    def max_age_us(self, arg: int, /) -> None: ...

    @property
    def connections(self) -> int:
        """To each shard of the upstream, for each namespace."""

    @connections.setter
    def connections(self, arg: int, /) -> None: ...

    @property
    def upstream_deadline_us(self) -> int:
        """Of a fetch, a put and a delete."""

    @upstream_deadline_us.setter
    def upstream_deadline_us(self, arg: int, /) -> None: ...

SCRUB_AUTO: int = 18446744073709551615

class Server:
    """A running server: one store, its shards' threads, their listeners."""

    def __init__(self, config: Config, progress: object | None = None, mount: MountOptions | None = None) -> None:
        """
        Open the store, or make it when it is missing and store_bytes is not 0, recover, listen. Raises StartError.

        progress(step, done, total) is called now and then; a false answer stops and leaves nothing behind.
        mount: serve what this daemon has, with the arena as memory for it, instead of a store.
        """

    def facts(self) -> dict[str, Any]:
        """What is really in force, as it was found at the start."""

    def metrics(self) -> dict[str, Any]:
        """
        Of all shards together: counters and gauges as (name, labels, value); latency_bounds_us; latencies as command, counts, sum_us.
        """

    def poll_events(self, after: int, limit: int = 1000, shard: int = 0) -> dict[str, Any]:
        """
        What came and went in one shard after its event number `after` (0: from the oldest remembered on), at most
        `limit` events.

        last: what to pass next time. lost: events in between that nobody can tell of any more. foreign: `after` is of
        another start. events: number, time_s, kind, reason, namespace, layout_id; component, block_bytes, key (None:
        forgotten), index_key; of stored ones parent (the last 8 bytes of its key, or None) and root; of unnamed ones blocks.
        """

    def stop(self, grace_ms: int) -> bool:
        """
        End: what runs gets so long, then everything is sealed and flushed. False if some of it
        could not be written; why_stopped() says what. Idempotent.
        """

    def running(self) -> bool: ...

    def why_stopped(self) -> str:
        """Empty while it runs."""

    def why_device_refused(self) -> str:
        """
        Of a device that went and is back: why it is not used, and the remedy. Empty: it is, or is away.
        """

def fsck(path: str | bytes, *, payloads: bool = True, progress: object | None = None) -> dict[str, Any]:
    """
    Look over a store that no daemon serves, writing nothing. Raises StartError: locked, not a store, a newer format.

    progress(step, done, total) is called now and then; a false answer stops: complete is False then.
    """

def size_store(*, blocks: Sequence[tuple[int, int, int]], keys: int = 0, key_bytes: int = 32, shards: int = 1, segment_bytes: int = 0, arena_bytes: int = 268435456) -> dict[str, int]:
    """
    The smallest store that keeps all these blocks (how many, bytes of each, parts of each): its bytes, segments
    and index. keys: all blocks of a key are in one shard; 0: as many as blocks. Makes nothing. Raises StartError.
    """

def build_info() -> dict[str, str]:
    """Version, kind of build and commit of the native half."""
