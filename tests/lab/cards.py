"""In the guest: a daemon that has two RDMA devices, and a client that lists the addresses of both.

    python -m tests.lab.cards ADDRESS ADDRESS

Every byte is compared, both devices have to carry their share, and one of them is taken away under the client. Prints a line
for each step; the exit status is 0 when all of them held.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.lab.blocks import DEADLINE_MS, PORT, Daemon, check, content, sizes, wait_for

import halfstep

DEVICES = ("rxe0", "rxe1")  # of the addresses, in their order


def main(first: str, second: str) -> int:
    """Runs all steps. Returns the exit status."""
    with tempfile.TemporaryDirectory(prefix="halfstep-lab-") as directory:
        daemon = Daemon(Path(directory), first, "--listen", f"{second}:{PORT}")
        try:
            daemon.start()
            blocks = {b"block-%03d" % n: content(n, size) for n, size in enumerate(sizes())}
            url = f"halfstep://{first},{second}:{PORT}?transport=rdma"  # a slow guest would be let be otherwise
            with halfstep.connect(url, required=True, connections=2, deadline_ms=DEADLINE_MS) as client:
                both_carry(client, blocks)
                one_is_taken_away(client, blocks)
        finally:
            print(daemon.log_end(), flush=True)
            daemon.close()
    print("cards: all steps held", flush=True)
    return 0


def both_carry(client: halfstep.Client, blocks: dict[bytes, bytes]) -> None:
    """A batch travels over both devices, each byte of it."""
    wait_for(lambda: client.facts().connected == 2, "both connections")
    check(client.facts().transport == "rdma", f"over RDMA: {client.facts()}")
    stored = client.put(list(blocks), list(blocks.values()), durability="persist")
    check(bool(stored.ok.all()), f"put of {len(blocks)}: {stored}")
    before = [sent_packets(device) for device in DEVICES]
    compare(client, blocks)
    sent = [sent_packets(device) - was for device, was in zip(DEVICES, before, strict=True)]
    check(min(sent) > sum(sent) / 5, f"each device carries its share: {sent} packets")
    print(f"cards: {len(blocks)} blocks compared, {sent} packets over {', '.join(DEVICES)}", flush=True)


def one_is_taken_away(client: halfstep.Client, blocks: dict[bytes, bytes]) -> None:
    """Its connection comes back over what is left, and nothing is wrong."""
    subprocess.run(["rdma", "link", "delete", DEVICES[1]], check=True)
    wait_for(lambda: client.facts().connected == 2 and client.facts().rdma_failures > 0, "both connections, one anew")
    compare(client, blocks)
    print(f"cards: {DEVICES[1]} taken away: {len(blocks)} blocks compared, {client.path}", flush=True)


def compare(client: halfstep.Client, blocks: dict[bytes, bytes]) -> None:
    """All of them, by one get; what was lost with a connection is asked for again."""
    targets = {key: bytearray(len(block)) for key, block in blocks.items()}
    missing = list(blocks)
    for _ in range(3):
        result = client.get(missing, [targets[key] for key in missing], deadline_ms=DEADLINE_MS)
        missing = [key for key, ok in zip(missing, result.ok, strict=True) if not ok]
        if not missing:
            break
    check(not missing, f"got: {len(missing)} of {len(blocks)} are missing")
    check(all(targets[key] == block for key, block in blocks.items()), "every byte is what was put")


def sent_packets(device: str) -> int:
    """Since it was made."""
    return int(Path(f"/sys/class/infiniband/{device}/ports/1/hw_counters/sent_pkts").read_text())


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
