"""Paths over RDMA as Hello and its Final name them, and what an immediate says: section 15 of the page."""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from tests.wire.frames import Kind, need, tlv

PATHS_MAX = 4
RING_BYTES_MIN, RING_BYTES_MAX = 64 << 10, 64 << 20
WRITE_BYTES_MAX = 64 << 10
RECEIVES = 256
MTUS = (256, 512, 1024, 2048, 4096)
# Of an immediate: it tells of room, and not of bytes; positions count modulo this bit, too.
ROOM = 1 << 31
_24_BITS = 1 << 24


class Refusal(IntEnum):
    """Why there is no path."""

    NONE = 0
    VERSION = 1
    NO_DEVICE = 2
    NO_PATH = 3
    NO_MEMORY = 4
    DEVICE = 5
    NOT_FOR_THIS_CLIENT = 6
    OFF = 7


@dataclass(frozen=True)
class RdmaPath:
    """One end: a queue pair, and the ring that the other end writes into."""

    gid: bytes
    queue_pair: int
    psn: int
    ring_address: int
    ring_key: int
    ring_bytes: int
    mtu_bytes: int

    def encoded(self) -> bytes:
        """As it travels."""
        head = self.gid + struct.pack("<IIQ", self.queue_pair, self.psn, self.ring_address)
        return head + struct.pack("<IIII", self.ring_key, self.ring_bytes, self.mtu_bytes, 0)


def path_of(value: bytes) -> RdmaPath:
    """One that came. Errors: WireFault."""
    gid, queue_pair, psn, address, key, ring_bytes, mtu_bytes, zero = struct.unpack("<16sIIQIIII", value)
    need(zero == 0, f"an RdmaPath with zero {zero}")
    need(queue_pair < _24_BITS and psn < _24_BITS, f"queue pair {queue_pair}, psn {psn}: 24 bits each")
    power = ring_bytes & ring_bytes - 1 == 0
    need(power and RING_BYTES_MIN <= ring_bytes <= RING_BYTES_MAX, f"a ring of {ring_bytes} bytes")
    need(mtu_bytes in MTUS, f"an MTU of {mtu_bytes} bytes")
    return RdmaPath(gid, queue_pair, psn, address, key, ring_bytes, mtu_bytes)


def gid_of(address: str) -> bytes:
    """That of RoCE v2 for the IP address of a device."""
    ip = ipaddress.ip_address(address)
    return ip.packed if ip.version == 6 else bytes(10) + b"\xff\xff" + ip.packed


def offer_tlv(paths: Sequence[RdmaPath], versions: tuple[int, int] = (1, 1)) -> bytes:
    """For a Hello."""
    head = struct.pack("<HHHH", *versions, len(paths), 0)
    return tlv(Kind.RDMA_OFFER, head + b"".join(path.encoded() for path in paths))


def offer_of(value: bytes) -> tuple[tuple[int, int], list[RdmaPath]]:
    """Versions and paths of one that came; no paths where version 1 is not among them. Errors: WireFault."""
    need(len(value) >= 8, f"an RdmaOffer of {len(value)} bytes")
    version_min, version_max, count, zero = struct.unpack_from("<HHHH", value)
    if not version_min <= 1 <= version_max:
        return (version_min, version_max), []
    need(zero == 0 and 1 <= count <= PATHS_MAX and len(value) == 8 + 48 * count, f"an RdmaOffer of {count} paths")
    return (version_min, version_max), [path_of(value[at : at + 48]) for at in range(8, len(value), 48)]


def answer_tlv(path: RdmaPath | None, refusal: int = Refusal.NONE, number: int = 0) -> bytes:
    """For the Final of a Hello. path: of the server's end, None in a refusal. number: of the offer's path."""
    head = struct.pack("<HHHH", 0 if path is None else 1, refusal, number, 0)
    return tlv(Kind.RDMA_ANSWER, head + (b"" if path is None else path.encoded()))


@dataclass(frozen=True)
class RdmaAnswer:
    """Of a server. path: its end; None where it refuses. number: of the offer's path that it goes by."""

    path: RdmaPath | None
    refusal: int
    number: int


def answer_of(value: bytes, offered: int) -> RdmaAnswer:
    """One that came. offered: number of paths that were. Errors: WireFault."""
    need(len(value) >= 8, f"an RdmaAnswer of {len(value)} bytes")
    version, refusal, number, zero = struct.unpack_from("<HHHH", value)
    need(zero == 0, f"an RdmaAnswer with zero {zero}")
    if version == 0:
        need(refusal != 0 and number == 0 and len(value) == 8, f"a refusal {refusal} of path {number} in {len(value)} bytes")
        return RdmaAnswer(None, refusal, 0)
    need(version == 1 and refusal == 0, f"an RdmaAnswer of version {version}, refusal {refusal}")
    need(number < offered and len(value) == 56, f"path {number} of {offered} in {len(value)} bytes")
    return RdmaAnswer(path_of(value[8:]), 0, number)


def reads_tlv(reads: int) -> bytes:
    """Beside an offer, or beside its answer."""
    return tlv(Kind.RDMA_READS, struct.pack("<II", reads, 0))


def reads_of(value: bytes, asked: int) -> int:
    """Those of a server that came beside its answer. asked: of the client. Errors: WireFault."""
    need(len(value) == 8, f"RdmaReads of {len(value)} bytes")
    reads, zero = struct.unpack("<II", value)
    need(1 <= reads <= asked and zero == 0, f"RdmaReads {reads} of {asked}, zero {zero}")
    return int(reads)


class Positions:
    """What one end knows of both directions, by its own count and the other end's immediates.

    own_bytes: of the ring that the other end writes into; its_bytes: of the other end's.
    """

    def __init__(self, own_bytes: int, its_bytes: int) -> None:
        self.own_bytes, self.its_bytes = own_bytes, its_bytes
        self.written = self.its_taken = 0  # of what goes out
        self.came = self.taken = self.told = 0  # of what comes in

    def note(self, immediate: int, count: int) -> tuple[int, int]:
        """Takes an immediate that came with so many bytes: where in the ring they begin, and how many. Errors: WireFault."""
        if immediate & ROOM:
            need(count == 0, f"room is told by a write of {count} bytes")
            step = (immediate - self.its_taken) % ROOM
            need(self.its_taken + step <= self.written, f"{self.its_taken} + {step} bytes taken of {self.written}")
            self.its_taken += step
            return 0, 0
        step = (immediate - self.came) % ROOM
        at = self.came % self.own_bytes
        need(step == count and 0 < count <= WRITE_BYTES_MAX, f"a write of {count} bytes moves the position by {step}")
        need(at + count <= self.own_bytes, f"{count} bytes at {at} cross the end of a ring of {self.own_bytes}")
        ahead = self.came + count - self.told
        need(ahead <= self.own_bytes, f"{ahead} bytes where a ring of {self.own_bytes} is free as far as was told")
        self.came += count
        return at, count

    def next_write(self, wanted: int) -> tuple[int, int]:
        """Where in the other end's ring the next write begins, and how many of these bytes it may have: 0, there is no room."""
        at = self.written % self.its_bytes
        room = self.its_bytes - (self.written - self.its_taken)
        return at, min(wanted, room, WRITE_BYTES_MAX, self.its_bytes - at)

    def room_due(self) -> bool:
        """Whether a quarter of the ring was taken since it was last told."""
        return self.taken - self.told >= self.own_bytes // 4
