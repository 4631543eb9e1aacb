"""Tests of changes in what users want: found beyond chance, once, and ended only by the same test in reverse."""

from collections.abc import Sequence
from random import Random

import pytest

from opdkit.commands.night import turned
from opdkit.commands.night.turned import (
    Change,
    DatedOpinion,
    NightSession,
    Opinion,
    compute_chance_of_more,
    draw_complaints,
    find_changes,
    find_start,
)
from opdkit.evaluate.log_prompts import COMPLAINT, NEUTRAL, PRAISE


def turned_by(sessions: Sequence[NightSession]) -> tuple[list[str | None], set[tuple[int, str]]]:
    """Return the new wishes, and the (night, turn id) pairs that no longer count."""
    changes, superseded = find_changes(sessions)
    return [one.hint for one in changes], superseded


def said(night: int, *opinions: tuple[str, str, str, str | None]) -> list[NightSession]:
    """Return a session of this night for each (request, reply, kind, hint)."""
    return [
        NightSession(night, 0, f"{night}-{n}", False, (Opinion(f"{night}-{n}:1", kind, hint, frozenset(request.split()),
                                                               frozenset(reply.split()) - frozenset(request.split())),))
        for n, (request, reply, kind, hint) in enumerate(opinions)
    ]  # fmt: skip


LIST, TABLE = "here are some a b c", "| a | b | c |"
REJECTED, LIKED = ("list the files", LIST, COMPLAINT, "Use a table."), ("list the files", TABLE, PRAISE, None)
PRAISED_BEFORE = ("list the files", LIST, PRAISE, None)


def test_praise_that_users_take_back_no_longer_counts() -> None:
    old = said(1, *[PRAISED_BEFORE] * 8, ("sing a song", "la la", PRAISE, None))
    turned, superseded = turned_by([*old, *said(2, *[REJECTED] * 6, LIKED)])
    assert (turned, superseded) == (["Use a table."], {(1, f"1-{n}:1") for n in range(8)})
    assert turned_by([*old, *said(2, *[REJECTED] * 5)]) == ([], set()), "five complaints may be chance"
    other = [("show all my photos", LIST, kind, None) for kind in (PRAISE, NEUTRAL)]
    superseded = turned_by([*said(1, *[PRAISED_BEFORE] * 8, *other), *said(2, *[REJECTED] * 6, LIKED)])[1]
    assert {(1, "1-8:1"), (1, "1-9:1")} <= superseded, "whatever was asked, and also what was only accepted"


def test_a_wish_that_turns_takes_no_other_praise_with_it() -> None:
    """Replies with the same hint may be rejected for other reasons. Praise of such replies still counts."""
    asking = ("a flight to Rome", "On which day shall I book it?", PRAISE, None)
    wrong = ("a flight to Oslo", "On which day shall I book Rome?", COMPLAINT, "Use a table.")
    turned, superseded = turned_by([*said(1, *[PRAISED_BEFORE] * 8, *[asking] * 4), *said(2, *[REJECTED] * 6, wrong)])
    assert (turned, superseded) == (["Use a table."], {(1, f"1-{n}:1") for n in range(8)})


def test_a_turn_is_found_however_long_ago_it_was() -> None:
    nights = [*said(1, *[PRAISED_BEFORE] * 8), *said(3, *[REJECTED] * 3), *said(4, *[REJECTED] * 8), *said(6, LIKED)]
    assert turned_by(nights)[1] == {(1, f"1-{n}:1") for n in range(8)}, "complaints outnumber the praise by now"


def test_complaints_about_what_users_now_like_no_longer_count() -> None:
    old = said(1, *[PRAISED_BEFORE] * 8, ("list the files", TABLE, COMPLAINT, "No markup."))
    assert turned_by([*old, *said(2, *[REJECTED] * 6, LIKED)])[1] == {(1, f"1-{n}:1") for n in range(9)}


def test_complaints_that_asked_for_what_is_rejected_now_no_longer_count() -> None:
    first = ("list the files", "files? no", COMPLAINT, "Write plain words.")
    both = NightSession(1, 0, "s", False, (*said(1, first)[0].opinions, *said(1, PRAISED_BEFORE)[0].opinions))
    alone = said(2, first, *[PRAISED_BEFORE] * 8)
    turned, superseded = turned_by([both, *alone, *said(3, *[REJECTED] * 6)])
    assert turned == ["Use a table."]
    assert (2, alone[0].opinions[0].turn_id) in superseded, "the same wish, in another session"


def test_a_complaint_without_a_hint_asked_for_nothing_that_is_rejected_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a complaint still counts, even if the hint that led to the rejected reply is not among those compared."""
    first = ("list the files", "files? no", COMPLAINT, "Write plain words.")
    both = NightSession(1, 0, "s", False, (*said(1, first)[0].opinions, *said(1, PRAISED_BEFORE)[0].opinions))
    unhinted = ("list the files", "nothing is there", COMPLAINT, None)
    others = [("sing a song", f"{n}", COMPLAINT, "Sing it.") for n in range(100)]
    monkeypatch.setattr(turned, "_COMPARED", 12)
    nights = [both, *said(2, unhinted, *[PRAISED_BEFORE] * 8, *others), *said(3, *[REJECTED] * 6)]
    changes, superseded = find_changes(nights, {3})
    assert [change.hint for change in changes] == ["Use a table."]
    assert superseded == {(1, "1-0:1"), *((2, f"2-{n}:1") for n in range(1, 9))}


def test_a_wish_that_stays_is_not_turned_around() -> None:
    old = said(1, *[REJECTED] * 3, *[LIKED] * 5)
    assert turned_by([*old, *said(2, *[REJECTED] * 6, LIKED)]) == ([], set())
    others = [("list the files", LIST, COMPLAINT, hint) for hint in ("Draw columns.", "I want cells and rows.")]
    assert turned_by([*old, *said(2, *others * 3)]) == ([], set()), "in whatever words"


def test_single_complaints_do_not_turn_what_most_users_like() -> None:
    assert turned_by([*said(1, *[PRAISED_BEFORE] * 5), *said(2, REJECTED, *[PRAISED_BEFORE] * 4)]) == ([], set())


def test_hints_that_most_users_now_contradict_no_longer_count() -> None:
    old = said(1, *[("the weather", "20 F", COMPLAINT, "Use Celsius.")] * 8, ("a joke", "ha", COMPLAINT, "Be brief."))
    new = [("how warm is it", "20 C", COMPLAINT, "Use Fahrenheit, not Celsius.")]
    assert turned_by([*old, *said(2, *new * 6)]) == (["Use Fahrenheit, not Celsius."],
                                                  {(1, f"1-{n}:1") for n in range(8)})  # fmt: skip
    still = said(2, *new, *[("the weather", "20 F", COMPLAINT, "Use Celsius.")] * 9)
    assert turned_by([*old, *still]) == ([], set()), "a single user contradicts all others"


def test_a_change_is_more_than_chance() -> None:
    """If users like or reject replies with the same probability each night, at most 1 of 100 homes has a change."""
    homes = set[int]()
    for seed in range(100):
        rng, opinions = Random(seed), list[tuple[int, str]]()
        for night in range(1, 21):
            opinions += [(night, rng.choice((COMPLAINT, PRAISE))) for _ in range(6)]
            homes |= {seed} if find_start(opinions) else set()
    assert len(homes) <= 1
    calm, angry = [(1, PRAISE)] * 18, [(2, COMPLAINT)] * 6
    assert find_start([*calm, *angry], 20) == 2, "in the night itself"
    assert find_start([*calm, *angry[:5]]) is None
    assert find_start([*calm, *angry, *[(3, PRAISE)] * 4]) is None, "no clear majority"
    assert find_start([*calm, (1, COMPLAINT), *angry * 3, (3, PRAISE), (3, COMPLAINT)]) == 2, (
        "one opinion undoes nothing"
    )
    assert find_start([(1, PRAISE)] * 3 + angry * 9, 99) is None, "of many kinds, one is so by chance"
    assert abs(compute_chance_of_more(6, 6, 6, 24) - 1 / 134_596) < 1e-12
    assert 0 < compute_chance_of_more(40_300, 80_000, 100_000, 200_000) < 0.05, "of large counts, too"


def test_two_teams_with_opposite_wishes_change_nothing() -> None:
    hints = ("Use Celsius.", "Use Fahrenheit, not Celsius.")
    both = [("the weather", f"{n} degrees", COMPLAINT, hint) for n, hint in enumerate(hints * 5)]
    mixed = [REJECTED, REJECTED, PRAISED_BEFORE, PRAISED_BEFORE, PRAISED_BEFORE]
    assert find_changes([one for night in range(1, 20) for one in said(night, *both, *mixed)]) == ([], set())


def test_a_user_counts_once_in_a_session() -> None:
    angry = NightSession(2, 0, "s", False, tuple(one.opinions[0] for one in said(2, *[REJECTED] * 20)))
    assert find_changes([*said(1, *[PRAISED_BEFORE] * 20), angry]) == ([], set())


def test_only_the_same_test_the_other_way_round_ends_a_change() -> None:
    turn = [*said(1, *[PRAISED_BEFORE] * 8), *said(2, *[REJECTED] * 9)]
    known, superseded = find_changes(turn)
    doubt = [*turn, *said(3, *[PRAISED_BEFORE] * 5)]
    assert find_changes(doubt) == ([], set()), "it could not be found any more"
    assert find_changes(doubt, known=known) == (known, superseded)
    assert find_changes(said(3, LIKED), known=known)[0] == [], "no opinion of before is left"
    back = [*turn, *said(3, *[PRAISED_BEFORE] * 12)]
    changes, superseded = find_changes(back, known=known)
    assert changes == [Change(3, "Use a table.", known[0].reply, is_back=True)]
    assert superseded == {(2, f"2-{n}:1") for n in range(9)}
    again = find_changes([*back, *said(4, *[REJECTED] * 12)], known=changes)[0]
    assert again == [Change(4, "Use a table.", known[0].reply)]
    assert Change.from_json(again[0].to_json()) == again[0]


def test_a_hint_that_turns_back_ends_the_change() -> None:
    hint_of = {"c": "Use Celsius.", "f": "Use Fahrenheit, not Celsius."}

    def asked(night: int, what: str, count: int) -> list[NightSession]:
        return said(night, *[("the weather", f"{night} degrees", COMPLAINT, hint_of[what])] * count)

    turn = [*asked(1, "c", 9), *asked(2, "f", 9)]
    known, _ = find_changes(turn)
    assert known == [Change(2, hint_of["f"])]
    assert find_changes([*turn, *asked(3, "c", 5)], known=known)[0] == known
    changes, superseded = find_changes([*turn, *asked(3, "c", 12)], known=known)
    assert changes == [Change(3, hint_of["c"])]
    assert superseded == {(2, f"2-{n}:1") for n in range(9)}


def test_a_change_is_seen_in_a_home_with_many_other_replies() -> None:
    calm = [("what is it", "fine", NEUTRAL, None)] * 3000
    assert turned_by([*said(1, *[PRAISED_BEFORE] * 8, *calm), *said(2, *[REJECTED] * 9, *calm)])[0] == ["Use a table."]
    others = said(1, *(("tell me", f"{n}", COMPLAINT, None) for n in range(5000)))
    every = [DatedOpinion(one.night, one.opinions[0], one) for one in [*others, *said(2, *[REJECTED] * 9)]]
    drawn = draw_complaints(every, {2})
    recent = sum(one.night == 2 for one in drawn)
    assert (len(drawn), len({one.opinion.turn_id for one in drawn}), recent) == (2000, 2000, 9)
