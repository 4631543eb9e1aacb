"""Losses per position: pure functions, differentiable in the student's current log-probs only.

Shapes: N positions, K tokens of a support, V vocabulary. All log-probs are natural logs of the full-vocabulary
softmax at temperature 1.
"""

import math

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0  # exp(20) is 5e8: beyond it the ratio carries no information; exp overflows at 89
_ROWS = 256  # rows whose entropies are computed at once
LOG_FULL_MASS = -1e-7  # upper bound of the log of the support's mass, so that the log of the rest is finite


def logprobs_and_entropy(logits_NV: Tensor, ids_NK: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-softmax of each row at its K tokens [N, K], and the entropy of each row [N] without a graph.

    Both are in nats and computed in float32 or better, since bfloat16 errs by 2e-2. The entropy comes last, so that a
    recomputation in the backward pass stops before it. It is computed in chunks of rows, to save memory.
    """
    dtype = torch.promote_types(logits_NV.dtype, torch.float32)
    logprobs_NV = torch.log_softmax(logits_NV, dim=-1, dtype=dtype)
    requested_NK = logprobs_NV.gather(-1, ids_NK)
    entropies = [
        -(logprobs_nV.exp() * logprobs_nV).nan_to_num(0.0).sum(-1)  # p log p is 0 where p is 0
        for logprobs_nV in logprobs_NV.detach().split(_ROWS)
    ]
    return requested_NK, torch.cat(entropies)


def policy_gradient(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, clip_low: float, clip_high: float, dual_clip: float = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (loss, ratio, clipped) of the policy gradient -min(rho A, clip(rho, 1 - low, 1 + high) A) = -ratio A.

    rho = exp(l - l_old), with its log clamped to +-20. `ratio` is rho or, where `clipped` (bool), the bound that
    replaced it. All tensors have one shape: [N] for sampled tokens, [N, K] for a support. This is PPO (Schulman et al.
    2017) with the wider upper bound of DAPO's clip-higher (Yu et al. 2025). For A < 0 the PPO loss is unbounded above;
    `dual_clip` (above 1; 0 is off) bounds the ratio there (Ye et al. 2020).
    """
    rho = (logprobs - old_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    bounded = rho.clamp(1 - clip_low, 1 + clip_high)
    ratio = torch.where(rho * advantages <= bounded * advantages, rho, bounded)
    if dual_clip:
        ratio = torch.where(advantages < 0, ratio.clamp(max=dual_clip), ratio)
    return -ratio * advantages, ratio, ratio != rho


def log_rest(logprobs_NK: Tensor) -> Tensor:
    """Return log(1 - sum over K of exp(l)) [N], the log of the mass outside the support; at least log(1e-7), never NaN.

    With x = log of that sum, it is log(-expm1(x)) if x is near 0, else log1p(-exp(x)) (Maechler 2012).
    """
    mass_N = logprobs_NK.logsumexp(-1).clamp(max=LOG_FULL_MASS)
    near_N = mass_N > -math.log(2)
    # Each branch is clamped to its own range, since the gradient of the unused branch would be infinity times 0.
    high_N, low_N = mass_N.clamp(min=-math.log(2)), mass_N.clamp(max=-math.log(2))
    return torch.where(near_N, (-high_N.expm1()).log(), (-low_N.exp()).log1p())


def divergence(student_NK: Tensor, teacher_NK: Tensor, alpha: float, forward_kl: float = 0) -> Tensor:
    """Return the divergence between student and teacher over B = K + 1 bins: the support and the rest (nats, [N]).

    alpha 0 is the forward KL(teacher || student), alpha 1 the reverse KL(student || teacher). In between it is the
    generalised Jensen-Shannon divergence alpha KL(T || M) + (1 - alpha) KL(S || M), M = (1 - alpha) S + alpha T (GKD,
    Agarwal et al. 2024; the end points as in SDPO). It is never negative. The gradient flows through the student's
    log-probs and its rest, and is exactly 0 where student and teacher are equal. Without the rest, a renormalised
    support of one token would have probability 1 under every model, and the divergence would always be 0.

    For alpha above 0, the gradient at a token vanishes with the student's probability of it, however likely the token
    is under the teacher. So `forward_kl` times the forward KL is added, whose gradient in the logits is S - T.
    """
    student_NB, teacher_NB = (torch.cat([l_NK, log_rest(l_NK)[:, None]], -1) for l_NK in (student_NK, teacher_NK))
    teacher_NB = teacher_NB.detach()
    added_N = forward_kl * _kl(teacher_NB, student_NB) if forward_kl else 0
    if alpha == 0:
        return _kl(teacher_NB, student_NB) + added_N
    if alpha == 1:
        return _kl(student_NB, teacher_NB) + added_N
    # M minimises this sum, so holding M fixed does not change the gradient.
    mixture_NB = _log_mixture(student_NB.detach(), teacher_NB, alpha)
    return alpha * _kl(teacher_NB, mixture_NB) + (1 - alpha) * _kl(student_NB, mixture_NB) + added_N


def _kl(p_NB: Tensor, q_NB: Tensor) -> Tensor:
    """Return KL(p || q) = sum of p (log p - log q) - p + q [N], for log-probs of bins that each sum to 1.

    The last two terms cancel in the sum. They make each bin non-negative, and flat where p = q, so that rounding cannot
    make the sum negative, and equal inputs have a gradient of exactly 0.
    """
    p, q = p_NB.exp(), q_NB.exp()
    return (p * (p_NB - q_NB) - p + q).sum(-1)


def _log_mixture(student: Tensor, teacher: Tensor, alpha: float) -> Tensor:
    """Return log((1 - alpha) exp(student) + alpha exp(teacher)); where both are equal, exactly that value."""
    lower = teacher <= student
    high, low = torch.where(lower, student, teacher), torch.where(lower, teacher, student)
    share_of_low = torch.where(lower, high.new_tensor(alpha), high.new_tensor(1 - alpha))
    return high + (share_of_low * (low - high).expm1()).log1p()


def kl_to_reference(
    logprobs_N: Tensor, reference_N: Tensor, estimator: str, old_logprobs_N: Tensor | None = None
) -> Tensor:
    """Estimate KL(student || reference) from one sampled token at each position (nats, [N]; Schulman 2020).

    The tokens were drawn from the old policy, which is the reference if `old_logprobs_N` is None. With r = l - l_ref,
    k2 = r^2 / 2 and k3 = exp(-r) - 1 + r, as in other trainers. k1 is rho r with rho = exp(l - l_old), not r alone:
    on tokens of the student, the expected gradient of r is zero, and on logged tokens, minimising r would only lower
    their log-probs. With rho, value and gradient are unbiased for tokens of the old policy.
    """
    log_ratio_N = logprobs_N - reference_N
    if estimator == "k1":
        from_old_N = log_ratio_N if old_logprobs_N is None else logprobs_N - old_logprobs_N
        return from_old_N.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp() * log_ratio_N
    if estimator == "k2":
        return log_ratio_N.square() / 2
    return (-log_ratio_N).clamp(max=MAX_LOG_RATIO).expm1() + log_ratio_N
