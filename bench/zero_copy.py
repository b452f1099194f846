#!/usr/bin/env python3
"""What do sends without a copy by the kernel (MSG_ZEROCOPY) cost or save where this machine can show it?

Two network namespaces with a cable between them (veth) stand for two machines. Measured are plain sockets, whose every send
asks for no copy, and a daemon with `--zero-copy auto` and `off`, whose hot gets a client in the other namespace reads. A
virtual cable ends in this kernel, which copies what it delivers. The document counts the sends that were copied all the same:
where all were, its times are the price of asking, and no gain can be seen. Needs root and iproute2.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import re
import resource
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import script

from halfstep.daemon.units import GIB, KIB, MIB

MSG_ZEROCOPY, SO_ZEROCOPY, COPIED = 0x4000000, 60, 1
BLOCKS = (64 * KIB, MIB, 4 * MIB)
SENDER, RECEIVER = "10.99.7.1", "10.99.7.2"
BUFFER_BYTES = 64 * MIB
HELD_BLOCKS_BYTES = 64 * MIB

GETS = """
import sys, numpy as np, halfstep
url, block_bytes, total = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
count = max({held} // block_bytes, 1)
client = halfstep.connect(url, required=True, deadline_ms=30000)
keys = [b"%d" % i for i in range(count)]
blocks = np.random.default_rng(1).integers(0, 256, (count, block_bytes), dtype=np.uint8)
for at in range(0, count, 8):
    assert client.put(keys[at:at + 8], blocks[at:at + 8]).ok.all()
target = np.empty((8, block_bytes), dtype=np.uint8)
client.get(keys[:8], target[:len(keys[:8])])
print("ready", flush=True)
sys.stdin.readline()
done = 0
while done < total:
    for at in range(0, count, 8):
        some = keys[at:at + 8]
        result = client.get(some, target[:len(some)])
        assert result.ok.all(), result.reason(0)
        done += len(some) * block_bytes
assert (target[:len(some)] == blocks[at:at + 8]).all()
print(done, flush=True)
""".replace("{held}", str(HELD_BLOCKS_BYTES))


@contextmanager
def cable() -> Iterator[tuple[str, str]]:
    """Two namespaces with a cable: of the sender and of the receiver."""
    names = tuple(f"hs-zc-{os.getpid()}-{end}" for end in "sr")

    def ip(*arguments: str) -> None:
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"ip {' '.join(arguments)}: {done.stderr.strip()}")

    try:
        for name in names:
            ip("netns", "add", name)
        ip("-n", names[0], "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", names[1])
        for name, address in zip(names, (SENDER, RECEIVER), strict=True):
            ip("-n", name, "address", "add", f"{address}/24", "dev", "cable")
            ip("-n", name, "link", "set", "cable", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield names[0], names[1]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def within(namespace: str, *command: str) -> list[str]:
    return ["ip", "netns", "exec", namespace, *command]


def receive(port: int, total_bytes: int) -> None:
    """The other end of send()."""
    buffer = bytearray(MIB)
    with socket.create_server((RECEIVER, port)) as listener:
        print("ready", flush=True)
        connection, _ = listener.accept()
        while total_bytes > 0:
            total_bytes -= connection.recv_into(buffer) or total_bytes


def send(port: int, total_bytes: int, block_bytes: int, *, zero_copy: bool) -> dict[str, Any]:
    """Sends so much, and counts the sends that were to be without a copy and those that were copied all the same."""
    buffer = memoryview(mmap.mmap(-1, BUFFER_BYTES))
    buffer[:] = os.urandom(MIB) * (BUFFER_BYTES // MIB)
    asked = notified = copied = at = sent = 0
    with socket.create_connection((RECEIVER, port)) as connection:
        connection.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
        before, began_s = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
        while sent < total_bytes or notified < asked:
            if sent < total_bytes:
                block = buffer[at : at + block_bytes]
                at = (at + block_bytes) % BUFFER_BYTES
                while block:
                    block = block[connection.send(block, MSG_ZEROCOPY if zero_copy else 0) :]
                    asked += zero_copy
                sent += block_bytes
            while zero_copy:
                try:
                    _, told, _, _ = connection.recvmsg(0, 512, socket.MSG_ERRQUEUE)
                except BlockingIOError:
                    break
                for _level, _kind, data in told:
                    # struct sock_extended_err: a range of sends, and whether they were copied.
                    _, _, _, code, _, first, last = struct.unpack_from("=IBBBBII", data)
                    notified += last - first + 1
                    copied += (last - first + 1) * (code & COPIED)
        after = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"cpu_s": cpu_s, "wall_s": time.monotonic() - began_s, "asked": asked, "copied": copied, "bytes": sent}


def raw(ends: tuple[str, str], block_bytes: int, total_bytes: int, port: int, *, zero_copy: bool) -> dict[str, Any]:
    """Of plain sockets."""
    me = [sys.executable, __file__]
    taker = within(ends[1], *me, "--receive", str(port), str(total_bytes))
    with subprocess.Popen(taker, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        other.stdout.readline()
        giver = within(ends[0], *me, "--send", str(port), str(total_bytes), str(block_bytes), str(int(zero_copy)))
        done = subprocess.run(giver, stdout=subprocess.PIPE, text=True, check=True)
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def cpu_s_of(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def counted(ends: tuple[str, str], url: str) -> dict[str, int]:
    """The daemon's counters of sends without a copy: bytes that left so, and bytes that were copied all the same."""
    halfstep = [sys.executable, "-m", "halfstep.tools.cli", "stat", "--all", "--json", url]
    told = subprocess.run(within(ends[1], *halfstep), stdout=subprocess.PIPE, text=True, check=True).stdout
    found = re.findall(r"zero_copy_bytes_total[^0-9]*?(sent|copied)[^0-9]*?(\d+)", told)
    return {outcome: int(number) for outcome, number in found}


def daemon(ends: tuple[str, str], block_bytes: int, total_bytes: int, mode: str, folder: Path) -> dict[str, Any]:
    """Of hot gets of a daemon."""
    store = folder / "store.hs"
    serve = ["--store", str(store), "--size", "2GiB", "--unix", "none", "--listen", f"{SENDER}:7350", "--insecure-listen"]
    command = [sys.executable, "-m", "halfstep.tools.cli", "serve", *serve, "--zero-copy", mode, "--json"]
    with subprocess.Popen(within(ends[0], *command), stdout=subprocess.PIPE, text=True) as served:
        try:
            assert served.stdout is not None
            served.stdout.readline()
            url = f"halfstep://{SENDER}:7350/default"
            gets = within(ends[1], sys.executable, "-c", GETS, url, str(block_bytes), str(total_bytes))
            with subprocess.Popen(gets, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
                assert client.stdin is not None
                assert client.stdout is not None
                client.stdout.readline()
                before, began_s = cpu_s_of(served.pid), time.monotonic()
                client.stdin.write("\n")
                client.stdin.flush()
                got = int(client.stdout.readline())
                cpu_s, wall_s = cpu_s_of(served.pid) - before, time.monotonic() - began_s
            return {"cpu_s": cpu_s, "wall_s": wall_s, "bytes": got, **counted(ends, url)}
        finally:
            served.terminate()
            served.wait(60)
            store.unlink()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=script.positive, default=3, help="of each, one after the other; the median counts")
    parser.add_argument("--gib", type=script.positive, default=2, help="that each run sends")
    parser.add_argument("--receive", nargs=2, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--send", nargs=4, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.receive:
        receive(*options.receive)
        return 0
    if options.send:
        port, total, block, zero_copy = options.send
        print(json.dumps(send(port, total, block, zero_copy=bool(zero_copy))))
        return 0
    if os.geteuid() != 0 or shutil.which("ip") is None:
        raise SystemExit("zero_copy.py: network namespaces need root and ip (iproute2)")
    total = options.gib * GIB
    rows: dict[tuple[str, int], list[dict[str, Any]]] = {}
    with cable() as ends, tempfile.TemporaryDirectory() as folder:
        port = 7400
        for _ in range(options.rounds):
            for block in BLOCKS:
                for zero_copy in (False, True):
                    port += 1
                    said = raw(ends, block, total, port, zero_copy=zero_copy)
                    rows.setdefault((f"sockets, {'zero copy' if zero_copy else 'plain'}", block), []).append(said)
                for mode in ("off", "auto"):
                    said = daemon(ends, block, total, mode, Path(folder))
                    rows.setdefault((f"daemon, {mode}", block), []).append(said)
                script.say(f"{block // KIB} KiB: a round")
    results = [
        {
            "what": what,
            "block_bytes": block,
            "sender_cpu_s_per_gib": statistics.median(one["cpu_s"] / one["bytes"] * GIB for one in some),
            "wall_s_per_gib": statistics.median(one["wall_s"] / one["bytes"] * GIB for one in some),
            "runs": some,
        }
        for (what, block), some in rows.items()
    ]
    print(json.dumps(script.header(rounds=options.rounds, gib=options.gib, results=results), indent=2))
    return 0


if __name__ == "__main__":
    script.run(main)
