"""Telling systemd how we are: READY, STOPPING, STATUS (sd_notify(3)), without a library for one datagram."""

from __future__ import annotations

import os
import socket


def notify(**fields: str) -> bool:
    """Sends the fields (`READY="1"`, `STATUS="…"`) to $NOTIFY_SOCKET; False when nobody supervises us."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return False
    if address.startswith("@"):  # Linux's abstract namespace
        address = "\0" + address[1:]
    message = "\n".join(f"{name}={value}" for name, value in fields.items())
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        try:
            channel.sendto(message.encode(), address)
        except OSError:
            return False
    return True
