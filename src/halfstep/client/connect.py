"""connect(): from a URL and options to a Client, all checked once."""

from __future__ import annotations

import os
from typing import cast

from halfstep.arguments import whole_number
from halfstep.client.client import Client, ClientOptions
from halfstep.client.options import Mode
from halfstep.client.request import checked_ms
from halfstep.errors import ConfigError
from halfstep.layout import Layout

CONNECTIONS_MAX = 16
MODE_VARIABLE = "HALFSTEP_MODE"
_MODES = ("on", "off", "shadow")


def connect(
    url: str,
    *,
    layout: Layout | None = None,
    required: bool = False,
    deadline_ms: float = 2000,
    match_deadline_ms: float = 20,
    connections: int = 1,
    mode: str | None = None,
) -> Client:
    """A client of the daemon at `url`, which need not be there yet: until it is, everything is a miss with a reason.

    url: halfstep://host[:port][/namespace] or halfstep+unix:///path/to.sock[?namespace=name].
    layout: what blocks mean where a call does not say; by default opaque values.
    required: wait up to deadline_ms for the daemon. deadline_ms, match_deadline_ms: of calls that name none.
    connections: data connections per shard. mode: "on", "off" (every call is a miss at once), "shadow" (all the work is done,
    every lookup is answered as a miss, the truth is in result.shadow); by default $HALFSTEP_MODE, or "on".
    Errors: ConfigError (an argument), Unavailable (required=True and no daemon).
    """
    chosen = os.environ.get(MODE_VARIABLE, "on") if mode is None else mode
    if chosen not in _MODES:
        source = MODE_VARIABLE if mode is None else "mode"
        raise ConfigError(f"{source}={chosen!r}: must be on, off or shadow")
    if not 1 <= whole_number("connections", connections) <= CONNECTIONS_MAX:
        raise ConfigError(f"connections={connections}: must be 1 to {CONNECTIONS_MAX} per shard")
    if layout is not None and not isinstance(layout, Layout):
        raise ConfigError(f"layout ({type(layout).__name__}): must be a halfstep.Layout; Layout.opaque(name) is the simplest")
    client = Client(
        ClientOptions(
            url=url,
            layout=layout or Layout.opaque("default"),
            deadline_ms=checked_ms("deadline_ms", deadline_ms),
            match_deadline_ms=checked_ms("match_deadline_ms", match_deadline_ms),
            connections=connections,
            mode=cast("Mode", chosen),
        )
    )
    if required and chosen != "off":
        try:
            client.wait_ready(deadline_ms)
        except BaseException:
            client.close()
            raise
    return client
