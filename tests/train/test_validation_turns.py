"""Tests of the choice of turns and hints for a validation: kinds, sessions, shares, variety."""

import math
from dataclasses import replace

import numpy as np
import pytest
from toy_turns import toy_turn

from opdkit.config.train import FEWEST
from opdkit.train.targets import Reply, Support
from opdkit.train.validation_turns import (
    CHECKS,
    COST,
    HINTS,
    MOST_KEPT_OUT,
    MOST_SHARE,
    MOST_UNCRITICISED,
    choose_hints,
    choose_turns,
    estimate_tokens_to_train,
    estimate_validation_cost,
    measure_hint,
    order_by_variety,
)


def test_prompts_without_a_hint_are_from_sessions_without_a_complaint() -> None:
    """If there are too few such sessions, they are from any session."""
    calm = [toy_turn(f"log:{n}:1", reward=1) for n in range(40)]
    hinted = [toy_turn(f"log:{n}:1", reward=-1, teacher=(-1.0, -3.0)) for n in range(40, 80)]
    mended = [toy_turn(f"log:{n}:3", reward=1) for n in range(40, 80)]
    of_two, of_any = (
        [t for t in choose_turns(turns, 8, 100)[0] if t.teacher_logprobs is None]
        for turns in (calm + hinted + mended, calm[:9] + hinted + mended)
    )
    assert {t.turn_id for t in of_two} <= {t.turn_id for t in calm}
    assert len(of_two) == 8
    assert len(of_any) == int(MOST_SHARE * 49)
    assert not {t.turn_id for t in of_any} <= {t.turn_id for t in calm}
    assert 9 * MOST_UNCRITICISED < FEWEST < 40 * MOST_UNCRITICISED


def test_prompts_without_a_hint_show_more_kinds_of_replies_than_a_plain_draw() -> None:
    """Of 60 replies, 54 are of one kind, but the first three prompts show all three kinds, in a fixed order."""
    kinds = [[1, 2, 3]] * 54 + [[4, 5, 6]] * 3 + [[7, 8, 9]] * 3
    turns = [replace(toy_turn(f"log:{n}:1", reward=1), response_ids=np.array([*kind, 100 + n], np.int32))
             for n, kind in enumerate(kinds)]  # fmt: skip

    def collect_tokens(turn: Reply) -> list[int]:
        return list(turn.response_ids)

    first = list(order_by_variety(turns, 60, collect_tokens))[:3]
    assert {tuple(turn.response_ids[:3]) for turn in first} == {(1, 2, 3), (4, 5, 6), (7, 8, 9)}
    assert first[0] is turns[0]
    assert list(order_by_variety(turns, 10, collect_tokens))[10:] == turns[10:], "after the first ten the order stays"
    assert sorted(t.turn_id for t in order_by_variety(turns, 60, collect_tokens)) == sorted(t.turn_id for t in turns)


def test_prompts_with_a_hint_show_several_kinds_of_replies() -> None:
    """Of 60 replies with a complaint, 52 are of one kind, but three prompts show a reply of each of three kinds."""
    kinds = [[1, 2, 3]] * 52 + [[4, 5, 6]] * 4 + [[7, 8, 9]] * 4
    hinted = [replace(toy_turn(f"log:{n}:1", reward=-1, old=(-1.0, -2.0, -2.0), teacher=(-1.0, -3.0, -2.0)),
                      response_ids=np.array(kinds[n * 7 % 60], np.int32)) for n in range(60)]  # fmt: skip
    chosen, _ = choose_turns(hinted, FEWEST, 100)
    assert sorted(turn.response_ids.tolist() for turn in chosen) == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]


def test_prompts_with_a_hint_are_those_where_something_is_to_learn() -> None:
    """The student follows 30 of the 60 hints already: the teacher gives their replies the student's log-probs."""
    hinted = [toy_turn(f"log:{n}:1", reward=-1, teacher=(-1.0, -2.0 - n % 2)) for n in range(60)]
    chosen, _ = choose_turns(hinted, 6, 100)
    assert len(chosen) == 6
    assert all(measure_hint(turn) == 1.0 for turn in chosen)


def test_what_most_hints_ask_for_has_a_prompt() -> None:
    """Of 40 replies, 16 are of one kind and 24 have nothing in common; a prompt shows the common kind."""
    replies = [[1, 2, 3] if n % 5 < 2 else [10 * n + 1, 10 * n + 2, 10 * n + 3] for n in range(40)]
    for log in range(8):  # which sessions are drawn first
        hinted = [replace(toy_turn(f"{log}:{n}:1", reward=-1, old=(-1.0,) * 3, teacher=(-2.0,) * 3),
                          response_ids=np.array(reply, np.int32)) for n, reply in enumerate(replies)]  # fmt: skip
        assert [1, 2, 3] in [turn.response_ids.tolist() for turn in choose_turns(hinted, FEWEST, 100)[0]]


def test_how_far_a_hint_moves_a_reply() -> None:
    """Worked example: KL((0.9, 0.1) || (0.1, 0.9)) = 0.8 ln 9; of the logged token alone, ln 0.9 - ln 0.1 = ln 9."""
    old, teacher = (np.log([[first, 1 - first - 1e-6]]).astype(np.float16) for first in (0.9, 0.1))
    turn = toy_turn(old=(math.log(0.9),), teacher=(math.log(0.1),))
    support = Support(np.array([[0, 1]], np.int32), old, teacher)
    assert measure_hint(replace(turn, support=support)) == pytest.approx(0.8 * math.log(9), rel=5e-3)  # float16
    assert measure_hint(turn) == pytest.approx(math.log(9))
    skipped = toy_turn(old=(-1.0, -1.0), teacher=(-3.0, -9.0), sampled=(True, False))
    assert measure_hint(skipped) == pytest.approx(2.0), "tokens that were not sampled do not count"


def test_prompts_with_a_hint_are_the_first_corrections_of_their_sessions() -> None:
    """Later corrections follow only if no other session can be kept out."""
    hinted = [toy_turn(f"log:{s}:{2 * n + 1}", reward=-1, teacher=(-1.0, -3.0)) for s in range(40) for n in range(3)]
    assert {turn.turn_id.split(":")[2] for turn in choose_turns(hinted, 8, 100)[0]} == {"1"}
    few, _ = choose_turns(hinted[:60], 6, 100)
    assert [turn.turn_id.split(":")[2] for turn in few].count("1") == 4, "a fifth of 20 sessions"
    assert len(few) == 6


@pytest.mark.parametrize("epochs", [1, 6, 8, 50])
def test_prompts_are_as_many_as_the_training_pays_for(epochs: int) -> None:
    """There are about as many of both kinds, and at least FEWEST."""
    hinted = [toy_turn(f"log:{n}:1", reward=-1, teacher=(-1.0, -3.0)) for n in range(100)]
    calm = [replace(toy_turn(f"log:{n}:1", reward=1), prompt_tokens=30) for n in range(100, 200)]
    chosen, _ = choose_turns([*hinted, *calm], 32, epochs)
    kinds = [sum(turn.teacher_logprobs is not None for turn in chosen)]
    kinds.append(len(chosen) - kinds[0])
    paid = COST * estimate_tokens_to_train([*hinted, *calm], epochs) / (CHECKS + 0.5)
    assert min(kinds) >= FEWEST
    assert kinds[0] in range(kinds[1], kinds[1] + 4)
    bounds = {1: (FEWEST, FEWEST), 50: (int(MOST_SHARE * 100),) * 2}  # fewest, and most
    spent = sum(map(estimate_validation_cost, chosen))
    assert tuple(kinds) == bounds[epochs] if epochs in bounds else 0.7 * paid < spent <= paid


def test_hints_of_the_log_are_chosen_by_number_and_by_other_words() -> None:
    hints = ["Use Python."] * 3 + [f"Please use Python {n}." for n in range(9)] + ["Be brief."] * 4 + ["Number steps."]
    turns = [replace(toy_turn(f"log:{n}:1", reward=-1), hint=hint) for n, hint in enumerate(hints)]
    chosen = choose_hints(turns)
    assert chosen[:3] == ["Be brief.", "Use Python.", "Number steps."]
    assert len(chosen) == HINTS
    assert choose_hints([replace(turns[0], written=0), toy_turn("log:20:1", reward=1)]) == []
    others = [replace(turns[0], turn_id=f"log:{n}:1", hint=hint) for n, hint in enumerate(["Be brief.", "Use Python."])]
    assert choose_hints([*others, others[1]])[0] == "Be brief.", "a turn that is named twice counts once"


def test_all_rollouts_of_a_turn_are_one_prompt() -> None:
    turns = [toy_turn(f"log:{n}:1/rollout-{k}:1", reward=-1, teacher=(-1.0, -3.0)) for n in range(60) for k in range(4)]
    chosen = [turn.turn_id.partition("/")[0] for turn in choose_turns(turns, 20, 100)[0]]
    assert len(chosen) == len(set(chosen)) == int(MOST_SHARE * 60)


@pytest.mark.parametrize(("sessions", "replies"), [(1, 200), (8, 25), (16, 12), (40, 5), (100, 2), (200, 1)])
def test_whole_sessions_are_a_fifth_of_the_turns_at_most(sessions: int, replies: int) -> None:
    """A session that holds more is passed over; if all do, every turn trains, also those of the prompts."""
    turns = [
        toy_turn(f"log:{s}:{2 * n + 1}", reward=1 - 2 * (hinted := (s + n) % 2), teacher=(-1, -3) if hinted else None)
        for s in range(sessions) for n in range(replies)
    ]  # fmt: skip
    kept_out, trained_on = choose_turns(turns, 32, 10)
    chosen = {t.session_id for t in kept_out}
    apart = [t.teacher_logprobs is not None for t in turns if t.session_id in chosen]
    assert len(apart) <= MOST_KEPT_OUT * len(turns)
    assert sum(apart) <= MOST_KEPT_OUT * len(turns) / 2, "of the hints, too"
    assert bool(kept_out) == (sessions >= 1 / MOST_KEPT_OUT) != bool(trained_on)
    assert {turn.is_hinted for turn in kept_out + trained_on} == {True, False}


def test_a_session_with_most_hints_trains() -> None:
    calm = [toy_turn(f"log:{n}:1", reward=1) for n in range(400)]
    hinted = [toy_turn(f"log:500:{2 * n + 1}", reward=-1, teacher=(-1.0, -3.0)) for n in range(30)]
    apart = [toy_turn(f"log:{n}:1", reward=-1, teacher=(-1.0, -3.0)) for n in range(600, 630)]
    kept_out, trained_on = choose_turns(calm + hinted, 32, 10)
    assert {t.session_id for t in trained_on} == {"log:500"}
    assert not any(t.is_hinted for t in kept_out)
    assert "log:500" not in {t.session_id for t in choose_turns(calm + hinted + apart, 32, 10)[0]}


def test_a_small_log_is_validated_on_prompts_that_are_trained_on() -> None:
    """The kind of prompts that has enough turns is kept out. With fewer than FEWEST hints, there is no validation."""
    calm = [toy_turn(f"log:{n}:1", reward=1) for n in range(60)]
    hinted = [toy_turn(f"log:{n}:1", reward=-1, teacher=(-1.0, -3.0)) for n in range(60, 120)]
    for few_calm, few_hinted in ((False, True), (True, False), (True, True)):
        turns = calm[: FEWEST if few_calm else 60] + hinted[: FEWEST if few_hinted else 60]
        kept_out, trained_on = choose_turns(turns, 8, 100)
        assert {turn.is_hinted for turn in trained_on} == ({False} if few_calm else set()) | (
            {True} if few_hinted else set()
        )
        assert {turn.is_hinted for turn in kept_out + trained_on} == {True, False}
        assert len(trained_on) == FEWEST * (few_calm + few_hinted)
    assert choose_turns(calm + hinted[: FEWEST - 1], 8, 100) == ([], [])
    kept_out, trained_on = choose_turns(calm + hinted[:FEWEST], 8, 100, learns_hints=False)
    assert kept_out
    assert not any(turn.is_hinted for turn in kept_out + trained_on), "rewards alone hardly follow so few hints"
    kept_out, trained_on = choose_turns(calm[: FEWEST - 1] + hinted, 8, 100)
    assert all(turn.is_hinted for turn in kept_out)
    assert not trained_on


@pytest.mark.parametrize("calm", [0, 3, 6, 11])
def test_scarce_hints_all_train(calm: int) -> None:
    """No session with a hint is kept out to measure other replies; these are from sessions without one, if possible."""
    quiet = [toy_turn(f"calm:{n}:1", reward=1) for n in range(calm)]
    hinted = [toy_turn(f"log:{n}:1", reward=-1, teacher=(-1.0, -3.0)) for n in range(20)]
    mended = [toy_turn(f"log:{n}:{m}", reward=1) for n in range(20) for m in (3, 5)]
    kept_out, trained_on = choose_turns(quiet + hinted + mended, 8, 100)
    assert kept_out == []
    others = [turn.turn_id.partition(":")[0] for turn in trained_on if not turn.is_hinted]
    assert set(others) == {"calm" if calm else "log"}
    assert len(others) >= FEWEST
