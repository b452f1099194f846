"""Chunks: payload cut into runs, and runs put together again. Section 7 of the page."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from tests.wire.checksums import name_number, part_check
from tests.wire.frames import CHUNK_BYTES_MAX, Frame, Kind, WireFault, need, tlv
from tests.wire.requests import CODED, Block, PartRecord, Section

ABORTED_RUN, CODED_RUN = 1, 2
RUNS_MAX = 512
# So that a body stays below its 64 KiB whatever else is in it.
CHECKS_MAX = 10_000


@dataclass(frozen=True)
class Run:
    """Consecutive parts of an item, or a piece of one part."""

    section: int
    flags: int
    item: int
    part: int
    part_count: int
    offset: int
    bytes: int
    block_bytes: int
    check_count: int

    def encoded(self) -> bytes:
        """As it travels."""
        head = struct.pack("<HHIIII", self.section, self.flags, self.item, self.part, self.part_count, self.offset)
        return head + struct.pack("<III", self.bytes, self.block_bytes, self.check_count)


def runs_tlv(runs: Sequence[Run], checks: Sequence[int]) -> bytes:
    """The body of a chunk."""
    head = struct.pack("<II", len(runs), len(checks)) + b"".join(run.encoded() for run in runs)
    return tlv(Kind.RUNS, head + struct.pack(f"<{len(checks)}I", *checks))


@dataclass(frozen=True)
class Payload:
    """A run, the bytes that it says, and their checks."""

    run: Run
    data: bytes
    checks: list[int]


def runs_of(section: Section, number: int, item: int, block: Block) -> Iterator[Payload]:
    """One item, cut so that each run fits into a chunk. number: that of the section."""
    key, component = section.name(item)
    name = name_number(section.layout.id, component, key)
    parts, block_bytes = block.parts, block.offer.block_bytes
    flags = CODED_RUN if block.offer.flags & CODED else 0
    at = 0
    while at < len(parts):
        if len(parts[at]) > CHUNK_BYTES_MAX:
            yield from pieces_of(parts[at], Run(number, flags, item, at, 1, 0, 0, block_bytes, 0), name)
            at += 1
            continue
        end, size = at, 0
        while end < len(parts) and end - at < CHECKS_MAX and size + len(parts[end]) <= CHUNK_BYTES_MAX:
            size += len(parts[end])
            end += 1
        checks = [part_check(name, part, parts[part]) for part in range(at, end)]
        yield Payload(
            Run(number, flags, item, at, end - at, 0, size, block_bytes, len(checks)), b"".join(parts[at:end]), checks
        )
        at = end


def pieces_of(part: bytes, like: Run, name: int) -> Iterator[Payload]:
    """One part, in pieces where it is longer than a chunk has room for. name: the number of its block's."""
    borders = [*range(0, len(part), CHUNK_BYTES_MAX), len(part)]
    for start, end in pairwise(borders):
        checks = [part_check(name, like.part, part)] if end == len(part) else []
        yield Payload(replace(like, offset=start, bytes=end - start, check_count=len(checks)), part[start:end], checks)


def packed(runs: Iterable[Payload]) -> Iterator[tuple[bytes, bytes]]:
    """Body and payload of as few chunks as they need, in their order."""
    waiting: list[Payload] = []
    size = checks = 0
    for each in runs:
        full = size + len(each.data) > CHUNK_BYTES_MAX or len(waiting) == RUNS_MAX
        if waiting and (full or checks + len(each.checks) > CHECKS_MAX):
            yield _chunk(waiting)
            waiting, size, checks = [], 0, 0
        waiting.append(each)
        size += len(each.data)
        checks += len(each.checks)
    if waiting:
        yield _chunk(waiting)


def _chunk(runs: Sequence[Payload]) -> tuple[bytes, bytes]:
    checks = [check for each in runs for check in each.checks]
    return runs_tlv([each.run for each in runs], checks), b"".join(each.data for each in runs)


def runs_in(frame: Frame) -> tuple[list[Run], list[int]]:
    """The runs of a chunk, and the checks of all of them. Errors: WireFault."""
    value = frame.one(Kind.RUNS)
    need(len(value) >= 8, f"Runs of {len(value)} bytes")
    run_count, check_count = struct.unpack_from("<II", value)
    need(1 <= run_count <= RUNS_MAX, f"{run_count} runs in a chunk")
    need(len(value) == 8 + 32 * run_count + 4 * check_count, f"Runs of {len(value)} bytes")
    runs = [Run(*struct.unpack_from("<HHIIIIIII", value, 8 + 32 * at)) for at in range(run_count)]
    return runs, list(struct.unpack_from(f"<{check_count}I", value, 8 + 32 * run_count))


@dataclass
class Arrivals:
    """What has come of a get: parts whose check was right, by section, item and part.

    order: the same names in the order in which they came. bad_checks: parts whose check was not right.
    """

    sections: Sequence[Section]
    parts: dict[tuple[int, int, int], bytes] = field(default_factory=dict)
    block_bytes: dict[tuple[int, int], int] = field(default_factory=dict)
    tables: dict[tuple[int, int], list[PartRecord]] = field(default_factory=dict)
    order: list[tuple[int, int, int]] = field(default_factory=list)
    bad_checks: list[tuple[int, int, int]] = field(default_factory=list)
    _pieces: dict[tuple[int, int, int], bytearray] = field(default_factory=dict)
    _sizes: dict[tuple[int, int], list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._selected = [frozenset(section.selected()) for section in self.sections]

    def add(self, frame: Frame) -> None:
        """A chunk. Errors: WireFault for what was not asked for, or comes twice, or out of order."""
        self._note_tables(frame)
        runs, checks = runs_in(frame)
        payload_at = 0
        for run in runs:
            data = frame.payload[payload_at : payload_at + run.bytes]
            need(len(data) == run.bytes, "a run reaches past the payload")
            payload_at += run.bytes
            need(run.check_count <= len(checks), "a run has more checks than there are")
            self._land(run, data, checks[: run.check_count])
            del checks[: run.check_count]
        need(payload_at == len(frame.payload), f"{len(frame.payload) - payload_at} bytes of payload belong to no run")
        need(not checks, f"{len(checks)} checks belong to no run")

    def _note_tables(self, frame: Frame) -> None:
        for value in frame.all(Kind.PART_TABLE):
            section, zero, item, count, reserved = struct.unpack_from("<HHIII", value)
            need(zero == 0 and reserved == 0 and len(value) == 16 + 16 * count, f"PartTable of {len(value)} bytes")
            need((section, item) not in self.tables, f"two tables of item {item}")
            records = [PartRecord(*struct.unpack_from("<B3xIII", value, 16 + 16 * at)) for at in range(count)]
            self.tables[section, item] = records

    def _land(self, run: Run, data: bytes, checks: Sequence[int]) -> None:
        sizes = self._sizes_of(run)
        names = [(run.section, run.item, run.part + at) for at in range(run.part_count)]
        if run.flags & ABORTED_RUN:
            need(not any(data), "the bytes of an aborted run are not zeros")
            for name in names:
                self._pieces.pop(name, None)
            return
        for name in names:
            need(name not in self.parts, f"section, item, part {name} comes twice")
        section = self.sections[run.section]
        key, component = section.name(run.item)
        number = name_number(section.layout.id, component, key)
        if run.offset == 0 and run.check_count == run.part_count and run.bytes == sum(sizes):
            at = 0
            for name, size, check in zip(names, sizes, checks, strict=True):
                self._keep(name, data[at : at + size], number, check)
                at += size
            return
        need(run.part_count == 1, "a piece of more than one part")
        pieces = self._pieces.setdefault(names[0], bytearray())
        need(run.offset == len(pieces), f"a piece at {run.offset}, {len(pieces)} bytes have come")
        pieces += data
        need(len(pieces) <= sizes[0], "pieces reach past their part")
        whole = len(pieces) == sizes[0]
        need(run.check_count == whole, "the piece that reaches the part's end has one check, the others none")
        if whole:
            self._keep(names[0], bytes(self._pieces.pop(names[0])), number, checks[0])

    def _keep(self, name: tuple[int, int, int], data: bytes, number: int, check: int) -> None:
        if part_check(number, name[2], data) != check:
            self.bad_checks.append(name)
            return
        self.parts[name] = data
        self.order.append(name)

    def _sizes_of(self, run: Run) -> list[int]:
        """Bytes of each part of a run, after all that it says was looked at."""
        need(run.section < len(self.sections), f"a run of section {run.section}")
        need(run.flags & ~(ABORTED_RUN | CODED_RUN) == 0, f"a run with flags {run.flags}")
        item = run.section, run.item
        if item not in self._sizes:
            self._sizes[item] = self._sizes_of_block(run)
        need(self.block_bytes[item] == run.block_bytes, f"{self.block_bytes[item]} bytes, then {run.block_bytes}")
        need((item in self.tables) == bool(run.flags & CODED_RUN), "a coded run has a PartTable, and no other run has")
        sizes = self._sizes[item]
        need(run.part_count >= 1 and run.part + run.part_count <= len(sizes), f"parts {run.part} + {run.part_count}")
        selected = self._selected[run.section]
        need(not selected or selected.issuperset(range(run.part, run.part + run.part_count)), "a part that was not asked for")
        return sizes[run.part : run.part + run.part_count]

    def _sizes_of_block(self, run: Run) -> list[int]:
        section = self.sections[run.section]
        need(run.item < section.items, f"a run of item {run.item} of {section.items}")
        table = section.group.parts_of(run.block_bytes)
        if table is None:
            raise WireFault(f"a block of {run.block_bytes} bytes, which its layout cannot have")
        self.block_bytes[run.section, run.item] = run.block_bytes
        if not run.flags & CODED_RUN:
            return [size for _, size in table]
        need((run.section, run.item) in self.tables, "a coded run before its PartTable")
        return [record.stored_bytes for record in self.tables[run.section, run.item]]
