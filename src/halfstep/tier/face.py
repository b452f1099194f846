"""A model's KV cache on the flash tier: what an engine's connector is written on.

    tier = client.tier(layout, salt=tenant)
    memory = tier.memory(planes)                       # where this process keeps its layers and heads: once
    with tier.session() as session:
        prefix = tier.prefix(token_ids)
        loaded = prefix.get(memory, blocks=prefix.match().blocks, session=session)
        ...                                            # compute what follows
        prefix.put(memory, first=loaded.blocks, session=session)

Identity (tokens, salt, layout), context (parents and depth), priority (urgency) and reuse (sessions) are said here once.
Thread: any may call anything; a Prefix and a session belong to one request.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Self

import numpy as np
import numpy.typing as npt

from halfstep.arguments import unsigned
from halfstep.client.numbers import REASON_PRESENT
from halfstep.client.results import PutResult
from halfstep.errors import ConfigError
from halfstep.keys import Algorithm, PrefixChain, prefix_keys
from halfstep.tier.ahead import AHEAD_BYTES, EXPECT_S, Expected, TierAhead
from halfstep.tier.channel import Channel, Pending
from halfstep.tier.coding import refuse_unspoken
from halfstep.tier.default import DefaultedLayout
from halfstep.tier.memory import Memory, Planes
from halfstep.tier.notices import Notices
from halfstep.tier.planning import Planning
from halfstep.tier.prefix import Prefix, reach
from halfstep.tier.shapes import Cell, KVLayout
from halfstep.tier.storing import Stored, begin_put_all

if TYPE_CHECKING:
    from halfstep.client import Client
    from halfstep.client.options import PlanMode

End = Literal["reusable", "final", "dropped"]
# A get waits no longer, however slowly the engine computes; the client's own deadline may be longer.
DEADLINE_MS_MAX = 60_000.0
# What fewer tokens take is launching and weights more than tokens, and tells nothing of a long prompt.
MEASURED_TOKENS_MIN = 64
# Of so many measurements the cheapest counts: whatever shares a step with a prefill only makes it dearer.
MEASURED_LAST = 8
_PLANS: tuple[PlanMode, ...] = ("auto", "always")
_ENDS: tuple[End, ...] = ("reusable", "final", "dropped")


class Tier(Channel):
    """One model's cache in a client's namespace. Made by Client.tier().

    salt: what else the keys depend on (a tenant, a LoRA adapter, images); other salts never share a block. algorithm: of the
    keys, see halfstep.keys. plan: "auto" = a connector asks `planning` how much to load; "always" = all that is there.
    follow_default: a layout without codec and policy takes the namespace's default policy, as soon as a daemon has said it and
    unless memory was made before. False: for who shares blocks with others that may not have heard of it.
    The other arguments are Channel's. Errors: ConfigError.
    """

    def __init__(
        self,
        client: Client,
        layout: KVLayout,
        *,
        salt: bytes = b"",
        algorithm: Algorithm = "sha256",
        plan: PlanMode = "always",
        follow_default: bool = True,
        ahead_bytes: int = AHEAD_BYTES,
        ttl_s: int = 0,
        durability: Literal["cache", "persist"] = "cache",
        priority: int = 0,
        notices: Notices | None = None,
    ) -> None:
        if not isinstance(layout, KVLayout):
            raise ConfigError(f"layout ({type(layout).__name__}): must be a halfstep.tier.KVLayout")
        refuse_unspoken(layout.layout, client.codecs)
        PrefixChain(layout.block_tokens, algorithm=algorithm, salt=salt)  # refuses what makes no keys
        if plan not in _PLANS:
            raise ConfigError(f"plan={plan!r}: must be {' or '.join(map(repr, _PLANS))}")
        super().__init__(
            client, ttl_s=ttl_s, durability=durability, priority=priority, notices=notices, ahead_bytes=ahead_bytes
        )
        self._defaulted = DefaultedLayout(client, layout, follow=follow_default)
        self._salt, self._algorithm = salt, algorithm
        # Of what this process loads, in its client's tally: 0 where another rank has the same, and counts it.
        self.counted_share = 1
        # What a token cost the engine in the last measurements; None: it was not seen to compute. Replaced, never changed.
        self._rates_s: tuple[float, ...] | None = None
        self.planning: Planning | None = Planning(self) if plan == "auto" else None

    @property
    def layout(self) -> KVLayout:
        """As given, or as the namespace's default policy makes it."""
        return self._defaulted.layout

    def prefix(self, tokens: npt.ArrayLike) -> Prefix:
        """The full blocks of a sequence. tokens: one-dimensional, 0 to 2**32 - 1. Errors: ConfigError."""
        return Prefix(
            self, prefix_keys(tokens, self._defaulted.settle().block_tokens, algorithm=self._algorithm, salt=self._salt)
        )

    def chain(self) -> PrefixChain:
        """Keys of a sequence that grows, for prefix_of(): what was hashed is not hashed again."""
        return PrefixChain(self.layout.block_tokens, algorithm=self._algorithm, salt=self._salt)

    def prefix_of(self, keys: Sequence[bytes], *, first: int = 0) -> Prefix:
        """As prefix(), of an engine's own keys: one a full block, each of which covers all tokens before it.

        They have to cover what `salt` stands for as well: the tier's own goes into the keys that it makes. first: how many
        blocks of the sequence lie before these, which begin in its midst then.
        """
        if not isinstance(keys, (list, tuple)):
            raise ConfigError(f"keys ({type(keys).__name__}): must be a list of bytes, one a block")
        self._defaulted.settle()
        return Prefix(self, keys, unsigned("first", first, 31))

    def begin_put_all(
        self,
        prefixes: Sequence[Prefix],
        from_: Memory,
        rows: Sequence[npt.ArrayLike],
        *,
        layers: range | None = None,
        priority: int | None = None,
    ) -> Pending[Stored]:
        """Store several prefixes at once: it takes the caller's thread little longer than one of them does.

        rows: of each, the blocks of `from_` that hold it. What is said of them is said of all together. Else as
        Prefix.begin_put. Errors: ConfigError.
        """
        return begin_put_all(self, prefixes, from_, rows, layers=layers, priority=priority)

    def memory(
        self,
        planes: Mapping[str, Sequence[Planes]] | Sequence[Planes],
        *,
        layers: range | None = None,
        heads: range | None = None,
    ) -> Memory:
        """Where this process keeps its layers and heads; see Memory. Errors: ConfigError."""
        return Memory(self._defaulted.settle(fix=True), planes, layers=layers, heads=heads)

    def computed(self, tokens: int, seconds: float, position: int = 0) -> None:
        """The engine has computed so many tokens in so long: of a prefill. Decoding costs far more a token, and tells nothing.

        A get that names no deadline may take as long as computing its tokens would, if that is longer than the client's
        deadline: 30 GB of a long prompt are worth a wait that a short one is not. What counts is the cheapest of the last
        MEASURED_LAST. Fewer than MEASURED_TOKENS_MIN tokens are passed over, and so is the first: it compiles, loads and tunes.
        position: tokens that lay before them, which make each dearer.
        """
        if tokens < MEASURED_TOKENS_MIN or not 0 < seconds < math.inf:
            return
        if self.planning is not None and self._rates_s is not None:
            self.planning.planner.computed(tokens, seconds, position)
        if self._rates_s is not None and self.tally is not None:
            self.tally.add(prefill_tokens=tokens, prefill_s=seconds)
        self._rates_s = () if self._rates_s is None else (*self._rates_s, seconds / tokens)[-MEASURED_LAST:]

    def deadline_ms(self, tokens: int, named: float | None) -> float | None:
        """Of a get of so many tokens. named: by whoever calls; it goes before all. None: the client's."""
        rates_s = self._rates_s
        if named is not None or not rates_s:
            return named
        return max(self.client.deadline_ms, min(DEADLINE_MS_MAX, tokens * min(rates_s) * 1e3))

    def expecting(self) -> TierAhead:
        """`ahead`, from now on. Errors: ConfigError (the client is closed)."""
        return self.ahead_of(self.layout.layout)

    def session(self, *, urgency: int = 0, seconds: float = 30) -> TierSession:
        """A request while it generates. urgency: priority of its gets and puts, 0 = at once. seconds: see Client.session."""
        return TierSession(self, unsigned("urgency", urgency, 8), seconds)


class TierSession:
    """Blocks that are held while something generates. At its end they are what end() says.

    reusable: released, and counted as used now: somebody will go on from here. final: released as they are: nobody will, and
    they leave in their turn. dropped: those that this session has stored are deleted (those of a put under
    way when its result is taken), what was there before is released.
    """

    def __init__(self, tier: Tier, urgency: int, seconds: float) -> None:
        self.urgency = urgency
        self._tier = tier
        self._holds = tier.client.session(seconds)
        self._lock = threading.Lock()
        self._held: dict[bytes, None] = {}
        self._stored: dict[int, dict[bytes, None]] = {}
        self._expected: list[Expected] = []
        self._ended: End | None = None

    @property
    def owner(self) -> int:
        """The number under which it holds."""
        return self._holds.owner

    def hold(self, prefix: Prefix, *, blocks: int | None = None) -> int:
        """Keep the first blocks of a prefix from eviction. Returns how many, from the first on, are held in every kind."""
        if not isinstance(prefix, Prefix):
            raise ConfigError(f"prefix ({type(prefix).__name__}): must be a Prefix; Tier.prefix makes one")
        keys = prefix.keys[: prefix.blocks if blocks is None else unsigned("blocks", blocks, 31)]
        present: dict[str, npt.NDArray[np.bool_]] = {}
        layout = self._tier.layout
        for kind in layout.kinds if keys else ():
            cells = layout.cells(kind.name)
            answer = self._holds.hold(keys, layout=layout.layout, first_component=cells[0].component, components=len(cells))
            present[kind.name] = answer.keys_ok
        held = reach(layout, present, len(keys))
        with self._lock:
            self._held.update(dict.fromkeys(keys[:held]))
        return held

    def expect(
        self, prefix: Prefix, *, into: Memory | None = None, blocks: int | None = None, seconds: float = EXPECT_S
    ) -> Expected:
        """The next turn will read this prefix: see Prefix.expect. What nobody has read is given up when the session ends.

        Errors: ConfigError (it has ended).
        """
        expected = prefix.expect(into=into, blocks=blocks, seconds=seconds)
        with self._lock:
            ended = self._ended is not None
            if not ended:
                self._expected.append(expected)
        if ended:
            expected.end()
            raise ConfigError("session: has ended; open another with tier.session(), or use prefix.expect()")
        return expected

    def note(self, cell: Cell, keys: Sequence[bytes], put: PutResult) -> None:
        """For Prefix.put: which blocks this session has written."""
        new = put.ok & (put.reasons != REASON_PRESENT)
        written = [key for key, is_new in zip(keys, new.tolist(), strict=True) if is_new]
        with self._lock:
            if self._ended != "dropped":
                self._stored.setdefault(cell.component, {}).update(dict.fromkeys(written))
                return
        # It was under way when the session ended.
        if written and not self._tier.client.closed:
            self._tier.client.delete(written, layout=self._tier.layout.layout, first_component=cell.component)

    def end(self, how: End = "reusable") -> None:
        """Say what its blocks are from now on. Idempotent: the first word counts. Errors: ConfigError."""
        if how not in _ENDS:
            raise ConfigError(f"how={how!r}: must be {' or '.join(map(repr, _ENDS))}")
        with self._lock:
            if self._ended is not None:
                return
            self._ended = how
            expected, self._expected = self._expected, []
            held, stored = list(self._held), {cell: list(keys) for cell, keys in self._stored.items()}
        if self._tier.client.closed:
            return
        for one in expected:
            one.end()
        layout = self._tier.layout.layout
        if how == "reusable" and held:
            self._tier.prefix_of(held).touch()
        self._holds.close()
        if how == "dropped":
            for cell, keys in stored.items():
                self._tier.client.delete(keys, layout=layout, first_component=cell)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
