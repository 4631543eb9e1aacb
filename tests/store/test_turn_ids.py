"""Tests of the ids of turns and sessions, and of the logged sessions that they lead back to."""

import pytest

from opdkit.store.turn_ids import (
    answered_turn_id,
    branch_session_id,
    conversation_id,
    is_held_out,
    logged_session_id,
    rollout_session_id,
    turn_id,
)


@pytest.mark.parametrize("logged", ["chat.jsonl:17", "a:b/c:3/4", "x:2024/12", "x:1/rollout-a", "/rollout-0", ""])
def test_a_rollout_leads_back_to_the_session_of_the_log(logged: str) -> None:
    """This holds for any logged id, even if it looks like the id of a rollout."""
    assert logged_session_id(logged) == logged
    once = rollout_session_id(turn_id(logged, 3), 12)
    assert answered_turn_id(once) == f"{logged}:3"
    twice = rollout_session_id(turn_id(once, 3), 0)
    assert answered_turn_id(twice) == turn_id(once, 3)
    assert logged_session_id(once) == logged_session_id(twice) == logged


def test_fresh_replies_are_held_out_with_the_session_whose_prompts_they_answer() -> None:
    """Otherwise a model could be trained on replies to the prompts that it is evaluated on."""
    names = [f"log:{n}" for n in range(40)]
    fresh = {name: [rollout_session_id(turn_id(name, 1), g) for g in range(4)] for name in names}
    assert {is_held_out(name, 0.3) for name in names} == {True, False}
    assert all({is_held_out(f, 0.3) for f in fresh[name]} == {is_held_out(name, 0.3)} for name in names)


@pytest.mark.parametrize("logged", ["chat.jsonl:17", "a:b%23branch-2", "x:1#2", "a#branch-2:7"])
def test_branches_lead_back_to_the_first_one(logged: str) -> None:
    assert conversation_id(logged) == branch_session_id(logged, 0) == branch_session_id(logged, 1) == logged
    second = branch_session_id(logged, 2)
    assert second != logged
    assert conversation_id(second) == conversation_id(rollout_session_id(turn_id(second, 3), 1)) == logged
    assert logged_session_id(rollout_session_id(turn_id(second, 3), 1)) == second
