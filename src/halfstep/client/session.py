"""A session: blocks that are kept while something is under way, and are ordinary blocks afterwards.

Invariants: the session's owner is a random number that nobody else has; its leases are renewed at a third of their time, so
that one renewal may be lost; a process that dies keeps nothing for longer than `seconds`. In a forked child an inherited
session is closed and does nothing: its leases and its thread are the parent's.
Thread: any may hold; renewals come from a thread of the session's own, started with its first hold.
"""

from __future__ import annotations

import os
import secrets
import threading
from typing import TYPE_CHECKING, Self

from halfstep.client.request import checked_seconds
from halfstep.errors import ConfigError

if TYPE_CHECKING:
    from typing import Unpack

    from halfstep.client.client import Client
    from halfstep.client.options import CommonOptions, Keys
    from halfstep.client.results import ChangeResult

# What a daemon cuts a lease to unless it is configured otherwise: a longer one would lapse between two renewals.
_LEASE_S_MAX = 60.0


class Session:
    """Made by Client.session(). owner: the number under which it holds."""

    def __init__(self, client: Client, seconds: float) -> None:
        self.owner = secrets.randbits(63) + 1
        self._client = client
        self._process = os.getpid()
        self._seconds = checked_seconds(seconds)
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._renewer: threading.Thread | None = None

    def hold(self, keys: Keys, **options: Unpack[CommonOptions]) -> ChangeResult:
        """Keep blocks until the session ends. See Client.hold. Errors: ConfigError (a wrong argument, or it is closed)."""
        if self.closed:
            raise ConfigError("session is closed; open another with client.session()")
        held = self._client.hold(keys, owner=self.owner, seconds=self._seconds, **options)
        with self._lock:
            if self._renewer is None and not self._ended.is_set():
                self._renewer = threading.Thread(target=self._renew, name="halfstep-session", daemon=True)
                self._renewer.start()
        if self._ended.is_set() and not self._client.closed:
            self._client.release(self.owner)  # it was closed meanwhile, and released before these leases were there
        return held

    @property
    def closed(self) -> bool:
        """Whether it was closed, or is another process's."""
        return self._process != os.getpid() or self._ended.is_set()

    def close(self) -> None:
        """Release what it holds. Idempotent."""
        if self._process != os.getpid():
            return  # its lock may be held for ever in this process
        with self._lock:
            if self._ended.is_set():
                return
            self._ended.set()
        if self._renewer is not None:
            self._renewer.join()
            if not self._client.closed:
                self._client.release(self.owner)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _renew(self) -> None:
        # A renewal that is refused or unanswered is tried again at the next: the blocks may be there still.
        while not self._ended.wait(min(self._seconds, _LEASE_S_MAX) / 3) and not self._client.closed:
            self._client.renew(self.owner, self._seconds)
