"""Single values, for people and scripts: what users of a key-value store look for first."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from halfstep.errors import ConfigError, Unavailable

if TYPE_CHECKING:
    from halfstep.client.client import Client


def value_of(client: Client, key: bytes | str, options: Mapping[str, Any]) -> bytes | None:
    """A block's bytes; None where they did not come whole. Errors: ConfigError (several components are several blocks)."""
    if options.get("components", 1) != 1:
        raise ConfigError(f"components={options['components']}: one value is one block; pass a target for several")
    found = client.match([key], lengths=True, **options)
    assert found.lengths is not None, "it was asked for"
    if not found.present[0]:
        return None
    block = np.empty(int(found.lengths[0]), np.uint8)
    got = client.get([key], block, **options)
    # Another one may have come in its place meanwhile.
    whole = got.ok.all() and int(got.lengths[0]) == len(block)
    return block.tobytes() if whole else None


def round_trip(client: Client, deadline_ms: float | None) -> float:
    """Seconds that a daemon takes for a request that changes nothing. Errors: Unavailable."""
    began = time.monotonic()
    # Of an owner that nobody is.
    answer = client.release(secrets.randbits(62) + 1, deadline_ms=deadline_ms)
    if not answer.ok.all():
        error = client.facts().last_error
        raise Unavailable(f"{client.url}: {answer.reason(0)}" + (f": {error}" if error else ""))
    return time.monotonic() - began
