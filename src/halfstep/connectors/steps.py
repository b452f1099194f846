"""What goes between an engine's scheduler and its workers with each step: Step to them, Done back.

Both are small and picklable, and name blocks of the engine's memory by number. What several workers say of a step is added up.
Thread: a message is one thread's at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from halfstep.tier import Answer


@dataclass(slots=True)
class Load:
    """Blocks of one request into the engine's memory. number: of a load that was planned; deadline_ms: None = the tier's."""

    request: str
    keys: list[bytes]
    blocks: list[int]
    number: int = 0
    deadline_ms: float | None = None


@dataclass(slots=True)
class Store:
    """Blocks of one request, whole once the step has run. first: the place of the first of them in its prefix."""

    number: int
    request: str
    first: int
    keys: list[bytes]
    blocks: list[int]


@dataclass(slots=True)
class Step:
    """What workers are told in a step.

    preempted: requests whose blocks are taken now. delayed: those that are over, and whose blocks wait for stores. tokens: that
    it computes, where they are those of a prefill and tell what a token of a prompt costs; else 0. position: tokens that lay
    before them, on average. unwanted: requests that are over before they ran; a load of theirs may be called off.
    """

    loads: list[Load] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)
    delayed: list[str] = field(default_factory=list)
    tokens: int = 0
    position: int = 0
    unwanted: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Computed:
    """A step's prefill in a worker."""

    tokens: int
    seconds: float
    position: int


@dataclass(slots=True)
class Landed:
    """What came of a planned load: its first blocks are whole. workers: so many say so; the slowest one counts."""

    blocks: int
    why: Answer
    seconds: float
    workers: int = 1

    def add(self, other: Landed) -> None:
        """What other workers got of it."""
        self.blocks, self.seconds = min(self.blocks, other.blocks), max(self.seconds, other.seconds)
        self.why = other.why if self.why is Answer.OK else self.why
        self.workers += other.workers


@dataclass(slots=True)
class Done:
    """What has ended in workers.

    workers: stores that are over, and how many workers say so. refused: those of which some block was. said: why a kind of
    work failed last ("load", "store"), or "": it was done. landed: planned loads that are over, by number. computed: of the
    newest step that tells of a prefill.
    """

    workers: dict[int, int] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)
    said: dict[str, str] = field(default_factory=dict)
    landed: dict[int, Landed] = field(default_factory=dict)
    computed: Computed | None = None

    def add(self, other: Done) -> None:
        """What another worker said in the same step."""
        for number, workers in other.workers.items():
            self.workers[number] = self.workers.get(number, 0) + workers
        self.refused |= other.refused
        for number, landed in other.landed.items():
            if (mine := self.landed.setdefault(number, landed)) is not landed:
                mine.add(landed)
        if self.computed is None or (other.computed is not None and other.computed.seconds > self.computed.seconds):
            self.computed = other.computed
        for what, why in other.said.items():
            self.note(what, why)

    def note(self, what: str, why: str) -> None:
        """A failure outweighs what was done beside it."""
        self.said[what] = self.said.get(what, "") or why
