"""In the guest: a client that gets, or puts, large blocks over RDMA until it is killed. Says "busy" when bytes travel."""

from __future__ import annotations

import itertools
import os
import sys

import halfstep

BLOCK_BYTES = 4 << 20


def main(url: str, what: str) -> None:
    """Does not return."""
    with halfstep.connect(url, required=True, deadline_ms=240_000) as client:
        block = bytearray(os.urandom(BLOCK_BYTES))
        if what == "get":
            client.put(b"busy", block)
        for number in itertools.count():
            if number == 1:
                print("busy", flush=True)
            if what == "get":
                client.get([b"busy"], block)
            else:
                client.put(b"busy-%d" % number, block)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
