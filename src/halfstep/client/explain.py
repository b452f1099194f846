"""A question about one key, and what the daemon knows of it: KeyQuestion and Explanation of docs/wire-protocol.md."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

from halfstep.errors import ConfigError, ProtocolError

# KeyQuestionHead: flags, ranges, key bytes, reserved. A range: the first component, how many.
_HEAD, _RANGE = struct.Struct("<IHBB"), struct.Struct("<II")
_EVERY_GROUP = 1
RANGES_MAX, COMPONENTS_MAX = 8, 4096
_GROUP_SHIFT = 24


def question_of(key: bytes, components: Sequence[range], *, every_group: bool) -> bytes:
    """The value of a KeyQuestion. Errors: ConfigError with the value and the bound."""
    if not isinstance(key, bytes):
        raise ConfigError(f"key ({type(key).__name__}): must be bytes; encode text first: key.encode()")
    if not 1 <= len(key) <= 255:
        raise ConfigError(f"key of {len(key)} bytes: an engine key has 1 to 255")
    if not isinstance(components, Sequence) or not all(isinstance(one, range) for one in components):
        raise ConfigError(f"components={components!r}: must be a list of ranges, such as [range(64)]")
    if len(components) > RANGES_MAX:
        raise ConfigError(f"components: {len(components)} ranges; a question has at most {RANGES_MAX}")
    for one in components:
        in_group = len(one) > 0 and one.step == 1 and one[0] >= 0 and one[0] >> _GROUP_SHIFT == one[-1] >> _GROUP_SHIFT < 256
        if not in_group or (every_group and one[0] >> _GROUP_SHIFT):
            what = "cells of group 0" if every_group else "components of one group"
            raise ConfigError(f"components={one}: must be consecutive {what}")
    if (count := sum(map(len, components))) > COMPONENTS_MAX:
        raise ConfigError(f"components: {count} of them; a question has at most {COMPONENTS_MAX}")
    ranges = b"".join(_RANGE.pack(one[0], len(one)) for one in components)
    return _HEAD.pack(_EVERY_GROUP if every_group else 0, len(components), len(key), 0) + ranges + key


def explanation_of(records: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    """The daemon's answer. Errors: ProtocolError."""
    if len(records) != 1:
        raise ProtocolError(f"explain: {len(records)} answers; a key belongs to one shard")
    try:
        document = json.loads(records[0][1])
    except ValueError as error:
        raise ProtocolError(f"explain: the answer is no JSON: {error}") from None
    if not isinstance(document, dict):
        raise ProtocolError(f"explain: the answer is {type(document).__name__}, not an object")
    return document
