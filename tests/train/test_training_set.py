"""Tests of which turns train, of their advantages, and of the limit per session."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scored_runs import toy_sessions, train_config, write_run
from toy_turns import set_of, toy_turn

from opdkit.chat.template import Chat
from opdkit.errors import ConfigError
from opdkit.model.load import load_tokenizer
from opdkit.store.turn_ids import is_held_out
from opdkit.train.objective.terms import TERMS, Objective
from opdkit.train.schedule import make_objectives
from opdkit.train.targets import Reply, Support
from opdkit.train.training_set import (
    OVER_LIMIT,
    build_training_set,
    limit_turns_per_session,
    load_training_set,
    select_replies,
    shape_rewards,
)

# -- which turns train ----------------------------------------------------------------------------------------------


def test_a_turn_that_cannot_train_says_why() -> None:
    nan = float("nan")
    turns = [
        toy_turn("a:1", teacher=(-1, -1)),
        toy_turn("a:3", reward=1),
        toy_turn("a:5", teacher=(nan, -1)),
        toy_turn("a:7", old=(nan, -1), teacher=(-1, -1), sampled=(False, True)),  # masked tokens may have any value
        toy_turn("a:9", teacher=(-1, -1), sampled=(False, False)),
        toy_turn("a:11", teacher=(-1, -1), behavior=(nan, -1)),
    ]
    kept, dropped = select_replies(turns, ("teacher",), 0.0)
    assert [t.turn_id for t in kept] == ["a:1", "a:7"]
    assert dropped == {"no hint": 1, "log-prob not finite": 2, "nothing sampled": 1}
    assert select_replies(turns[:2], ("reward", "teacher"), 0.0)[1] == {}
    assert select_replies([toy_turn()], ("reward", "teacher"), 0.0)[1] == {"no reward and no hint": 1}
    assert select_replies([toy_turn()], ("support", "divergence"), 0.0)[1] == {"no hint": 1}


def test_what_nobody_complained_of_stands_beside_hints_with_the_anchor() -> None:
    """Such turns have no advantage: alone they do not train, and the anchor needs their support."""
    ones = np.ones((2, 3))
    support = Support(ones.astype(np.int32), -ones.astype(np.float16), None)
    turns = [
        toy_turn("hinted", teacher=(-1, -1)), toy_turn("praised", reward=1, support=support),
        toy_turn("neutral", reward=0, support=support), toy_turn("blamed", reward=-1, support=support),
        toy_turn("bare", reward=1),
    ]  # fmt: skip
    kept, dropped = select_replies(turns, ("teacher",), 0.0, anchored=True)
    assert ([t.session_id for t in kept], dropped) == (["hinted", "praised", "neutral"], {"no hint": 2})
    assert select_replies(turns[1:], ("teacher",), 0.0, anchored=True) == ([], {"no hint": 4})
    data = build_training_set(kept, [Objective({"teacher": 1.0}, anchor_weight=0.1)], 5, dropped)
    assert (data.replies, data.strengths, data.tokens) == (kept, [0.5, 0, 0], 6)
    assert list(data.advantages) == ["teacher"]


@pytest.mark.parametrize("share", [0.0, 0.2, 0.9])
def test_sessions_are_held_out_by_their_name_alone(share: float) -> None:
    names = [f"session-{n}" for n in range(4000)]
    out = {name for name in names if is_held_out(name, share)}
    assert len(out) / len(names) == pytest.approx(share, abs=0.03)
    assert out <= {name for name in names if is_held_out(name, min(1.0, share + 0.1))}


# -- no session decides alone ---------------------------------------------------------------------------------------


def of_session(session: str, *indices: int, written: int | None = None) -> list[Reply]:
    return [replace(toy_turn("x", reward=1), turn_id=f"{session}:{index}", written=written) for index in indices]


def test_at_most_so_many_turns_of_a_session_train() -> None:
    turns = [*of_session("a:1", *range(40)), *of_session("a:2", 0, 1), *of_session("b:1", *range(5))]
    kept, dropped = limit_turns_per_session(turns, 4, 0, TERMS)
    assert Counter(t.session_id for t in kept) == {"a:1": 4, "a:2": 2, "b:1": 4}
    assert dropped == {OVER_LIMIT: 37}
    assert [t for t in turns if t in kept] == kept  # in their order
    assert limit_turns_per_session(turns, None, 0, TERMS) == (turns, Counter())
    assert limit_turns_per_session(turns, 40, 0, TERMS) == (turns, Counter())


def test_which_turns_stay_is_drawn_and_depends_on_nothing_else() -> None:
    """Someone who fills a session must not know which of its turns count; other sessions must not change the choice."""
    poisoned, other = of_session("a:1", *range(60)), of_session("a:2", *range(60))
    drawn = [{t.turn_id for t in limit_turns_per_session(poisoned, 6, seed, TERMS)[0]} for seed in range(20)]
    assert all(len(some) == 6 for some in drawn)
    assert len({frozenset(some) for some in drawn}) == 20
    ids = [turn.turn_id for turn in poisoned]
    assert set.union(*drawn) > set(ids[:6])
    assert max(sum(i in some for some in drawn) for i in ids) < 12
    assert {
        t.turn_id for t in limit_turns_per_session([*other, *poisoned[::-1]], 6, 3, TERMS)[0] if t.session_id == "a:1"
    } == drawn[3]


def test_what_teaches_comes_before_what_the_anchor_holds() -> None:
    turns = [*of_session("a:1", *range(9)), toy_turn("a:1:30", teacher=(-1.0, -2.0))]
    kept, _ = limit_turns_per_session(turns, 1, 0, {"teacher"})
    assert [turn.turn_id for turn in kept] == ["a:1:30"]


def test_replies_to_one_prompt_and_fresh_replies_count_for_the_session_of_the_log() -> None:
    logged, written = of_session("a:1", 1, 3, 5), of_session("a:1", 1, 3, 5, written=0)
    kept, dropped = limit_turns_per_session([*logged, *written], 2, 0, TERMS)
    assert len(kept) == 4
    assert len({t.turn_id for t in kept}) == 2
    assert dropped == {OVER_LIMIT: 2}
    fresh = [t for n in range(8) for t in of_session(f"a:1:3/rollout-{n}", 4)]
    assert len(limit_turns_per_session([*fresh, *of_session("a:2", 1)], 2, 0, TERMS)[0]) == 3
    branches = [t for name in ("a:1", "a:1#branch-2", "a:1#branch-3") for t in of_session(name, 1, 3)]
    assert len(limit_turns_per_session(branches, 2, 0, TERMS)[0]) == 2, "a request that is repeated begins a branch"


# -- what each turn is worth ----------------------------------------------------------------------------------------


def test_the_strength_of_a_turn_is_its_mean_absolute_advantage() -> None:
    data = set_of(
        toy_turn("both", old=(-1, -1, -1), teacher=(-0.5, -3, -9), reward=-1, sampled=(True, True, False)),
        toy_turn("hint", teacher=(-1.25, -1.75)), toy_turn("reward", reward=1),
    )  # fmt: skip
    assert data.strengths == pytest.approx([(0.5 + 2) / 2, 0.25, 1])  # -1 + 0.5 and -1 - 1, clipped at C = 1
    assert data.tokens == 6
    assert data.advantages["teacher"].tolist() == [0.5, -1.0, -0.25, 0.25]
    assert data.advantages["reward"].tolist() == [-1, -1, 1, 1]
    assert data.phases == [0, 0, 0]


@pytest.mark.parametrize("term", ["support", "divergence"])
def test_a_teacher_that_speaks_through_a_support_is_as_strong_as_on_the_logged_token(term: str) -> None:
    ones = np.ones((2, 3))
    support = Support(ones.astype(np.int32), -ones.astype(np.float16), -2 * ones.astype(np.float16))
    hinted = toy_turn("a", teacher=(-0.5, -2), support=support)
    assert set_of(hinted, weights={term: 2.0}).strengths == set_of(hinted, weights={"teacher": 2.0}).strengths == [0.5]


def test_a_turn_without_a_token_left_is_left_out() -> None:
    """A reply of two tokens has none left after --skip-first 2, but its reward still trains."""
    some = toy_turn("short", teacher=(0, 0)), toy_turn("rewarded", teacher=(0, 0), reward=1)
    data = set_of(*some, skip_first=2)
    assert [t.turn_id for t in data.replies] == ["rewarded:1"]
    assert data.dropped == {"every token skipped": 1}
    assert set_of(toy_turn("same", teacher=(-1, -2)), min_advantage=0.1).replies == []


def test_a_turn_belongs_to_the_last_phase_that_can_use_it() -> None:
    objectives = [Objective({"reward": 1.0}), Objective({"teacher": 1.0})]
    data = build_training_set(
        [toy_turn("a", reward=1), toy_turn("b", teacher=(-1, -1), reward=1), toy_turn("c", reward=0)], objectives, 3, {}
    )
    assert {t.turn_id: phase for t, phase in zip(data.replies, data.phases, strict=True)} == {
        "a:1": 0,
        "c:1": 0,
        "b:1": 1,
    }


@pytest.mark.parametrize(("shape", "penalties"), [("linear", [0, -0.5, -1, -1]), ("quadratic", [0, -0.25, -1, -1])])
def test_long_replies_lose_some_of_their_reward(shape: str, penalties: list[float]) -> None:
    """Replies of 8 to 11 sampled tokens get the overlong penalties of the table; a missing reward stays missing."""
    config = train_config(Path("run"), Path("model"), overlong_max=10, overlong_cache=2, overlong_shape=shape)
    turns = [toy_turn(str(n), old=(-1.0,) * (n + 1), sampled=[True] * n + [False], reward=1) for n in (8, 9, 10, 11)]
    shaped = shape_rewards([*turns, toy_turn("none")], config, {})
    assert [t.shaped_reward for t in shaped] == [*(1 + penalty for penalty in penalties), None]
    assert [t.length_penalty for t in shaped] == [*penalties, None]
    assert [t.reward for t in shaped] == [1] * 4 + [None]
    assert {t.length_penalty for t in shape_rewards(turns, train_config(Path("run"), Path("model")), {})} == {None}


def test_a_reply_of_the_teacher_has_not_the_reward_of_the_logged_one() -> None:
    """Both have the same turn id, but nobody has reacted to the reply that the teacher sampled."""
    logged = toy_turn("a:1", reward=-1, teacher=(-0.5, -0.5))
    sampled = replace(logged, written=0, reward=None, shaped_reward=None)
    shaped = shape_rewards([logged, sampled], train_config(Path("run"), Path("model")), {})
    assert [turn.shaped_reward for turn in shaped] == [-1, None]


@pytest.mark.parametrize(
    ("conditions", "left", "reasons"),
    [
        (("metadata.user!=u1",), {0, 2, 3}, {"filtered: metadata.user!=u1": 4, "filtered: no metadata.user": 2}),
        (("metadata.user=u*", "session!=toy-0|toy-3"), {1, 2, 4}, {"filtered: session!=toy-0|toy-3": 4,
                                                                  "filtered: no metadata.user": 2}),
    ],
)  # fmt: skip
def test_only_sessions_that_pass_the_filter_train(
    tmp_path, plain_model_dir, conditions: tuple[str, ...], left: set[int], reasons: dict[str, int]
) -> None:
    users = ["u0", "u1", "u2", "u3", "u1"]
    metadata = {f"toy-{n}": {"user": user} for n, user in enumerate(users)}
    run = write_run(tmp_path / "run", plain_model_dir, toy_sessions(6), metadata=metadata)
    config = train_config(run, plain_model_dir, filter=conditions, objective="combine")
    data, _ = load_training_set(config, make_objectives(config), Chat(load_tokenizer(str(plain_model_dir)), {}))
    assert {turn.session_id for turn in data.replies} == {f"toy-{n}" for n in left}
    assert (data.scored, data.dropped) == (12, reasons)


def test_a_condition_on_sessions_is_checked_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match="--filter"):
        train_config(Path("run"), Path("model"), filter=("user=u1",))
    with pytest.raises(ConfigError, match="--filter"):
        train_config(Path("run"), Path("model"), filter=("session>4",))
