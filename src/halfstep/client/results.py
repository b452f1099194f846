"""What a batch answered, as values. Every key has its own answer; nothing here is an exception.

An answer says what the caller has: `ok`, or a miss of some kind. Its reason says why. Whatever is not `ok` is a miss to an
engine, and the target's bytes are then undefined.
"""

from __future__ import annotations

import enum
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from halfstep import _peer
from halfstep.client.numbers import REASON_BUDGET, REASON_PENDING, REASON_PRESENT

# hs_answer of native/peer/halfstep.h.
ANSWER_DTYPE = np.dtype([("answer", "u1"), ("zero", "u1"), ("reason", "<u2")])
assert ANSWER_DTYPE.itemsize == 4

Answers = npt.NDArray[np.void]


class Answer(enum.IntEnum):
    """docs/wire-protocol.md, answers."""

    PENDING = 0
    OK = 1
    MISS = 2
    LATE = 3
    CANCELLED = 4
    THROTTLED = 5
    REJECTED = 6
    UNAVAILABLE = 7


# For comparisons with arrays: numpy looks through a member of an enum first, for longer than it compares.
_OK, _MISS = Answer.OK.value, Answer.MISS.value

# Of each get: found at once, and no type to be made a dtype.
_frombuffer, _BOOL = np.frombuffer, np.dtype(np.bool_)


def describe(answer: int, reason: int) -> str:
    """For people: "miss (absent)"."""
    name = _peer.answer_name(answer)
    return f"{name} ({_peer.reason_name(reason)})" if reason else name


def new_answers(count: int, answer: int = Answer.PENDING, reason: int = 0) -> Answers:
    """So many answers, all the same."""
    return np.full(count, np.array((answer, 0, reason), ANSWER_DTYPE))


class Result:
    """Answers per item; items are key-major (all components of the first key, then of the second).

    keys, components: how many of each. answers, reasons: arrays over the items, or [item, selected part] after `parts=`.
    """

    __slots__ = ("_batch", "_told", "components", "keys")

    def __init__(self, answers: Answers | None, keys: int, components: int, batch: _peer.Batch | None = None) -> None:
        """answers: None = as `batch` has them, one for each item, made when somebody asks for more than `ok`."""
        self._told = answers
        self._batch = batch
        self.keys = keys
        self.components = components

    @property
    def _answers(self) -> Answers:
        if self._told is None:
            assert self._batch is not None, "one of the two is there"
            self._told = np.frombuffer(self._batch.answers, ANSWER_DTYPE)
        return self._told

    def __bool__(self) -> NoReturn:
        # One that missed everything would be true, like any object.
        raise TypeError(f"{type(self).__name__} has no truth value: ask .ok.all(), .ok.any() or .hits")

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        # A batch belongs to its process: what is still to be asked of it is asked now.
        self._settle()
        names = {name for kind in type(self).__mro__ for name in getattr(kind, "__slots__", ())}
        return None, {name: getattr(self, name) for name in names}

    def _settle(self) -> None:
        _ = self._answers
        self._batch = None

    @property
    def answers(self) -> npt.NDArray[np.uint8]:
        """Answer numbers (`Answer`)."""
        return self._answers["answer"]

    @property
    def reasons(self) -> npt.NDArray[np.uint16]:
        """Reason numbers; `reason(i)` has the words."""
        return self._answers["reason"]

    @property
    def ok(self) -> npt.NDArray[np.bool_]:
        """Which are `ok`, in the shape of `answers`; a new array each time."""
        if self._told is None and self._batch is not None:
            # Of each get somebody asks for this, and seldom for more: a third of what the array of answers would cost.
            return _frombuffer(self._batch.ok, _BOOL)
        ok: npt.NDArray[np.bool_] = self.answers == _OK
        return ok

    @property
    def throttled(self) -> bool:
        """Some were refused for load: the same request may do better later."""
        return bool((self.answers == Answer.THROTTLED).any())

    @property
    def items_ok(self) -> npt.NDArray[np.bool_]:
        """Per item: all of it is ok (all selected parts, after `parts=`)."""
        ok = self.ok
        return ok if ok.ndim == 1 else _all_of_each(ok)

    @property
    def keys_ok(self) -> npt.NDArray[np.bool_]:
        """Per key: all of its components are ok."""
        return _all_of_each(self.items_ok.reshape(self.keys, self.components))

    @property
    def hits(self) -> int:
        """Items that are ok."""
        return int(self.items_ok.sum())

    @property
    def prefix(self) -> int:
        """Keys that are ok from the first on, without a gap."""
        return _prefix(self.keys_ok)

    def reason(self, item: int) -> str:
        """Why item `item` is what it is, for people: of its first part that is not ok, after `parts=`."""
        one = self._one(item)
        return describe(int(one["answer"]), int(one["reason"]))

    def answer_of(self, item: int) -> Answer:
        """The same, for programs."""
        return Answer(int(self._one(item)["answer"]))

    def _one(self, item: int) -> Any:
        row = np.atleast_1d(self._answers[item])
        failed = np.flatnonzero(row["answer"] != _OK)
        return row[failed[0] if len(failed) else 0]

    def __repr__(self) -> str:
        # Without np.unique, which imports a module at its first call: no descriptor may be left for that.
        ordered = np.sort(np.ascontiguousarray(self._answers).view("<u4"), axis=None)
        firsts = np.concatenate((ordered[:1], ordered[1:][ordered[1:] != ordered[:-1]])).view(ANSWER_DTYPE)
        kinds = {describe(int(kind["answer"]), int(kind["reason"])) for kind in firsts}
        return (
            f"{type(self).__name__}({self.hits} of {self.keys * self.components} ok: {', '.join(sorted(kinds)) or 'no items'})"
        )


class GetResult(Result):
    """What a get brought.

    shadow: in shadow mode, the result that an engine would have had.
    """

    __slots__ = ("_error_bounds", "_lengths", "_unchecked", "shadow")

    def __init__(
        self,
        answers: Answers | None,
        keys: int,
        components: int,
        lengths: bytes | None = None,
        batch: _peer.Batch | None = None,
        error_bounds: bytes = b"",
        unchecked: bytes = b"",
    ) -> None:
        """lengths: of uint32, one for each item; None = as `batch` has them. error_bounds: of float32, unchecked: of uint32.

        Of these two none = all 0.
        """
        # Without super(): of each get there is one.
        self._told = answers
        self._batch = batch
        self.keys = keys
        self.components = components
        self._lengths = lengths
        self._error_bounds = error_bounds
        self._unchecked = unchecked
        self.shadow: GetResult | None = None

    def _settle(self) -> None:
        if self._lengths is None and self._batch is not None:
            self._lengths, self._error_bounds = self._batch.lengths, self._batch.error_bounds
            self._unchecked = self._batch.unchecked
        super()._settle()

    @property
    def lengths(self) -> npt.NDArray[np.uint32]:
        """Block bytes per item, 0 = not there."""
        # Made when somebody asks: few do, and it would be a twentieth of what a get costs here.
        told = self._batch.lengths if self._lengths is None and self._batch is not None else self._lengths
        return np.frombuffer(told or b"", np.uint32)

    @property
    def error_bounds(self) -> npt.NDArray[np.float32]:
        """Per item, by how much no value that came is off, and its own rounding: half the largest step of its lossy parts.

        In the values' own unit; 0 = they are exact, or the item is not ok.
        """
        told = self._batch.error_bounds if self._lengths is None and self._batch is not None else self._error_bounds
        return np.where(self.items_ok, np.frombuffer(told, np.float32) if told else np.float32(0), np.float32(0))

    @property
    def unchecked(self) -> npt.NDArray[np.uint32]:
        """Per item, how many of its parts a card wrote straight into a GPU: the daemon verified them, and nobody after it.

        0 = the client verified all of them, or nothing of the item is ok. Over 0 in direct regions on a GPU alone.
        """
        told = self._batch.unchecked if self._lengths is None and self._batch is not None else self._unchecked
        some = self.ok if self.ok.ndim == 1 else self.ok.any(axis=1)
        return np.where(some, np.frombuffer(told, np.uint32) if told else np.uint32(0), np.uint32(0))


class PutResult(Result):
    """What became of a put: `ok` means that the block is there, with the durability asked for."""

    __slots__ = ()

    @property
    def stored(self) -> int:
        """Items that this put wrote."""
        return int((self.ok & (self.reasons != REASON_PRESENT)).sum())

    @property
    def present(self) -> int:
        """Items that were there already."""
        return int((self.ok & (self.reasons == REASON_PRESENT)).sum())

    @property
    def pending(self) -> int:
        """Items that are throttled because somebody else was just writing them: no failure, but no promise either."""
        return int((self.reasons == REASON_PENDING).sum())


class DeleteResult(Result):
    """What became of a delete: `ok` means that the block is gone, and stays so after a restart; miss that it was not there.

    late, cancelled (outcome_unknown): it was asked for, and as a rule it was done. Ask again, or look.
    """

    __slots__ = ()


class ChangeResult(Result):
    """What became of a touch, hold, renew or expire: `ok` means done, `miss` that no such block is there.

    throttled: a hold found no room (budget: the pin budget, the namespace's share of leased bytes or of the table of holds;
    load: the record log). late, cancelled (outcome_unknown): it was asked for, and as a rule it was done.
    A renew has one answer, for the owner; miss (absent) means that none of its leases is left.
    """

    __slots__ = ()


class PrefetchResult(Result):
    """What became of a prefetch: `ok` means that the block is in the daemon's memory (reason present: it was there already).

    miss: no such block. throttled: no room for it (budget), or too many wait (load). late, cancelled: it was not begun in time.
    """

    __slots__ = ()


class ReleaseResult(Result):
    """What became of a release. Without keys (all of an owner's holds) it has one answer, for the request as a whole.

    late, cancelled (outcome_unknown): it was asked for, and as a rule it was done.
    """

    __slots__ = ()


class MatchResult:
    """Which keys are there, with all components asked for.

    present: bool per key. lengths: block bytes per item ([key, component] for several components), or None if not asked for.
    prefix: keys that are there from the first on. answered: the daemon said all of it; otherwise `reason` says why not, and
    what it did not answer counts as absent. Of a match with a hold, `present` are those that are held as well; `unheld`, where
    lengths were asked for, those that are there and could not be. shadow: in shadow mode, the result that an engine would have
    had.
    """

    __slots__ = ("_answers", "_components", "lengths", "shadow")

    def __init__(self, answers: Answers, components: int, lengths: npt.NDArray[np.uint32] | None) -> None:
        self._answers = answers
        self._components = components
        self.lengths = lengths if lengths is None or components == 1 else lengths.reshape(-1, components)
        self.shadow: MatchResult | None = None

    def __bool__(self) -> NoReturn:
        raise TypeError("MatchResult has no truth value: ask .present.all() or .prefix, which are what .ok is of other results")

    @property
    def present(self) -> npt.NDArray[np.bool_]:
        """Per key: all components are there."""
        return _all_of_each((self._answers["answer"] == _OK).reshape(-1, self._components))

    @property
    def unheld(self) -> npt.NDArray[np.bool_]:
        """Per key: all components are there, and the hold was refused for some of them (budget). Known with lengths alone."""
        refused = self._refused_holds()
        ok = self._answers["answer"] == _OK
        return _all_of_each((ok | refused).reshape(-1, self._components)) & refused.reshape(-1, self._components).any(axis=1)

    @property
    def prefix(self) -> int:
        """Keys that are there from the first on, without a gap."""
        return _prefix(self.present)

    @property
    def answered(self) -> bool:
        """Every key is there or honestly absent: nothing was late, throttled or unavailable."""
        return bool((self._unanswered() == 0).all())

    @property
    def reason(self) -> str:
        """Why the first key that has no answer has none; "" if all have one."""
        unanswered = np.flatnonzero(self._unanswered())
        if len(unanswered) == 0:
            return ""
        one = self._answers[unanswered[0]]
        return describe(int(one["answer"]), int(one["reason"]))

    @property
    def why(self) -> Answer:
        """The same, for programs; OK if all have an answer."""
        unanswered = np.flatnonzero(self._unanswered())
        return Answer(int(self._answers["answer"][unanswered[0]])) if len(unanswered) else Answer.OK

    def _unanswered(self) -> npt.NDArray[np.bool_]:
        answers = self._answers["answer"]
        unanswered: npt.NDArray[np.bool_] = (answers != _OK) & (answers != _MISS)
        # What a request was refused for has no length; what a hold was refused for is there, and has one.
        return unanswered if self.lengths is None else unanswered & ~self._refused_holds()

    def _refused_holds(self) -> npt.NDArray[np.bool_]:
        """Per item: it is there, which its length says, and a hold on it was refused."""
        if self.lengths is None:
            return np.zeros(len(self._answers), np.bool_)
        throttled = self._answers["answer"] == Answer.THROTTLED.value
        refused: npt.NDArray[np.bool_] = throttled & (self._answers["reason"] == REASON_BUDGET) & (self.lengths.ravel() > 0)
        return refused

    def __repr__(self) -> str:
        why = "" if self.answered else f", {self.reason}"
        return f"MatchResult({int(self.present.sum())} of {len(self.present)} present, prefix {self.prefix}{why})"


def _prefix(ok: npt.NDArray[np.bool_]) -> int:
    return len(ok) if ok.all() else int(ok.argmin())


def _all_of_each(rows: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    every: npt.NDArray[np.bool_] = np.logical_and.reduce(rows, axis=1)
    return every
