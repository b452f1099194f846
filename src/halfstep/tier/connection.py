"""From a URL to what makes tiers: all that a connector sees of a client."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from halfstep.client.connect import connect as connect_client
from halfstep.compress.policy import Policy, policy_of

if TYPE_CHECKING:
    from typing import Unpack

    from halfstep.client.options import Mode, TierOptions, ValuesOptions
    from halfstep.layout import Layout
    from halfstep.tier.face import Tier
    from halfstep.tier.shapes import KVLayout
    from halfstep.tier.values import Values


class Connection(Protocol):
    """A daemon's namespace, as a connector needs it: halfstep.Client is one, and has more."""

    @property
    def codecs(self) -> tuple[str, ...]:
        """Spoken besides raw, as given to connect()."""
        ...

    @property
    def mode(self) -> Mode:
        """on, off (answers everything itself, with a miss) or shadow (does all the work, answers a miss)."""
        ...

    @property
    def deadline_ms(self) -> float:
        """Of calls that name none, matches aside."""
        ...

    @property
    def match_deadline_ms(self) -> float:
        """Of matches that name none."""
        ...

    def tier(self, layout: KVLayout, **options: Unpack[TierOptions]) -> Tier:
        """For blocks of tokens, whose inside is known. See halfstep.tier.Tier."""
        ...

    def values(self, layout: Layout, **options: Unpack[ValuesOptions]) -> Values:
        """For blocks whose inside is the engine's alone. See halfstep.tier.Values."""
        ...

    def close(self) -> None:
        """End what is on its way; no byte lands anywhere afterwards. Idempotent."""
        ...


def connect(
    url: str,
    *,
    deadline_ms: float = 2000,
    match_deadline_ms: float = 20,
    connections: int = 1,
    codecs: Sequence[str] = (),
    policy: str | Policy = "",
    coding: str = "auto",
    canary: int = 0,
) -> Connection:
    """As halfstep.connect, for connectors: every layout is named where it is used.

    codecs: those that its layouts name; codecs_of() makes them of an engine's setting. policy: that of its layouts, the codecs
    of which are spoken as well. coding, canary: see there. The daemon need not be there, now or ever: until it is, everything
    is a miss with a reason.
    Errors: ConfigError.
    """
    if policy != "" and not isinstance(codecs, str):
        codecs = (*codecs, *policy_of(policy).codecs)
    return connect_client(
        url,
        deadline_ms=deadline_ms,
        match_deadline_ms=match_deadline_ms,
        connections=connections,
        codecs=codecs,
        coding=coding,
        canary=canary,
    )
