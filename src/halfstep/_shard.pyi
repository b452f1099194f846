"""The core of halfstepd. Use halfstep.daemon."""

from collections.abc import Sequence
from typing import Any


class StartError(RuntimeError):
    """A server that could not start: (name of the code, sentence)."""

class Server:
    """A running server: one store, its shards' threads, their listeners."""

    def __init__(self, *, store_path: str, store_bytes: int = 0, segment_bytes: int = 0, arena_bytes: int = 268435456, huge_pages: bool = True, allow_buffered: bool = True, engine: str = 'auto', queue_depth: int = 64, pread_threads: int = 4, listen: Sequence[str], insecure_listen: bool = False, connections_max: int = 4096, connection_credit_bytes: int = 16777216, lease_ms_max: int = 60000, progress: object | None = None) -> None:
        """
        Open the store, or make it when it is missing and store_bytes is not 0, recover, listen. Raises StartError.

        progress(step, done, total) is called now and then; a false answer stops and leaves nothing behind.
        """

    def facts(self) -> dict[str, Any]:
        """What is really in force, as it was found at the start."""

    def metrics(self) -> dict[str, Any]:
        """
        counters and gauges as (name, labels, value); latency_bounds_us; latencies as command, counts, sum_us.
        """

    def stop(self, grace_ms: int) -> bool:
        """
        End: what runs gets so long, then everything is sealed and flushed. False if the last flush failed. Idempotent.
        """

    def running(self) -> bool: ...

    def why_stopped(self) -> str:
        """Empty while it runs."""

def fsck(path: str, *, payloads: bool = True, progress: object | None = None) -> dict[str, Any]:
    """
    Look over a store that no daemon serves, writing nothing. Raises StartError: locked, not a store, a newer format.

    progress(step, done, total) is called now and then; a false answer stops: complete is False then.
    """

def build_info() -> dict[str, str]:
    """Version, kind of build and commit of the native half."""
