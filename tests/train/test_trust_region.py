"""Tests of the trust region: steps that move the replies too far are made smaller, and the first step finds a rate."""

import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scored_runs import ALONE, read_supports, toy_sessions, train_and_kill, train_config, write_run
from torch import nn
from toy_turns import toy_turn

from opdkit.model.scoring import PromptResponse
from opdkit.store.reading import read_all
from opdkit.train import stage as train
from opdkit.train import step as optimizer_steps
from opdkit.train import training_set, trust_region
from opdkit.train.policy import Policy
from opdkit.train.schedule import Position, find_position
from opdkit.train.targets import Reply, load_targets
from opdkit.train.training import Training
from opdkit.train.trust_region import (
    FIRST_STEPS,
    MAX_RATE_TO_WEIGHTS,
    MEASURE_EVERY,
    PROBE_SHARE,
    PROBE_TOKENS,
    TrustRegion,
    change_rate,
    choose_probe,
    make_trust_region,
    raise_epsilon,
)

REGION = ALONE | {"step_limit": 0.02}


def _stepped(rate: float, steps: int = 3, decay: float = 0.3) -> tuple[nn.Module, torch.optim.AdamW]:
    """Return a model after some steps of AdamW, the last one at `rate`."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, betas=(0.9, 0.98), weight_decay=decay)
    inputs = torch.randn(steps, 16, 4, dtype=torch.float64)
    for number in range(steps):
        optimizer.zero_grad()
        model(inputs[number]).square().sum().backward()
        for group in optimizer.param_groups:
            group["lr"] = rate if number == steps - 1 else 1e-2
        optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("after", [0.0, 1e-3, 0.5])
def test_a_step_at_another_rate_is_the_step_that_adamw_does_at_it(after: float) -> None:
    model, optimizer = _stepped(0.2)
    change_rate(optimizer, 0.2, after)
    wanted, _ = _stepped(after)
    for ours, theirs in zip(model.parameters(), wanted.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


class Quadratic:
    """Model whose KL is the square of its step's rate, times `scale`."""

    def __init__(self, scale: float, rate: float) -> None:
        self.scale, self.rate = scale, rate

    def move(self, before: float, after: float) -> None:
        assert before == pytest.approx(self.rate)
        self.rate = after

    def measure(self) -> float:
        return self.scale * self.rate**2


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6, 1e12])
@pytest.mark.parametrize("share", [1.0, 0.1])
def test_a_step_that_is_too_large_is_made_as_large_as_the_limit(scale: float, share: float) -> None:
    trust, model = TrustRegion(0.02), Quadratic(scale, 0.1 * share)
    bounded = trust.bound(Position(5, 0.1 * share, share), model.move, model.measure)
    assert bounded.kl <= 2 * 0.02 * share**2
    assert bounded.rate == pytest.approx(model.rate)
    assert trust.factor * 0.1 * share == pytest.approx(model.rate)
    if scale <= 1:
        assert trust.factor == 1.0, "a step within the limit was changed"


def test_the_last_steps_may_move_the_replies_by_rounding() -> None:
    """In bfloat16 the KL of a small step does not fall with its rate: here it is always 0.0003."""
    trust = TrustRegion(0.02)
    trust.bound(Position(50, 1e-6, 0.01), lambda *_: None, lambda: 3e-4)
    assert trust.factor == 1.0


@pytest.mark.parametrize("scale", [1e-2, 1e6, 1e12])
def test_the_first_step_finds_the_rate_of_the_limit(scale: float) -> None:
    trust, model = TrustRegion(0.02, max_factor=math.inf), Quadratic(scale, 1e-5)
    bounded = trust.bound(Position(1, 1e-5, 1.0), model.move, model.measure)
    assert 0.01 <= bounded.kl <= 0.04
    assert trust.factor * 1e-5 == pytest.approx(model.rate)


@pytest.mark.parametrize(("step", "kl", "rises"), [(2, 0.24, True), (8, 0.24, True), (8, 0.26, False),
                                                  (10, 0.24, False)])  # fmt: skip
def test_the_page_of_objectives_says_when_rates_rise(step: int, kl: float, rises: bool) -> None:
    trust = TrustRegion(1.0, max_factor=math.inf)
    trust.bound(Position(step, 1e-3, 1.0), lambda *_: None, lambda: kl)
    assert trust.factor == pytest.approx(math.sqrt(2) if rises else 1.0)
    page = " ".join((Path(__file__).parents[2] / "docs" / "objectives.md").read_text(encoding="utf-8").split())
    assert "If one of the first eight steps moves the replies by less than a quarter of the limit, the rates" in page


def test_the_page_of_objectives_names_the_least_limit() -> None:
    page = " ".join((Path(__file__).parents[2] / "docs" / "objectives.md").read_text(encoding="utf-8").split())
    assert "but at least a fiftieth of `--step-limit`" in page
    for kl, factor in ((0.039, 1.0), (0.08, 0.5)):
        trust, kls = TrustRegion(1.0), iter([kl, 0.02])
        trust.bound(Position(50, 1e-6, 0.01), lambda *_: None, lambda kls=kls: next(kls))
        assert trust.factor == pytest.approx(factor)


@pytest.mark.parametrize("factor", [0.1, 1.0, 5.0])
def test_no_rate_is_above_the_largest_one(factor: float) -> None:
    trust, model = TrustRegion(0.02, factor, max_factor=5.0), Quadratic(1e-6, 1e-5 * factor)
    for step in range(1, 20):
        model.rate = 1e-5 * trust.factor
        trust.bound(Position(step, 1e-5, 1.0), model.move, model.measure)
        assert model.rate == pytest.approx(5e-5), "from the first step on"


@pytest.mark.parametrize(("options", "first", "share_of_peak"), [
    ({"learning_rate": None}, 1e-5, math.inf),
    ({"learning_rate": 1.0}, 1e-5, 1.0),
    ({"learning_rate": 1e-6}, 1e-6, 1.0),
    ({"learning_rate": 1e-6, "step_limit": 0.0}, 1e-6, 1.0),
    ({"learning_rate": 1.0, "step_limit": 0.0}, 1.0, 1.0),
    ({"learning_rate": 1.0, "lora_rank": 4}, 1e-4, 1.0),
])  # fmt: skip
def test_every_search_begins_at_a_small_rate(tmp_path, capsys, options, first, share_of_peak) -> None:
    """The search ends at the given rate or, if smaller, at half a percent of the root mean square of the matrices.

    Who gives a rate that no step will have is told so.
    """
    config = train_config(tmp_path, tmp_path, **(REGION | options))
    student = nn.ModuleDict({"a": nn.Linear(4, 8), "b": nn.Linear(8, 3)})
    with torch.no_grad():
        student["a"].weight.fill_(0.5)
        student["b"].weight.fill_(-0.2)
        student["b"].bias.fill_(1e3)  # a vector does not count
    trust, peak = make_trust_region(config, student), find_position(config, 1, 10).rate
    largest = 0.005 * math.sqrt((32 * 0.5**2 + 24 * 0.2**2) / 56) if config.step_limit else math.inf
    assert trust.factor * peak == pytest.approx(first)
    assert trust.max_factor * peak == pytest.approx(min(largest, share_of_peak * peak))
    told = f"given --learning-rate 1: for this model's weights, opdkit allows at most {largest:.2g}"
    assert (told in capsys.readouterr().err) == (options["learning_rate"] == 1.0 and math.isfinite(largest))


@pytest.mark.parametrize("rate", [None, 1.0])
def test_a_step_is_half_a_percent_of_the_weights_at_most(run, plain_model_dir, rate: float | None) -> None:
    """This holds even if the limit of the KL is out of reach."""
    train.run(train_config(run, plain_model_dir, **(REGION | {"learning_rate": rate, "step_limit": 1e9})))
    weights = load_file(plain_model_dir / "model.safetensors").values()
    numbers = torch.cat([weight.double().flatten() for weight in weights if weight.ndim >= 2])
    rates = [row["learning_rate"] for row in read_all(run, "metrics")]
    assert rates[0] == pytest.approx(MAX_RATE_TO_WEIGHTS * float(numbers.square().mean().sqrt()), rel=1e-3)
    assert max(rates) == pytest.approx(rates[0])


def test_a_step_to_nothing_that_is_a_number_is_taken_back() -> None:
    rates = []
    trust = TrustRegion(0.02)
    measured = iter([math.nan, math.inf, 0.01])
    trust.bound(Position(20, 1.0, 1.0), lambda _, after: rates.append(after), lambda: next(measured))
    assert rates == pytest.approx([1e-2, 1e-4])


def test_a_given_rate_is_never_exceeded() -> None:
    trust, model = TrustRegion(0.02, factor=0.1), Quadratic(1e-6, 1e-4)
    for step in range(2, 20):
        model.rate = 1e-3 * trust.factor
        trust.bound(Position(step, 1e-3, 1.0), model.move, model.measure)
    assert 0.1 < trust.factor <= 1.0


def test_epsilon_is_a_share_of_the_largest_gradient() -> None:
    _, optimizer = _stepped(0.1)
    for norm in (3.0, 0.1):
        raise_epsilon(optimizer, 0.1, norm, 900)
    assert [group["eps"] for group in optimizer.param_groups] == [0.1 * 3.0 / 30]


def test_the_turns_that_are_read_again_have_hints_first(run) -> None:
    turns = load_targets(run)
    read = sum(map(len, turns))
    probe = choose_probe(turns, read)
    tokens = [len(turns[i]) for i in probe]
    assert sum(tokens[:-1]) < PROBE_SHARE * sum(map(len, turns)) <= sum(tokens)
    assert all(turns[i].teacher_logprobs is not None for i in probe)
    assert choose_probe(turns, read) == probe
    assert choose_probe(turns, read // 10) == probe, "within PROBE_TOKENS"
    assert choose_probe([t for t in turns if t.teacher_logprobs is None][:2], read)


def test_of_a_long_session_few_turns_are_read_again(monkeypatch) -> None:
    """Read one by one, a session's 60 turns have 0.7 million tokens; with shared prefixes, a step reads 28,000."""
    turns = [replace(toy_turn(f"log:1:{2 * n + 1}"), prompt_tokens=400 * n) for n in range(60)]
    longest = max(map(len, turns))
    probe = choose_probe(turns, 28_000)
    assert sum(len(turns[i]) for i in probe) < PROBE_TOKENS + longest
    monkeypatch.setattr(trust_region, "PROBE_TOKENS", 100)
    assert sum(len(turns[i]) for i in choose_probe(turns, 28_000)) < PROBE_SHARE * 28_000 + longest
    monkeypatch.setattr(trust_region, "PROBE_TOKENS", 10**9)
    assert sum(len(turns[i]) for i in choose_probe(turns, 28_000)) > PROBE_SHARE * sum(map(len, turns))


def test_a_step_that_is_split_otherwise_finds_the_same_rate(tmp_path, tiny_model_dir) -> None:
    """More forwards read more tokens, and their number depends on a memory option, which may change on resume."""
    write_run(tmp_path / "run", tiny_model_dir, toy_sessions(6, 16))
    rates = []
    for tokens in (8192, 64):
        options = REGION | {"learning_rate": None, "step_limit": 0.1, "micro_batch_tokens": tokens, "overwrite": True}
        train.run(train_config(tmp_path / "run", tiny_model_dir, objective="blend", batch_turns=16, seed=2, **options))
        rates.append([row["learning_rate"] for row in read_all(tmp_path / "run", "metrics")])
    assert rates[0] == pytest.approx(rates[1], rel=1e-3)


@pytest.mark.parametrize("out_of_memory", [False, True])
def test_they_are_read_within_the_budget(
    run, tmp_path, plain_model_dir, monkeypatch, capsys, out_of_memory: bool
) -> None:
    """With a budget of tokens or of memory, the KL is the same except for rounding.

    The budget of the training stays: with several processes, a lower one in one of them would share out other replies.
    """
    whole = Path(shutil.copytree(run, tmp_path / "whole"))
    options = REGION | {"learning_rate": 1e-3, "batch_turns": 100, "objective": "distill"}
    monkeypatch.setattr(trust_region, "PROBE_SHARE", 1.0)  # all turns
    train.run(train_config(whole, plain_model_dir, **options))
    forward, again, failed = Policy.forward, [], []

    def watched(policy: Policy, trees: Sequence[Sequence[PromptResponse]], ids_nk: torch.Tensor) -> object:
        if not torch.is_grad_enabled():
            again.append([len(sequence) for tree in trees for sequence in tree])
            if out_of_memory and len(again[-1]) > 2:
                failed.append(again.pop())
                raise torch.OutOfMemoryError
        return forward(policy, trees, ids_nk)

    monkeypatch.setattr(Policy, "forward", watched)
    options |= {} if out_of_memory else {"micro_batch_tokens": 100}
    train.run(train_config(run, plain_model_dir, **options))
    (ours,), (theirs,) = (list(read_all(folder, "metrics")) for folder in (run, whole))
    assert ours["step_kl"] == pytest.approx(theirs["step_kl"], rel=1e-3)
    assert again
    assert bool(failed) == out_of_memory
    said = capsys.readouterr().err
    assert ("measuring a step: " in said, "training: " in said) == (out_of_memory, False)
    assert out_of_memory or all(len(lengths) == 1 or sum(lengths) <= 100 for lengths in again)


@pytest.mark.parametrize("objective", ["opd", "blend"])
def test_a_rate_that_destroys_the_model_is_made_smaller(run, tmp_path, plain_model_dir, objective: str) -> None:
    free = Path(shutil.copytree(run, tmp_path / "free"))
    for folder, options in ((run, REGION), (free, ALONE)):
        options = options | {"epochs": 4}
        train.run(train_config(folder, plain_model_dir, learning_rate=1.0, objective=objective, **options))
    rows, wild = (list(read_all(folder, "metrics")) for folder in (run, free))
    assert max(row["shift"] for row in rows) < 0.2 * max(row["shift"] for row in wild)
    measured = [row["step"] for row in rows if row["step_kl"] is not None]
    assert measured == [n for n in range(1, len(rows) + 1) if n <= FIRST_STEPS or n % MEASURE_EVERY == 0]
    assert measured[-1] > FIRST_STEPS
    assert all(row["step_kl"] <= 0.04 for row in rows if row["step_kl"] is not None)
    assert all(row["step_kl"] is None and row["learning_rate"] <= 1.0 for row in wild)


def test_rounding_in_bfloat16_is_no_movement(run, plain_model_dir) -> None:
    """The rate is too small to change a weight. Read alone, replies have other rounding errors than in a tree."""
    options = REGION | {"learning_rate": 1e-12, "dtype": "bfloat16"}
    train.run(train_config(run, plain_model_dir, objective="blend", **options))
    assert {row["step_kl"] for row in read_all(run, "metrics")} == {0.0}


def test_without_a_rate_the_student_moves_by_the_limit(run, plain_model_dir) -> None:
    train.run(train_config(run, plain_model_dir, learning_rate=None, **REGION))
    first = next(read_all(run, "metrics"))
    assert 0.01 <= first["step_kl"] <= 0.04
    assert first["learning_rate"] > 1e-5


def test_the_kl_is_that_of_the_models_before_and_after(run, plain_model_dir, tmp_path) -> None:
    """The KL of a single step is that of two models on disk, over the support and the rest."""
    train.run(train_config(run, plain_model_dir, learning_rate=1e-3, batch_turns=100, objective="distill", **REGION))
    (row,) = read_all(run, "metrics")
    by_id = {t.turn_id: t for t in load_targets(run)}
    batch: list[Reply] = [by_id[i] for i in row["turn_ids"]]
    probe = [batch[i] for i in choose_probe(batch, 0)]
    before, after = (read_supports(run, model) for model in (plain_model_dir, run / "train/model"))
    kls = []
    for turn in probe:
        p, q = (np.c_[np.exp(x), 1 - np.exp(x).sum(1)] for _, x in (before[turn.turn_id], after[turn.turn_id]))
        kls.append((p * np.log(p / q)).sum())
    assert row["step_kl"] == pytest.approx(np.mean(kls), rel=1e-3)


def test_the_kl_of_a_turn_without_a_support_is_that_of_its_sampled_tokens(run, plain_model_dir, monkeypatch) -> None:
    """Other turns of the step have a support, as with --top-k-of teacher."""
    single, by_hand, measure = [], [], optimizer_steps.measure_movement

    def watched(training: Training, turns: Sequence[Reply], *rest: Sequence[Any]) -> float:
        now = optimizer_steps.read_probe(training, turns, rest[0])
        for turn, before, after in zip(turns, rest[1], now, strict=True):
            if turn.support is None:
                p, q = before[:, 0].double().exp(), after[:, 0].double().exp()
                by_hand.append(float((p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()).sum()))
        single.extend(measure(training, *([one] for one in each)) for each in zip(turns, *rest, strict=True))
        kl = measure(training, turns, *rest)
        assert kl == pytest.approx(np.mean(single[-len(turns) :]), rel=1e-5)
        assert {turn.support is None for turn in turns} == {False, True}
        return kl

    monkeypatch.setattr(trust_region, "PROBE_SHARE", 1.0)  # all turns
    monkeypatch.setattr(optimizer_steps, "measure_movement", watched)
    monkeypatch.setattr(training_set, "load_targets", lambda *rest: [
        turn if turn.teacher_logprobs is not None else replace(turn, support=None) for turn in load_targets(*rest)
    ])  # fmt: skip
    train.run(train_config(run, plain_model_dir, learning_rate=1e-3, batch_turns=100, objective="blend", **REGION))
    assert min(single) > 0
    assert len(by_hand) > 1
    assert all(min(abs(kl / other - 1) for other in single) < 1e-3 for kl in by_hand)


def test_the_epsilon_of_every_step_follows_from_the_largest_gradient_so_far(run, plain_model_dir, monkeypatch) -> None:
    epsilons, sizes, step = [], [], train.take_optimizer_step

    def watched(training: Training, *args: Any) -> dict[str, float]:
        metrics = step(training, *args)
        epsilons.append(training.optimizer.param_groups[0]["eps"])
        sizes.append(sum(p.numel() for p in training.student.parameters()))
        return metrics

    monkeypatch.setattr(train, "take_optimizer_step", watched)
    options = REGION | {"learning_rate": 1e-3, "epsilon": 0.1, "max_grad_norm": 0.5, "epochs": 2}
    train.run(train_config(run, plain_model_dir, **options))
    norms = [min(row["grad_norm"], 0.5) for row in read_all(run, "metrics")]
    expected = np.maximum.accumulate([max(1e-8, 0.1 * norm / sizes[0] ** 0.5) for norm in norms])
    assert epsilons == pytest.approx(expected)
    assert len(epsilons) > 2


def test_a_killed_training_goes_on_with_its_factor(run, tmp_path, plain_model_dir, monkeypatch) -> None:
    whole = Path(shutil.copytree(run, tmp_path / "whole"))
    options = REGION | {"learning_rate": 1.0, "checkpoint_every": 1, "epsilon": 0.1, "anchor_weight": 0.1,
                        "objective": "blend", "epochs": 2}  # fmt: skip
    train.run(train_config(whole, plain_model_dir, **options))
    train_and_kill(train_config(run, plain_model_dir, **options), 3, monkeypatch)
    train.run(train_config(run, plain_model_dir, **options))
    rows, wanted = ([r["learning_rate"] for r in read_all(folder, "metrics")] for folder in (run, whole))
    assert rows == wanted
    ours, theirs = (load_file(folder / "train/model/model.safetensors") for folder in (run, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
