"""Advantages and losses against numbers worked by hand, other implementations, and what must hold for any input."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from opdkit.objective import (
    SOURCES,
    Tokens,
    entropy,
    kl_from_old,
    policy_gradient,
    reward_advantages,
    step_loss,
    teacher_advantages,
    terms_of,
    token_counts,
    trained_positions,
)
from opdkit.stages import OBJECTIVES

NAN = float("nan")
WEIGHTS = {"reward": 1.0, "teacher": 1.0}
CLIP = (0.2, 0.28)


def t(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def mask(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.bool)


def some_tokens(n: int, seed: int = 0) -> Tokens:
    """n positions of every kind: sampled or not, with and without a hint and a reward."""
    generator = torch.Generator().manual_seed(seed)
    draw = lambda: torch.rand(n, generator=generator, dtype=torch.float64)  # noqa: E731
    old, teacher = -3 * draw(), torch.where(draw() < 0.6, -3 * draw(), NAN)
    reward = torch.where(draw() < 0.7, (3 * draw()).floor() - 1, NAN)
    return Tokens(draw() < 0.8, old, teacher, reward)


def moved(tokens: Tokens, seed: int = 1) -> Tensor:
    """Log-probs of a student that has moved far enough for both clips to bite."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(len(tokens.old_logprobs_N), generator=generator, dtype=torch.float64)
    return (tokens.old_logprobs_N + 0.5 * noise).requires_grad_()


# -- advantages -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("teacher", "old", "clip", "expected"), [
    (-0.5, -2.3, 0.0, 1.8), (-0.5, -2.3, 1.0, 1.0), (-1.2, -1.0, 1.0, -0.2), (-9.0, -1.0, 1.0, -1.0),
])  # fmt: skip
def test_teacher_advantage_worked_by_hand(teacher: float, old: float, clip: float, expected: float) -> None:
    assert teacher_advantages(t(teacher), t(old), mask(1), clip).item() == pytest.approx(expected, abs=1e-12)


def test_teacher_equal_to_student_is_advantage_zero_exactly() -> None:
    old = some_tokens(1000).old_logprobs_N.float()
    assert torch.equal(teacher_advantages(old.clone(), old, torch.ones(1000, dtype=torch.bool), 1.0), torch.zeros(1000))


def test_reward_is_broadcast_over_the_reply_and_over_nothing_else() -> None:
    assert reward_advantages(t(-1, -1, NAN, 1), mask(1, 0, 0, 1)).tolist() == [-1, 0, 0, 1]


def test_every_objective_on_offer_is_defined() -> None:
    assert tuple(SOURCES) == OBJECTIVES


def test_a_turn_without_a_hint_has_no_teacher_term() -> None:
    """pitfall 9: without a hint there is nothing to learn from the teacher, and pitfall 2: a gap is no 0.0."""
    tokens = Tokens(mask(1, 1, 1, 0), t(-1, -1, -1, -1), t(-0.5, NAN, NAN, -0.5), t(NAN, 1, NAN, 1))
    teacher, reward = terms_of("opd", tokens, WEIGHTS, 1.0)[0], terms_of("binary", tokens, WEIGHTS, 1.0)[0]
    assert teacher.mask_N.tolist() == [True, False, False, False]
    assert reward.mask_N.tolist() == [False, True, False, False]
    both = terms_of("combine", tokens, WEIGHTS, 1.0)
    assert trained_positions(both).tolist() == [True, True, False, False]
    assert token_counts(both) == {"reward": 1, "teacher": 1, "trained": 2}
    logprobs = t(-1, -1, -1, -1).requires_grad_()
    step_loss(logprobs, tokens.old_logprobs_N, [teacher], token_counts([teacher]), *CLIP)[0].backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [-0.5, 0, 0, 0]


def test_weights_count_only_where_sources_are_mixed() -> None:
    tokens, weights = some_tokens(10), {"reward": 0.25, "teacher": 4.0}
    assert [x.weight for x in terms_of("opd", tokens, weights, 1.0)] == [1.0]
    assert [x.weight for x in terms_of("binary", tokens, weights, 1.0)] == [1.0]
    assert [x.weight for x in terms_of("combine", tokens, weights, 1.0)] == [0.25, 4.0]


# -- the clipped policy gradient ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rho", "advantage", "loss", "ratio"), [
    (1.0, 2.0, -2.0, 1.0),  # nothing has moved: the loss is -A
    (1.5, 2.0, -2.56, 1.28),  # better already: no more to gain beyond 1.28
    (0.5, 2.0, -1.0, 0.5),  # worse than before: the way back is never clipped
    (0.5, -2.0, 1.6, 0.8),  # lowered enough: clipped at 0.8
    (1.5, -2.0, 3.0, 1.5),
    (1.5, 0.0, 0.0, 1.5),
])  # fmt: skip
def test_policy_gradient_worked_by_hand(rho: float, advantage: float, loss: float, ratio: float) -> None:
    got_loss, got_ratio = policy_gradient(t(math.log(rho) - 1), t(-1), t(advantage), *CLIP)
    assert (got_loss.item(), got_ratio.item()) == pytest.approx((loss, ratio), abs=1e-12)


def test_the_log_ratio_is_clamped() -> None:
    loss, _ = policy_gradient(t(-1), t(-900), t(-1), *CLIP)
    assert loss.item() == pytest.approx(math.exp(20))
    assert torch.isfinite(policy_gradient(t(-900), t(-1), t(1), *CLIP)[0]).all()


def test_policy_gradient_against_liger() -> None:
    module = pytest.importorskip("liger_kernel.chunked_loss.grpo_loss", minversion=None)
    tokens = some_tokens(500)
    terms = terms_of("opd", tokens, WEIGHTS, 1.0)
    keep, advantages = terms[0].mask_N, terms[0].advantages_N
    ours, theirs = moved(tokens), moved(tokens)
    loss, _ = step_loss(ours, tokens.old_logprobs_N, terms, token_counts(terms), *CLIP)
    oracle, _ = module.LigerFusedLinearGRPOFunction.ppo_loss_fn(
        theirs[:, None], keep[:, None].double(), advantages, keep[:, None].double(),
        old_per_token_logps=tokens.old_logprobs_N[:, None], epsilon_low=0.2, epsilon_high=0.28, beta=0.0,
        loss_type="bnpo",
    )  # fmt: skip
    loss.backward()
    oracle.backward()
    assert loss.item() == pytest.approx(oracle.item(), abs=1e-12)
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=1e-12)


def test_sampled_token_gradient_against_trl_log_probs() -> None:
    """From logits to gradient, with the log-softmax of another implementation."""
    selective = pytest.importorskip("trl.trainer.utils").selective_log_softmax
    tokens = some_tokens(40)
    terms = terms_of("combine", tokens, WEIGHTS, 1.0)
    logits = torch.randn(40, 11, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    ids = torch.randint(11, (40,), generator=torch.Generator().manual_seed(4))
    grads = []
    for logprobs_of in (selective, lambda x, i: x.log_softmax(-1).gather(-1, i[:, None])[:, 0]):
        leaf = logits.clone().requires_grad_()
        step_loss(logprobs_of(leaf, ids), tokens.old_logprobs_N, terms, token_counts(terms), *CLIP)[0].backward()
        grads.append(leaf.grad)
    torch.testing.assert_close(*grads, rtol=0, atol=1e-12)


# -- the loss of a step ---------------------------------------------------------------------------------------------


def test_combine_worked_by_hand() -> None:
    """Two tokens with both sources: the table's A = w_r reward + w_t teacher, its token mean, one clip decision."""
    tokens = Tokens(mask(1, 1), t(-1, -2), t(-0.4, -1.5), t(-1, 1))  # teacher advantages 0.6, 0.5
    logprobs = t(-1 + math.log(1.5), -2)  # ratios 1.5 and 1
    terms = terms_of("combine", tokens, {"reward": 1.0, "teacher": 2.0}, 1.0)
    loss, metrics = step_loss(logprobs, tokens.old_logprobs_N, terms, token_counts(terms), *CLIP)
    # A = -1 + 1.2 = 0.2, clipped at 1.28; A = 1 + 1 = 2.
    assert loss.item() == pytest.approx(-(1.28 * 0.2 + 2.0) / 2, abs=1e-12)
    assert metrics["reward_loss"].item() == pytest.approx(-(1.28 * -1 + 1) / 2, abs=1e-12)
    assert metrics["teacher_loss"].item() == pytest.approx(-(1.28 * 1.2 + 1) / 2, abs=1e-12)
    assert metrics["reward_advantage"].item() == pytest.approx(0.0, abs=1e-12)
    assert metrics["teacher_advantage"].item() == pytest.approx(0.55, abs=1e-12)
    assert metrics["clip_fraction"].item() == 0.5


def test_each_term_divides_by_its_own_tokens() -> None:
    """pitfall 8: three tokens with a reward, one with a hint: the teacher's term is not divided by three or four."""
    tokens = Tokens(mask(1, 1, 1, 1), t(-1, -1, -1, -1), t(NAN, NAN, NAN, -0.5), t(1, 1, -1, NAN))
    terms = terms_of("combine", tokens, WEIGHTS, 1.0)
    logprobs = tokens.old_logprobs_N.clone().requires_grad_()
    loss, metrics = step_loss(logprobs, tokens.old_logprobs_N, terms, token_counts(terms), *CLIP)
    loss.backward()
    assert metrics["reward_loss"].item() == pytest.approx(-1 / 3)
    assert metrics["teacher_loss"].item() == pytest.approx(-0.5)
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([-1 / 3, -1 / 3, 1 / 3, -0.5])


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), cut=st.lists(st.integers(0, 60), max_size=6), objective=st.sampled_from(OBJECTIVES))
def test_splitting_a_step_changes_nothing_but_rounding(seed: int, cut: list[int], objective: str) -> None:
    """pitfall 8: loss, gradient and metrics do not depend on how a step is cut into micro-batches or processes."""
    tokens = some_tokens(60, seed)
    terms = terms_of(objective, tokens, WEIGHTS, 1.0)
    counts = token_counts(terms)
    whole = moved(tokens, seed)
    loss, metrics = step_loss(whole, tokens.old_logprobs_N, terms, counts, *CLIP)
    loss.backward()
    pieces = moved(tokens, seed)
    total, sums = 0.0, dict.fromkeys(metrics, 0.0)
    bounds = [0, *sorted(cut), 60]
    for low, high in itertools.pairwise(bounds):
        part = slice(low, high)
        some = Tokens(tokens.sampled_N[part], tokens.old_logprobs_N[part], tokens.teacher_logprobs_N[part],
                      tokens.reward_N[part])  # fmt: skip
        share, some_metrics = step_loss(
            pieces[part], some.old_logprobs_N, terms_of(objective, some, WEIGHTS, 1.0), counts, *CLIP
        )
        share.backward()  # an empty piece, too, has a gradient: all zeros
        total += share.item()
        sums = {name: sums[name] + value.item() for name, value in some_metrics.items()}
    assert total == pytest.approx(loss.item(), abs=1e-12)
    assert sums == pytest.approx({name: value.item() for name, value in metrics.items()}, abs=1e-12)
    torch.testing.assert_close(pieces.grad, whole.grad, rtol=0, atol=1e-12)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_gradient_outside_the_mask_is_exactly_zero(objective: str) -> None:
    tokens = some_tokens(400)
    terms = terms_of(objective, tokens, WEIGHTS, 1.0)
    logits = torch.randn(400, 7, generator=torch.Generator().manual_seed(5), dtype=torch.float64).requires_grad_()
    ids = torch.randint(7, (400,), generator=torch.Generator().manual_seed(6))
    logprobs = logits.log_softmax(-1).gather(-1, ids[:, None])[:, 0]
    step_loss(logprobs, tokens.old_logprobs_N, terms, token_counts(terms), *CLIP)[0].backward()
    outside = ~trained_positions(terms)
    assert outside.any()
    assert logits.grad is not None
    assert torch.equal(logits.grad[outside], torch.zeros_like(logits.grad[outside]))
    assert torch.isfinite(logits.grad).all()
    assert (logits.grad[~outside].abs().sum(-1) > 0).any()


def test_sampled_token_gradient_is_the_reverse_kl_gradient_on_average() -> None:
    """pitfall 10: the ratio carries the gradient. Averaged over the vocabulary under the student it is that of
    KL(student || teacher); with a detached ratio it would be zero."""
    generator = torch.Generator().manual_seed(7)
    student, teacher = torch.randn(2, 13, generator=generator, dtype=torch.float64)
    leaf = student.clone().requires_grad_()
    logprobs = leaf.log_softmax(-1)
    old, wanted = logprobs.detach(), teacher.log_softmax(-1)
    everywhere = torch.ones(13, dtype=torch.bool)
    loss_V, _ = policy_gradient(logprobs, old, teacher_advantages(wanted, old, everywhere, 0.0), *CLIP)
    (old.exp() * loss_V).sum().backward()
    other = student.clone().requires_grad_()
    reverse_kl = (other.softmax(-1) * (other.log_softmax(-1) - wanted)).sum()
    reverse_kl.backward()
    assert leaf.grad is not None
    assert leaf.grad.abs().max() > 1e-2
    torch.testing.assert_close(leaf.grad, other.grad, rtol=0, atol=1e-12)


# -- what is watched ------------------------------------------------------------------------------------------------


def test_k3_is_an_unbiased_estimate_of_the_kl_and_never_negative() -> None:
    """pitfall 10: an estimate clamped at 0 would be inactive most of the time; k3 needs no clamp."""
    old, new = torch.randn(2, 9, generator=torch.Generator().manual_seed(8), dtype=torch.float64).log_softmax(-1)
    estimate = kl_from_old(new, old)
    assert (estimate >= 0).all()
    assert (old.exp() * estimate).sum().item() == pytest.approx((old.exp() * (old - new)).sum().item(), abs=1e-12)


def test_entropy_is_that_of_torch_and_survives_impossible_tokens() -> None:
    logits = torch.randn(50, 17, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    expected = torch.distributions.Categorical(logits=logits).entropy()
    torch.testing.assert_close(entropy(logits, rows=7), expected, rtol=0, atol=1e-12)
    assert entropy(t(0, -math.inf, 0)[None]).item() == pytest.approx(math.log(2))
    assert entropy(logits[:0]).shape == (0,)
