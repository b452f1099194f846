"""On a machine without an RDMA device: who leaves the choice stays on TCP and knows why; who insists is refused."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import halfstep
from halfstep.errors import Unavailable
from halfstep.tools.daemon_process import DaemonProcess

SKIPPED = 77


def main() -> int:
    """Returns the exit status."""
    if any(Path("/sys/class/infiniband").glob("*")):
        print("no-device: this machine has an RDMA device")
        return SKIPPED
    with tempfile.TemporaryDirectory(prefix="halfstep-lab-") as directory:
        daemon = DaemonProcess(Path(directory), "--size", "256MiB", "--arena", "64MiB", "--rdma", "auto")
        daemon.start()
        try:
            with halfstep.connect(daemon.url, required=True, deadline_ms=30_000) as client:
                facts = client.facts()
            if (facts.transport, facts.rdma) != ("tcp", "this machine has no RDMA device"):
                print(f"no-device: FAILED: {facts}")
                return 1
            try:
                halfstep.connect(daemon.url + "?transport=rdma", required=True, deadline_ms=2_000).close()
            except Unavailable as error:
                refused = str(error)
            else:
                refused = ""
            if "transport=rdma: this machine has no RDMA device" not in refused:
                print(f"no-device: FAILED: transport=rdma: {refused!r}")
                return 1
        finally:
            daemon.close()
    print("no-device: TCP with its reason, and a refusal with the same")
    return 0


if __name__ == "__main__":
    sys.exit(main())
