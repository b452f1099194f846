"""The plan of a benchmark: one frozen struct, validated once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from halfstep.daemon.config import setting_named
from halfstep.daemon.units import GIB, KIB, MIB, format_bytes
from halfstep.errors import ConfigError
from halfstep.layout import PARTS_MAX, Group, Layout

SCENARIOS = ("get", "cold", "put", "mixed", "coldmixed", "match", "layerwise")
# Whose calls may come at a rate of their own, however long the ones before take.
OPEN_LOOP = ("get", "cold", "put", "mixed", "coldmixed")
DURABILITIES = ("cache", "persist")
NOOP = "noop"  # no drive: what the software alone costs
ENGINES = ("auto", "uring", "pread", NOOP)
TRANSPORTS = ("tcp", "shm", "rdma")

BLOCK_BYTES_MIN = 512
BLOCK_BYTES_MAX = 64 * MIB
BATCH_MAX = 1024
CONNECTIONS_MAX = 16
NUMJOBS_MAX = 32
IODEPTH_MAX = 64
SIZES_MAX = DEPTHS_MAX = 16
# What `cold` walks through, in memories of the daemon, which knows what it had for five of them and keeps what it recognizes.
# Half of this lies between two uses of a block (endless() in workload.py).
COLD_MEMORIES = 12
# Of `coldmixed`: below it hardly anything would be read before it is reclaimed.
READ_SHARE_MIN = 0.05
# In memories of the daemon, which knows of five.
_REACH = 6
RATE_MAX = 1e6
# Calls of one run at a rate: of fewer no percentile is worth its name.
RATE_CALLS_MIN = 10
SEED_MAX = 2**63 - 1
# What one run's source and target buffers may take together; more says nothing that less does not.
BUFFER_BYTES_MAX = GIB


@dataclass(frozen=True)
class Plan:
    """Everything a benchmark run is told. Zero, empty or None means: choose.

    seconds: of one timed run; ramp_s: of work before the first of them, after the set was walked once. iodepth: batches at
    the client at once; several are measured one after the other. parts: of a block of `layerwise`, one a layer. hot_bytes:
    what `get`, `layerwise`, `mixed` and `match` ask for. cold_bytes: what `cold` walks through, and `coldmixed` in one turn;
    0 = twice the daemon's memory for blocks, six times its reads' share. rate: calls a second of each client, due however long
    those before take; 0 = each when the one before has ended. goal_us: what 99 of 100 calls shall not exceed. directory: where
    a daemon of our own keeps its store; arena_bytes: its memory for blocks; transport: how it is reached, "tcp", "shm" or
    "rdma", for which this machine needs a device.
    """

    url: str = ""
    scenarios: tuple[str, ...] = ("get", "cold")
    block_bytes: tuple[int, ...] = (MIB,)
    batch: int = 16
    connections: int = 1
    iodepth: tuple[int, ...] = (1,)
    numjobs: int = 1
    parts: int = 32
    read_share: float = 0.7
    durability: str = "cache"
    seconds: float = 3.0
    ramp_s: float = 0.0
    repeat: int = 3
    seed: int = 1
    hot_bytes: int = 64 * MIB
    cold_bytes: int = 0
    rate: float = 0.0
    goal_us: float = 0.0
    directory: Path | None = None
    arena_bytes: int = 256 * MIB
    engine: str = "auto"
    transport: str = "tcp"
    pin: bool = True

    def validated(self) -> Plan:
        """Itself. Errors: ConfigError with value, bound and remedy."""
        chosen_from("rw", self.scenarios, SCENARIOS)
        within("batch", self.batch, 1, BATCH_MAX)
        within("parts", self.parts, 1, PARTS_MAX)
        within("connections", self.connections, 1, CONNECTIONS_MAX)
        within("numjobs", self.numjobs, 1, NUMJOBS_MAX)
        within("values of bs", len(self.block_bytes), 1, SIZES_MAX)
        within("values of iodepth", len(self.iodepth), 1, DEPTHS_MAX)
        for depth in self.iodepth:
            within("iodepth", depth, 1, IODEPTH_MAX)
        for size in self.block_bytes:
            if not BLOCK_BYTES_MIN <= size <= BLOCK_BYTES_MAX or size % 8:
                raise ConfigError(
                    f"bs={size}: must be a multiple of 8 from {BLOCK_BYTES_MIN} to {format_bytes(BLOCK_BYTES_MAX)}"
                )
            if size * self.batch * max(self.iodepth) * self.numjobs > BUFFER_BYTES_MAX:
                raise ConfigError(
                    f"bs={format_bytes(size)} x batch={self.batch} x iodepth={max(self.iodepth)} x "
                    f"numjobs={self.numjobs}: more than "
                    f"{format_bytes(BUFFER_BYTES_MAX)} at once; lower one of them"
                )
        for size in self.block_bytes if "layerwise" in self.scenarios else ():
            if size % self.parts:
                raise ConfigError(
                    f"parts={self.parts}: bs={size} cannot be cut into as many equal parts; choose a divisor of it"
                )
        within("rwmixread", self.read_share * 100, 0, 100)
        one_of("durability", self.durability, DURABILITIES)
        one_of("engine", self.engine, ENGINES)
        one_of("transport", self.transport, TRANSPORTS)
        if self.url and self.transport != TRANSPORTS[0]:
            raise ConfigError(
                f"transport={self.transport}: the URL {self.url} says how its daemon is reached; leave one of them out"
            )
        within("seed", self.seed, 0, SEED_MAX)
        if self.directory is not None and not self.directory.is_dir():
            raise ConfigError(f"directory={self.directory}: is none; make it, or name another")
        within("runtime", self.seconds, 0.05, 3600.0)
        within("ramp", self.ramp_s, 0.0, 3600.0)
        within("latency_goal", self.goal_us, 0.0, 1e9)
        self._check_rate()
        if "coldmixed" in self.scenarios and self.url:
            raise ConfigError(
                f"rw=coldmixed: fills the whole store of {self.url} and reclaims what others have there; leave the URL out to "
                "have a daemon started for it"
            )
        within("repeat", self.repeat, 1, 99)
        within("size", self.hot_bytes, MIB, 64 * GIB)
        setting_named("arena").check(self.arena_bytes, 1)
        return self

    def _check_rate(self) -> None:
        within("rate", self.rate, 0.0, RATE_MAX)
        if not self.rate:
            return
        if closed := [name for name in self.scenarios if name not in OPEN_LOOP]:
            raise ConfigError(
                f"rate={self.rate:g}: {closed[0]} makes each call when the one before has ended; choose from "
                f"{', '.join(OPEN_LOOP)}, or leave --rate out"
            )
        if self.rate * self.seconds < RATE_CALLS_MIN:
            raise ConfigError(
                f"rate={self.rate:g} x runtime={self.seconds:g}: fewer than {RATE_CALLS_MIN} calls a run; raise one of them"
            )

    def layout_of(self, scenario: str, block_bytes: int) -> Layout:
        """What the blocks of a scenario mean."""
        if scenario != "layerwise":
            return Layout.opaque("halfstep-bench")
        return Layout({"name": "halfstep-bench"}, [Group(self.parts, (block_bytes // self.parts,))])

    def hot_blocks(self, block_bytes: int) -> int:
        """Blocks of the hot set: whole batches, one at least."""
        return max(1, self.hot_bytes // (block_bytes * self.batch)) * self.batch

    def cold_blocks(self, block_bytes: int, memory_bytes: int) -> int:
        """Blocks of the cold set: whole batches. What memory does not know any more it has not kept either (COLD_MEMORIES)."""
        wanted = self.cold_bytes or COLD_MEMORIES * memory_bytes
        # A small block takes a page at least in the daemon's memory.
        taken = max(block_bytes, 4 * KIB)
        return max(2, -(-wanted // (taken * self.batch))) * self.batch

    def trail_bytes(self, memory_bytes: int) -> tuple[int, int, int]:
        """Of `coldmixed`: how much is put after a block before it is read; how much is read in one turn; when it is too old.

        The daemon keeps what it recognizes when it comes again, and it knows what it had for four times its memory: between two
        uses of a block, its put included, more than that and its memory is put and read. A turn ends before its set is too old.
        """
        read_share = max(self.read_share, READ_SHARE_MIN)
        reach = _REACH * memory_bytes
        nearest = max(memory_bytes, int(reach * (1 - read_share)))
        width = self.cold_bytes or int(reach * read_share)
        return nearest, width, nearest + int(width / read_share)


def chosen_from(name: str, words: Sequence[str], known: Sequence[str]) -> None:
    """Errors: ConfigError with name, words and what there is to choose from."""
    if not words or any(word not in known for word in words):
        unknown = [word for word in words if word not in known]
        what = f"{', '.join(map(repr, unknown))} unknown" if unknown else "nothing chosen"
        raise ConfigError(f"{name}={','.join(words)!r}: {what}; choose from {', '.join(known)}")


def one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    """Errors: ConfigError with name, value and what there is."""
    if value not in known:
        raise ConfigError(f"{name}={value!r}: unknown; choose from {', '.join(known)}")


def within(name: str, value: float, lowest: float, highest: float) -> None:
    """Errors: ConfigError with name, value and bounds."""
    if not lowest <= value <= highest:
        raise ConfigError(f"{name}={value}: must be {lowest} to {highest}")
