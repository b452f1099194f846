"""In the guest: daemons on emulated NVMe namespaces by NVMe commands. docs/lab-machine.md.

    python -m tests.lab.nvme daemon|errors|placed|power DEVICE...

Prints a line for each step; the exit status is 0 when all of them held.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import random
import signal
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from tests.lab.drives import MARK
from tests.lab.steps import DEADLINE_MS, check, wait_for

import halfstep
from halfstep.io.probe import probe
from halfstep.tools.daemon_process import DaemonProcess

ARENA = ("--arena", "32MiB", "--scrub", "off")
SHORT_MS = 3000.0
SIZES = (4096, 4097, 60_000, 131_072, 262_144, 400_001, 480_000)
BLOCKS = 120
LASTING: tuple[Literal["persist"], Literal["cache"]] = ("persist", "cache")
_NVME_IO_COMMAND = 0xC0484E43  # NVME_IOCTL_IO_CMD


def content(number: int) -> bytes:
    """Of a block, from its number alone."""
    return random.Random(number).randbytes(SIZES[number % len(SIZES)])


def key(number: int) -> bytes:
    """Of a block."""
    return b"block-%04d" % number


@contextmanager
def daemon_on(device: str, *arguments: str) -> Iterator[DaemonProcess]:
    """One whose store is the namespace; not started."""
    with tempfile.TemporaryDirectory(prefix="halfstep-lab-") as folder:
        one = DaemonProcess(Path(folder), *ARENA, *arguments)
        one.store = Path(device)
        try:
            yield one
        finally:
            if one.running:
                one.end(signal.SIGKILL)
            print(one.log_end(), flush=True)


def put_all(url: str, numbers: Sequence[int]) -> list[int]:
    """Puts them to last, one by one. Returns those that the daemon took."""
    with halfstep.connect(url, required=True, deadline_ms=DEADLINE_MS) as client:
        return [number for number in numbers if bool(client.put(key(number), content(number), durability="persist").ok.all())]


def got(client: halfstep.Client, number: int) -> bool:
    """Whether it came; what came is compared."""
    target = bytearray(len(content(number)))
    if not bool(client.get([key(number)], target).ok.all()):
        return False
    if target != content(number):
        check(False, f"block {number} is what was put")
    return True


def daemon(device: str) -> None:
    """A blank namespace becomes a store, blocks come back bit for bit, also after a stop and after a kill."""
    with daemon_on(device, "--engine", "uring_cmd") as one:
        one.start()
        engine, backing = one.facts["engine"], one.facts["backing"]
        check(engine["name"] == "uring_cmd" and engine["why_fallback"] == "", f"the engine is uring_cmd: {engine}")
        told = engine["registered_buffers"] or engine["why_unregistered"]
        check(bool(told), f"buffers are registered, or it says why not: {engine['why_unregistered']!r}")
        check(engine["discard"] == "deallocate command", f"ranges are deallocated by command: {engine['discard']}")
        check(backing["nvme_block_path"] == device.replace("/ng", "/nvme"), f"claimed through {backing['nvme_block_path']}")
        check(claimed(backing["nvme_block_path"]), "nobody else gets its block device")
        check(put_all(one.url, range(BLOCKS)) == list(range(BLOCKS)), f"{BLOCKS} blocks are put to last")
        for ended in (signal.SIGTERM, signal.SIGKILL):
            one.end(ended)
            one.start()
            with halfstep.connect(one.url, required=True, deadline_ms=DEADLINE_MS) as client:
                right = sum(got(client, number) for number in range(BLOCKS))
                told = client.stat()
            check(right == BLOCKS, f"after {ended.name}: {right} of {BLOCKS} blocks are what was put")
        check(told['halfstep_device_requests_total{op="read"}'] > 0, "they were read from the drive")
        check(told["halfstep_device_errors_total"] == 0, "no request failed")
        one.end(signal.SIGTERM)
    seen = probe(device)
    check(
        seen.backing.get("engine") == "uring_cmd", f"`halfstep device probe` names the engine: {seen.backing or seen.why_not}"
    )
    stand_ins(device)


def claimed(block_device: str) -> bool:
    """Whether another daemon is refused."""
    with tempfile.TemporaryDirectory(prefix="halfstep-lab-") as folder:
        other = DaemonProcess(Path(folder), *ARENA)
        other.store = Path(block_device)
        try:
            other.start()
        except halfstep.errors.Unavailable as error:
            return "in use" in str(error)
        other.end(signal.SIGKILL)
        return False


def stand_ins(device: str) -> None:
    """The same store by the block layer, and polled."""
    for arguments, name in ((("--engine", "uring"), "uring"), (("--completions", "polled"), "uring_cmd")):
        with daemon_on(device, *arguments) as one:
            one.start()
            engine = one.facts["engine"]
            check(engine["name"] == name, f"{' '.join(arguments)}: {engine['name']}, {engine['ring_features']}")
            check(engine["polled"] == ("polled" in arguments), f"polled completions: {engine['polled']}")
            with halfstep.connect(one.url, required=True, deadline_ms=DEADLINE_MS) as client:
                right = sum(got(client, number) for number in range(BLOCKS))
            check(right == BLOCKS, f"{right} of {BLOCKS} blocks are what was put")
            check(put_all(one.url, [BLOCKS]) == [BLOCKS], "and one more is put")
            one.end(signal.SIGTERM)


def errors(faulty: str, hanging: str) -> None:
    """A drive that answers errors, and one that does not answer: misses, within the deadline, and the daemon goes on."""
    with daemon_on(faulty) as one:
        one.start()
        check(one.facts["engine"]["name"] == "uring_cmd", "the engine is uring_cmd")
        numbers = list(range(600))
        taken = put_all(one.url, numbers)
        check(0 < len(taken) < len(numbers), f"{len(taken)} of {len(numbers)} blocks are taken: the drive refuses writes")
        one.end(signal.SIGTERM)  # so that nothing is in memory
        one.start()
        with halfstep.connect(one.url, required=True, deadline_ms=DEADLINE_MS) as client:
            right = sum(got(client, number) for number in taken)
            told = client.stat()
        check(0 < right < len(taken), f"{right} of {len(taken)} come back right, the others are misses")
        check(told["halfstep_device_errors_total"] > 0, f"{told['halfstep_device_errors_total']:.0f} requests failed")
        check(one.running, "the daemon goes on")
        one.end(signal.SIGTERM)
    with daemon_on(hanging) as one:
        one.start()
        numbers = numbers[:40]
        check(put_all(one.url, numbers) == numbers, "a drive that works takes all")
        one.end(signal.SIGTERM)
        one.start()
        hang(one)
        one.end(signal.SIGTERM)


def hang(one: DaemonProcess) -> None:
    """Nothing is read while the drive hangs, and it goes on only when the client has its answer."""
    with halfstep.connect(one.url, required=True, deadline_ms=SHORT_MS) as client:
        ask("the drive hangs")
        missed = [number for number in range(3) if not got(client, number)]
        ask("the drive goes on")
        check(missed == [0, 1, 2], f"gets from a drive that hangs end by themselves: {len(missed)} misses")
    with halfstep.connect(one.url, required=True, deadline_ms=DEADLINE_MS) as client:
        wait_for(lambda: all(got(client, number) for number in range(40)), "the drive is read again")
        check(one.running, "the daemon goes on")
        check(bool(client.put(b"after", bytes(4096), durability="persist").ok.all()), "and takes blocks again")


def ask(what: str) -> None:
    """Of the machine that the guest runs on."""
    print(f"{MARK}{what}", flush=True)


def placed(device: str) -> None:
    """Streams by expected life go to placement identifiers of their own; what the drive counts stands beside what we do."""
    with daemon_on(device) as one:
        one.start()
        engine = one.facts["engine"]
        check(engine["placements"] == 4, f"the drive gives 4 placement identifiers: {engine['placements']}")
        before = units_left(device)
        with halfstep.connect(one.url, required=True, deadline_ms=DEADLINE_MS) as client:
            for number in range(BLOCKS):
                # Short-lived ones are a stream of their own.
                taken = client.put(key(number), content(number), durability="persist", ttl_s=60 if number % 2 else 0)
                if not taken.ok.all():
                    check(False, f"block {number} is put")
            written = 'halfstep_drive_written_bytes_total{by="%s"}'
            ours = client.stat()['halfstep_device_bytes_total{op="write"}']
            wait_for(lambda: client.stat().get(written % "hosts", 0) >= ours, "the drive counts what the daemon wrote")
            told = client.stat()
        after = units_left(device)
        used = [number for number, (was, now) in enumerate(zip(before, after, strict=True)) if was != now]
        check(len(used) >= 2, f"reclaim units were written through handles {used}: {before} -> {after} blocks left")
        hosts, drive = told[written % "hosts"], told[written % "drive"]
        check(drive >= hosts > 0, f"the drive was given {hosts:.0f} bytes and wrote {drive:.0f}; the daemon wrote {ours:.0f}")
        factor = told["halfstep_drive_write_amplification"]
        check(factor >= 1, f"write amplification {factor:.3f}")
        one.end(signal.SIGTERM)
        one.start()
        with halfstep.connect(one.url, required=True, deadline_ms=DEADLINE_MS) as client:
            right = sum(got(client, number) for number in range(0, BLOCKS, 2))
        check(right == BLOCKS // 2, f"{right} of {BLOCKS // 2} blocks of the default stream are what was put")
        one.end(signal.SIGTERM)


def units_left(device: str) -> list[int]:
    """Of each placement handle: the blocks that its reclaim unit has room for, as the drive says (I/O Management Receive)."""
    page = mmap.mmap(-1, 4096)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    command = bytearray(
        struct.pack("<BBHIIIQQIIIIIIIIII", 0x12, 0, 0, 1, 0, 0, 0, address, 0, 4096, 1, 1023, 0, 0, 0, 0, 5000, 0)
    )
    descriptor = os.open(device, os.O_RDWR)
    try:
        status = fcntl.ioctl(descriptor, _NVME_IO_COMMAND, command, True)
    finally:
        os.close(descriptor)
    check(status == 0, f"the drive tells its reclaim units: status {status:#x}")
    (count,) = struct.unpack_from("<H", page, 14)
    return [struct.unpack_from("<HHIQ", page, 16 + 32 * number)[3] for number in range(count)]


def power(device: str, blocks: str) -> None:
    """Compares what earlier boots were told is kept, then stores until the cut. blocks: before it; 0: only looks."""
    log = Path("/results/acknowledged")
    known = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
    with daemon_on(device) as one:
        one.start()
        check(one.facts["engine"]["name"] == "uring_cmd", "the engine is uring_cmd")
        with halfstep.connect(one.url, required=True, deadline_ms=DEADLINE_MS) as client:
            here = {int(number): got(client, int(number)) for number, _ in known}
            lost = {durability: [int(n) for n, d in known if d == durability and not here[int(n)]] for durability in LASTING}
            check(lost["persist"] == [], f"of {len(known)} blocks no byte is wrong, of those that are to last none is lost")
            print(f"lab: lost with the cache: {len(lost['cache'])} blocks that were not promised to last", flush=True)
            if blocks == "0":
                check(len(lost["cache"]) > 0, "the cuts did lose what was not flushed")
                return
            number = 1 + max((int(number) for number, _ in known), default=-1)
            for count in range(10_000):
                if count == int(blocks):
                    ask("cut the power")
                durability = LASTING[count % 2]
                if bool(client.put(key(number), content(number), durability=durability).ok.all()):
                    with log.open("a") as file:
                        file.write(f"{number} {durability}\n")
                        file.flush()
                        os.fsync(file.fileno())
                number += 1
    check(False, "the power is cut before 10,000 blocks")


COMMANDS: dict[str, Callable[..., None]] = {"daemon": daemon, "errors": errors, "placed": placed, "power": power}

if __name__ == "__main__":
    COMMANDS[sys.argv[1]](*sys.argv[2:])
    print(f"nvme {sys.argv[1]}: all steps held", flush=True)
