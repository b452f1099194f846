"""In the guest: a peer in pyverbs, written from docs/wire-protocol.md alone, over an RDMA device of Soft-RoCE.

    python -m tests.lab.peer ADDRESS client|daemon

ADDRESS: of the device. It is a client of our daemon (peer_client.py), or a daemon of our client (peer_daemon.py): each in a
process of its own, since our client registers no memory after somebody else has. Prints a line for each step; the exit status
is 0 when all of them held, 77 where there is no pyverbs.
"""

from __future__ import annotations

import sys

from tests.lab import peer_client, peer_daemon
from tests.wire.verbs import Device, NoVerbs

SKIPPED = 77
STEPS = {"client": peer_client.run, "daemon": peer_daemon.run}


def main(address: str, step: str) -> int:
    """Runs it. Returns the exit status."""
    try:
        device = Device(address)
    except NoVerbs as error:
        print(f"peer: {error}; scripts/setup.sh lab installs pyverbs", flush=True)
        return SKIPPED
    STEPS[step](device, address)
    device.close()
    print(f"peer: all steps of the {step} held", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
