"""The real store, embedded, for tools. Use halfstep.tools.replay."""

import numpy
import numpy.typing


class StoreError(RuntimeError):
    """What an embedded store cannot do: (name of the code, sentence)."""

def policies() -> tuple[str, ...]:
    """Those of the store, its default first."""

CAPACITY_BLOCKS_MIN: int = 32

def size(*, capacity_blocks: int, segments: int, device_bytes: int, dram_blocks: int = 0) -> dict[str, int]:
    """What a Store would be sized to, without making it. Raises StoreError."""

class Store:
    """
    A new store over memory, or over a file that is gone when it is closed. One thread at a time.
    """

    def __init__(self, *, capacity_blocks: int, segments: int, device_bytes: int, path: str | bytes = '', manual_clock: bool = True, seed: int = 1, policy: str = 'seg-adapt10', rewrite_share: float = 0.1, dram_blocks: int = 0) -> None:
        """
        Room for at most so many blocks in at least so many segments, on about so many bytes: blocks are as small as that needs. Memory for at most dram_blocks of them; 0: for what is under way. Raises StoreError.
        """

    def sizing(self) -> dict[str, int]:
        """
        capacity_blocks, segments, blocks_per_segment, dram_blocks, and the bytes of a segment, of a block and of the device.
        """

    def match(self, keys: numpy.typing.NDArray[numpy.uint8]) -> tuple[int, bytes]:
        """How many of the first ones are there, and a byte for each: 1 if it is."""

    def read(self, keys: numpy.typing.NDArray[numpy.uint8]) -> tuple[int, int, int]:
        """
        How many of the first ones came, whole and right; how many were missed; how many were not what was written.
        """

    def access(self, keys: numpy.typing.NDArray[numpy.uint8], *, tell_parents: bool, ttl_s: int = 0, hints: numpy.typing.NDArray[numpy.uint8] | None = None) -> tuple[int, int, int]:
        """
        Touch what is there and write what is not, from the leaf, which is the last, to the root: how many were there, were written, found no room. hints: of each key what is known of its future, by the numbers of the wire protocol.
        """

    def stage(self, keys: numpy.typing.NDArray[numpy.uint8], keep_us: int) -> bytes:
        """
        Bring blocks into memory ahead of their read, kept for so long: of each 0 if it is absent, 1 if it was read from flash, 2 if it was in memory, 3 if there is no room for it.
        """

    def advance_to(self, us: int) -> None:
        """Set the clock on; it never goes back."""

    def settle(self) -> None:
        """Write what was gathered and do what is due."""

    def counters(self) -> dict[str, int]:
        """Since it was opened."""

    def blocks(self) -> int:
        """Blocks that are there now, on flash or gathered for it."""

    def engine(self) -> str:
        """memory, uring or pread."""

    def device_write_bytes(self) -> int:
        """By the engine's count."""

    def close(self) -> None:
        """Idempotent."""

class HotBlocks:
    """
    The policy of the store's memory alone, over blocks of one size: numbers from 0 on.
    """

    def __init__(self, *, capacity_blocks: int, unique_blocks: int) -> None: ...

    def request(self, blocks: numpy.typing.NDArray[numpy.int32]) -> int:
        """
        Use or take in all of a request's blocks, from the leaf, which is the last, to the root: how many of the first ones had been there.
        """

    def present(self) -> bytes:
        """A byte for each block: 1 if it is there."""

    @property
    def inserted(self) -> int:
        """How often a block came in."""

    @property
    def evicted(self) -> int:
        """How often one gave way."""
