"""Tests of objectives as sums of terms: masks, divisors, weights, and steps that are split."""

import dataclasses
import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from positions import NAN, Example, example, mask, part, t, tokens
from torch import Tensor

from opdkit.config.shared import OBJECTIVES
from opdkit.train.objective.losses import divergence, logprobs_and_entropy, policy_gradient
from opdkit.train.objective.terms import (
    PRESETS,
    Objective,
    Tokens,
    compute_loss,
    count_totals,
    find_trained,
    make_terms,
)

BOTH = {"reward": 1.0, "teacher": 1.0}
EVERYTHING = Objective(
    {"reward": 0.5, "teacher": 1.0, "support": 2.0, "divergence": 0.7}, dual_clip=3.0, kl_coef=0.1, skip_first=1,
    min_advantage=0.05, confidence_weight=True, divergence_alpha=0.3, forward_kl=0.05,
)  # fmt: skip
VARIANTS = [
    *(Objective(weights, kl_coef=0.1) for preset in PRESETS.values() for weights in preset),
    EVERYTHING,
    dataclasses.replace(EVERYTHING, aggregation="turn-mean", behavior_cap=0.0, kl_estimator="k3", anchor_weight=0.2),
]


def of_step(objective: Objective, all_tokens: Tokens, logprobs: Tensor, support: Tensor | None = None):
    """Return loss and metrics of a step that is one micro-batch."""
    terms = make_terms(objective, all_tokens)
    totals = count_totals(terms, all_tokens, objective.aggregation)
    support = logprobs.new_zeros(len(logprobs), 0) if support is None else support
    return compute_loss(logprobs, support, all_tokens, terms, totals, objective)


def of_example(objective: Objective, case: Example, logits: Tensor, some: slice | Tensor = slice(None)):
    """Return loss and metrics of some positions of an example, as a share of the whole step."""
    totals = count_totals(make_terms(objective, case.tokens), case.tokens, objective.aggregation)
    mine = part(case.tokens, some)
    gathered = logprobs_and_entropy(logits[some], torch.cat([case.ids_N[some, None], mine.support_ids_NK], -1))[0]
    return compute_loss(gathered[:, 0], gathered[:, 1:], mine, make_terms(objective, mine), totals, objective)


def grad_of(leaf: Tensor) -> Tensor:
    assert leaf.grad is not None
    return leaf.grad


# -- presets and masks ----------------------------------------------------------------------------------------------


def test_presets_are_weights_of_terms_and_all_on_offer_are_defined() -> None:
    assert tuple(PRESETS) == OBJECTIVES
    for mixed, alone in (("combine", "opd"), ("hybrid", "topk"), ("blend", "distill")):
        (weights,) = PRESETS[mixed]
        assert {name: w for name, w in weights.items() if name != "reward"} == PRESETS[alone][0]
        assert 0 < weights["reward"] < 1
    assert PRESETS["alternate"] == PRESETS["binary"] + PRESETS["opd"]
    for name in {n for preset in PRESETS.values() for weights in preset for n in weights}:
        assert [term.name for term in make_terms(Objective({name: 2.0}), example().tokens)] == [name]


def test_reward_is_broadcast_over_the_reply_and_over_nothing_else() -> None:
    positions = tokens(t(-1, -1, -1, -1), sampled=mask(1, 0, 1, 1), reward=t(-1, -1, NAN, 1))
    (term,) = make_terms(Objective({"reward": 1.0}), positions)
    assert term.advantages.tolist() == [-1, 0, 0, 1]


def test_a_turn_without_a_hint_has_no_teacher_term() -> None:
    """Without a hint there is nothing to learn from the teacher, and a missing log-prob is not 0.0."""
    some = tokens(t(-1, -1, -1, -1), sampled=mask(1, 1, 1, 0), teacher=t(-0.5, NAN, NAN, -0.5),
                  reward=t(NAN, 1, NAN, 1))  # fmt: skip
    both = Objective(BOTH)
    reward, teacher = make_terms(both, some)
    assert teacher.mask_N.tolist() == [True, False, False, False]
    assert reward.mask_N.tolist() == [False, True, False, False]
    assert find_trained([reward, teacher]).tolist() == [True, True, False, False]
    totals = count_totals([reward, teacher], some, "token-mean")
    assert totals == {"reward": 1, "reward_tokens": 1, "teacher": 1, "teacher_tokens": 1, "trained_tokens": 2,
                      "ratios": 2}  # fmt: skip
    logprobs = t(-1, -1, -1, -1).requires_grad_()
    of_step(Objective({"teacher": 1.0}), some, logprobs)[0].backward()
    assert grad_of(logprobs).tolist() == [-0.5, 0, 0, 0]


def test_filters_take_tokens_from_the_teacher_and_from_its_count() -> None:
    some = tokens(t(-1, -1, -1, -1), teacher=t(-0.5, -0.95, -1.1, -3), reward=t(1, 1, 1, 1))
    reward, teacher = make_terms(Objective(BOTH, skip_first=1, min_advantage=0.1), some)
    assert reward.mask_N.tolist() == [True] * 4
    assert teacher.mask_N.tolist() == [False, False, True, True]  # |A| of 0.05 is less than 0.1, 0.1 is not
    assert count_totals([reward, teacher], some, "token-mean")["teacher"] == 2


def test_a_negative_reward_falls_on_what_the_student_was_not_sure_of() -> None:
    """With reward -1, tokens of probability .99 and .95 are masked and .5 is not; with +1 and 0, .99 is not masked."""
    old = t(0.99, 0.95, 0.5, 0.99, 0.99).log()
    some = tokens(old, reward=t(-1, -1, -1, 1, 0), teacher=old)
    reward, teacher = make_terms(Objective(BOTH, negative_below=0.94), some)
    assert reward.mask_N.tolist() == [False, False, True, True, True]
    assert teacher.mask_N.tolist() == [True] * 5
    assert count_totals([reward], some, "token-mean")["reward"] == 3
    (everywhere,) = make_terms(Objective({"reward": 1.0}, negative_below=1.0), some)
    assert everywhere.mask_N.tolist() == [True] * 5


def test_teacher_tokens_weigh_as_much_as_the_teacher_believes_in_them() -> None:
    some = tokens(t(-1, -1), teacher=t(0.5, 0.1).log(), reward=t(1, 1))
    reward, teacher = make_terms(Objective(BOTH | {"teacher": 2.0}, confidence_weight=True), some)
    assert teacher.scale_N.tolist() == pytest.approx([1.0, 0.2])
    assert reward.scale_N.tolist() == [1, 1]


def test_logged_log_probs_correct_the_terms_of_the_sampled_token() -> None:
    case = example()
    terms = {term.name: term for term in make_terms(EVERYTHING, case.tokens)}
    plain = {term.name: term for term in make_terms(dataclasses.replace(EVERYTHING, behavior_cap=0.0), case.tokens)}
    ratio = (case.tokens.old_logprobs_N - case.tokens.behavior_logprobs_N).exp().clamp(max=2.0).nan_to_num(1.0)
    assert (ratio != 1).any()
    for name in terms:
        expected = plain[name].scale_N * (ratio if name in ("reward", "teacher") else 1.0)
        torch.testing.assert_close(terms[name].scale_N, expected, rtol=0, atol=1e-12)


# -- the loss of a step ---------------------------------------------------------------------------------------------


def test_combine_worked_by_hand() -> None:
    """Two tokens have both sources: A = w_r reward + w_t teacher, one clip decision per token, and the token mean."""
    some = tokens(t(-1, -2), teacher=t(-0.4, -1.5), reward=t(-1, 1))  # teacher advantages 0.6, 0.5
    logprobs = t(-1 + math.log(1.5), -2)  # ratios 1.5 and 1
    loss, metrics = of_step(Objective({"reward": 1.0, "teacher": 2.0}), some, logprobs)
    # A = -1 + 1.2 = 0.2, clipped at 1.28; A = 1 + 1 = 2.
    assert loss.item() == pytest.approx(-(1.28 * 0.2 + 2.0) / 2, abs=1e-12)
    assert metrics["reward_loss"].item() == pytest.approx(-(1.28 * -1 + 1) / 2, abs=1e-12)
    assert metrics["teacher_loss"].item() == pytest.approx(-(1.28 * 1.2 + 1) / 2, abs=1e-12)
    assert metrics["reward_advantage"].item() == pytest.approx(0.0, abs=1e-12)
    assert metrics["teacher_advantage"].item() == pytest.approx(0.55, abs=1e-12)
    assert metrics["clip_fraction"].item() == 0.5
    assert metrics["approx_kl"].item() == pytest.approx((0.5 - math.log(1.5)) / 2, abs=1e-12), "k3 of KL(old || now)"


def test_each_term_divides_by_its_own_tokens() -> None:
    """Three tokens have a reward and one has a hint: the teacher's term is divided by one, not by three or four."""
    some = tokens(t(-1, -1, -1, -1), teacher=t(NAN, NAN, NAN, -0.5), reward=t(1, 1, -1, NAN))
    logprobs = some.old_logprobs_N.clone().requires_grad_()
    loss, metrics = of_step(Objective(BOTH), some, logprobs)
    loss.backward()
    assert metrics["reward_loss"].item() == pytest.approx(-1 / 3)
    assert metrics["teacher_loss"].item() == pytest.approx(-0.5)
    assert grad_of(logprobs).tolist() == pytest.approx([-1 / 3, -1 / 3, 1 / 3, -0.5])


def test_turn_mean_is_the_mean_of_the_turns_means() -> None:
    """Turns of one and of three tokens weigh the same; a masked token is in neither count."""
    some = tokens(t(-1, -1, -1, -1, -1), reward=t(1, -1, -1, -1, -1), sampled=mask(1, 1, 1, 1, 0),
                  turn=torch.tensor([0, 1, 1, 1, 1]))  # fmt: skip
    logprobs = some.old_logprobs_N.clone().requires_grad_()
    loss, metrics = of_step(Objective({"reward": 1.0}, aggregation="turn-mean"), some, logprobs)
    loss.backward()
    assert loss.item() == pytest.approx(0.0, abs=1e-12)
    assert grad_of(logprobs).tolist() == pytest.approx([-1 / 2, 1 / 6, 1 / 6, 1 / 6, 0])
    assert of_step(Objective({"reward": 1.0}), some, logprobs)[0].item() == pytest.approx(0.5)
    assert metrics["reward_advantage"].item() == pytest.approx(-0.5)  # over tokens, for any aggregation


def test_hybrid_worked_by_hand() -> None:
    """One position: reward -1 on its token, support {a, b} with old 0.5, 0.25 and teacher 0.75, 0.05; C = 1."""
    old, teacher = t(0.5, 0.25).log()[None], t(0.75, 0.05).log()[None]
    some = dataclasses.replace(
        tokens(t(0.25).log(), teacher=t(0.05).log(), reward=t(-1)), supported_N=mask(1),
        support_ids_NK=torch.tensor([[0, 1]]), support_old_NK=old, support_teacher_NK=teacher,
    )  # fmt: skip
    now = t(0.75, 0.25).log()[None]  # ratios 1.5, clipped at 1.28, and 1
    loss, metrics = of_step(Objective({"reward": 1.0, "support": 2.0}), some, t(0.25).log(), now)
    support = -(1.28 * 2 / 3 * math.log(1.5) + 1 / 3 * -1)
    assert metrics["support_loss"].item() == pytest.approx(2 * support, abs=1e-12)
    assert loss.item() == pytest.approx(1 + 2 * support, abs=1e-12)
    assert metrics["support_advantage"].item() == pytest.approx(2 / 3 * math.log(1.5) - 1 / 3, abs=1e-12)
    assert metrics["clip_fraction"].item() == pytest.approx(1 / 3)


def test_the_anchor_worked_by_hand() -> None:
    """The anchor is a forward KL on supports of one token, with the weight 0.1; the student now gives 1/4 to each.

    Without a reaction, the target of 1/2 is 1/2. For praised tokens, the odds of 1/2 become 4 to 1 and those of 1/10
    become 4 to 9, with 1 + 9/2 and 1 + 9/10 times the weight. The last position got a complaint, and has no anchor.
    """
    half = math.log(0.5)
    some = dataclasses.replace(
        tokens(t(0, 0, 0, 0)), anchored_N=mask(1, 1, 1, 0), praised_NK=mask(0, 1, 1, 0)[:, None],
        support_ids_NK=torch.zeros(4, 1, dtype=torch.int64),
        support_old_NK=torch.tensor([[half], [half], [math.log(0.1)], [NAN]], dtype=torch.float64),
    )  # fmt: skip
    now_NK = t(0.25, 0.25, 0.25, 0.25).log()[:, None]
    objective = Objective({"reward": 1.0}, anchor_weight=0.1, divergence_alpha=0.0, forward_kl=0.0)
    loss, metrics = of_step(objective, some, some.old_logprobs_N, now_NK)
    kls = [p * math.log(p / 0.25) + (1 - p) * math.log((1 - p) / 0.75) for p in (1 / 2, 4 / 5, 4 / 13)]
    expected = 0.1 * (kls[0] + 5.5 * kls[1] + 1.9 * kls[2]) / 3
    assert metrics["anchor_loss"].item() == loss.item() == pytest.approx(expected, abs=1e-12)
    objective = dataclasses.replace(objective, divergence_alpha=1.0, forward_kl=0.5)
    loss, _ = of_step(objective, some, some.old_logprobs_N, now_NK)
    reverse = [0.25 * math.log(0.25 / p) + 0.75 * math.log(0.75 / (1 - p)) for p in (1 / 2, 4 / 5, 4 / 13)]
    both = [one + 0.5 * other for one, other in zip(reverse, kls, strict=True)]
    assert loss.item() == pytest.approx(0.1 * (both[0] + 5.5 * both[1] + 1.9 * both[2]) / 3, abs=1e-12)


def test_a_step_is_the_sum_of_its_terms_done_one_by_one() -> None:
    """The sum over all terms equals that of a plain loop over the positions."""
    case = example(seed=3)
    loss, metrics = of_example(dataclasses.replace(EVERYTHING, aggregation="token-mean"), case, case.student_NV)
    x, now = case.tokens, case.student_NV.log_softmax(-1)
    lists: dict[str, list[float]] = {"reward": [], "teacher": [], "support": [], "divergence": [], "kl": []}
    counts = dict.fromkeys(lists, 0)
    rows: list[tuple[float, float, float]] = []
    for i in range(len(x.old_logprobs_N)):
        old, taught, behavior = (float(v[i]) for v in (x.old_logprobs_N, x.teacher_logprobs_N, x.behavior_logprobs_N))
        l_i, weight = float(now[i, case.ids_N[i]]), 1.0 if math.isnan(behavior) else min(math.exp(old - behavior), 2.0)
        hinted = not math.isnan(taught) and x.position_N[i] >= 1 and abs(taught - old) >= 0.05
        rewarded = not math.isnan(float(x.reward_N[i]))
        if not x.sampled_N[i] or not (hinted or rewarded):
            continue
        if rewarded:
            counts["reward"] += 1
        if hinted:
            counts["teacher"] += 1
            k = x.support_ids_NK[i]
            before, wanted = x.support_old_NK[i], x.support_teacher_NK[i]
            pieces = [
                policy_gradient(now[i, v], before[j], before.softmax(-1)[j] * (wanted[j] - before[j]).clamp(-1, 1),
                                0.2, 0.28, 3.0)[0].item() for j, v in enumerate(k)
            ]  # fmt: skip
            lists["support"].append(2.0 * math.exp(taught) * sum(pieces))
            apart = divergence(now[i, k][None], wanted[None], 0.3, 0.05).item()
            lists["divergence"].append(0.7 * math.exp(taught) * apart)
        lists["kl"].append(0.1 * math.exp(l_i - old) * (l_i - float(x.reference_N[i])))
        rows.append((
            math.exp(l_i - old),
            0.5 * weight * float(x.reward_N[i]) if rewarded else 0.0,
            math.exp(taught) * weight * max(-1.0, min(1.0, taught - old)) if hinted else 0.0,
        ))  # fmt: skip
    sampled = 0.0
    for rho, rewarded_a, taught_a in rows:
        c = rewarded_a / counts["reward"] + taught_a / counts["teacher"]
        kept = min(rho * c, min(max(rho, 0.8), 1.28) * c)
        sampled -= max(kept, 3.0 * c) if c < 0 else kept
    expected = {name: sum(lists[name]) / len(lists[name]) for name in ("support", "divergence", "kl")}
    for name, value in expected.items():
        assert metrics[f"{name}_loss"].item() == pytest.approx(value, abs=1e-12), name
    assert (metrics["reward_loss"] + metrics["teacher_loss"]).item() == pytest.approx(sampled, abs=1e-12)
    assert loss.item() == pytest.approx(sampled + sum(expected.values()), abs=1e-12)


@pytest.mark.parametrize("delta", [0.0, 3.0])
@pytest.mark.parametrize("kl_coef", [0.0, 0.2])
def test_a_step_against_liger(delta: float, kl_coef: float) -> None:
    module = pytest.importorskip("liger_kernel.chunked_loss.grpo_loss", minversion=None)
    case = example(500)
    old = case.tokens.old_logprobs_N
    objective = Objective({"teacher": 1.0}, kl_coef=kl_coef, kl_estimator="k3", behavior_cap=2.0)
    term = make_terms(objective, case.tokens)[0]
    assert term.advantages is not None
    ours, theirs = ((old + 0.5 * case.student_NV[:, 0]).detach().requires_grad_() for _ in range(2))
    loss, _ = of_step(
        objective, dataclasses.replace(case.tokens, support_ids_NK=case.tokens.support_ids_NK[:, :0]), ours
    )
    weights = torch.where(term.mask_N, term.scale_N, 1.0)
    keep = term.mask_N[:, None].double()
    oracle, _ = module.LigerFusedLinearGRPOFunction.ppo_loss_fn(
        theirs[:, None], keep, term.advantages * weights, keep, ref_per_token_logps=case.tokens.reference_N[:, None],
        old_per_token_logps=old[:, None], epsilon_low=0.2, epsilon_high=0.28, beta=kl_coef, loss_type="bnpo",
    )  # fmt: skip
    loss.backward()
    oracle.backward()
    assert loss.item() == pytest.approx(oracle.item(), abs=1e-12)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=1e-12)


# -- what must hold for any objective -------------------------------------------------------------------------------


@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000), cut=st.lists(st.integers(0, 6), max_size=4), which=st.integers(0, len(VARIANTS) - 1)
)
def test_splitting_a_step_changes_nothing_but_rounding(seed: int, cut: list[int], which: int) -> None:
    """Loss, gradient and metrics do not depend on how a step is cut into micro-batches or processes."""
    case, objective = example(seed=seed), VARIANTS[which]
    whole, pieces = (case.student_NV.clone().requires_grad_() for _ in range(2))
    loss, metrics = of_example(objective, case, whole)
    loss.backward()
    total, sums = 0.0, dict.fromkeys(metrics, 0.0)
    # The pieces are whole turns, as in the forward passes; a piece may be empty.
    bounds = torch.searchsorted(case.tokens.turn_N, torch.tensor([0, *sorted(cut), 6])).tolist()
    for low, high in itertools.pairwise(bounds):
        share, some = of_example(objective, case, pieces, slice(low, high))
        share.backward()  # an empty piece, too, has a gradient: all zeros
        total += share.item()
        sums = {name: sums[name] + value.item() for name, value in some.items()}
    assert total == pytest.approx(loss.item(), abs=1e-12)
    assert sums == pytest.approx({name: value.item() for name, value in metrics.items()}, abs=1e-12)
    torch.testing.assert_close(pieces.grad, whole.grad, rtol=0, atol=1e-12)


@pytest.mark.parametrize("objective", VARIANTS)
def test_gradient_outside_the_masks_is_exactly_zero(objective: Objective) -> None:
    case = example(400, turns=30)
    leaf = case.student_NV.clone().requires_grad_()
    of_example(objective, case, leaf)[0].backward()
    outside = ~find_trained(make_terms(objective, case.tokens))
    assert outside.any()
    grad = grad_of(leaf)
    assert torch.equal(grad[outside], torch.zeros_like(grad[outside]))
    assert torch.isfinite(grad).all()
    assert (grad[~outside].abs().sum(-1) > 0).any()


@pytest.mark.parametrize("objective", VARIANTS)
def test_the_loss_is_differentiated_right(objective: Objective) -> None:
    """The gradient equals finite differences from logits to loss. Advantages, weights and reference are constants."""
    case = example(12, k=3, turns=4, seed=5)
    leaf = case.student_NV.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: of_example(objective, case, x)[0], leaf, fast_mode=True)


@pytest.mark.parametrize("weights", [{"teacher": 1.0}, {"support": 1.0}, {"divergence": 1.0}])
def test_a_teacher_that_says_what_the_student_says_teaches_nothing(weights: dict[str, float]) -> None:
    case = example()
    now = case.student_NV.log_softmax(-1)
    sampled, support = now.gather(-1, case.ids_N[:, None])[:, 0], now.gather(-1, case.tokens.support_ids_NK)
    same = dataclasses.replace(case.tokens, old_logprobs_N=sampled, teacher_logprobs_N=sampled.clone(),
                               support_old_NK=support, support_teacher_NK=support.clone())  # fmt: skip
    leaves = sampled.clone().requires_grad_(), support.clone().requires_grad_()
    loss, _ = of_step(Objective(weights), same, *leaves)
    loss.backward()
    assert loss.item() == 0
    for leaf in leaves:
        assert leaf.grad is None or torch.equal(leaf.grad, torch.zeros_like(leaf))


def test_the_old_policy_plays_no_part_in_the_divergence() -> None:
    case, objective = example(), Objective({"divergence": 1.0}, behavior_cap=2.0)
    other = dataclasses.replace(case.tokens, old_logprobs_N=case.tokens.old_logprobs_N - 1,
                                support_old_NK=case.tokens.support_old_NK - 1)  # fmt: skip
    a = of_example(objective, case, case.student_NV)[0]
    b = of_example(objective, dataclasses.replace(case, tokens=other), case.student_NV)[0]
    assert torch.equal(a, b)
    assert "clip_fraction" not in of_example(objective, case, case.student_NV)[1]


def test_a_step_without_any_support_still_has_a_gradient() -> None:
    """A micro-batch of turns without a hint has no support (K = 0), and its reward still trains."""
    some = tokens(t(-1, -1), reward=t(1, 1))
    logprobs = t(-1, -1).requires_grad_()
    for weights in ({"support": 1.0}, {"divergence": 1.0}):
        loss, metrics = of_step(Objective({"reward": 1.0, **weights}), some, logprobs)
        assert loss.item() == pytest.approx(-1)
        assert metrics[f"{next(iter(weights))}_loss"].item() == 0
        (grad,) = torch.autograd.grad(loss, logprobs)
        assert grad.tolist() == [-0.5, -0.5]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_computes_what_a_cpu_does() -> None:
    case = example()
    moved = Example(case.tokens.to(torch.device("cuda")), case.ids_N.cuda(), case.student_NV.cuda())
    here, there = of_example(EVERYTHING, case, case.student_NV)[0], of_example(EVERYTHING, moved, moved.student_NV)[0]
    assert there.item() == pytest.approx(here.item(), abs=1e-12)
