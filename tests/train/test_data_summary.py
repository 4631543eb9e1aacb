"""Tests of the warnings about a training set before training, and of --dry-run."""

import contextlib
import json
import re
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scored_runs import Said, Toy, train_config, write_run
from toy_turns import set_of, toy_turn

from opdkit.config.judge import WARNINGS
from opdkit.config.rollout import RolloutConfig
from opdkit.config.teacher import TeacherConfig
from opdkit.config.train import fit_epochs
from opdkit.errors import ConfigError, NothingLearnedError, OpdkitError
from opdkit.store.part_writer import Stage
from opdkit.store.plans import judge_kind
from opdkit.store.reading import read_all
from opdkit.store.tables import VERDICTS
from opdkit.store.turn_ids import is_held_out
from opdkit.teacher import stage as teacher
from opdkit.train import stage as train
from opdkit.train.data_summary import (
    check_signal,
    ends_in_loop,
    find_degenerate_replies,
    find_largest_shares,
    find_weak_signal,
)
from opdkit.train.objective.terms import Objective
from opdkit.train.targets import load_targets
from opdkit.train.training_set import FOR_VALIDATION

# -- strength of the signal -----------------------------------------------------------------------------------------


def test_enough_signal_says_nothing() -> None:
    data = set_of(*(toy_turn(f"{n}", teacher=(-0.5, -2), reward=(-1) ** n) for n in range(4)))
    assert find_weak_signal(data, {"reward", "teacher"}, 4) == []


def test_thin_signal_is_said_in_words_with_counts() -> None:
    few = set_of(*(toy_turn(f"{n}", teacher=(-0.5, -2)) for n in range(3)))
    assert "3 replies have a hint" in find_weak_signal(few, {"teacher"}, 16)[0]
    equal = set_of(*(toy_turn(f"{n}", reward=-1) for n in range(5)), weights={"reward": 1.0})
    assert "all 5 rewards are -1" in find_weak_signal(equal, {"reward"}, 16)[0]
    assert find_weak_signal(set_of(toy_turn("one", reward=1)), {"reward"}, 1) == []
    mixed = set_of(*(toy_turn(f"{n}", reward=(-1) ** n) for n in range(20)))
    (alone,) = find_weak_signal(mixed, {"reward", "teacher"}, 16)
    assert "no reply has a hint" in alone
    assert "--batch-turns" not in alone
    nothing = set_of(*(toy_turn(f"{n}", teacher=(-1.001, -2.004)) for n in range(20)), weights={"teacher": 1.0})
    (warning,) = find_weak_signal(nothing, {"teacher"}, 16)
    assert "40 teacher advantages" in warning
    cancelled = [replace(toy_turn(f"{n}", reward=r), shaped_reward=0.0) for n, r in enumerate((1, -1))]
    assert "all 4 reward advantages" in find_weak_signal(set_of(*cancelled), {"reward"}, 1)[0]


def test_a_log_with_two_hints_is_told_that_no_validation_guards_its_model(run, plain_model_dir, capsys) -> None:
    data = set_of(*(toy_turn(f"{n}", teacher=(-0.5, -2), reward=-1) for n in range(2)))
    check_signal(data, [], train_config(run, plain_model_dir, validate=8), [Objective({"teacher": 1.0})])
    (warning,) = (line for line in capsys.readouterr().err.splitlines() if "no validation" in line)
    assert "warning" in warning
    assert "worse" in warning
    assert "3 turns with a hint" in warning


@pytest.mark.parametrize(("hints", "kept", "trained"), [(3, 5, 3), (8, 5, 0), (8, 0, 2)])
def test_the_prompts_of_the_validation_are_counted(run, plain_model_dir, capsys, hints, kept, trained) -> None:
    turns = [toy_turn(f"{n}", teacher=(-0.5, -2), reward=-1) for n in range(40)]
    validation = [*turns[:hints], *(toy_turn(f"v{n}", reward=1) for n in range(kept))]
    config = train_config(run, plain_model_dir, validate=8)
    data = set_of(*turns[hints - trained :])
    check_signal(replace(data, validation=validation), [], config, [Objective({"teacher": 1.0})])
    said = capsys.readouterr().err
    also = " (trained on, too)" if trained else ""
    assert f"validation: {hints} prompts with a hint{also}, {kept} without" in said
    assert said.count("trained on") == bool(trained), "of the others, none"
    assert ("few have a hint" in said) == (hints == 3)
    assert ("nothing measures what is forgotten" in said) == (kept == 0)


def test_the_error_names_validation_where_that_took_the_turns(run, plain_model_dir) -> None:
    data = replace(set_of(toy_turn("a", reward=1)), replies=[], dropped=Counter({FOR_VALIDATION: 5}))
    with pytest.raises(NothingLearnedError, match="--validate 0"):
        check_signal(data, [], train_config(run, plain_model_dir, objective="binary"), [Objective({"reward": 1.0})])


def test_the_error_names_the_options_that_skip_tokens(run, plain_model_dir) -> None:
    """By default, a negative reward skips tokens that the student was sure of."""
    sure = set_of(*(toy_turn(f"{n}", old=(-0.01, -0.02), reward=-1) for n in range(3)), weights={"reward": 1.0})
    with pytest.raises(NothingLearnedError, match=r"every token skipped 3.*--negative-below"):
        check_signal(sure, [], train_config(run, plain_model_dir, objective="binary"), [Objective({"reward": 1.0})])


@pytest.mark.parametrize("objective", ["blend", "hybrid", "combine", "binary"])
def test_without_a_hint_and_a_reward_there_is_nothing_to_learn(objective, run, plain_model_dir) -> None:
    """Rounding alone has a gradient, and the search for a rate would raise the rate for it."""
    config = train_config(run, plain_model_dir, objective=objective)
    terms = [Objective({"reward": 1.0})] if objective == "binary" else [Objective({"teacher": 1.0, "reward": 1.0})]
    zero = set_of(*(toy_turn(f"{n}", reward=0) for n in range(4)))
    with pytest.raises(NothingLearnedError, match="all 4 rewards are 0: there is nothing"):
        check_signal(zero, [], config, terms)
    lone = [replace(toy_turn(f"{n}", reward=1), shaped_reward=0.0) for n in range(4)]
    with pytest.raises(NothingLearnedError, match="all 4 rewards cancel within their groups"):
        check_signal(set_of(*lone), [], config, terms)
    hinted = set_of(*lone, toy_turn("5", teacher=(-0.5, -2), reward=0))
    with contextlib.nullcontext() if objective != "binary" else pytest.raises(NothingLearnedError, match="all 5"):
        check_signal(hinted, [], config, terms[:1] * 2)


@pytest.mark.parametrize(("warmup", "is_said"), [(3, False), (4, True), (100, True)])
def test_a_warm_up_that_does_not_end_is_said(run, plain_model_dir, capsys, warmup, is_said) -> None:
    train.run(train_config(run, plain_model_dir, warmup_steps=warmup, objective="combine", dry_run=True))
    err = capsys.readouterr().err
    assert "4 optimizer steps in 1 epoch" in err
    assert (f"--warmup-steps {warmup}" in err) == is_said


@pytest.mark.parametrize(("options", "is_said"), [({}, False), ({"top_k_of": "teacher"}, True), ({"top_k": 0}, True)])
def test_replies_without_an_anchor_are_said(run, plain_model_dir, capsys, options, is_said) -> None:
    """The support of a reply without a hint holds the student's top tokens, so the teacher's leave it without one."""
    teacher.run(TeacherConfig(run=run, model=str(plain_model_dir), device="cpu", overwrite=True, **options))
    capsys.readouterr()
    train.run(train_config(run, plain_model_dir, objective="opd", anchor_weight=0.1, dry_run=True))
    assert ("no anchor" in capsys.readouterr().err) == is_said
    assert is_said != any(turn.is_anchor for turn in load_targets(run, supports="any"))


@pytest.mark.parametrize("validate", [1, 2])
def test_a_validation_on_fewer_prompts_than_it_needs_is_refused(validate, run, plain_model_dir) -> None:
    with pytest.raises(ConfigError, match=f"--validate is {validate}; it must be at least 3, or 0"):
        train_config(run, plain_model_dir, validate=validate)


def test_the_epochs_are_found_and_counted(run, plain_model_dir, capsys) -> None:
    """12 turns with a reward make 3 steps of 4 turns, so there are ten epochs, the maximum."""
    train.run(train_config(run, plain_model_dir, objective="binary", epochs=None, holdout=0.3, dry_run=True))
    told = dict(re.split(r"  +", text.strip(), maxsplit=1) for text in capsys.readouterr().out.splitlines())
    train.run(train_config(run, plain_model_dir, objective="binary", epochs=None, holdout=0.3))
    rows = list(read_all(run, "metrics"))
    assert int(told["epochs"]) == rows[-1]["epoch"] == fit_epochs(int(told["optimizer steps"]) // 10) == 10
    assert int(told["optimizer steps"]) == len(rows)
    assert "if much is left to learn" not in told, "nothing would see it: no turn is left for a validation"
    assert f"{len(rows)} optimizer steps in 10 epochs" in capsys.readouterr().err


def test_rewards_of_0_teach_nothing_but_their_length_penalty(tmp_path, plain_model_dir) -> None:
    toys = [Toy(f"t{n}", [Said("red blue green", 0)]) for n in range(2)]
    run = write_run(tmp_path / "run", plain_model_dir, toys, support=0)
    with pytest.raises(OpdkitError, match="2 rewards"):
        train.run(train_config(run, plain_model_dir, objective="binary"))
    train.run(train_config(run, plain_model_dir, objective="binary", overlong_max=2, overlong_cache=2))
    assert [row["skipped"] for row in read_all(run, "metrics")] == [False]


def name_judge(run: Path, judge: str) -> None:
    path = run / "judge" / "manifest.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    document["configuration"]["judge"] = document["plan"]["config"]["judge"] = judge
    path.write_text(json.dumps(document), encoding="utf-8")


@pytest.mark.parametrize("judge", ["rules", "local"])
def test_training_on_the_verdicts_of_rules_is_warned_of(run, plain_model_dir, capsys, judge: str) -> None:
    name_judge(run, judge)
    train.run(train_config(run, plain_model_dir, dry_run=True))
    said = capsys.readouterr().err
    assert ("warning: judged by --judge rules, which is not a model" in said) == (judge == "rules")
    assert WARNINGS["rules"] not in said, "`opdkit run` has said that before its first stage"


def test_fresh_replies_to_hints_of_rules_are_judged_by_rules(run, plain_model_dir, tmp_path) -> None:
    """The rollout's own manifest names no judge; its hints are those of the source run."""
    second = RolloutConfig(run=tmp_path / "second", from_run=run, model=str(plain_model_dir))
    Stage.open(second, "judge", [VERDICTS], parts=1, command="rollout")
    assert judge_kind(second.run) == "rules"
    name_judge(run, "local")
    assert judge_kind(second.run) == "local"
    shutil.rmtree(run)
    assert judge_kind(second.run) is None


@pytest.mark.parametrize(("ids", "expected"), [
    ([7] * 32, True), ([7] * 31, False), ([1, 2, 3, 4] * 8, True), ([9, 9, 5, *[1, 2, 3] * 11], True),
    (list(range(10)) * 4, True), (list(range(10)) * 3, False), (list(range(33)) * 4, False),
    ([7] * 40 + [8, 9], True), ([7] * 40 + [8, 9, 7], False),
    (list(range(100)), False), ([], False),
])  # fmt: skip
def test_a_loop_is_a_piece_said_over_and_over(ids: list[int], expected: bool) -> None:
    assert ends_in_loop(np.asarray(ids, np.int32)) is expected


def test_degenerate_replies_are_counted(tmp_path, plain_model_dir) -> None:
    """Looping and cut-off replies are counted, and those rewarded +1 among them: a policy would learn to write them."""
    said = [Said("red " * 60, 1), Said("blue", 1), Said("old", -1), Said("new", -1)]
    run = write_run(tmp_path / "run", plain_model_dir, [Toy(f"t{n}", [s]) for n, s in enumerate(said)],
                    turns={"t2:1": {"finish_reason": "length"}})  # fmt: skip
    found = find_degenerate_replies(set_of(*load_targets(run)), run)
    assert any("1 of 4 replies end in a loop, 1 of them with reward +1" in text for text in found)
    assert any("1 of 4 replies were cut off, 0 of them with reward +1" in text for text in found)
    assert find_degenerate_replies(set_of(*load_targets(run)[1:2]), run) == []


# -- --dry-run ------------------------------------------------------------------------------------------------------


def test_a_dry_run_says_what_would_be_trained_and_writes_nothing(run, plain_model_dir, capsys) -> None:
    before = sorted(p for p in run.rglob("*"))
    summary = train.run(train_config(run, plain_model_dir, objective="combine", epochs=3, holdout=0.3, dry_run=True))
    assert sorted(p for p in run.rglob("*")) == before
    told = dict(re.split(r"  +", text.strip(), maxsplit=1) for text in capsys.readouterr().out.splitlines())
    train.run(train_config(run, plain_model_dir, objective="combine", epochs=3, holdout=0.3))
    rows = list(read_all(run, "metrics"))
    trained = [t for t in load_targets(run) if not is_held_out(t.session_id, 0.3)]
    assert int(told["replies to train on"]) == len(trained) == summary.counters.rows_out
    assert int(told["dropped: held out"]) == summary.counters.dropped["held out"] == 16 - len(trained)
    assert (told["epochs"], rows[-1]["epoch"]) == ("3", 3.0)
    assert int(told["optimizer steps"]) == len(rows) == summary.counters.total("steps")
    assert [int(told[f"reward {r}"]) for r in ("+1", "0", "-1")] == [sum(t.reward == r for t in trained)
                                                                      for r in (1, 0, -1)]  # fmt: skip
    kinds = Counter((t.teacher_logprobs is not None, t.reward is not None) for t in trained)
    assert int(told["hint and reward"]) == kinds[True, True]
    assert int(told["hint alone"]) == kinds[True, False]
    assert int(told["reward alone"]) == kinds[False, True]
    assert int(told["tokens per epoch, with prompts"]) * 3 == sum(r["tokens"] for r in rows)
    assert told["teacher advantages"].startswith(f"{sum(r['teacher_tokens'] for r in rows) // 3} tokens, 5% ")
    assert told["reward advantages"].startswith(f"{sum(r['reward_tokens'] for r in rows) // 3} tokens, 5% ")


def test_a_dry_run_without_rewards_counts_what_the_anchor_holds(run, plain_model_dir, capsys) -> None:
    train.run(train_config(run, plain_model_dir, objective="opd", anchor_weight=0.1, dry_run=True))
    told = dict(re.split(r"  +", text.strip(), maxsplit=1) for text in capsys.readouterr().out.splitlines())
    held = [t for t in load_targets(run, supports="any") if t.is_anchor]
    assert int(told["held by the anchor"]) == len(held) > 0
    assert "reward alone" not in told


def test_the_largest_session_and_source_are_shown_with_their_share() -> None:
    """Replies that the teacher wrote count, and are listed apart, as in the report's columns for each session."""
    turns = [toy_turn(name, reward=1) for name in ("chat:1:1", "chat:1:3", "chat:1:5", "chat:2:1", "b:1:1")]
    shares = find_largest_shares(set_of(*turns))
    assert shares == {
        "session": "chat:1: 3 logged replies, 0 written replies, 60.0%",
        "source": "chat: 4 logged replies, 0 written replies, 80.0%",
    }
    turns[1:3] = [replace(turn, written=0) for turn in turns[1:3]]
    assert find_largest_shares(set_of(*turns)) == {
        "session": "chat:1: 1 logged reply, 2 written replies, 60.0%",
        "source": "chat: 2 logged replies, 2 written replies, 80.0%",
    }


def test_a_training_drops_and_counts_what_is_over(run, plain_model_dir, capsys) -> None:
    config = train_config(run, plain_model_dir, dry_run=True, max_turns_per_session=1)
    sessions = {t.session_id for t in load_targets(run)}
    summary = train.run(config)
    shown = capsys.readouterr()
    assert summary.counters.rows_out <= len(sessions)
    assert re.search(r"largest session +\S+: 1 logged reply, 0 written replies, \d+\.\d%", shown.out)
    assert re.search(r"largest source +\S+: \d+ logged repl", shown.out)
    assert "largest session" in shown.err
