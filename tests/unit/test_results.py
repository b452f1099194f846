"""Results as values: prefixes, counts and reasons."""

from __future__ import annotations

import copy
import pickle
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from halfstep import _peer
from halfstep.client.numbers import REASON_BUDGET, REASON_PRESENT, REASON_STORED
from halfstep.client.results import (
    Answer,
    Answers,
    ChangeResult,
    DeleteResult,
    GetResult,
    MatchResult,
    PrefetchResult,
    PutResult,
    ReleaseResult,
    new_answers,
)

ABSENT, LOAD = 16, 33


def answers_of(*pairs: tuple[int, int]) -> Answers:
    answers = new_answers(len(pairs))
    for at, (answer, reason) in enumerate(pairs):
        answers[at] = (answer, 0, reason)
    return answers


def get_of(*answers: int, components: int = 1) -> GetResult:
    keys = len(answers) // components
    return GetResult(answers_of(*((a, 0) for a in answers)), keys, components, bytes(4 * len(answers)))


@given(st.lists(st.sampled_from(list(Answer)), max_size=40))
def test_prefix_ends_at_the_first_key_that_is_not_ok(answers: list[Answer]) -> None:
    result = get_of(*answers)
    expected = next((at for at, answer in enumerate(answers) if answer != Answer.OK), len(answers))
    assert result.prefix == expected
    assert result.hits == answers.count(Answer.OK)
    assert result.ok.tolist() == [answer == Answer.OK for answer in answers]


def test_a_key_is_ok_when_all_its_components_are() -> None:
    result = get_of(Answer.OK, Answer.OK, Answer.OK, Answer.MISS, Answer.OK, Answer.OK, components=2)
    assert result.keys_ok.tolist() == [True, False, True]
    assert result.prefix == 1
    assert result.hits == 5


def test_an_item_is_ok_when_all_selected_parts_are() -> None:
    answers = answers_of((Answer.OK, 0), (Answer.OK, 0), (Answer.OK, 0), (Answer.MISS, ABSENT)).reshape(2, 2)
    result = GetResult(answers, 2, 1, bytes(8))
    assert result.ok.tolist() == [[True, True], [True, False]]
    assert result.items_ok.tolist() == [True, False]
    assert result.reason(0) == "ok"
    assert result.reason(1) == "miss (absent)"


def test_a_throttle_is_not_a_miss() -> None:
    assert PutResult(answers_of((Answer.THROTTLED, LOAD)), 1, 1).throttled
    assert not PutResult(answers_of((Answer.MISS, ABSENT)), 1, 1).throttled


def test_a_put_tells_stored_from_present() -> None:
    result = PutResult(answers_of((Answer.OK, REASON_STORED), (Answer.OK, REASON_PRESENT), (Answer.THROTTLED, LOAD)), 3, 1)
    assert (result.stored, result.present, result.hits) == (1, 1, 2)


def test_match_counts_unanswered_keys_as_absent_and_says_why() -> None:
    late = MatchResult(answers_of((Answer.OK, 0), (Answer.LATE, 0), (Answer.MISS, ABSENT)), 1, None)
    assert late.present.tolist() == [True, False, False]
    assert late.prefix == 1
    assert not late.answered
    assert late.reason == "late"
    honest = MatchResult(answers_of((Answer.OK, 0), (Answer.MISS, ABSENT)), 1, None)
    assert honest.answered
    assert honest.reason == ""


def test_no_keys_have_a_result_too() -> None:
    assert get_of().prefix == get_of().hits == 0
    assert MatchResult(new_answers(0), 1, None).prefix == 0


def test_a_refused_hold_is_told_from_a_refused_request_by_its_length() -> None:
    answers = answers_of(
        (Answer.OK, 0), (Answer.THROTTLED, REASON_BUDGET), (Answer.THROTTLED, REASON_BUDGET), (Answer.MISS, ABSENT)
    )
    sizes = np.array([4096, 4096, 0, 0], np.uint32)
    found = MatchResult(answers, 1, sizes)
    assert found.present.tolist() == [True, False, False, False]
    assert found.unheld.tolist() == [False, True, False, False]
    assert (found.answered, found.why) == (False, Answer.THROTTLED), "the third was not asked for at all"
    known = MatchResult(answers[:2], 1, sizes[:2])
    assert (known.answered, known.why, known.reason) == (True, Answer.OK, "")
    both = MatchResult(answers[:2], 2, sizes[:2])
    assert (both.present.tolist(), both.unheld.tolist()) == ([False], [True])
    of_another = MatchResult(answers[[1, 3]], 2, sizes[[1, 3]])
    assert of_another.unheld.tolist() == [False], "of its other component nothing is there"
    blind = MatchResult(answers, 1, None)
    assert not blind.unheld.any()
    assert not blind.answered


def test_repr_says_how_many_and_why() -> None:
    assert repr(get_of(Answer.OK, Answer.LATE)) == "GetResult(1 of 2 ok: late, ok)"


@pytest.mark.parametrize("answer", [200, 255])
def test_an_unknown_answer_is_a_miss_to_the_caller(answer: int) -> None:
    result = get_of(answer)
    assert not result.ok.any()
    assert result.reason(0)


class Told:
    """A batch that is over, as far as a result looks at one."""

    def __init__(self, *answers: int) -> None:
        self._answers = answers
        self.looked_at: list[str] = []

    @property
    def ok(self) -> bytearray:
        self.looked_at.append("ok")
        return bytearray(answer == Answer.OK for answer in self._answers)

    @property
    def answers(self) -> bytes:
        self.looked_at.append("answers")
        return answers_of(*((answer, 0) for answer in self._answers)).tobytes()

    @property
    def lengths(self) -> bytes:
        self.looked_at.append("lengths")
        return b"".join((4096 * (answer == Answer.OK)).to_bytes(4, "little") for answer in self._answers)

    @property
    def error_bounds(self) -> bytes:
        self.looked_at.append("error_bounds")
        return np.zeros(len(self._answers), np.float32).tobytes()

    @property
    def unchecked(self) -> bytes:
        self.looked_at.append("unchecked")
        return b""


def test_a_result_asks_its_batch_for_what_is_wanted_of_it() -> None:
    told = Told(Answer.OK, Answer.MISS)
    result = GetResult(None, 2, 1, None, cast("_peer.Batch", told))
    assert told.looked_at == []
    assert result.ok.tolist() == [True, False]
    assert told.looked_at == ["ok"]
    assert result.lengths.tolist() == [4096, 0]
    assert result.answers.tolist() == [Answer.OK, Answer.MISS]
    assert result.reason(1) == "miss"
    assert told.looked_at == ["ok", "lengths", "answers"], "the array of answers is made once"


def test_parts_that_nobody_checked_after_the_daemon_are_those_of_items_that_are_ok() -> None:
    told = np.array([3, 2], np.uint32).tobytes()
    answers = answers_of((Answer.OK, 0), (Answer.MISS, 0))
    assert GetResult(answers, 2, 1, b"", None, b"", told).unchecked.tolist() == [3, 0]
    assert GetResult(answers, 2, 1, b"").unchecked.tolist() == [0, 0]
    asked = Told(Answer.OK, Answer.MISS)
    assert GetResult(None, 2, 1, None, cast("_peer.Batch", asked)).unchecked.tolist() == [0, 0]
    assert "unchecked" in asked.looked_at
    parts = answers_of((Answer.OK, 0), (Answer.MISS, 0), (Answer.MISS, 0), (Answer.MISS, 0)).reshape(2, 2)
    assert GetResult(parts, 2, 1, b"", None, b"", told).unchecked.tolist() == [3, 0], "of an item a part may be ok alone"


def test_ok_is_the_callers_to_change() -> None:
    result = GetResult(None, 2, 1, None, cast("_peer.Batch", Told(Answer.OK, Answer.OK)))
    mine = result.ok
    mine[0] = False
    assert result.ok.all()
    assert result.prefix == 2


def test_a_result_goes_to_another_process_without_its_batch() -> None:
    result = GetResult(None, 2, 1, None, cast("_peer.Batch", Told(Answer.OK, Answer.MISS)))
    for there in (pickle.loads(pickle.dumps(result)), copy.deepcopy(result), result):
        assert there.ok.tolist() == [True, False]
        assert there.lengths.tolist() == [4096, 0]
        assert (there.keys, there.components, there.shadow) == (2, 1, None)
        assert there.reason(1) == "miss"


def test_a_result_has_no_truth_value_and_says_what_has() -> None:
    for kind in (GetResult, PutResult, DeleteResult, ChangeResult, PrefetchResult, ReleaseResult):
        for answer in (Answer.OK, Answer.MISS):
            result = kind(answers_of((answer, 0)), 1, 1)
            with pytest.raises(TypeError, match=rf"{kind.__name__} has no truth value: ask \.ok"):
                bool(result)
            with pytest.raises(TypeError, match="no truth value"):
                _ = not result
    matched = MatchResult(answers_of((Answer.MISS, ABSENT)), 1, None)
    with pytest.raises(TypeError, match=r"no truth value: ask \.present.*\.ok"):
        bool(matched)
