"""The layout of a tier, where it follows its namespace's default policy.

Invariants: nobody waits for a daemon longer than for a match, and once. A layout changes at most once, and never after memory
was made for it. What comes too late is said once.
Thread: any may call anything.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from typing import TYPE_CHECKING

from halfstep.client.coding import NONE
from halfstep.compress.policy import policy_of
from halfstep.errors import ConfigError
from halfstep.tier.shapes import KVLayout

if TYPE_CHECKING:
    from halfstep.client import Client

log = logging.getLogger("halfstep")


class DefaultedLayout:
    """layout: as its owner made it. follow: it takes the namespace's default, if it has neither codec nor policy."""

    def __init__(self, client: Client, layout: KVLayout, *, follow: bool) -> None:
        self.layout = layout
        self._client = client
        self._lock = threading.Lock()
        self._fixed = False
        self._open = follow and not layout.codec and layout.policy == ""
        self.settle(wait=True)

    def settle(self, *, wait: bool = False, fix: bool = False) -> KVLayout:
        """Take the default if it is known by now. wait: for it. fix: the layout stays from here on."""
        if not self._open:
            return self.layout
        name = self._client.default_policy(wait=wait)
        with self._lock:
            if name is not None and self._open:
                self._open = False
                if name != NONE:
                    self._take(name)
            self._fixed = self._fixed or fix
            return self.layout

    def _take(self, name: str) -> None:
        why = "it came after the tier's first memory was made; a tier that is made now follows it"
        if not self._fixed:
            policy = policy_of(name)
            try:
                coded = dataclasses.replace(self.layout, policy=policy)
            except ConfigError as error:
                why = str(error)
            else:
                self._client.speak(policy.codecs)
                self.layout = coded
                return
        log.warning("%s: blocks stay plain, and not as the default policy %s says: %s", self._client.url, name, why)
