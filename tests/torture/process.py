"""A daemon to be killed, restarted and watched."""

from __future__ import annotations

from pathlib import Path

from halfstep.tools.daemon_process import DaemonProcess


class WatchedDaemon(DaemonProcess):
    """What it holds, as the kernel counts it."""

    def resident_bytes(self) -> int:
        """Memory of its own. The arena is shared memory and mapped whole from the start: it is not in here."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        fields = dict(line.split(":", 1) for line in status.splitlines())
        return int(fields["RssAnon"].split()[0]) * 1024

    def descriptors(self) -> int:
        """Open files and sockets."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))
