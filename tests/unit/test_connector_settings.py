"""What a connector says of a setting that it does not know."""

from __future__ import annotations

import re

import pytest

from halfstep import ConfigError
from halfstep.connectors.settings import refuse_unknown

KNOWN = ("url", "ttl_s", "deadline_ms", "codec")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["url", "ttl"], "halfstep: ttl: unknown in extra; did you mean ttl_s? there are codec, deadline_ms, ttl_s, url"),
        (["url", "colour"], "halfstep: colour: unknown in extra; there are codec, deadline_ms, ttl_s, url"),
        (["zebra", "url", "apple"], "halfstep: apple, zebra: unknown in extra; there are"),
        (["ttl_s"], 'halfstep: "url" is missing in extra; as in halfstep://flash-node'),
        ([], '"url" is missing'),
    ],
)
def test_a_wrong_setting_is_named_with_those_that_there_are(given: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        refuse_unknown(given, KNOWN, "extra")


def test_known_settings_pass() -> None:
    refuse_unknown(["url"], KNOWN, "extra")
    refuse_unknown(iter(KNOWN), KNOWN, "extra")
