"""Sessions until a preference holds three times in a row: by hand, and what must be true of any replies."""

import pytest
from benchmarks.learning.streak import sessions_until
from hypothesis import given
from hypothesis import strategies as st

HELD, MISSED = [True] * 3, [True, False, True]


@pytest.mark.parametrize(("passed", "expected"), [
    ([MISSED, MISSED, HELD], 2),
    ([HELD, MISSED], 0),  # the model did it before any session
    ([MISSED, HELD, MISSED], 1),  # the first time counts, also where it is lost again
    ([MISSED, [False, True, True, True], [True, True, True, False]], 2),  # the first three of the element
    ([MISSED, MISSED], None),
    ([], None),
    ([[True, True], [True] * 3], 1),  # two replies are not three
])  # fmt: skip
def test_worked_by_hand(passed: list[list[bool]], expected: int | None) -> None:
    assert sessions_until(passed) == expected


def test_how_many_in_a_row_is_the_callers_to_say() -> None:
    passed = [[False] * 4, [True, False, False, False], [True, True, False, False], [True] * 4]
    assert [sessions_until(passed, n) for n in (1, 2, 3, 4, 5)] == [1, 2, 3, 3, None]
    with pytest.raises(ValueError, match="in_a_row is 0"):
        sessions_until(passed, 0)


elements = st.integers(1, 5).flatmap(
    lambda width: st.lists(st.lists(st.booleans(), min_size=width, max_size=width), max_size=8)
)


@given(elements, st.integers(1, 4), st.data())
def test_one_more_pass_never_makes_it_later(passed: list[list[bool]], in_a_row: int, data: st.DataObject) -> None:
    never = len(passed)
    before = sessions_until(passed, in_a_row)
    failed = [(s, i) for s, replies in enumerate(passed) for i, ok in enumerate(replies) if not ok]
    if not failed:
        return
    session, reply = data.draw(st.sampled_from(failed))
    passed[session][reply] = True
    after = sessions_until(passed, in_a_row)
    assert (never if after is None else after) <= (never if before is None else before)


@given(elements, st.integers(1, 4))
def test_it_is_the_first_session_that_holds(passed: list[list[bool]], in_a_row: int) -> None:
    found = sessions_until(passed, in_a_row)
    holds = [len(replies) >= in_a_row and not replies[:in_a_row].count(False) for replies in passed]
    assert found == (holds.index(True) if True in holds else None)


@given(elements, st.integers(1, 4))
def test_asking_for_more_in_a_row_never_makes_it_sooner(passed: list[list[bool]], in_a_row: int) -> None:
    fewer, more = sessions_until(passed, in_a_row), sessions_until(passed, in_a_row + 1)
    assert more is None or (fewer is not None and fewer <= more)


@given(elements, st.integers(1, 4))
def test_later_sessions_and_later_replies_change_nothing(passed: list[list[bool]], in_a_row: int) -> None:
    found = sessions_until(passed, in_a_row)
    if found is not None:
        assert sessions_until([replies[:in_a_row] for replies in passed[: found + 1]], in_a_row) == found
