"""What is said about a training set before it trains."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scored_runs import Said, Toy, train_config, write_run

from opdkit.store import read_all
from opdkit.train import stage as train
from opdkit.train.objective.terms import Objective
from opdkit.train.signal import degenerate_replies, ends_in_loop, largest_shares, thin_signal
from opdkit.train.targets import Support, Turn, is_held_out, load_turns
from opdkit.train.training_set import (
    OVER_LIMIT,
    TrainingSet,
    build_training_set,
    limit_turns_per_session,
    shape_rewards,
)

BOTH = {"reward": 1.0, "teacher": 1.0}


def turn(name: str, *, old=(-1.0, -2.0), teacher=None, reward=None, sampled=None, support=None) -> Turn:
    f32 = lambda x: None if x is None else np.asarray(x, np.float32)  # noqa: E731
    sampled = np.ones(len(old), bool) if sampled is None else np.asarray(sampled)
    return Turn(f"{name}:1", None, 3, 0, np.arange(len(old), dtype=np.int32), sampled, f32(old), f32(teacher), None,
                reward, reward, support)  # fmt: skip


def made_of(*turns: Turn, weights=BOTH, **options) -> TrainingSet:
    return build_training_set(turns, [Objective(weights, **options)], len(turns), {})


# -- what each turn is worth ----------------------------------------------------------------------------------------


def test_the_strength_of_a_turn_is_its_mean_absolute_advantage() -> None:
    data = made_of(
        turn("both", old=(-1, -1, -1), teacher=(-0.5, -3, -9), reward=-1, sampled=(True, True, False)),
        turn("hint", teacher=(-1.25, -1.75)), turn("reward", reward=1),
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
    hinted = turn("a", teacher=(-0.5, -2), support=support)
    assert (
        made_of(hinted, weights={term: 2.0}).strengths == made_of(hinted, weights={"teacher": 2.0}).strengths == [0.5]
    )


def test_a_turn_without_a_token_left_is_left_out() -> None:
    """A reply of two tokens has none after the first two; its reward trains all the same."""
    some = turn("short", teacher=(0, 0)), turn("rewarded", teacher=(0, 0), reward=1)
    data = made_of(*some, skip_first=2)
    assert [t.turn_id for t in data.turns] == ["rewarded:1"]
    assert data.dropped == {"every token skipped": 1}
    assert made_of(turn("same", teacher=(-1, -2)), min_advantage=0.1).turns == []


def test_a_turn_belongs_to_the_last_phase_that_can_use_it() -> None:
    phases = [Objective({"reward": 1.0}), Objective({"teacher": 1.0})]
    data = build_training_set(
        [turn("a", reward=1), turn("b", teacher=(-1, -1), reward=1), turn("c", reward=0)], phases, 3, {}
    )
    assert {t.turn_id: phase for t, phase in zip(data.turns, data.phases, strict=True)} == {
        "a:1": 0,
        "c:1": 0,
        "b:1": 1,
    }


def test_long_replies_lose_some_of_their_reward() -> None:
    """The table of the soft overlong punishment, on replies of 8 to 11 sampled tokens; no reward stays none."""
    config = train_config(Path("run"), Path("model"), overlong_max=10, overlong_cache=2)
    turns = [turn(str(n), old=(-1.0,) * (n + 1), sampled=[True] * n + [False], reward=1) for n in (8, 9, 10, 11)]
    assert [t.advantage for t in shape_rewards([*turns, turn("none")], config, {})] == [1, 0.5, 0, 0, None]
    assert [t.reward for t in shape_rewards(turns, config, {})] == [1] * 4


# -- is it enough ---------------------------------------------------------------------------------------------------


def test_enough_signal_says_nothing() -> None:
    data = made_of(*(turn(f"{n}", teacher=(-0.5, -2), reward=(-1) ** n) for n in range(4)))
    assert thin_signal(data, {"reward", "teacher"}, 4) == []


def test_thin_signal_is_said_in_words_with_counts() -> None:
    few = made_of(*(turn(f"{n}", teacher=(-0.5, -2)) for n in range(3)))
    assert "3 turns have a hint" in thin_signal(few, {"teacher"}, 16)[0]
    equal = made_of(*(turn(f"{n}", reward=-1) for n in range(5)), weights={"reward": 1.0})
    assert "all 5 rewards are -1" in thin_signal(equal, {"reward"}, 16)[0]
    assert thin_signal(made_of(turn("one", reward=1)), {"reward"}, 1) == []
    nothing = made_of(*(turn(f"{n}", teacher=(-1.001, -2.004)) for n in range(20)), weights={"teacher": 1.0})
    (warning,) = thin_signal(nothing, {"teacher"}, 16)
    assert "40 teacher advantages" in warning
    cancelled = [replace(turn(f"{n}", reward=r), advantage=0.0) for n, r in enumerate((1, -1))]
    assert "all 4 reward advantages" in thin_signal(made_of(*cancelled), {"reward"}, 1)[0]


@pytest.mark.parametrize(("ids", "expected"), [
    ([7] * 32, True), ([7] * 31, False), ([1, 2, 3, 4] * 8, True), ([9, 9, 5, *[1, 2, 3] * 11], True),
    (list(range(10)) * 4, True), (list(range(10)) * 3, False), (list(range(33)) * 4, False),
    ([7] * 40 + [8, 9], True), ([7] * 40 + [8, 9, 7], False),
    (list(range(100)), False), ([], False),
])  # fmt: skip
def test_a_loop_is_a_piece_said_over_and_over(ids: list[int], expected: bool) -> None:
    assert ends_in_loop(np.asarray(ids, np.int32)) is expected


def test_degenerate_replies_are_counted(tmp_path, plain_model_dir) -> None:
    """Replies that loop or were cut off, above all rewarded ones: a policy would learn nothing else."""
    said = [Said("red " * 60, 1), Said("blue", 1), Said("old", -1), Said("new", -1)]
    run = write_run(tmp_path / "run", plain_model_dir, [Toy(f"t{n}", [s]) for n, s in enumerate(said)],
                    turns={"t2:1": {"finish_reason": "length"}})  # fmt: skip
    found = degenerate_replies(made_of(*load_turns(run)), run)
    assert any("1 of 4 replies end in a loop, 1 of them with reward +1" in text for text in found)
    assert any("1 of 4 replies were cut off, 0 of them with reward +1" in text for text in found)
    assert degenerate_replies(made_of(*load_turns(run)[1:2]), run) == []


# -- --dry-run ------------------------------------------------------------------------------------------------------


def test_a_dry_run_says_what_would_be_trained_and_writes_nothing(run, plain_model_dir, capsys) -> None:
    before = sorted(p for p in run.rglob("*"))
    summary = train.run(train_config(run, plain_model_dir, objective="combine", epochs=3, holdout=0.3, dry_run=True))
    assert sorted(p for p in run.rglob("*")) == before
    told = dict(re.split(r"  +", text.strip(), maxsplit=1) for text in capsys.readouterr().out.splitlines())
    train.run(train_config(run, plain_model_dir, objective="combine", epochs=3, holdout=0.3))
    rows = list(read_all(run, "metrics"))
    trained = [t for t in load_turns(run) if not is_held_out(t.session_id, 0.3)]
    assert int(told["turns to train on"]) == len(trained) == summary.counters.rows_out
    assert int(told["left out: held out"]) == summary.counters.dropped["held out"] == 16 - len(trained)
    assert int(told["optimizer steps"]) == len(rows) == summary.counters.total("steps")
    assert [int(told[f"reward {r}"]) for r in ("+1", "0", "-1")] == [sum(t.reward == r for t in trained)
                                                                      for r in (1, 0, -1)]  # fmt: skip
    kinds = Counter((t.teacher_logprobs is not None, t.reward is not None) for t in trained)
    assert int(told["hint and reward"]) == kinds[True, True]
    assert int(told["hint alone"]) == kinds[True, False]
    assert int(told["reward alone"]) == kinds[False, True]
    assert int(told["tokens in an epoch, prompts too"]) * 3 == sum(r["tokens"] for r in rows)
    assert told["teacher advantages"].startswith(f"{sum(r['teacher_tokens'] for r in rows) // 3} tokens, 5% ")
    assert told["reward advantages"].startswith(f"{sum(r['reward_tokens'] for r in rows) // 3} tokens, 5% ")


# -- no session decides alone ---------------------------------------------------------------------------------------


def of_session(session: str, *indices: int, written: int | None = None) -> list[Turn]:
    return [replace(turn("x", reward=1), turn_id=f"{session}:{index}", written=written) for index in indices]


def test_at_most_so_many_turns_of_a_session_train() -> None:
    turns = [*of_session("a:1", *range(40)), *of_session("a:2", 0, 1), *of_session("b:1", *range(5))]
    kept, dropped = limit_turns_per_session(turns, 4, 0)
    assert Counter(t.session_id for t in kept) == {"a:1": 4, "a:2": 2, "b:1": 4}
    assert dropped == {OVER_LIMIT: 37}
    assert [t for t in turns if t in kept] == kept  # in their order
    assert limit_turns_per_session(turns, None, 0) == (turns, Counter())
    assert limit_turns_per_session(turns, 40, 0) == (turns, Counter())


def test_which_turns_stay_is_drawn_and_depends_on_nothing_else() -> None:
    """Whoever fills a session must not know which of its turns count; other sessions must not change it."""
    poisoned, other = of_session("a:1", *range(60)), of_session("a:2", *range(60))
    drawn = [{t.message_index for t in limit_turns_per_session(poisoned, 6, seed)[0]} for seed in range(20)]
    assert all(len(some) == 6 for some in drawn)
    assert len({frozenset(some) for some in drawn}) == 20
    assert set.union(*drawn) > set(range(6))
    assert max(sum(index in some for some in drawn) for index in range(60)) < 12
    assert {
        t.message_index for t in limit_turns_per_session([*other, *poisoned[::-1]], 6, 3)[0] if t.session_id == "a:1"
    } == drawn[3]


def test_replies_to_one_prompt_and_fresh_replies_count_for_the_session_of_the_log() -> None:
    logged, written = of_session("a:1", 1, 3, 5), of_session("a:1", 1, 3, 5, written=0)
    kept, dropped = limit_turns_per_session([*logged, *written], 2, 0)
    assert len(kept) == 4
    assert len({t.turn_id for t in kept}) == 2
    assert dropped == {OVER_LIMIT: 2}
    fresh = [t for n in range(8) for t in of_session(f"a:1:3/rollout-{n}", 4)]
    assert len(limit_turns_per_session([*fresh, *of_session("a:2", 1)], 2, 0)[0]) == 3


def test_the_largest_session_and_source_are_shown_with_their_share() -> None:
    data = made_of(*of_session("chat:1", 1, 3, 5), *of_session("chat:2", 1), *of_session("b:1", 1))
    assert largest_shares(data) == {"session": "chat:1: 3 turns, 60.0%", "source": "chat: 4 turns, 80.0%"}


def test_a_training_drops_and_counts_what_is_over(run, plain_model_dir, capsys) -> None:
    config = train_config(run, plain_model_dir, dry_run=True, max_turns_per_session=1)
    sessions = {t.session_id for t in load_turns(run)}
    summary = train.run(config)
    shown = capsys.readouterr()
    assert summary.counters.rows_out <= len(sessions)
    assert re.search(r"largest session +\S+: 1 turn, \d+\.\d%", shown.out)
    assert re.search(r"largest source +\S+: \d+ turns?", shown.out)
    assert "largest session" in shown.err
