"""Messages to systemd: READY, STOPPING, STATUS (sd_notify(3)). One datagram each, so no library is needed."""

from __future__ import annotations

import os
import socket

# A supervisor that does not read must not hold up what it supervises.
_PATIENCE_S = 1.0


def notify(**fields: str) -> bool:
    """Sends the fields (`READY="1"`, `STATUS="…"`) to $NOTIFY_SOCKET; False when nobody supervises us, or does not listen."""
    given = os.environ.get("NOTIFY_SOCKET")
    if not given:
        return False
    address = os.fsencode(given)
    if address.startswith(b"@"):  # Linux's abstract namespace
        address = b"\0" + address[1:]
    # A path in a value may be of any bytes; a line end in it would begin another field.
    message = "\n".join(f"{name}={' '.join(value.splitlines())}" for name, value in fields.items())
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.settimeout(_PATIENCE_S)
            channel.sendto(message.encode(errors="backslashreplace"), address)
    except OSError:
        return False
    return True
