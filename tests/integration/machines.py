"""Network namespaces as machines: each with ports, addresses and a loopback of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

# Of errno, as ip says them: this user may not. All else that ip says is a failure.
RIGHTS = ("Operation not permitted", "Permission denied")


@contextmanager
def machines(*addresses: str) -> Iterator[dict[str, str]]:
    """A namespace for each of one or two addresses, with a cable between two: address to namespace.

    Skips where there is no ip, or no right to it.
    """
    if shutil.which("ip") is None:
        pytest.skip("there is no ip (iproute2)")
    names = {address: f"hs-{os.getpid() % 100_000}-{address.rpartition('.')[2]}" for address in addresses}

    def ip(*arguments: str) -> None:
        done = subprocess.run(["ip", *arguments], check=False, capture_output=True, text=True)
        said = f"ip {' '.join(arguments)}: {done.stderr.strip()}"
        if done.returncode != 0 and any(right in done.stderr for right in RIGHTS):
            pytest.skip(f"a network namespace cannot be made here: {said}")
        assert done.returncode == 0, said

    try:
        for name in names.values():
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        if len(addresses) == 2:
            one, other = names.values()
            ip("-n", one, "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", other)
            for address, name in names.items():
                ip("-n", name, "address", "add", f"{address}/24", "dev", "cable")
                ip("-n", name, "link", "set", "cable", "up")
        yield names
    finally:
        _remove(names)


def _remove(names: dict[str, str]) -> None:
    for name in names.values():
        subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def on(namespace: str, script: str) -> list[str]:
    """The command that runs these lines of shell there."""
    return ["ip", "netns", "exec", namespace, "bash", "-eu", "-c", script]
