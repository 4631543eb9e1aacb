"""Tests of the losses per position: numbers worked by hand, other implementations, properties for any input."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from benchmarks import estimators
from hypothesis import given
from hypothesis import strategies as st
from positions import VOCABULARY, generator, logits, t
from torch import Tensor
from torch.nn import functional

from opdkit.train.objective.advantages import support_advantages, teacher_advantages
from opdkit.train.objective.losses import (
    divergence,
    kl_to_reference,
    log_rest,
    logprobs_and_entropy,
    policy_gradient,
)

CLIP = (0.2, 0.28)
ALPHAS = [0.0, 0.1, 0.5, 0.9, 1.0]


def top_k(student_NV: Tensor, teacher_NV: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return log-probs of student and teacher at the student's k most likely tokens, and the ids of these tokens."""
    student, teacher = student_NV.log_softmax(-1), teacher_NV.log_softmax(-1)
    ids = student.topk(k).indices
    return student.gather(-1, ids), teacher.gather(-1, ids), ids


def gradient(loss_of: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    leaf = at.detach().clone().requires_grad_()
    loss_of(leaf).sum().backward()
    assert leaf.grad is not None
    return leaf.grad


def close(a: Tensor, b: Tensor, atol: float = 1e-12) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=atol)


@pytest.mark.parametrize(("rho", "advantage", "loss", "ratio"), [
    (1.0, 2.0, -2.0, 1.0),  # nothing has moved: the loss is -A
    (1.5, 2.0, -2.56, 1.28),  # already better: nothing more to gain beyond 1.28
    (0.5, 2.0, -1.0, 0.5),  # worse than before: the way back is never clipped
    (0.5, -2.0, 1.6, 0.8),  # lowered enough: clipped at 0.8
    (1.5, -2.0, 3.0, 1.5),
    (1.5, 0.0, 0.0, 1.5),
])  # fmt: skip
def test_policy_gradient_worked_by_hand(rho: float, advantage: float, loss: float, ratio: float) -> None:
    got_loss, got_ratio, clipped = policy_gradient(t(math.log(rho) - 1), t(-1), t(advantage), *CLIP)
    assert (got_loss.item(), got_ratio.item()) == pytest.approx((loss, ratio), abs=1e-12)
    assert clipped.item() is (ratio != rho)


@pytest.mark.parametrize(("rho", "advantage", "loss"), [
    (4.0, -2.0, 6.0), (2.0, -2.0, 4.0), (0.5, -2.0, 1.6), (4.0, 2.0, -2.56), (0.5, 2.0, -1.0),
])  # fmt: skip
def test_dual_clip_worked_by_hand(rho: float, advantage: float, loss: float) -> None:
    """Only the loss at a negative advantage A is bounded, at -3 A, if the token became more than 3 times as likely."""
    assert policy_gradient(t(math.log(rho) - 5), t(-5), t(advantage), *CLIP, 3.0)[0].item() == pytest.approx(loss)


def test_the_log_ratio_is_clamped() -> None:
    loss, _, _ = policy_gradient(t(-1), t(-900), t(-1), *CLIP)
    assert loss.item() == pytest.approx(math.exp(20))
    assert torch.isfinite(policy_gradient(t(-900), t(-1), t(1), *CLIP)[0]).all()


def test_sampled_token_gradient_is_the_reverse_kl_gradient_on_average() -> None:
    """The gradient flows through the ratio. Averaged over the vocabulary under the student, it is the gradient of
    KL(student || teacher); with a detached ratio it would be zero."""
    student, wanted = logits(1, 1)[0], logits(1, 2)[0].log_softmax(-1)
    old, everywhere = student.log_softmax(-1), torch.ones(VOCABULARY, dtype=torch.bool)
    advantages = teacher_advantages(wanted, old, everywhere, 0.0)
    averaged = gradient(lambda x: old.exp() * policy_gradient(x.log_softmax(-1), old, advantages, *CLIP)[0], student)
    full = gradient(lambda x: x.softmax(-1) * (x.log_softmax(-1) - wanted), student)
    assert averaged.abs().max() > 1e-2
    close(averaged, full)


def test_sampled_token_gradient_against_trl() -> None:
    sdpo = pytest.importorskip("trl.experimental.sdpo.loss_utils")
    student, teacher = logits(40, 3), logits(40, 4)
    ids = torch.randint(VOCABULARY, (40,), generator=generator(5))
    pick = lambda x: x.log_softmax(-1).gather(-1, ids[:, None])[:, 0]  # noqa: E731
    old, everywhere = pick(student), torch.ones(40, dtype=torch.bool)
    advantages = teacher_advantages(pick(teacher), old, everywhere, 0.0)
    ours = gradient(lambda x: policy_gradient(pick(x), old, advantages, *CLIP)[0], student)
    theirs = gradient(
        lambda x: sdpo.compute_sampled_token_self_distillation_loss(x, teacher, ids, distillation_alpha=1.0), student
    )
    close(ours, theirs)


def test_support_gradient_of_the_whole_vocabulary_is_the_reverse_kl_gradient() -> None:
    """Nothing is sampled here, and the gradient still flows through the ratio."""
    student, wanted = logits(5, 1), logits(5, 2).log_softmax(-1)
    old = student.log_softmax(-1)
    advantages = support_advantages(old, wanted, torch.ones(5, dtype=torch.bool), 0.0)
    support = gradient(lambda x: policy_gradient(x.log_softmax(-1), old, advantages, *CLIP)[0], student)
    full = gradient(lambda x: x.softmax(-1) * (x.log_softmax(-1) - wanted), student)
    assert support.abs().max() > 1e-2
    close(support, full)


@pytest.mark.parametrize("mass", [1e-30, 1e-9, 0.3, 0.5, 0.50001, 0.9, 0.999999])
def test_the_rest_is_what_the_support_leaves_over(mass: float) -> None:
    got = log_rest(t(mass / 2, mass / 2).log()[None]).item()
    assert got == pytest.approx(math.log1p(-mass), rel=1e-9, abs=1e-40)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_rest_and_its_gradient_are_finite_when_there_is_none(dtype: torch.dtype) -> None:
    """Rounding can give a support a mass above 1, so that nothing is left for the rest."""
    for logprobs in ([0.0, -30.0], [-0.6931, -0.6930], [1e-3, -9.0], [-200.0, -300.0]):
        leaf = torch.tensor([logprobs], dtype=dtype, requires_grad=True)
        rest = log_rest(leaf)
        rest.sum().backward()
        assert rest.isfinite().all()
        assert math.log(0.9e-7) < rest.item() <= 0
        assert leaf.grad is not None
        assert leaf.grad.isfinite().all()


def test_the_rest_against_trl() -> None:
    sdpo = pytest.importorskip("trl.experimental.sdpo.loss_utils")
    logprobs = logits(200, 6).log_softmax(-1).topk(3).values
    close(log_rest(logprobs), sdpo.add_tail_bucket(logprobs)[:, -1])
    full = logits(20, 6).log_softmax(-1)
    close(log_rest(full), sdpo.add_tail_bucket(full)[:, -1], atol=1e-9)


def test_divergence_worked_by_hand() -> None:
    """Student 0.5 and the rest 0.5, teacher 0.8 and 0.2; the mixture at alpha 0.5 is 0.65 and 0.35."""
    student, teacher = t(0.5).log()[None], t(0.8).log()[None]
    forward = 0.8 * math.log(0.8 / 0.5) + 0.2 * math.log(0.2 / 0.5)
    reverse = 0.5 * math.log(0.5 / 0.8) + 0.5 * math.log(0.5 / 0.2)
    jsd = 0.5 * (0.8 * math.log(0.8 / 0.65) + 0.2 * math.log(0.2 / 0.35)) + 0.5 * (
        0.5 * math.log(0.5 / 0.65) + 0.5 * math.log(0.5 / 0.35)
    )
    for alpha, expected in ((0.0, forward), (1.0, reverse), (0.5, jsd)):
        assert divergence(student, teacher, alpha).item() == pytest.approx(expected, abs=1e-12)
        added = divergence(student, teacher, alpha, 0.1).item()
        assert added == pytest.approx(expected + 0.1 * forward, abs=1e-12)


def test_forward_kl_frees_a_student_that_is_sure_of_another_token() -> None:
    """Student 1e-6, teacher 0.9: the Jensen-Shannon divergence is flat there, and the forward KL pulls with S - T."""
    teacher, student_NV = t(0.9).log()[None], torch.log(t(1e-6, 1 - 1e-6))[None]
    flat, pulled = (
        gradient(lambda x, w=w: divergence(x.log_softmax(-1)[:, :1], teacher, 0.5, w), student_NV)[0, 0].item()
        for w in (0.0, 0.02)
    )
    assert flat == pytest.approx(-6.807e-6, rel=1e-3)
    assert pulled - flat == pytest.approx(0.02 * (1e-6 - 0.9), rel=1e-9)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("k", [1, 3, VOCABULARY - 1])
def test_divergence_against_trl(alpha: float, k: int) -> None:
    sdpo = pytest.importorskip("trl.experimental.sdpo.loss_utils")
    student_NV, teacher_NV = logits(50, 7), logits(50, 8)
    student, teacher, ids = top_k(student_NV, teacher_NV, k)
    options = {"distillation_topk": k, "distillation_alpha": alpha, "distillation_add_tail": True}
    close(
        divergence(student, teacher, alpha), sdpo.compute_topk_self_distillation_loss(student_NV, teacher_NV, **options)
    )
    ours = gradient(lambda x: divergence(x.log_softmax(-1).gather(-1, ids), teacher, alpha), student_NV)
    theirs = gradient(lambda x: sdpo.compute_topk_self_distillation_loss(x, teacher_NV, **options), student_NV)
    assert ours.abs().max() > 1e-3
    close(ours, theirs)


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_divergence_of_the_whole_vocabulary_is_that_of_torch(alpha: float) -> None:
    student_NV, teacher = logits(30, 9), logits(30, 10).log_softmax(-1)

    def torch_kl(x: Tensor) -> Tensor:
        student = x.log_softmax(-1)
        first, second = (student, teacher) if alpha == 0 else (teacher, student)
        return functional.kl_div(first, second, reduction="none", log_target=True).sum(-1)

    ours = lambda x: divergence(x.log_softmax(-1), teacher, alpha)  # noqa: E731
    close(ours(student_NV), torch_kl(student_NV))
    # An empty rest has a mass of 1e-7, which changes the gradient by as little.
    close(gradient(ours, student_NV), gradient(torch_kl, student_NV), atol=1e-6)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_divergence_is_differentiated_right(alpha: float) -> None:
    """The gradient is that of finite differences, although the mixture is held fixed in the backward pass."""
    teacher_NV = logits(6, 11)
    ids = logits(6, 12).topk(3).indices
    teacher = teacher_NV.log_softmax(-1).gather(-1, ids)
    student_NV = logits(6, 12).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: divergence(x.log_softmax(-1).gather(-1, ids), teacher, alpha), student_NV)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_teacher_equal_to_student_is_divergence_and_gradient_zero_exactly(alpha: float, dtype: torch.dtype) -> None:
    student = top_k(logits(100, 13), logits(100, 13), 4)[0].to(dtype)
    leaf = student.clone().requires_grad_()
    loss = divergence(leaf, student, alpha)
    loss.sum().backward()
    assert torch.equal(loss, torch.zeros_like(loss))
    assert leaf.grad is not None
    assert torch.equal(leaf.grad, torch.zeros_like(leaf.grad))


@pytest.mark.parametrize("alpha", ALPHAS)
def test_one_token_and_the_rest_are_no_certainty(alpha: float) -> None:
    """If top-1 were renormalised without the rest, its loss and gradient would always be 0."""
    student, teacher, ids = top_k(logits(50, 14), logits(50, 15), 1)
    assert (divergence(student, teacher, alpha) > 1e-6).all()
    moved = gradient(lambda x: divergence(x.log_softmax(-1).gather(-1, ids), teacher, alpha), logits(50, 14))
    assert (moved.abs().sum(-1) > 1e-6).all()


@given(seed=st.integers(0, 1000), alpha=st.floats(0, 1), k=st.integers(1, VOCABULARY), half=st.booleans())
def test_divergence_is_never_negative(seed: int, alpha: float, k: int, half: bool) -> None:
    """A truncated KL can be negative, and a clamp at 0 would stop the gradient. With the rest it is never negative,
    even with log-probs in half precision, whose bins do not sum to 1."""
    student, teacher, _ = top_k(logits(20, seed).float(), logits(20, seed + 1).float(), k)
    if half:
        teacher = teacher.half().float()
    assert (divergence(student, teacher, alpha) >= -1e-7).all()


@pytest.mark.parametrize("alpha", ALPHAS)
def test_divergence_survives_what_models_are_sure_of(alpha: float) -> None:
    student = torch.tensor([[0.0, -40.0], [-60.0, -80.0], [-1e-6, -15.0]], requires_grad=True)
    teacher = torch.tensor([[-50.0, 0.0], [0.0, -90.0], [-1e-6, -15.0]])
    loss = divergence(student, teacher, alpha)
    loss.sum().backward()
    assert loss.isfinite().all()
    assert student.grad is not None
    assert student.grad.isfinite().all()


@pytest.mark.parametrize(("estimator", "expected"), [("k1", 1.5 * math.log(1.5)), ("k2", math.log(1.5) ** 2 / 2),
                                                     ("k3", 1 / 1.5 - 1 + math.log(1.5))])  # fmt: skip
def test_kl_estimators_worked_by_hand(estimator: str, expected: float) -> None:
    assert kl_to_reference(t(math.log(0.6)), t(math.log(0.4)), estimator).item() == pytest.approx(expected, abs=1e-12)


def test_k3_against_liger() -> None:
    k3 = pytest.importorskip("liger_kernel.chunked_loss.grpo_loss").k3_loss_fn
    new, reference = logits(2, 16)[0], logits(2, 16)[1]
    close(kl_to_reference(new, reference, "k3"), k3(reference, new))
    close(gradient(lambda x: kl_to_reference(x, reference, "k3"), new), gradient(lambda x: k3(reference, x), new))


def test_k1_has_the_expected_gradient_of_the_kl() -> None:
    """Averaged over the reference, the gradient of k1 is exact; without the ratio its expectation would be zero."""
    student, reference = logits(1, 17)[0], logits(1, 18)[0].log_softmax(-1)
    averaged = lambda x: reference.exp() * kl_to_reference(x.log_softmax(-1), reference, "k1")  # noqa: E731
    full = lambda x: x.softmax(-1) * (x.log_softmax(-1) - reference)  # noqa: E731
    close(averaged(student).sum(), full(student).sum())
    close(gradient(averaged, student), gradient(full, student))
    assert gradient(full, student).abs().max() > 1e-2


def test_k1_is_the_kl_to_a_reference_that_did_not_write_the_tokens() -> None:
    """With a frozen reference, the old policy writes the tokens. By enumeration k1 is exact, k2 and k3 are far off."""
    student, (reference, old) = logits(1, 17)[0], logits(2, 18).log_softmax(-1)
    estimate = lambda x, kind: old.exp() * kl_to_reference(x.log_softmax(-1), reference, kind, old)  # noqa: E731
    full = lambda x: x.softmax(-1) * (x.log_softmax(-1) - reference)  # noqa: E731
    close(estimate(student, "k1").sum(), full(student).sum())
    close(gradient(lambda x: estimate(x, "k1"), student), gradient(full, student))
    assert all(abs(estimate(student, kind).sum() - full(student).sum()) > 0.5 for kind in ("k2", "k3"))


def test_the_table_of_estimators_in_the_documentation() -> None:
    page = (Path(__file__).parents[3] / "docs" / "objectives.md").read_text(encoding="utf-8")
    assert all(f"  {line}\n" in page for line in estimators.table().splitlines())
    for distances in estimators.CASES.values():
        (exact, k1, *_), (error, *_) = estimators.expectations(*distances)
        assert k1 == pytest.approx(exact, abs=1e-9)
        assert error < 1e-9


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_pulls_back_to_the_reference(estimator: str) -> None:
    reference = t(-1.0, -1.0, -1.0)
    pulls = gradient(lambda x: kl_to_reference(x, reference, estimator), t(-0.5, -1.0, -1.2))
    assert pulls[0] > 0
    assert kl_to_reference(reference, reference, estimator).tolist() == [0, 0, 0]
    if estimator != "k1":  # k1 does so on average only
        assert pulls[1] == 0
        assert pulls[2] < 0
    assert kl_to_reference(t(-900, -1), t(-1, -900), estimator).isfinite().all()


def test_k3_is_an_unbiased_estimate_of_the_kl_and_never_negative() -> None:
    """So k3 needs no clamp at 0, with which an estimate would be inactive most of the time."""
    old, new = logits(2, 19).log_softmax(-1)
    estimate = kl_to_reference(old, new, "k3")
    assert (estimate >= 0).all()
    assert (old.exp() * estimate).sum().item() == pytest.approx((old.exp() * (old - new)).sum().item(), abs=1e-12)


def test_entropy_is_that_of_torch_and_survives_impossible_tokens() -> None:
    """This includes more rows than are computed at once, and no rows."""
    some = logits(600, 20)
    entropy = lambda rows: logprobs_and_entropy(rows, torch.zeros(len(rows), 1, dtype=torch.long))[1]  # noqa: E731
    close(entropy(some), torch.distributions.Categorical(logits=some).entropy())
    assert entropy(t(0, -math.inf, 0)[None]).item() == pytest.approx(math.log(2))
    assert entropy(some[:0]).shape == (0,)


def test_gathered_logprobs_are_those_of_trl_and_float32_from_half_precision() -> None:
    """Half-precision logits are cast to float32 first, as a log-softmax in bfloat16 is off by 2e-2."""
    selective = pytest.importorskip("trl.trainer.utils").selective_log_softmax
    some, ids = logits(30, 21), torch.randint(VOCABULARY, (30, 3), generator=generator(22))
    theirs = torch.stack([selective(some, column) for column in ids.T], -1)
    close(logprobs_and_entropy(some, ids)[0], theirs)
    half = some.bfloat16()
    assert logprobs_and_entropy(half, ids)[0].dtype == torch.float32
    close(logprobs_and_entropy(half, ids)[0], half.float().log_softmax(-1).gather(-1, ids), atol=0)
