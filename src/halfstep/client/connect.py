"""connect(): from a URL and options to a Client, all checked once."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from typing import cast

from halfstep.arguments import whole_number
from halfstep.client.client import Client, ClientOptions
from halfstep.client.options import Coding, Mode
from halfstep.client.request import checked_ms
from halfstep.compress import CODECS, LOSSY
from halfstep.errors import ConfigError
from halfstep.layout import Layout

CONNECTIONS_MAX = 16
MODE_VARIABLE = "HALFSTEP_MODE"
_MODES = ("on", "off", "shadow")
_CODINGS = ("auto", "always", "never")


def connect(
    url: str,
    *,
    layout: Layout | None = None,
    required: bool = False,
    deadline_ms: float = 2000,
    match_deadline_ms: float = 20,
    connections: int = 1,
    mode: str | None = None,
    codecs: Sequence[str] = (),
    coding: str = "auto",
    canary: int = 0,
) -> Client:
    """A client of the daemon at `url`, which need not be there yet: until it is, everything is a miss with a reason.

    url: halfstep://host[:port][/namespace][?transport=auto|tcp|rdma] or halfstep+unix:///path/to.sock[?namespace=name].
    layout: what blocks mean where a call does not say; by default opaque values.
    required: wait up to deadline_ms for the daemon. deadline_ms, match_deadline_ms: of calls that name none.
    connections: data connections per shard. mode: "on", "off" (every call is a miss at once), "shadow" (all the work is done,
    every lookup is answered as a miss, the truth is in result.shadow); by default $HALFSTEP_MODE, or "on".
    codecs: spoken besides raw, such as ("bfx",): blocks of layouts that name one are coded and decoded (docs/compression.md).
    A lossy one brings "bfx" with it, by which parts are coded that it refuses. coding: whether such blocks are coded: "auto":
    unless a get of them would take longer by it, as far as that was measured; "always"; or "never". facts().coding says why.
    canary: of so many lossy blocks that a tier puts, one is put exactly as well, beside it, for `halfstep compress canary`; 0:
    none.
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
            codecs=_checked_codecs(codecs),
            coding=_checked_coding(coding),
            canary=canary,
        )
    )
    if required and chosen != "off":
        try:
            client.wait_ready(deadline_ms)
        except BaseException:
            client.close()
            raise
    return client


def _checked_coding(coding: str) -> Coding:
    if coding not in _CODINGS:
        near = difflib.get_close_matches(str(coding), _CODINGS, 1)
        raise ConfigError(f"coding={coding!r}: {f'did you mean {near[0]}? ' if near else ''}must be {', '.join(_CODINGS)}")
    return cast("Coding", coding)


def _checked_codecs(codecs: Sequence[str]) -> tuple[str, ...]:
    if isinstance(codecs, str):
        raise ConfigError(f'codecs={codecs!r}: must be a sequence of names, such as ("{codecs}",)')
    for name in codecs:
        if name not in CODECS:
            raise ConfigError(f"codecs: {name!r} is no codec of this build, which has {', '.join(CODECS)}")
    exact = {"bfx"} if LOSSY.intersection(codecs) else set()
    return tuple(sorted((set(codecs) | exact) - {"raw"}))
