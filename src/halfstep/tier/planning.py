"""How much of what a tier has a connector loads, for one engine: the planner with a tier's prefixes, clocks and answers.

Invariants: an engine that was not seen to compute loads all, as without a plan. What is not loaded is computed, and costs no
request. Rows of a batch count as one after the other. Bytes are those of blocks as the engine has them, here and where the
link's rate is measured: a codec shows as a quicker link.
Thread: any may call anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from halfstep.client.fetch_planner import FetchPlanner
from halfstep.client.planner import Plan, Reason, Terms, Work
from halfstep.client.results import Answer

if TYPE_CHECKING:
    from halfstep.tier.face import Tier
    from halfstep.tier.prefix import Found, Loaded

# What is no answer of the tier to what it was asked.
_FAILED = (Answer.LATE, Answer.UNAVAILABLE)


class Planned(NamedTuple):
    """A plan, and what it is for."""

    plan: Plan
    work: Work

    @property
    def blocks(self) -> int:
        """To load, of each row, from the first on."""
        return self.plan.blocks

    @property
    def deadline_ms(self) -> float | None:
        """Of the load; None: as without a plan."""
        return None if self.plan.reason is Reason.PREFILL_UNKNOWN else self.plan.deadline_s * 1e3

    @property
    def why(self) -> str:
        """Why not all is loaded, in the way of other reasons."""
        return f"planned ({self.plan.reason})"


class Planning:
    """Made by a Tier with plan="auto"."""

    def __init__(self, tier: Tier, planner: FetchPlanner | None = None) -> None:
        self._tier = tier
        self.planner = FetchPlanner(on_count=self._record) if planner is None else planner
        if tier.client.tally is not None:
            # From here on one that is not there was none.
            tier.client.tally.add(**dict.fromkeys(map(_recorded, ("opened", *Reason)), 0))

    def _record(self, count: str) -> None:
        if self._tier.client.tally is not None:
            self._tier.client.tally.add(**{_recorded(count): 1})

    def may_ask(self) -> bool:
        """Whether a match is worth its time; False: the tier failed a moment ago."""
        return self.planner.may_ask()

    def matched(self, found: Sequence[Found], seconds: float) -> None:
        """Matches of a batch's rows have ended, together after so long.

        One that found some was answered: a mount whose upstream is away has those.
        """
        self.planner.asked(seconds, answered=not any(one.why in _FAILED and not one.blocks for one in found))

    def plan(
        self,
        blocks: int,
        tokens: int,
        *,
        first: int = 0,
        rows: int = 1,
        deadline_ms: float | None = None,
        goal_ms: float | None = None,
    ) -> Planned:
        """How much to load of `blocks` a row that were found, of `tokens` a row that are to be there in the end.

        first: blocks a row before those, which the engine has. deadline_ms: of the load, as for Prefix.get. goal_ms: until all
        is there.
        """
        tier = self._tier
        block_tokens = tier.layout.block_tokens * rows
        within_ms = tier.deadline_ms(blocks * block_tokens, deadline_ms)
        terms = Terms(
            (tier.client.deadline_ms if within_ms is None else within_ms) / 1e3, None if goal_ms is None else goal_ms / 1e3
        )
        work = Work(
            blocks,
            block_tokens,
            tier.layout.block_bytes * rows,
            before_tokens=first * block_tokens,
            after_tokens=max(0, tokens * rows - (first + blocks) * block_tokens),
        )
        return Planned(self.planner.plan(work, terms, tier.client.facts().shards), work)

    def loaded(self, planned: Planned, loaded: Sequence[Loaded], seconds: float) -> None:
        """Loads of a plan have ended, together after so long. Rows behind a longer padding load fewer blocks than others."""
        rows = planned.work.block_tokens / self._tier.layout.block_tokens
        landed = sum(one.blocks for one in loaded) / rows
        failed = any(one.why in _FAILED for one in loaded)
        self.planner.fetched(planned.plan, planned.work, landed, seconds, failed=failed)


def _recorded(count: str) -> str:
    """What a count of the planner is called in a record."""
    return "circuit_openings" if count == "opened" else f"plan_{count}"
