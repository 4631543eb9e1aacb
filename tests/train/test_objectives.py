"""Tests of the effect of each objective on a student, with toy targets."""

import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from scored_runs import Said, Toy, read_supports, toy_sessions, train_config, write_run

from opdkit.chat.template import Chat
from opdkit.config.train import TrainConfig
from opdkit.errors import OpdkitError
from opdkit.model.load import load_tokenizer
from opdkit.store.reading import read_all
from opdkit.train import stage as train
from opdkit.train.objective.advantages import support_advantages
from opdkit.train.targets import load_prompts, load_targets
from opdkit.train.training_set import shape_rewards


def test_topk_moves_the_support_towards_the_teacher(run, plain_model_dir) -> None:
    train.run(train_config(run, plain_model_dir, objective="topk", epochs=4, learning_rate=3e-3))
    before, after = (list(read_supports(run, m).values()) for m in (plain_model_dir, run / "train/model"))
    moved = np.concatenate([(b - a).ravel() for (_, a), (_, b) in zip(before, after, strict=True)])
    everywhere = [torch.ones(len(s.ids), dtype=torch.bool) for s, _ in before]
    old, teacher = (
        [torch.from_numpy(getattr(s, name).astype(np.float32)) for s, _ in before] for name in ("old", "teacher")
    )
    advantages = np.concatenate([
        support_advantages(*x, 1.0).numpy().ravel() for x in zip(old, teacher, everywhere, strict=True)])  # fmt: skip
    assert moved[advantages > 0.1].mean() > 0.1
    assert moved[advantages < -0.1].mean() < -0.1
    rows = list(read_all(run, "metrics"))
    assert all(r["support_tokens"] and r["teacher_loss"] is None and r["reward_loss"] is None for r in rows)
    assert rows[0]["support_advantage"] == pytest.approx(-rows[0]["support_loss"], abs=1e-2)  # float16 ratios of 1


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_distill_lowers_the_divergence(run, plain_model_dir, alpha: float) -> None:
    train.run(train_config(run, plain_model_dir, objective="distill", divergence_alpha=alpha, epochs=6))
    rows = list(read_all(run, "metrics"))
    apart = [r["divergence_loss"] for r in rows]
    assert np.mean(apart[-3:]) < 0.7 * np.mean(apart[:3])
    assert all(r["clip_fraction"] is None and r["divergence_tokens"] for r in rows)


def test_hybrid_is_topk_and_binary(run, plain_model_dir) -> None:
    train.run(train_config(run, plain_model_dir, objective="hybrid", negative_below=1.0, batch_turns=100))
    (row,) = read_all(run, "metrics")
    turns = load_targets(run)
    assert row["reward_tokens"] == sum(t.sampled.sum() for t in turns if t.reward is not None)
    assert row["support_tokens"] == sum(t.sampled.sum() for t in turns if t.teacher_logprobs is not None)
    assert row["loss"] == pytest.approx(row["reward_loss"] + row["support_loss"], abs=1e-6)
    assert row["reward_loss"] == pytest.approx(-0.2 * row["reward_advantage"], abs=1e-6)


def test_the_default_is_a_divergence_and_a_little_reward(run, plain_model_dir) -> None:
    train.run(train_config(run, plain_model_dir, objective=TrainConfig.objective, batch_turns=100))
    (row,) = read_all(run, "metrics")
    turns = load_targets(run)
    sure = sum((t.sampled & (np.exp(t.old_logprobs) >= 0.95)).sum() for t in turns if t.reward == -1)
    assert row["divergence_tokens"] == sum(t.sampled.sum() for t in turns if t.teacher_logprobs is not None)
    assert row["reward_tokens"] == sum(t.sampled.sum() for t in turns if t.reward is not None) - sure
    assert row["loss"] == pytest.approx(row["divergence_loss"] - 0.1 * row["reward_advantage"], abs=1e-6)


def test_alternate_takes_turns(run, plain_model_dir) -> None:
    """Steps alternate between rewards on turns without a hint and the teacher on turns with a hint."""
    train.run(train_config(run, plain_model_dir, objective="alternate", batch_by="turn", batch_turns=2, epochs=2))
    rows = list(read_all(run, "metrics"))
    kinds = ["teacher" if r["teacher_tokens"] else "reward" for r in rows]
    assert not any(r["teacher_tokens"] and r["reward_tokens"] for r in rows)
    hinted = [t for t in load_targets(run) if t.teacher_logprobs is not None]
    plain = [t for t in load_targets(run) if t.teacher_logprobs is None and t.reward is not None]
    steps = {"teacher": -(-len(hinted) // 2), "reward": -(-len(plain) // 2)}
    assert Counter(kinds) == {kind: 2 * n for kind, n in steps.items()}
    assert kinds[: 2 * min(steps.values())] == ["reward", "teacher"] * min(steps.values())
    assert sum(r["teacher_tokens"] for r in rows) == 2 * sum(t.sampled.sum() for t in hinted)


def test_weights_make_an_objective_of_one_s_own(run, plain_model_dir) -> None:
    train.run(train_config(run, plain_model_dir, divergence_weight=0.5, teacher_weight=2.0, batch_turns=100))
    (row,) = read_all(run, "metrics")
    assert row["teacher_loss"] == pytest.approx(-2 * row["teacher_advantage"], abs=1e-6)
    assert row["loss"] == pytest.approx(row["teacher_loss"] + row["divergence_loss"], abs=1e-6)


def write_old_logprobs(run: Path, column: str, more: float) -> None:
    """Write the old log-probs, and `more`, as another column of the targets."""
    for path in (run / "teacher/targets").iterdir():
        table = pq.read_table(path)
        index = table.schema.get_field_index(column)
        values = [[x + more for x in row] for row in table["old_logprobs"].to_pylist()]
        field = table.schema.field(index)
        pq.write_table(table.set_column(index, field, pa.array(values, field.type)), path)


@pytest.mark.parametrize(("more", "warned"), [(0.0, False), (-0.12, True)])
def test_a_student_that_is_not_the_scored_model_is_named(run, plain_model_dir, capsys, more: float, warned) -> None:
    write_old_logprobs(run, "old_logprobs", more)
    train.run(train_config(run, plain_model_dir, epochs=1))
    said = " ".join(capsys.readouterr().err.split())
    assert ("differ from those of the teacher stage by 0.12 nats per token" in said) == warned


def test_log_probs_from_the_log_weigh_its_tokens(run, tmp_path, plain_model_dir) -> None:
    """Each token is a quarter as likely under the behaviour policy as under the student: weight 4, cut to the cap."""
    plain = Path(shutil.copytree(run, tmp_path / "plain"))
    write_old_logprobs(run, "behavior_logprobs", -np.log(4))
    losses = {}
    for where, cap in ((plain, 2.0), (run, 2.0), (run, 3.0), (run, 0.0)):
        train.run(train_config(where, plain_model_dir, batch_turns=100, behavior_cap=cap, overwrite=True))
        losses[where.name, cap] = next(iter(read_all(where, "metrics")))["teacher_loss"]
    assert losses["run", 0.0] == losses["plain", 2.0]
    assert losses["run", 2.0] == pytest.approx(2 * losses["plain", 2.0], rel=1e-5)
    assert losses["run", 3.0] == pytest.approx(3 * losses["plain", 2.0], rel=1e-5)


def test_kl_keeps_the_student_near_the_old_policy(run, tmp_path, plain_model_dir) -> None:
    moved = {}
    for coefficient in (0.0, 5.0):
        where = Path(shutil.copytree(run, tmp_path / str(coefficient)))
        train.run(train_config(where, plain_model_dir, kl_coef=coefficient, epochs=3, learning_rate=3e-3))
        rows = list(read_all(where, "metrics"))
        moved[coefficient] = np.mean([r["approx_kl"] for r in rows[-3:]])
        assert all((r["kl_loss"] is None) == (coefficient == 0) for r in rows)
    assert moved[5.0] < 0.7 * moved[0.0]


def test_clip_bounds_move_from_step_to_step(run, plain_model_dir, monkeypatch) -> None:
    used, step = [], train.take_optimizer_step

    def watched(training, replies, objective, position):
        used.append((objective.clip_low, objective.clip_high))
        return step(training, replies, objective, position)

    monkeypatch.setattr(train, "take_optimizer_step", watched)
    train.run(train_config(run, plain_model_dir, clip_low_end=0.1, clip_high=0.4, clip_high_end=0.2, epochs=3))
    rows = list(read_all(run, "metrics"))
    steps = len(rows) - 1
    for n, row in enumerate(rows):
        assert row["clip_low"] == pytest.approx(0.2 - 0.1 * n / steps)
        assert row["clip_high"] == pytest.approx(0.4 - 0.2 * n / steps)
    assert used == [(row["clip_low"], row["clip_high"]) for row in rows]


def test_a_penalty_for_length_counts_before_rewards_are_normalised(tmp_path, plain_model_dir) -> None:
    toys = [Toy("a", [Said(text, 1)], session=f"s{n}") for n, text in enumerate(("red", "red " * 30))]
    run = write_run(tmp_path / "run", plain_model_dir, toys)
    turns = load_targets(run)
    prompts = load_prompts(run, turns, Chat(load_tokenizer(str(plain_model_dir)), {}))
    options = train_config(run, plain_model_dir, group_normalise="all", overlong_max=20, overlong_cache=4)
    short, long = (turn.shaped_reward for turn in shape_rewards(turns, options, prompts))
    assert short == -long > 0


def test_rewards_are_normalised_among_turns_with_one_prompt(tmp_path, plain_model_dir) -> None:
    """Four sessions have the same prompt, and a fifth has its own."""
    toys = [Toy("a", [Said("red", r)], session=f"s{n}") for n, r in enumerate((1, -1, 1, 0))] + [
        Toy("b", [Said("old", -1)])
    ]
    run = write_run(tmp_path / "run", plain_model_dir, toys)
    turns = load_targets(run)
    prompts = load_prompts(run, turns, Chat(load_tokenizer(str(plain_model_dir)), {}))
    none = train_config(run, plain_model_dir, group_normalise="all", group_scale="none")
    assert [t.shaped_reward for t in shape_rewards(turns, none, prompts)] == [0.75, -1.25, 0.75, -0.25, 0]
    expected = {"off": [1, -1, 1, 0, -1], "repeated": [0.7833, -1.3056, 0.7833, -0.2611, -1],
                "all": [0.7833, -1.3056, 0.7833, -0.2611, 0]}  # fmt: skip
    for choice, values in expected.items():
        options = train_config(run, plain_model_dir, group_normalise=choice)
        assert [t.shaped_reward for t in shape_rewards(turns, options, prompts)] == pytest.approx(values, abs=5e-5)
    train.run(train_config(run, plain_model_dir, objective="binary", group_normalise="all", batch_turns=100))
    (row,) = read_all(run, "metrics")
    assert row["reward_advantage"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("objective", ["topk", "hybrid", "distill"])
def test_missing_supports_say_which_stage_makes_them(tmp_path, plain_model_dir, objective: str) -> None:
    run = write_run(tmp_path / "run", plain_model_dir, toy_sessions(2), support=0)
    with pytest.raises(OpdkitError, match=r"opdkit teacher .* --top-k"):
        train.run(train_config(run, plain_model_dir, objective=objective))
    assert not (run / "train").exists()
