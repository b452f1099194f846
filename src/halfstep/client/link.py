"""The core that a client has now, and what belongs to it alone: layout handles, and which process it was made in.

Invariants: a core is made on first use; after a fork the child leaks the parent's and makes its own on first use.
Thread: any.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from typing import Protocol

from halfstep import _peer
from halfstep.client.living import Living
from halfstep.client.options import Coding, Mode
from halfstep.client.url import Endpoint
from halfstep.compress import CODECS
from halfstep.errors import ConfigError, Unavailable
from halfstep.layout import Layout


class Forkable(Protocol):
    """What has to be told of a fork, in the child."""

    def forked(self) -> None:
        """Forget what belongs to the parent."""
        ...


class Links:
    """Makes the core, and remembers who has to hear of a fork."""

    def __init__(
        self, endpoint: Endpoint, mode: Mode, connections: int, codecs: tuple[str, ...] = (), coding: Coding = "auto"
    ) -> None:
        self.endpoint = endpoint
        self.mode = mode
        self.connections = connections
        self.coding = coding
        self.codec_names = codecs
        # Cores of fewer codecs, which end what was under way.
        self._former: list[_peer.Core] = []
        # A signal's handler may close the client in the thread that holds it.
        self._lock = threading.RLock()
        self._core: _peer.Core | None = None
        self._handles: dict[Layout, int] = {}
        # The layout asked for last, and its handle of that core: most clients have one.
        self._newest: tuple[Layout | None, _peer.Core | None, int] = None, None, 0
        self._closed = False
        # The process ends: threads that still call are answered, and never wait without the interpreter's lock.
        self.ending = False
        self._dependents: Living[Forkable] = Living()
        _all_links.add(self)

    def core(self) -> _peer.Core:
        """The core of this process.

        Errors: ConfigError (closed; an address that cannot be), Unavailable (out of file descriptors or threads).
        """
        core = self._core
        if core is not None and core.forked:
            # A fork that went round Python's hooks.
            self.forked()
            core = None
        if core is None:
            with self._lock:
                if self._closed:
                    raise ConfigError("client is closed; connect again")
                core = self._core
                if core is None:
                    place = self.endpoint
                    codecs = sum(1 << CODECS[name] for name in self.codec_names)
                    core = _peer.Core(place.address, place.namespace, self.connections, 0, codecs, place.transport, self.coding)
                    if self.closed:  # by a handler, meanwhile
                        core.close()
                        raise ConfigError("client is closed; connect again")
                    self._core = core
        return core

    def speak(self, codecs: Iterable[str]) -> None:
        """Speak these too, from now on: by another core, since a greeting says which. The former one ends what it began."""
        with self._lock:
            names = tuple(sorted({*self.codec_names, *codecs}))
            if names == self.codec_names or self._closed:
                return
            self.codec_names = names
            former, self._core = self._core, None
            self._newest = None, None, 0
            if former is None:
                return
            self._former.append(former)
            layouts, self._handles = self._handles, {}
            core = self.core()
            # In their order, so that each has its number of before: a request may be made already.
            for layout in layouts:
                self._handles[layout] = core.register_layout(layout.canonical)

    def existing_core(self) -> _peer.Core | None:
        """The core, if one was made."""
        return self._core

    def layout_handle(self, layout: Layout) -> int:
        """The core's handle of `layout`, which is registered on first use; -1 where no core can be made now."""
        # The usual case, asked for by each get: without the call of core().
        core = self._core
        newest = self._newest
        if layout is newest[0] and core is newest[1] and core is not None and not core.forked:
            return newest[2]
        if self._closed and not self.ending:
            raise ConfigError("client is closed; connect again")
        if self.mode == "off" or self.ending:
            return 0
        try:
            core = self.core()
        except Unavailable:
            return -1
        handle = self._handles.get(layout)
        if handle is None:
            with self._lock:
                core = self.core()
                try:
                    handle = core.register_layout(layout.canonical)
                except ConfigError as error:
                    raise ConfigError(f"{layout!r}: {error}") from None
                self._handles[layout] = handle
        self._newest = layout, core, handle
        return handle

    def add(self, dependent: Forkable) -> None:
        """Tell `dependent` of a fork."""
        self._dependents.add(dependent)

    def forked(self) -> None:
        """In a child: leak the parent's core, end its tickets."""
        self._lock = threading.RLock()
        core, self._core = self._core, None
        former, self._former = self._former, []
        self._handles = {}
        self._newest = None, None, 0
        for dependent in self._dependents:
            dependent.forked()
        for one in (core, *former):
            if one is not None:
                one.abandon()

    def close(self) -> None:
        """Close the core. Queues were closed before."""
        with self._lock:
            self._closed = True
            core, self._core = self._core, None
            former, self._former = self._former, []
            self._newest = None, None, 0
        for one in (core, *former):
            if one is not None:
                one.close()

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._closed


_all_links: Living[Links] = Living()


def _forked_child() -> None:
    for links in _all_links:
        links.forked()


os.register_at_fork(after_in_child=_forked_child)
